"""Runs for the command line: data first, then the runs, with progress."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

from lasg.cli import show
from lasg.data.cache import Progress as Told
from lasg.data.loaders import is_embedded, load
from lasg.experiments import pool
from lasg.experiments.spec import Spec
from lasg.experiments.store import Run

RUNS = Path("runs")


def run_all(
    listed: list[Spec],
    out_dir: Path,
    what: str,
    *,
    jobs: int | None,
    fresh: bool = False,
    data_dir: Path | None = None,
) -> list[Run]:
    """Fetch and prepare the data once, before processes share it; then run the specs. Shows progress for both."""
    with fetching() as told:
        for name in sorted({spec.data for spec in listed}):
            if not is_embedded(name):
                load(name, data_dir=data_dir, progress=told)
    with show.following(len(listed), what) as report:
        return pool.run_all(listed, out_dir, jobs=jobs or pool.cores(), fresh=fresh, data_dir=data_dir, report=report)


@contextmanager
def fetching() -> Iterator[Told]:
    """Show a bar for each thing that is downloaded or prepared; give the function to tell it to."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=show.err, transient=True, disable=not show.err.is_terminal) as bars:
        tasks = {}

        def told(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield told
