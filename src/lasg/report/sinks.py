"""Where the numbers of runs under way go, besides the screen: a CSV file, or a tracker (`lasg.trackers`)."""

from __future__ import annotations

import math
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

    COLUMNS = ("run", "task", "partition", "algorithm", "seed", *EVALUATED)

    def __init__(self, path: Path | str) -> None:
        # What is there stays until the first report: a command that is refused changes nothing.
        self._file = CsvFile(Path(path))

    def __call__(self, status: Status) -> None:
        """Append the evaluations of a report."""
        spec, rows = status.spec, []
        for row in status.evaluations:
            *counts, loss, accuracy = row
            numbers = [*map(int, counts), repr(loss), "" if math.isnan(accuracy) else repr(accuracy)]
            rows.append([spec.label, spec.task, spec.partition, spec.algorithm, spec.seed, *numbers])
        self._file.write(self.COLUMNS, rows)

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def figures(status: Status) -> list[tuple[int, dict[str, float]]]:
    """Return what a report says, by iteration: its evaluations, then how fast it is and what the last round was."""
    found: dict[int, dict[str, float]] = {}
    for row in status.evaluations:
        values = dict(zip(EVALUATED, row, strict=True))
        every = values["rounds"] * status.spec.workers
        found.setdefault(int(values["iterations"]), {}).update(
            {name: values[name] for name in ("loss", "accuracy") if not math.isnan(values[name])}
            | {f"ledger/{name}": values[name] for name in COUNTS}
            | {"bytes_up": values["bits_up"] / 8, "bytes_down": values["bits_down"] / 8}
            | {"uploads_saved": 1 - values["uploads"] / every if every else 0.0}
        )
    if status.seconds > 0 and not status.stored and status.ledger.rounds:
        speed = status.ledger.rounds / status.seconds
        now = {"rounds_per_second": speed, "seconds_per_round": 1 / speed, **status.last_round}
        found.setdefault(status.ledger.iterations, {}).update(now)
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
