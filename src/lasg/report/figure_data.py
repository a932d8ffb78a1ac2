"""Two of the paper's figures as data: which runs they take, and the rows that are drawn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.algorithms import ALGORITHMS
from lasg.report.paper import PAPER
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.runs.tasks import task

TOY: dict[str, dict[str, Any]] = {
    "lag-wk c=0.4": {"algorithm": "lag-wk", "c": 0.4},
    "lag-wk c=1": {"algorithm": "lag-wk", "c": 1.0},
    "lag-wk c=4": {"algorithm": "lag-wk", "c": 4.0},
    "lasg-wk2 c=0.1": {"algorithm": "lasg-wk2", "c": 0.1},
}
"""The series of the toy figure (toyexample): c in units of 1 / (eta^2 M^2); the paper has 0.4 and 4."""
TOY_LASG = "lasg-wk2 c=0.1"
TOY_PAIRS = {"covtype-lr": ("lag-wk c=0.4", "lag-wk c=4"), "mnist-lr": ("lag-wk c=0.4", "lag-wk c=1")}
"""Where it is drawn: covtype shows the paper's picture with its two values of c, mnist with 0.4 and 1."""
TOY_TASKS = tuple(TOY_PAIRS)


def toy_specs(name: str, seeds: Sequence[int], iterations: int, setting: str) -> dict[str, list[Spec]]:
    """Return the runs of the toy figure."""
    return {
        label: [task(name).spec(setting=setting, seed=seed, iterations=iterations, **values) for seed in seeds]
        for label, values in TOY.items()
    }


def uploads_per(runs: Sequence[Run], epoch: int) -> npt.NDArray[np.float64]:
    """Return the uploads in every `epoch` rounds, mean over runs."""
    totals = [run.uploads.sum(1) for run in runs]
    whole = min(len(total) for total in totals) // epoch * epoch
    found: npt.NDArray[Any] = np.mean([total[:whole].reshape(-1, epoch).sum(1) for total in totals], axis=0)
    return found


def toy_rows(runs: Mapping[str, Sequence[Run]], epoch: int = 10) -> list[dict[str, Any]]:
    """Return uploads per `epoch` iterations, mean over seeds, one column per series."""
    series = {label: uploads_per(group, epoch) for label, group in runs.items()}
    length = min(len(values) for values in series.values())
    return [
        {"iteration": epoch * i, **{label: float(values[i]) for label, values in series.items()}} for i in range(length)
    ]


def gradient_specs(seeds: Sequence[int], iterations: int, setting: str) -> list[Spec]:
    """Return the runs of fig:covtype_grad: every algorithm on covtype, for a number of iterations."""
    return [
        task("covtype-lr").spec(name, setting=setting, seed=seed, iterations=iterations, **PAPER)
        for seed in seeds
        for name in ALGORITHMS
    ]


def gradient_rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return loss against gradient evaluations, one row per evaluation of a run."""
    return [
        {
            "algorithm": run.spec.algorithm,
            "seed": run.spec.seed,
            "iteration": int(run.trace["iterations"][i]),
            "gradients": int(run.trace["gradients"][i]),
            "loss": float(run.trace["loss"][i]),
        }
        for run in runs
        for i in range(len(run.trace["loss"]))
    ]
