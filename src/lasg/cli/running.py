"""Runs for the command line: data first, then the runs, with progress and, if wished, their numbers in files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lasg.cli import live
from lasg.data.loaders import is_embedded, load
from lasg.experiments import pool
from lasg.experiments.spec import Spec
from lasg.experiments.status import Report, Status
from lasg.experiments.store import Run
from lasg.report.sinks import Csv, Sink, Sinks, TensorBoard

RUNS = Path("runs")


def run_all(
    listed: Sequence[Spec],
    out_dir: Path,
    what: str,
    *,
    jobs: int | None,
    fresh: bool = False,
    data_dir: Path | None = None,
    csv: Path | None = None,
    tensorboard: Path | None = None,
) -> list[Run]:
    """Fetch and prepare the data once, before processes share it; then run the specs. Shows progress for both.

    A spec that is listed twice runs once. Runs of one problem share its data, so they go one after another.
    """
    order = sorted(listed, key=lambda spec: (spec.data, spec.partition, spec.seed))
    once = {spec.digest: spec for spec in order}
    with writing(csv, tensorboard) as files:
        with live.fetching() as told:
            for name in sorted({spec.data for spec in listed}):
                if not is_embedded(name):
                    load(name, data_dir=data_dir, progress=told)
        with live.following(len(once), what) as follow:
            report = both(follow, files)
            some = list(once.values())
            done = pool.run_all(some, out_dir, jobs=jobs or pool.cores(), fresh=fresh, data_dir=data_dir, report=report)
    runs = dict(zip(once, done, strict=True))
    return [runs[spec.digest] for spec in listed]


def both(first: Report, second: Report) -> Report:
    """Return a function that reports to two."""

    def report(status: Status) -> None:
        first(status)
        second(status)

    return report


def writing(csv: Path | None, tensorboard: Path | None) -> Sinks:
    """Open the files that the options --csv and --tensorboard name."""
    found: list[Sink] = []
    if tensorboard is not None:
        found.append(TensorBoard(tensorboard))
    if csv is not None:
        found.append(Csv(csv))
    return Sinks(*found)
