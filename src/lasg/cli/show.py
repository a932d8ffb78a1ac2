"""What the command line prints: tables, numbers, progress."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from lasg.core.ledger import COUNTS
from lasg.experiments.compare import Spread, Summary
from lasg.experiments.runner import Report, Status
from lasg.experiments.store import Run


def _console(stderr: bool) -> Console:
    """Return a console as wide as the terminal; in files and pipes wide enough for every table."""
    console = Console(stderr=stderr)
    width = None if console.is_terminal else max(120, console.width)
    # Paths and names are printed as they are: no markup.
    return Console(stderr=stderr, width=width, markup=False, highlight=False)


out = _console(stderr=False)
err = _console(stderr=True)


def print_json(value: Any) -> None:
    """Print JSON on standard output, and nothing else there."""
    out.file.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def short(value: float) -> str:
    """Write a count in at most four digits: 950, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return str(value)
    for size, unit in ((999.5e9, "T"), (999.5e6, "G"), (999.5e3, "M"), (9999.5, "k")):
        if abs(value) >= size:
            scaled = value / {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f}{unit}"
    return f"{value:.0f}"


def seeds_of(count: int) -> str:
    """Write over how many seeds a mean was taken."""
    return "1 seed" if count == 1 else f"mean of {count} seeds"


def factor(value: float | None) -> str:
    """Write a saving: 4.3x, 41x."""
    if value is None:
        return "-"
    return f"{value:.0f}x" if value >= 9.95 else f"{value:.1f}x"


def plus_minus(value: Spread, digits: int = 4) -> str:
    """Write a mean and its spread."""
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def comparison(summaries: Sequence[Summary], title: str, target: float | None) -> Group:
    """Return the table of a comparison."""
    table = new_table()
    table.add_column("algorithm", no_wrap=True, min_width=9)
    names = ("iterations", "uploads", "upload\nbits", "download\nbits", "gradient\nevaluations")
    for name in (*names, *(() if target else ("loss",)), "fewer\nuploads", "fewer\nupload bits"):
        table.add_column(name, justify="right")
    for row in summaries:
        table.add_row(*_cells(row, target))
    return titled(title, table)


def _cells(row: Summary, target: float | None) -> list[str]:
    if row.diverged:
        return [row.algorithm, f"diverged ({row.diverged} of {row.seeds} seeds)"]
    if not row.counts:
        missed = row.seeds - row.reached
        return [row.algorithm, "not reached" if missed == row.seeds else f"not reached ({missed} of {row.seeds} seeds)"]
    counts = [short(row.counts[name].mean) for name in ("iterations", "uploads", "bits_up", "bits_down", "gradients")]
    loss = [] if target else [plus_minus(row.loss)]
    return [row.algorithm, *counts, *loss, factor(row.fewer_uploads), factor(row.fewer_bits)]


def new_table() -> Table:
    """Return an empty table in the one style of this program."""
    return Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def titled(title: str, table: Table) -> Group:
    """Return a table under its title, which may be wider than the table."""
    return Group(Text(title, style="bold"), table)


@contextmanager
def following(total: int, what: str) -> Iterator[Report]:
    """Show a bar over all runs and one a run under way, with its loss; give the function to report to."""
    progress = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn() if total > 1 else TextColumn("{task.percentage:>3.0f} %"),
        TextColumn("{task.fields[note]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=err,
        transient=True,
        disable=not err.is_terminal,
    )
    whole = progress.add_task(what, total=total if total > 1 else 1.0, note="")
    shares: dict[str, float] = {}

    def report(status: Status) -> None:
        shares[status.spec.label] = status.share
        saved = 1 - status.ledger.uploads / max(1, status.ledger.rounds * status.spec.workers)
        name = f"{status.spec.algorithm} seed {status.spec.seed}: " if total > 1 else ""
        note = f"{name}loss {status.loss:.4f}, {100 * saved:.0f} % of uploads saved"
        progress.update(whole, completed=sum(shares.values()), note=note)

    with progress:
        yield report


def outcome(run: Run) -> Group:
    """Return the table of one run's last evaluation."""
    trace = run.trace
    table = new_table()
    table.add_column("")
    table.add_column("at the end", justify="right")
    table.add_row("loss", f"{trace['loss'][-1]:.6f}")
    if not math.isnan(trace["accuracy"][-1]):
        table.add_row("test accuracy", f"{100 * trace['accuracy'][-1]:.2f} %")
    for name in COUNTS:
        table.add_row(name.replace("_", " "), f"{int(trace[name][-1]):,}")
    return titled(f"{run.spec.algorithm} on {run.spec.task}, seed {run.spec.seed}: {run.status}", table)
