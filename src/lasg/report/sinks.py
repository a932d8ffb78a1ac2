"""Where the numbers of runs under way go, besides the screen: a CSV file, TensorBoard."""

from __future__ import annotations

import csv
import math
import os
import socket
import time
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from lasg.core.ledger import COUNTS
from lasg.errors import LasgError, missing_extra
from lasg.runs.files import wrap_write_errors
from lasg.runs.status import Status
from lasg.runs.trace import EVALUATED

EVENTS = "events.out.tfevents.*"


class Sink(Protocol):
    """Takes every report of every run; is closed when all have ended."""

    def __call__(self, status: Status) -> None:
        """Take a report."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


class Csv:
    """One row per evaluation of a run, written as it comes."""

    COLUMNS = ("run", "task", "partition", "algorithm", "seed", *EVALUATED)

    def __init__(self, path: Path | str) -> None:
        path = self._path = Path(path)
        with wrap_write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # What is there stays until the first report: a command that is refused changes nothing.
            self._file = path.open("a", newline="", encoding="utf-8")
        self._writer = csv.writer(self._file, lineterminator="\n")
        self._begun = False

    def __call__(self, status: Status) -> None:
        """Append the evaluations of a report."""
        with wrap_write_errors(self._path):
            if not self._begun:
                self._begun = True
                if self._file.seekable():
                    self._file.truncate(0)
                self._writer.writerow(self.COLUMNS)
            spec = status.spec
            for row in status.evaluations:
                *counts, loss, accuracy = row
                numbers = [*map(int, counts), repr(loss), "" if math.isnan(accuracy) else repr(accuracy)]
                self._writer.writerow([spec.label, spec.task, spec.partition, spec.algorithm, spec.seed, *numbers])
            self._file.flush()

    def close(self) -> None:
        """Close the file."""
        with wrap_write_errors(self._path):
            self._file.close()


class _Events:
    """An event file of TensorBoard, written as it comes: torch's writer has a thread, whose errors nobody can catch."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob(EVENTS):  # what an earlier run of the same name left there is replaced
            old.unlink()
        now, self._event = time.time(), Event
        self._file = (folder / f"events.out.tfevents.{int(now):010d}.{socket.gethostname()}.{os.getpid()}").open("wb")
        self._records = RecordWriter(self._file)
        self._write(file_version="brain.Event:2")

    def _write(self, **values: Any) -> None:
        self._records.write(self._event(wall_time=time.time(), **values).SerializeToString())

    def add_scalar(self, name: str, value: float, step: int) -> None:
        """Write one number."""
        from torch.utils.tensorboard.summary import scalar

        self._write(summary=scalar(name, float(value)), step=step)  # type: ignore[no-untyped-call]

    def flush(self) -> None:
        """Let readers see what was written."""
        self._records.flush()

    def close(self) -> None:
        """Close the file."""
        self._records.close()


class TensorBoard:
    """Scalars for TensorBoard, a folder per run; the step is the iteration."""

    def __init__(self, folder: Path | str) -> None:
        folder = Path(folder)
        try:
            import torch.utils.tensorboard  # noqa: F401  # it needs the package tensorboard
        except ImportError:
            raise missing_extra("tensorboard", "tensorboard") from None
        self._folder = folder
        self._writers: dict[str, _Events] = {}
        with wrap_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)

    def __call__(self, status: Status) -> None:
        """Write the evaluations of a report, and how fast the run is."""
        with wrap_write_errors(self._folder / status.spec.label):
            self._write(status)

    def _write(self, status: Status) -> None:
        label = status.spec.label
        if label not in self._writers:
            self._writers[label] = _Events(self._folder / label)
        writer = self._writers[label]
        for row in status.evaluations:
            values = dict(zip(EVALUATED, row, strict=True))
            step = int(values["iterations"])
            for name in ("loss", "accuracy"):
                if not math.isnan(values[name]):
                    writer.add_scalar(name, values[name], step)
            for name in COUNTS:
                writer.add_scalar(f"ledger/{name}", values[name], step)
            every = values["rounds"] * status.spec.workers
            writer.add_scalar("uploads_saved", 1 - values["uploads"] / every if every else 0.0, step)
        if status.seconds > 0 and not status.stored:
            writer.add_scalar("rounds_per_second", status.ledger.rounds / status.seconds, status.ledger.iterations)
        writer.flush()
        if status.share >= 1:
            self._writers.pop(label).close()

    def close(self) -> None:
        """Close the files of runs that did not end."""
        with wrap_write_errors(self._folder):
            for writer in self._writers.values():
                writer.close()


class Sinks:
    """Several sinks as one; a context that closes them."""

    def __init__(self, *sinks: Sink) -> None:
        self.sinks = sinks

    def __call__(self, status: Status) -> None:
        """Pass a report on to all."""
        for sink in self.sinks:
            sink(status)

    def __enter__(self) -> Self:
        self._open = ExitStack()
        for sink in self.sinks:
            self._open.callback(sink.close)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        with suppress(LasgError) if error is not None else nullcontext():
            self._open.close()
