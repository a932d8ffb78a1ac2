"""What laziness saves on the paper's network: what each spends to SGD's final loss, and its test accuracy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lasg.analysis.compare import Spread, row_at
from lasg.report.paper import neural_spec
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.runs.tasks import task

TASK = "mnist-nn"
SGD: dict[str, dict[str, Any]] = {"sgd": {"algorithm": "sgd"}}
PAPER: dict[str, dict[str, Any]] = {**SGD, "lasg-wk2": {"algorithm": "lasg-wk2"}}
"""Who is compared, at the paper's settings."""
BEST: dict[str, dict[str, Any]] = {**SGD, "4 bits a 512": {"algorithm": "wk2+qsgd4:512"}}
"""What the search found to save most at SGD's accuracy."""
SEARCH: dict[str, dict[str, Any]] = {
    **PAPER,
    **BEST,
    "lasg-wk2, c = 0.4": {"algorithm": "lasg-wk2", "c": 0.4},
    "lasg-wk2, c = 1": {"algorithm": "lasg-wk2", "c": 1.0},
    "8 bits a 512": {"algorithm": "wk2+qsgd8:512"},
}
"""Other constants, and quantisers with a norm per bucket: which saves most at SGD's accuracy?"""
VARIANTS = {"savings": PAPER, "best": BEST, "search": SEARCH}
CAP = 1300
"""Iterations of the others; SGD's are a thousand."""


def specs(
    variants: Mapping[str, Mapping[str, Any]], setting: str, seeds: Sequence[int], **changes: Any
) -> dict[str, list[Spec]]:
    """Return the runs, by label: SGD's of the paper's table, and longer ones of the others, which may need more."""
    listed = {}
    for label, values in variants.items():
        if values["algorithm"] == "sgd":
            listed[label] = [neural_spec(TASK, "sgd", setting, seed, **changes) for seed in seeds]
        else:
            longer = {"iterations": CAP, "evaluate": 50, **values, **changes}
            listed[label] = [task(TASK).spec(setting=setting, seed=seed, **longer) for seed in seeds]
    return listed


def rows(runs: Mapping[str, Sequence[Run]]) -> list[dict[str, Any]]:
    """Return what each spent until it had SGD's final loss of the same seed, and its accuracy when SGD ended."""
    of_sgd, summary = runs["sgd"], []
    for label, group in runs.items():
        reached = [row_at(run, float(sgd.trace["loss"][-1])) for run, sgd in zip(group, of_sgd, strict=True)]
        row: dict[str, Any] = {"variant": label, "seeds": len(group), "reached": sum(i is not None for i in reached)}
        for kind in ("iterations", "uploads", "bits_up"):
            row |= _spent(kind, group, of_sgd, [i for i in reached if i is not None])
        accuracy = np.array([_accuracy_at(run, int(of_sgd[0].trace["iterations"][-1])) for run in group])
        row["accuracy"] = float(accuracy.mean())
        row["accuracy_less_sgds"] = float((accuracy - [run.trace["accuracy"][-1] for run in of_sgd]).mean())
        summary.append(row)
    return summary


def _spent(kind: str, group: Sequence[Run], of_sgd: Sequence[Run], reached: Sequence[int]) -> dict[str, Any]:
    """Return the mean of a count, and how many times fewer than SGD's it is; None unless every seed got there."""
    if len(reached) < len(group):
        return {kind: None, f"fewer_{kind}": None, f"fewer_{kind}_spread": None}
    spent = np.array([run.trace[kind][i] for run, i in zip(group, reached, strict=True)], np.float64)
    fewer = Spread.from_values((np.array([run.trace[kind][-1] for run in of_sgd]) / spent).tolist())
    spread = fewer.std if len(group) > 1 else None
    return {kind: float(spent.mean()), f"fewer_{kind}": fewer.mean, f"fewer_{kind}_spread": spread}


def _accuracy_at(run: Run, iterations: int) -> float:
    """Return the accuracy at the first evaluation after so many iterations."""
    at = min(int(np.searchsorted(run.trace["iterations"], iterations)), len(run.trace["iterations"]) - 1)
    return float(run.trace["accuracy"][at])
