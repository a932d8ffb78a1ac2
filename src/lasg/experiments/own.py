"""Runs of the caller's own problem, stored like any other: reports and comparisons read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.experiments import build, runner, store
from lasg.experiments.spec import NETWORK_ONLY, OWN, from_dict
from lasg.experiments.status import Report
from lasg.experiments.store import Run

_PROBLEMS = ("data", "workers", "partition", "alpha", "classes", "sizes", "cut", "batch", "lam", "dtype", "model")
"""What the problem decides, and a caller cannot set beside it."""


def train(
    problem: build.Problem,
    algorithm: str = "lasg-wk2",
    *,
    folder: Path | str,
    name: str = "own",
    report: Report | None = None,
    **settings: Any,
) -> Run:
    """Train a problem of your own and store the run in `folder`; a run there that was stopped goes on.

    `settings` are those of a spec that are not the problem's: eta, D, c, H, bits, iterations, until, evaluate,
    optimizer, clip, patience, ... (docs/spec.md). `name` is the task's name in reports.
    """
    wrong = [key for key in settings if key in {*_PROBLEMS, *NETWORK_ONLY} - {"threads"}]
    if wrong:
        raise LasgError(f"{wrong[0]} is the problem's own business: set it there, not here")
    fixed = {"data": OWN, "partition": OWN, "workers": problem.workers, "lam": problem.lam, "dtype": str(problem.dtype)}
    spec = from_dict({"task": name, "algorithm": algorithm, **fixed, **settings})
    folder = Path(folder)
    if (folder / store.META).is_file():
        stored = store.read(folder)
        if stored.spec == spec and stored.status == "running":
            return runner.resume(folder, report=report, problem=problem)
    return runner.run(spec, folder, report=report, problem=problem)
