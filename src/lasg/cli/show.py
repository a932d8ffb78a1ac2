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

from lasg.analysis.compare import Summary
from lasg.analysis.link_model import LinkModel
from lasg.cli.catalog import Entry
from lasg.core.ledger import COUNTS
from lasg.report.formatting import duration, factor, plus_minus, short, small
from lasg.report.verdict import why_no_savings
from lasg.runs.store import Run


def _console(stderr: bool) -> Console:
    """Return a console as wide as the terminal; in files and pipes wide enough for every table."""
    console = Console(stderr=stderr)
    width = None if console.is_terminal else max(140, console.width)
    # Paths and names are printed as they are: no markup.
    return Console(stderr=stderr, width=width, markup=False, highlight=False)


out = _console(stderr=False)
err = _console(stderr=True)


GAP = 2
"""Columns of a terminal between two of a table."""


def print_json(value: Any) -> None:
    """Print JSON on standard output, and nothing else there."""
    out.file.write(json.dumps(value, indent=2, allow_nan=False, default=str) + "\n")


def comparison(rows: Sequence[Summary], title: str, target: float | None, network: LinkModel | None = None) -> Group:
    """Return the table of a comparison."""
    names = ["iterations", "uploads", "upload\nbits", "download\nbits", "gradient\nevaluations"]
    names += [] if network is None else ["MB", "simulated\ntime"]
    if target is None:
        loss = rows[0].savings_loss
        names += ["loss", *([] if loss is None else [f"uploads to\nloss {loss:g}"])]
    names += ["fewer\nuploads", "fewer\nupload bits", *([] if network is None else ["times\nfaster"])]
    cells = [_cells(row, target, network) or [row.label, *["-"] * len(names)] for row in rows]
    whole = title if network is None else f"{title}; network {network.name}"
    below = [*remarks(rows), *([] if target else savings_note(rows))]
    return Group(titled(whole, *fitting("algorithm", names, cells)), *below)


def savings_note(summaries: Sequence[Summary]) -> list[Text]:
    """Say at which loss savings were taken where none was aimed at, or why there are none."""
    if all(row.diverged for row in summaries):
        return []
    reason = why_no_savings(summaries)
    if reason:
        return [Text(f"No savings: {reason}.")]
    loss = f"{summaries[0].savings_loss:g}"
    return [
        Text(f"Counts and losses are at the end of the runs; savings compare what each spent to reach loss {loss}.")
    ]


def remarks(summaries: Sequence[Summary]) -> list[Text]:
    """Say, a line per algorithm, why it has no numbers."""
    return [Text(f"{row.label}: {row.remark}") for row in summaries if row.remark]


def fitting(label: str, names: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Table]:
    """Return a table as several, one under the other, where its columns are too wide for the terminal."""
    widths = [
        max(len(line) for line in (*name.split("\n"), *(row[i + 1] for row in rows))) for i, name in enumerate(names)
    ]
    first = max(len(text) for text in (label, *(row[0] for row in rows)))
    parts: list[list[int]] = [[]]
    room = out.width - first
    for i, width in enumerate(widths):
        if parts[-1] and width + GAP > room:
            parts.append([])
            room = out.width - first
        parts[-1].append(i)
        room -= width + GAP
    return [_part(label, names, rows, part) for part in parts]


def _part(label: str, names: Sequence[str], rows: Sequence[Sequence[str]], part: Sequence[int]) -> Table:
    table = new_table()
    table.add_column(label, no_wrap=True)
    for i in part:
        table.add_column(names[i], justify="right")
    for row in rows:
        table.add_row(row[0], *(row[i + 1] for i in part))
    return table


def _cells(row: Summary, target: float | None, network: LinkModel | None) -> list[str]:
    if not row.counts:
        return []
    counts = [short(row.counts[name].mean) for name in ("iterations", "uploads", "bits_up", "bits_down", "gradients")]
    if network is not None:
        counts += [small(row.counts["megabytes"].mean), duration(row.counts["seconds"].mean)]
    if target is None:
        spent = row.to_savings_loss.get("uploads")
        counts += [plus_minus(row.loss), short(spent.mean) if spent else "-"]
    saved = [row.fewer_uploads, row.fewer_bits, *([] if network is None else [row.faster])]
    return [row.label, *counts, *map(factor, saved)]


def times(timed: Mapping[str, Sequence[Summary]], title: str) -> Group:
    """Return the table of simulated times: a row per algorithm, a column per network."""
    rows = [
        [
            summaries[0].label,
            *(
                f"{duration(row.counts['seconds'].mean)} {factor(row.faster):>5}" if row.counts else "-"
                for row in summaries
            ),
        ]
        for summaries in zip(*timed.values(), strict=True)
    ]
    return Group(titled(title, *fitting("algorithm", list(timed), rows)), *remarks(next(iter(timed.values()))))


def new_table() -> Table:
    """Return an empty table in the one style of this program."""
    return Table(header_style="bold", box=SIMPLE_HEAD, pad_edge=False, show_edge=False, collapse_padding=True)


def titled(title: str, *tables: Table) -> Group:
    """Return tables under their title, which may be wider than they are."""
    return Group(Text(title, style="bold"), *tables)


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
    shown = titled(f"{run.spec.algorithm} on {run.spec.task}, seed {run.spec.seed}: {run.status}", table)
    sent = run.meta.get("bytes_sent")
    return Group(shown, links(sent)) if sent and len(sent) > 1 else shown


def runs_table(entries: Sequence[Entry]) -> Group:
    """Return the table of stored runs, whose names are never cut."""
    rows = []
    for entry in entries:
        spec, loss = entry.run.spec, "" if entry.loss is None else f"{entry.loss:.4g}"
        iterations, uploads = ("" if value is None else f"{value:,}" for value in (entry.iterations, entry.uploads))
        what = [str(entry.run.folder), spec.task, spec.algorithm, str(spec.seed), entry.status]
        rows.append([*what, iterations, loss, uploads, f"{entry.when:%Y-%m-%d %H:%M}"])
    names = ("task", "algorithm", "seed", "status", "iterations", "loss", "uploads", "when")
    return Group(*fitting("run", names, rows))


def links(sent: Sequence[Sequence[int]]) -> Group:
    """Return the table of what really travelled between ranks."""
    table = new_table()
    table.add_column("")
    for rank in range(len(sent)):
        table.add_column(f"to {rank}", justify="right")
    for rank, row in enumerate(sent):
        table.add_row(f"from rank {rank}", *("-" if to == rank else f"{bytes_:,}" for to, bytes_ in enumerate(row)))
    return titled(f"bytes over the links: {sum(map(sum, sent)):,}", table)
