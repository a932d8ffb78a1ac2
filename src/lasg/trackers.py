"""Where figures go as they come: wandb, MLflow, trackio, TensorBoard, CSV. One protocol for commands and for loops.

A package is imported when its tracker is opened, and not before. Nothing is sent anywhere unless the tracker that was
asked for does it: wandb and MLflow have offline modes of their own (docs/following.md).
"""

from __future__ import annotations

import csv
import errno
import importlib
import math
import os
import socket
import stat
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Protocol

from lasg.errors import CannotWrite, LasgError, did_you_mean, first_line, missing_extra, wrap_write_errors

if TYPE_CHECKING:
    from collections.abc import Iterator

EVENTS = "events.out.tfevents.*"
PROJECT = "lasg"
"""The project, or experiment, where none is named."""
KINDS = {"wandb": "PROJECT", "mlflow": "EXPERIMENT", "trackio": "PROJECT", "tensorboard": "FOLDER", "csv": "FILE"}
"""Trackers by name, and what may stand behind `=`."""
NEEDS_PLACE = ("tensorboard", "csv")
MODULES = {"wandb": "wandb", "mlflow": "mlflow", "trackio": "trackio", "tensorboard": "torch.utils.tensorboard"}
MOST_WORKERS = 32
"""Up to so many workers each has a figure of its own: whether it uploaded."""


class Tracker(Protocol):
    """Takes the figures of one run, in the order of their steps."""

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write figures; what is not finite is left out by the caller."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


@dataclass(frozen=True)
class Target:
    """A tracker that somebody asked for: `wandb=my-project`."""

    kind: str
    where: str

    @classmethod
    def parse(cls, text: str) -> Target:
        """Read NAME or NAME=WHERE, and look that its package is there."""
        kind, _, where = text.partition("=")
        if kind not in KINDS:
            known = ", ".join(f"{name}={place}" for name, place in KINDS.items())
            raise LasgError(f"unknown tracker {kind!r}.{did_you_mean(kind, KINDS)} Known: {known}")
        if kind in NEEDS_PLACE and not where:
            raise LasgError(f"the tracker {kind} needs a place: {kind}={KINDS[kind]}")
        target = cls(kind, where or PROJECT)
        target.check()
        return target

    def check(self) -> None:
        """Refuse a package that is not installed, before the work is done."""
        if self.kind in MODULES:
            try:
                importlib.import_module(MODULES[self.kind])
            except ImportError:
                raise missing_extra(self.kind, self.kind) from None

    def open(self, name: str, about: Mapping[str, Any]) -> Tracker:
        """Begin a run of this name; `about` are its settings."""
        if self.kind == "tensorboard":
            return TensorBoardRun(Path(self.where) / name)
        if self.kind == "csv":
            return CsvRun(Path(self.where))
        with _wrap(self.kind, "begin a run"):
            return PackageRun(self.kind, RUNS[self.kind](self.where, name, about))


@contextmanager
def _wrap(kind: str, what: str) -> Iterator[None]:
    """Say in one line what a tracker could not do: it is not worth a traceback of its own package."""
    try:
        yield
    except LasgError:
        raise
    except Exception as error:
        hint = "; WANDB_MODE=offline writes to this disk alone" if kind == "wandb" else ""
        raise CannotWrite(f"{kind} could not {what}: {first_line(error)}{hint}") from None


def plain(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings as words and numbers: what every tracker takes."""
    return {key: value if isinstance(value, str | int | float | bool) else str(value) for key, value in about.items()}


def finite(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the figures that are numbers."""
    return {name: float(value) for name, value in values.items() if value is not None and math.isfinite(value)}


def of_round(uploaded: Iterable[Any], threshold: float, left: Iterable[Any] | None) -> dict[str, float]:
    """Return what a round says: who was silent, and both sides of the rule, the left one as the workers' mean."""
    flags = [bool(value) for value in uploaded]
    values: dict[str, float | None] = {"silent": len(flags) - sum(flags), "threshold": float(threshold)}
    known = [float(value) for value in left if math.isfinite(value)] if left is not None else []
    values["innovation"] = sum(known) / len(known) if known else None
    if len(flags) <= MOST_WORKERS:
        values |= {f"uploaded/worker_{m}": float(value) for m, value in enumerate(flags)}
    return finite(values)


# -- the trackers ----------------------------------------------------------------------------------------------------


class CsvFile:
    """Rows of CSV, each on the disk as soon as it is written. What is there stays until the first row."""

    def __init__(self, path: Path) -> None:
        self.path, self._begun = path, False
        with wrap_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")

    def write(self, columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
        """Append rows, below the columns' names."""
        with wrap_write_errors(self.path):
            check_there(self.path, self._file)
            if not self._begun:
                self._begun = True
                if self._file.seekable():
                    self._file.truncate(0)
                self._writer.writerow(columns)
            self._writer.writerows(rows)
            self._file.flush()

    def rows(self) -> list[dict[str, str]]:
        """Return the rows that were written."""
        with self.path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))

    def begin_again(self) -> None:
        """Let the next row replace all that is there."""
        self._begun = False

    def close(self) -> None:
        """Close the file."""
        with wrap_write_errors(self.path):
            self._file.close()


