"""LASG: lazily aggregated stochastic gradients, for training across slow, metered or unreliable links.

These names are the public ones. Extension points are `lasg.core.rules`, `lasg.core.codecs`, `lasg.core.estimators` and
`lasg.core.transport` (docs/extending.md); all other modules may change between versions. Names load when they are
first used, so that `import lasg` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from lasg import _moved

if TYPE_CHECKING:
    from lasg.analysis.compare import summarise
    from lasg.core.codecs import Codec
    from lasg.core.estimators import Estimator
    from lasg.core.rules import Rule
    from lasg.core.training import Training
    from lasg.errors import LasgError
    from lasg.loops.lazy_optimizer import LazyOptimizer
    from lasg.problems.module import ModuleProblem
    from lasg.problems.regression import Regression
    from lasg.report.plots import plot
    from lasg.runs.factories import problem, training
    from lasg.runs.spec import Spec
    from lasg.runs.store import read, read_runs
    from lasg.runs.tasks import task
    from lasg.runs.train import train
    from lasg.transports.links import join

__version__ = "0.2.0"

_HOMES = {
    "LasgError": "errors",
    "LazyOptimizer": "loops.lazy_optimizer",
    "Codec": "core.codecs",
    "Estimator": "core.estimators",
    "ModuleProblem": "problems.module",
    "Regression": "problems.regression",
    "Rule": "core.rules",
    "Spec": "runs.spec",
    "Training": "core.training",
    "join": "transports.links",
    "plot": "report.plots",
    "problem": "runs.factories",
    "read": "runs.store",
    "read_runs": "runs.store",
    "summarise": "analysis.compare",
    "task": "runs.tasks",
    "train": "runs.train",
    "training": "runs.factories",
}

__all__ = [
    "Codec",
    "Estimator",
    "LasgError",
    "LazyOptimizer",
    "ModuleProblem",
    "Regression",
    "Rule",
    "Spec",
    "Training",
    "__version__",
    "join",
    "plot",
    "problem",
    "read",
    "read_runs",
    "summarise",
    "task",
    "train",
    "training",
]

_moved.install()


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(importlib.import_module(f"lasg.{_HOMES[name]}"), name)
    if name == "runs":  # a package now, which can still be called as the function that it was
        return importlib.import_module("lasg.runs")
    if f"lasg.{name}" in _moved.NAMES:
        return _moved.find(f"lasg.{name}")
    raise AttributeError(f"module 'lasg' has no attribute {name!r}")


def __dir__() -> list[str]:
    return list(__all__)
