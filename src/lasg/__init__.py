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
    from lasg.analysis.compare import summarise as summarise
    from lasg.core.codecs import Codec as Codec
    from lasg.core.estimators import Estimator as Estimator
    from lasg.core.rules import Rule as Rule
    from lasg.core.training import Training as Training
    from lasg.errors import LasgError as LasgError
    from lasg.loops.elastic_loop import elastic as elastic
    from lasg.loops.lazy_loop import lazy as lazy
    from lasg.loops.lazy_optimizer import LazyOptimizer as LazyOptimizer
    from lasg.problems.module import ModuleProblem as ModuleProblem
    from lasg.problems.regression import Regression as Regression
    from lasg.report.plots import plot as plot
    from lasg.runs.factories import problem as problem
    from lasg.runs.factories import training as training
    from lasg.runs.spec import Spec as Spec
    from lasg.runs.store import read as read
    from lasg.runs.store import read_runs as read_runs
    from lasg.runs.tasks import task as task
    from lasg.runs.train import train as train
    from lasg.transports.links import join as join

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
    "elastic": "loops.elastic_loop",
    "join": "transports.links",
    "lazy": "loops.lazy_loop",
    "plot": "report.plots",
    "problem": "runs.factories",
    "read": "runs.store",
    "read_runs": "runs.store",
    "summarise": "analysis.compare",
    "task": "runs.tasks",
    "train": "runs.train",
    "training": "runs.factories",
}

__all__ = ["__version__", *_HOMES]  # noqa: PLE0604 (strings they are)

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