def check_there(path: Path, file: IO[Any]) -> None:
    """Refuse to write to a file that nobody can read any more: its disk is gone, or it was removed."""
    mine = os.fstat(file.fileno())
    if stat.S_ISREG(mine.st_mode) and not (path.exists() and os.path.samestat(mine, path.stat())):
        raise FileNotFoundError(errno.ENOENT, "it is gone")


class CsvRun:
    """A row per step, a column per figure; where a new figure comes later, the rows before have empty cells."""

    def __init__(self, path: Path) -> None:
        self._file, self._columns = CsvFile(path), list[str]()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append a row."""
        new = [name for name in values if name not in self._columns]
        if new:
            before = self._file.rows() if self._columns else []
            self._columns = [*(self._columns or ["step"]), *new]
            self._file.begin_again()
            self._file.write(self._columns, ([row.get(name, "") for name in self._columns] for row in before))
        row = {"step": step, **{name: repr(value) for name, value in values.items()}}
        self._file.write(self._columns, [[row.get(name, "") for name in self._columns]])

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class TensorBoardRun:
    """Scalars in a folder, in an event file of TensorBoard; an earlier run's of the same name is replaced.

    It is written as it comes: torch's own writer has a thread, whose errors nobody can catch.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._folder, self._event, now = folder, Event, int(time.time())
        with wrap_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob(EVENTS):
                old.unlink()
            self._path = folder / f"events.out.tfevents.{now:010d}.{socket.gethostname()}.{os.getpid()}"
            self._file = self._path.open("wb")
            self._records = RecordWriter(self._file)
            self._write(file_version="brain.Event:2")

    def _write(self, **values: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **values).SerializeToString())

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write a scalar per figure, and let readers see them."""
        from torch.utils.tensorboard.summary import scalar

        with wrap_write_errors(self._folder):
            check_there(self._path, self._file)
            for name, value in values.items():
                self._write(summary=scalar(name, float(value)), step=step)  # type: ignore[no-untyped-call]
            self._records.flush()

    def close(self) -> None:
        """Close the file."""
        with wrap_write_errors(self._folder):
            self._records.close()


class PackageRun:
    """A run of a tracker's package, whose errors are one line: a disk that is full, a server that is gone."""

    def __init__(self, kind: str, run: Tracker) -> None:
        self._kind, self._run = kind, run

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        with _wrap(self._kind, "write figures"):
            self._run.log(step, values)

    def close(self) -> None:
        """End the run."""
        with _wrap(self._kind, "end a run"):
            self._run.close()


class WandbRun:
    """A run of Weights & Biases."""

    def __init__(self, project: str, name: str, about: Mapping[str, Any]) -> None:
        import wandb

        # Several runs at once, in one process; the terminal stays ours.
        settings = wandb.Settings(console="off")
        self._run: Any = wandb.init(
            project=project, name=name, config=plain(about), reinit="create_new", settings=settings
        )

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


class MlflowRun:
    """A run of MLflow, in an experiment at MLFLOW_TRACKING_URI."""

    def __init__(self, experiment: str, name: str, about: Mapping[str, Any]) -> None:
        from mlflow.entities import Metric, Param
        from mlflow.tracking import MlflowClient

        self._metric, self._client = Metric, MlflowClient()
        known = self._client.get_experiment_by_name(experiment)
        number = self._client.create_experiment(experiment) if known is None else known.experiment_id
        self._id = self._client.create_run(number, run_name=name).info.run_id
        settings = [Param(key, str(value)) for key, value in plain(about).items()]
        self._client.log_batch(self._id, params=settings)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        now = int(1000 * time.time())
        self._client.log_batch(self._id, [self._metric(name, value, now, step) for name, value in values.items()])

    def close(self) -> None:
        """End the run."""
        self._client.set_terminated(self._id)


class TrackioRun:
    """A run of trackio, in its folder on this machine."""

    def __init__(self, project: str, name: str, about: Mapping[str, Any]) -> None:
        import trackio

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._run: Any = trackio.init(project=project, name=name, config=plain(about), embed=False)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the figures of a step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End the run."""
        self._run.finish()


RUNS: dict[str, Callable[[str, str, Mapping[str, Any]], Tracker]] = {
    "wandb": WandbRun,
    "mlflow": MlflowRun,
    "trackio": TrackioRun,
}
