"""Which runs are stored, how far each is, and which can be continued."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lasg.errors import LasgError
from lasg.runs import store
from lasg.runs.files import is_locked
from lasg.runs.store import Run

RUNNING, UNFINISHED = "running", "unfinished"
"""Of a run that did not end: whether a process is at it now."""
MOST_NAMED = 3
"""Runs, or folders, that one line names."""


@dataclass(frozen=True)
class Entry:
    """A stored run in a list. What is not known yet is None."""

    run: Run
    status: str
    """running, unfinished, done or diverged."""
    when: datetime
    """When it was last written."""
    iterations: int | None
    loss: float | None
    uploads: int | None

    @property
    def command(self) -> str:
        """What to type to continue it."""
        return self.run.how_to_resume.strip("`")

    def row(self) -> dict[str, Any]:
        """Return it as JSON values."""
        spec = self.run.spec
        return {
            "run": str(self.run.folder),
            "task": spec.task,
            "algorithm": spec.algorithm,
            "seed": spec.seed,
            "status": self.status,
            "iterations": self.iterations,
            "loss": self.loss,
            "uploads": self.uploads,
            "when": self.when.isoformat(timespec="seconds"),
        }


def find(folders: Sequence[Path]) -> tuple[list[Entry], list[str]]:
    """Return the runs in these folders, the newest last, and a line about each thing that had to be skipped."""
    found: dict[Path, Entry] = {}
    skipped: list[str] = []
    for folder in folders:
        if not folder.is_dir():
            raise LasgError(f"{folder} is not a folder: name one that holds runs, such as the --out of lasg compare")
        inside = [folder] if store.is_run(folder) else sorted(child for child in folder.iterdir() if child.is_dir())
        foreign = [child for child in inside if not store.is_run(child)]
        for path in inside:
            if path not in foreign:
                try:
                    found[path.resolve()] = entry(path)
                except LasgError as error:
                    skipped.append(f"skipped {path}: {error}")
        if foreign:
            skipped.append(f"skipped in {folder}, which are no runs: {_some([child.name for child in foreign])}")
    return sorted(found.values(), key=lambda one: one.when), skipped


def entry(folder: Path) -> Entry:
    """Read one run for a list."""
    run = store.read(folder)
    status = run.status
    if status == "running":
        status = RUNNING if is_locked(folder) else UNFINISHED
        evaluated = store.read_progress(folder)
    else:
        evaluated = run.trace
    files = (folder / name for name in (store.META, store.CHECKPOINT))
    when = max(path.stat().st_mtime for path in files if path.is_file())
    last = {name: values[-1].item() for name, values in evaluated.items() if values.ndim == 1 and len(values)}
    return Entry(
        run,
        status,
        datetime.fromtimestamp(when).astimezone(),
        last.get("iterations"),
        last.get("loss"),
        last.get("uploads"),
    )


def how_to_go_on(folders: Sequence[Path], out: Path) -> str:
    """Say, of runs that were just stopped, which can be continued, and how."""
    begun = [folder for folder in dict.fromkeys(folders) if _is_unfinished(folder)]
    if not begun:
        return "stopped before a run began"
    commands = _some([f"lasg resume {folder}" for folder in begun])
    more = f" (lasg list runs {out})" if len(begun) > MOST_NAMED else ""
    return f"stopped. To go on: {commands}{more}"


def _is_unfinished(folder: Path) -> bool:
    try:
        return store.read(folder).status == "running"
    except LasgError:
        return False


def _some(names: Sequence[str]) -> str:
    """Name the first few of many."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
