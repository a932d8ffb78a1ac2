"""The paper's tables as text: ours beside the printed numbers, as CSV, Markdown and sentences."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

from lasg.report.formatting import seeds_of
from lasg.report.paper import NEURAL_BITS, NEURAL_TASKS, Cell, Result, Verdict

COLUMNS = ("table", "setting", "task", "budget_kind", "budget", "algorithm", "loss")


def to_row(result: Result) -> dict[str, Any]:
    """Return the columns of the paper's table and ours."""
    printed = {name: getattr(result.cell, name) for name in COLUMNS}
    ours = {"ours": result.ours.mean, "spread": result.ours.std if result.seeds > 1 else None}
    return {**printed, **ours, "seeds": result.seeds, "deviation": result.deviation}


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows as CSV; floats with six digits."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({k: f"{v:.6g}" if isinstance(v, float) else v for k, v in row.items()})
    return buffer.getvalue()


def to_markdown(results: Sequence[Result]) -> str:
    """Return a table per task: algorithm, ours with its spread, the paper's, the deviation."""
    lines = []
    for name in dict.fromkeys(result.cell.task for result in results):
        row = [result for result in results if result.cell.task == name]
        lines += [f"### {heading(row[0].cell, row[0].seeds)}", ""]
        lines += ["| algorithm | ours | spread | paper | deviation |", "| --- | ---: | ---: | ---: | ---: |"]
        best = min(result.ours.mean for result in row)
        for result in row:
            ours = f"{result.ours.mean:.4f}"
            ours = f"**{ours}**" if result.ours.mean == best else ours
            printed_, off = printed_and_off(result)
            lines.append(f"| {result.cell.algorithm} | {ours} | {spread_of(result)} | {printed_} | {off} |")
        lines.append("")
    return "\n".join(lines)


def printed_and_off(result: Result) -> tuple[str, str]:
    """Return the paper's number and our deviation as text; - where the paper left the cell empty."""
    loss, deviation = result.cell.loss, result.deviation
    return "-" if loss is None else f"{loss:.4f}", "-" if deviation is None else f"{100 * deviation:+.1f} %"


def spread_of(result: Result) -> str:
    """Return the spread over seeds as text; - of one seed."""
    return f"{result.ours.std:.4f}" if result.seeds > 1 else "-"


def heading(cell: Cell, seeds: int) -> str:
    """Return what a table is about: the budget as it was read, beside that printed where they differ."""
    budget = f"{cell.budget:,} {'uploads' if cell.budget_kind == 'uploads' else 'upload bits'}"
    if cell.task in NEURAL_TASKS and cell.budget_kind == "bits":
        budget = f"{NEURAL_BITS:,} upload bits (printed: {cell.budget:,})"
    return f"{cell.task}, {cell.setting}, loss after {budget}, {seeds_of(seeds)}"


def sentences(verdict: Verdict) -> list[str]:
    """Say in words how well a table is reproduced."""
    shares = ", ".join(f"{count} within {per_cent} %" for per_cent, count in verdict.within.items())
    bold = [f"{name}: best is {best}{'' if bold else ', NOT'} bold in the paper." for name, best, bold in verdict.best]
    return [f"{verdict.cells} cells: {shares}; {len(verdict.beyond)} beyond 15 %.", *bold]
