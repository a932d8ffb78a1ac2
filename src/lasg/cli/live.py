"""What is seen of work under way: bars on a terminal, a line every few seconds in a log file."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from rich.console import Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from lasg.cli.show import err
from lasg.data import cache
from lasg.report.formatting import about, duration, short
from lasg.runs.status import Report, Status

LOG_SECONDS = 5.0
"""How often a log file gets a line."""
RECENT_SECONDS = 2.0
"""A run that reported so recently is under way."""

ENOUGH = 0.02
"""Of one run: before so much is done, nobody can tell how long the rest takes."""

WORTH_TELLING = 1.0
"""Seconds of evaluation from which on they are shown beside those of training."""
MOST_COMPLAINTS = 5
"""Broken gradients that one report lists."""

Clock = Callable[[], float]


@dataclass
class Meter:
    """Adds up the reports of many runs: how far, how fast, how long still."""

    total: int
    clock: Clock = time.monotonic
    ended: int = 0
    share: float = 0.0
    """Of all the work, 0 to 1."""
    _shares: dict[str, float] = field(default_factory=dict)
    _done: dict[str, float] = field(default_factory=dict)
    """What was done while we looked on: not before a stop, not read from disk."""
    _stored: set[str] = field(default_factory=set)
    _rates: dict[str, tuple[float, float]] = field(default_factory=dict)
    _started: float | None = None

    def __call__(self, status: Status) -> None:
        """Take a report."""
        now, label = self.clock(), status.spec.label
        if self._started is None and not status.stored:
            # Not when the processes were started: how long that took says nothing about the work.
            self._started = now - (0.0 if status.began else status.seconds + status.evaluation_seconds)
        self._shares[label] = status.share
        self._done[label] = 0.0 if status.stored else status.share - status.began
        if status.stored:
            self._stored.add(label)
        if not status.stored and status.share < 1 and status.seconds > 0:
            self._rates[label] = (now, status.ledger.rounds / status.seconds)
        if status.share >= 1:
            self._rates.pop(label, None)
        self.ended = sum(share >= 1 for share in self._shares.values())
        self.share = sum(self._shares.values()) / self.total

    @property
    def rounds_per_second(self) -> float:
        """Of all runs under way together."""
        now = self.clock()
        return sum(rate for when, rate in self._rates.values() if now - when < RECENT_SECONDS)

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the work done so far; None before there is any.

        Of the runs that did not report yet, as many are supposed to be stored as of those that did.
        """
        done = sum(self._done.values())
        if self._started is None or done < ENOUGH:
            return None
        known = len(self._shares)
        begun = sum(1 - share for share in self._shares.values())
        ahead = (self.total - known) * (known - len(self._stored)) / known
        return (self.clock() - self._started) * (begun + ahead) / done


def describe(status: Status, meter: Meter) -> str:
    """Write how a run is doing: its name where there are several, loss, uploads saved, rounds a second."""
    name = f"{status.spec.algorithm} seed {status.spec.seed}: " if meter.total > 1 else ""
    rate = meter.rounds_per_second
    fast = f", {short(rate)} rounds/s" if rate else ""
    loss = f"loss {status.loss:.4f}" if abs(status.loss) < 1e4 else f"loss {status.loss:.3g}"
    if math.isnan(status.loss):
        loss = "before the first round"
    apart = ""
    if status.evaluating or status.evaluation_seconds >= WORTH_TELLING:
        spent = f"trained {duration(status.seconds)}, evaluated {duration(status.evaluation_seconds)}"
        apart = f", {spent}{', evaluating now' if status.evaluating else ''}"
    return f"{name}{loss}, {100 * status.saved:.0f} % of uploads saved{fast}{apart}"


def complaints(status: Status) -> list[str]:
    """Say whose gradients were not finite since the last report, and which files were damaged."""
    shown = [
        f"{status.spec.algorithm} seed {status.spec.seed}: worker {worker}'s gradient was NaN or infinite in round "
        f"{k}: it counts as silent"
        for k, worker in status.broken[:MOST_COMPLAINTS]
    ]
    more = len(status.broken) - len(shown)
    return [*status.remarks, *shown, *([f"... and {more} more"] if more else [])]


class Log:
    """A line at most every `LOG_SECONDS`, on standard error."""

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock, self.lines = clock, 0
        self._due = clock() + LOG_SECONDS

    def __call__(self, write: Callable[[], str]) -> None:
        """Print what `write` gives, if a line is due."""
        if self.clock() >= self._due:
            self._due = self.clock() + LOG_SECONDS
            self.lines += 1
            err.print(write(), soft_wrap=True)


@contextmanager
def following(total: int, what: str) -> Iterator[Report]:
    """Show how many runs go; give the function to report to."""
    meter = Meter(total)
    yield from _bars(meter, what) if _draws() else _lines(meter, what)


def _draws() -> bool:
    """Whether standard error is a terminal that can draw bars."""
    return err.is_terminal and not err.is_dumb_terminal


def _bars(meter: Meter, what: str) -> Iterator[Report]:
    """A bar with the time, and under it how the run that reported last is doing."""
    progress = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(bar_width=30),
        TextColumn("{task.fields[ended]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=err,
    )
    bar = progress.add_task(what, total=1.0, ended="", left="")
    note = Text("", no_wrap=True, overflow="ellipsis")

    def report(status: Status) -> None:
        meter(status)
        left = meter.seconds_left
        shown = "" if left is None else f"{about(left)} left"
        for line in complaints(status):
            err.print(line, soft_wrap=True)
        ended = f"{meter.ended}/{meter.total}" if meter.total > 1 else f"{100 * meter.share:.0f} %"
        progress.update(bar, completed=meter.share, ended=ended, left=shown)
        note.plain = describe(status, meter)

    with Live(Group(progress, note), console=err, transient=True, refresh_per_second=8):
        yield report


def _lines(meter: Meter, what: str) -> Iterator[Report]:
    log, started = Log(), time.monotonic()

    def report(status: Status) -> None:
        meter(status)
        left = meter.seconds_left
        for line in complaints(status):
            err.print(line, soft_wrap=True)
        done = f"{meter.ended} of {meter.total} runs, " if meter.total > 1 else ""
        more = "" if left is None else f", {about(left)} left"
        log(lambda: f"{what}: {done}{100 * meter.share:.0f} %; {describe(status, meter)}{more}")

    yield report
    if log.lines:
        err.print(f"{what}: done in {about(time.monotonic() - started)}", soft_wrap=True)


@contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[int, str], None]]:
    """Show how far a count goes; give the function to tell how many more are done, and what is under way."""
    done, started = 0, time.monotonic()
    if not _draws():
        log = Log()

        def tell(more: int, note: str) -> None:
            nonlocal done
            done += more
            left = (time.monotonic() - started) * (total - done) / max(done, 1)
            log(lambda: f"{what}: {100 * done / total:.0f} %; {note}, {about(left)} left")

        yield tell
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True) as bars:
        bar = bars.add_task(what, total=total)
        yield lambda more, note: bars.update(bar, advance=more, description=f"{what}: {note}")


@contextmanager
def fetching() -> Iterator[cache.Progress]:
    """Show each thing that is downloaded or prepared; give the function to tell it to."""
    if not _draws():
        log = Log()
        yield lambda what, done, total: log(
            lambda: f"{what}: {done / 1e6:.0f}{f' of {total / 1e6:.0f}' if total else ''} MB"
        )
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bars:
        tasks = {}

        def update(what: str, done: int, total: int | None) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=total)
            bars.update(tasks[what], completed=done, total=total)

        yield update
