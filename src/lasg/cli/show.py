"""What the command line prints: tables, numbers, progress."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from lasg.core.ledger import COUNTS
from lasg.core.network import Network
from lasg.experiments.compare import Summary
from lasg.experiments.store import Run
from lasg.experiments.words import duration, factor, plus_minus, short, small


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


def comparison(summaries: Sequence[Summary], title: str, target: float | None, network: Network | None = None) -> Group:
    """Return the table of a comparison."""
    table = new_table()
    table.add_column("algorithm", no_wrap=True, min_width=9)
    names = ("iterations", "uploads", "upload\nbits", "download\nbits", "gradient\nevaluations")
    timed = () if network is None else ("MB", "simulated\ntime", "times\nfaster")
    for name in (*names, *(() if target else ("loss",)), "fewer\nuploads", "fewer\nupload bits", *timed):
        table.add_column(name, justify="right")
    for row in summaries:
        table.add_row(*_cells(row, target, network))
    return titled(title if network is None else f"{title}; network {network.name}", table)


def _cells(row: Summary, target: float | None, network: Network | None) -> list[str]:
    if row.diverged:
        return [row.label, f"diverged ({row.diverged} of {row.seeds} seeds)"]
    if not row.counts:
        missed = row.seeds - row.reached
        return [row.label, "not reached" if missed == row.seeds else f"not reached ({missed} of {row.seeds} seeds)"]
    counts = [short(row.counts[name].mean) for name in ("iterations", "uploads", "bits_up", "bits_down", "gradients")]
    loss = [] if target else [plus_minus(row.loss)]
    timed = []
    if network is not None:
        timed = [small(row.megabytes or 0), duration(row.counts["seconds"].mean), factor(row.faster)]
    return [row.label, *counts, *loss, factor(row.fewer_uploads), factor(row.fewer_bits), *timed]


def times(timed: Mapping[str, Sequence[Summary]], title: str) -> Group:
    """Return the table of simulated times: a row an algorithm, a column a network."""
    table = new_table()
    table.add_column("algorithm", no_wrap=True)
    for name in timed:
        table.add_column(name, justify="right", no_wrap=True)
    for rows in zip(*timed.values(), strict=True):
        cells = [f"{duration(r.counts['seconds'].mean)} {factor(r.faster):>5}" if r.counts else "-" for r in rows]
        table.add_row(rows[0].label, *cells)
    return titled(title, table)


def new_table() -> Table:
    """Return an empty table in the one style of this program."""
    return Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def titled(title: str, table: Table) -> Group:
    """Return a table under its title, which may be wider than the table."""
    return Group(Text(title, style="bold"), table)


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
