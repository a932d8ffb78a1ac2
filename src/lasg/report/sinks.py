"""Where the numbers of runs under way go, besides the screen: a CSV file, or a tracker (`lasg.trackers`)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from lasg.core.ledger import COUNTS
from lasg.errors import LasgError, wrap_write_errors
from lasg.runs.status import Status
from lasg.runs.trace import EVALUATED
from lasg.trackers import CsvFile, Target, Tracker


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

    ROUND = ("silent", "threshold", "innovation", "seconds_per_round")
    """What is told of the round before the evaluation, where it is known."""
    COLUMNS = ("run", "task", "partition", "algorithm", "seed", *EVALUATED, "bytes_up", "bytes_down", *ROUND)

    def __init__(self, path: Path | str) -> None:
        # What is there stays until the first report: a command that is refused changes nothing.
        self._file = CsvFile(Path(path))

    def __call__(self, status: Status) -> None:
        """Append the evaluations of a report."""
        spec, rows = status.spec, []
        for row, last in zip(status.evaluations, status.rounds or itertools.repeat({}), strict=False):
            *counts, loss, accuracy = row
            numbers = [*map(int, counts), repr(loss), "" if math.isnan(accuracy) else repr(accuracy)]
            numbers += list(_bytes(row).values())
            about = [repr(last[name]) if name in last else "" for name in self.ROUND]
            rows.append([spec.label, spec.task, spec.partition, spec.algorithm, spec.seed, *numbers, *about])
        self._file.write(self.COLUMNS, rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _bytes(row: Sequence[float]) -> dict[str, float]:
    """Return the bytes that an evaluation's row says were sent so far."""
    values = dict(zip(EVALUATED, row, strict=True))
    return {"bytes_up": values["bits_up"] / 8, "bytes_down": values["bits_down"] / 8}


def figures(status: Status) -> list[tuple[int, dict[str, float]]]:
    """Return what a report says, by iteration: its evaluations, then the last round."""
    found: dict[int, dict[str, float]] = {}
    for row, last in zip(status.evaluations, status.rounds or itertools.repeat({}), strict=False):
        values = dict(zip(EVALUATED, row, strict=True))
        every = values["rounds"] * status.spec.workers
        found.setdefault(int(values["iterations"]), {}).update(
            {name: values[name] for name in ("loss", "accuracy") if not math.isnan(values[name])}
            | {f"ledger/{name}": values[name] for name in COUNTS}
            | {"uploads": values["uploads"], **_bytes(row)}
            | {"uploads_saved": 1 - values["uploads"] / every if every else 0.0}
            | dict(last)
        )
    if not status.stored and status.ledger.rounds:
        found.setdefault(status.ledger.iterations, {}).update(status.last_round)
    return sorted(found.items())


class Tracked:
    """A tracker's run for every run of ours; the step is the iteration."""

    def __init__(self, target: Target) -> None:
        target.check()
        self._target, self._runs = target, dict[str, Tracker]()

    def __call__(self, status: Status) -> None:
        """Write what a report says."""
        label = status.spec.label
        if label not in self._runs:
            self._runs[label] = self._target.open(label, status.spec.to_dict())
        for step, values in figures(status):
            self._runs[label].log(step, values)
        if status.share >= 1:
            self._runs.pop(label).close()

    def close(self) -> None:
        """Close the runs that did not end."""
        for run in self._runs.values():
            run.close()


class TensorBoard(Tracked):
    """Scalars for TensorBoard, a folder per run."""

    def __init__(self, folder: Path | str) -> None:
        super().__init__(Target("tensorboard", str(folder)))
        with wrap_write_errors(Path(folder)):
            Path(folder).mkdir(parents=True, exist_ok=True)


def sink(text: str) -> Sink:
    """Return the sink that `--track` names, such as csv=log.csv or wandb=my-project."""
    target = Target.parse(text)
    if target.kind == "csv":
        return Csv(target.where)
    return TensorBoard(target.where) if target.kind == "tensorboard" else Tracked(target)


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
