"""Runs of the caller's own problem, stored like any other: reports and comparisons read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.experiments import build, runner, store
from lasg.experiments.spec import OWN, from_dict
from lasg.experiments.status import Report
from lasg.experiments.store import Run


def train(
    problem: build.Problem,
    algorithm: str = "lasg-wk2",
    *,
    folder: Path | str,
    name: str = "own",
    fresh: bool = False,
    report: Report | None = None,
    **settings: Any,
) -> Run:
    """Train a problem of your own and store the run in `folder`.

    Called again it goes on with a run that was stopped, and returns one that is done; `fresh` runs anew. `settings`
    are those of a spec that are not the problem's: eta, D, c, H, bits, iterations, until, evaluate, optimizer, clip,
    patience, threads, ... (docs/spec.md). `name` is the task's name in reports.
    """
    wrong = [key for key in settings if key in build.PROBLEM]
    if wrong:
        raise LasgError(f"{wrong[0]} is the problem's own business: set it there, not here")
    fixed = {"data": OWN, "partition": OWN, "workers": problem.workers, "lam": problem.lam, "dtype": str(problem.dtype)}
    fixed |= {"seed": problem.seed, "batch": problem.share}
    spec = from_dict({"task": name, "algorithm": algorithm, **fixed, **settings})
    folder = Path(folder)
    if fresh or not (folder / store.META).is_file():
        return runner.run(spec, folder, report=report, problem=problem)
    stored = store.read(folder)
    if stored.spec != spec or stored.meta["data_sha256"] != problem.fingerprint():
        raise LasgError(f"{folder} holds a run of another problem or of other settings: take another folder, or fresh")
    return runner.resume(folder, report=report, problem=problem)
