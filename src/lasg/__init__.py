"""LASG: lazily aggregated stochastic gradients, for training across slow, metered or unreliable links.

Names load when they are first used, so that `import lasg` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lasg.analysis.compare import summarise
    from lasg.core.algorithms import ALGORITHMS, Algorithm, algorithm
    from lasg.core.codecs import QSGD, Codec, Dense
    from lasg.core.ledger import Ledger
    from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, TorchOptimizer
    from lasg.core.rules import RULES, Record, Rule
    from lasg.core.server import Laziness, Server
    from lasg.core.training import Round
    from lasg.core.workers import Workers
    from lasg.errors import Diverged, Faulty, LasgError
    from lasg.loops.lazy_optimizer import LazyOptimizer
    from lasg.problems.module import ModuleProblem
    from lasg.problems.regression import Regression
    from lasg.report.plots import plot
    from lasg.runs.factories import problem, simulation
    from lasg.runs.spec import Spec
    from lasg.runs.store import Run, read, read_runs
    from lasg.runs.tasks import TASKS, task
    from lasg.runs.train import train
    from lasg.transports.links import join
    from lasg.transports.local import Simulation
    from lasg.transports.ranks import Distributed

__version__ = "0.1.0"

_HOMES = {
    "core.algorithms": ("ALGORITHMS", "Algorithm", "algorithm"),
    "core.codecs": ("QSGD", "Codec", "Dense"),
    "core.ledger": ("Ledger",),
    "core.optimizers": ("ClosedFormSGD", "Constant", "Decreasing", "TorchOptimizer"),
    "core.rules": ("RULES", "Record", "Rule"),
    "core.server": ("Laziness", "Server"),
    "core.workers": ("Workers",),
    "transports.ranks": ("Distributed",),
    "loops.lazy_optimizer": ("LazyOptimizer",),
    "transports.links": ("join",),
    "core.training": ("Round",),
    "transports.local": ("Simulation",),
    "errors": ("Diverged", "Faulty", "LasgError"),
    "runs.factories": ("problem", "simulation"),
    "analysis.compare": ("summarise",),
    "runs.train": ("train",),
    "runs.spec": ("Spec",),
    "runs.store": ("Run", "read", "read_runs"),
    "runs.tasks": ("TASKS", "task"),
    "problems.module": ("ModuleProblem",),
    "problems.regression": ("Regression",),
    "report.plots": ("plot",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}

__all__ = [
    "ALGORITHMS",
    "QSGD",
    "RULES",
    "TASKS",
    "Algorithm",
    "ClosedFormSGD",
    "Codec",
    "Constant",
    "Decreasing",
    "Dense",
    "Distributed",
    "Diverged",
    "Faulty",
    "LasgError",
    "Laziness",
    "LazyOptimizer",
    "Ledger",
    "ModuleProblem",
    "Record",
    "Regression",
    "Round",
    "Rule",
    "Run",
    "Server",
    "Simulation",
    "Spec",
    "TorchOptimizer",
    "Workers",
    "__version__",
    "algorithm",
    "join",
    "plot",
    "problem",
    "read",
    "read_runs",
    "simulation",
    "summarise",
    "task",
    "train",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lasg' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lasg.{_HOME_OF[name]}"), name)


def __dir__() -> list[str]:
    return list(__all__)
