"""The paper's Tables 1-4 and two of its figures as data: ours beside the printed numbers."""

from __future__ import annotations

import csv
import importlib.resources
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lasg.analysis.compare import Spread
from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.runs.spec import Spec, with_budget
from lasg.runs.store import Run
from lasg.runs.tasks import task

PAPER = {"start": "zero"}
"""What the paper's tables were made with where our default is another: docs/deviations.md."""
CAP = 200_000
"""Iterations after which a run ends whatever its budget."""
NEURAL_TASKS = ("mnist-nn",)
"""The tables' tasks that train a network."""
NEURAL_UPLOADS = 10_000
NEURAL_BITS = 3_200 * 32 * 431_080
"""What the printed 1e8 bits must mean for the network: about 3,200 uploads of its 431,080 parameters."""
NEURAL_CAP = 8_000
"""Iterations after which a network's run ends whatever its budget."""


def neural_spec(name: str, algorithm_: str, setting: str, seed: int, **changes: Any) -> Spec:
    """Return the run of a network's row: to the larger of its two budgets, evaluated at the smaller one too."""
    quantised = ALGORITHMS[algorithm_].quantised
    ends = {"bits": NEURAL_BITS} if quantised else {"uploads": NEURAL_UPLOADS}
    marks = {"uploads": NEURAL_UPLOADS} if quantised else {"bits": NEURAL_BITS}
    values = {"iterations": NEURAL_CAP, "evaluate": 100, "until": ends, "marks": marks, **changes}
    return task(name).spec(algorithm_, setting=setting, seed=seed, **values)


@dataclass(frozen=True)
class Cell:
    """One number of a table."""

    table: int
    setting: str
    task: str
    budget_kind: str
    budget: int
    algorithm: str
    loss: float | None
    """As printed."""

    def spec(self, seed: int, **changes: Any) -> Spec:
        """Return the run that gives our number; those of a network's two budgets are one run."""
        if self.task in NEURAL_TASKS:
            return neural_spec(self.task, self.algorithm, self.setting, seed, **changes)
        base = task(self.task).spec(
            self.algorithm, setting=self.setting, seed=seed, **{"iterations": CAP, **PAPER, **changes}
        )
        return with_budget(base, self.budget_kind, self.budget)

    def loss_of(self, run: Run) -> float:
        """Return a run's loss when the budget was first spent, or at its end."""
        kind, budget = {"uploads": "uploads", "bits": "bits_up"}[self.budget_kind], self.budget
        if self.task in NEURAL_TASKS and self.budget_kind == "bits":
            budget = NEURAL_BITS
        spent = np.flatnonzero(run.trace[kind] >= budget)
        return float(run.trace["loss"][spent[0] if len(spent) else -1])


@dataclass(frozen=True)
class Result:
    """A cell with our number beside the paper's."""

    cell: Cell
    ours: Spread
    seeds: int

    @property
    def deviation(self) -> float | None:
        """ours / paper - 1."""
        return None if self.cell.loss is None else self.ours.mean / self.cell.loss - 1


def printed() -> list[Cell]:
    """Return every cell of the paper's Tables 1-4."""
    text = (importlib.resources.files("lasg.report") / "paper_tables.csv").read_text(encoding="utf-8")
    rows: list[dict[str, Any]] = list(csv.DictReader(io.StringIO(text)))
    for row in rows:
        row |= {"table": int(row["table"]), "budget": int(row["budget"])}
        row["loss"] = float(row["loss"]) if row["loss"] else None
    return [Cell(**row) for row in rows]


def cells(table: int, tasks: Sequence[str] = (), algorithms: Sequence[str] = tuple(ALGORITHMS)) -> list[Cell]:
    """Return the cells of one table that can be run: of the chosen tasks, or of all that do not take hours."""
    found = [
        cell for cell in printed() if cell.table == table and (cell.task not in NEURAL_TASKS or cell.loss is not None)
    ]
    known = list(dict.fromkeys(cell.task for cell in found))
    for name in tasks:
        if name not in known:
            raise LasgError(f"table {table} has no task {name!r}: {', '.join(known)}")
    wanted = tasks or [name for name in known if name not in NEURAL_TASKS]
    chosen = [cell for cell in found if cell.task in wanted and cell.algorithm in algorithms]
    if not chosen:
        raise LasgError(f"table {table} has none of the algorithms {', '.join(algorithms)} for {', '.join(wanted)}")
    return chosen


def results(chosen: Sequence[Cell], runs: Mapping[Cell, Sequence[Run]]) -> list[Result]:
    """Return our number for each cell: the loss when the budget was spent, over the seeds."""
    return [
        Result(cell, Spread.from_values([cell.loss_of(run) for run in runs[cell]]), len(runs[cell])) for cell in chosen
    ]


@dataclass(frozen=True)
class Verdict:
    """How well a table is reproduced."""

    cells: int
    within: Mapping[int, int]
    """How many cells deviate by at most so many per cent."""
    beyond: Sequence[Result]
    """Cells that deviate by more than 15 % (and by more than two of our standard deviations, where these are > 5 %)."""
    best: Sequence[tuple[str, str, bool]]
    """(task, our best algorithm, whether the paper prints it bold: among the row's three smallest)."""


def judge(found: Sequence[Result], printed_cells: Sequence[Cell] = ()) -> Verdict:
    """Compare a table with the printed one, whose cells are those of what was found unless it has more."""
    row_cells = printed_cells or [result.cell for result in found]
    sizes = {result.cell: abs(result.deviation) for result in found if result.deviation is not None}
    within = {n: sum(size <= n / 100 for size in sizes.values()) for n in (5, 10, 15)}
    rows: dict[str, list[Result]] = defaultdict(list)
    for result in found:
        rows[result.cell.task].append(result)
    best = []
    for name, row in rows.items():
        bold = sorted(cell.loss for cell in row_cells if cell.task == name and cell.loss is not None)[:3]
        least = min(r.ours.mean for r in row)
        tied = [r.cell for r in row if r.ours.mean <= least * (1 + 1e-9)]
        ours = next((cell for cell in tied if cell.loss in bold), tied[0])
        best.append((name, ours.algorithm, ours.loss in bold))
    return Verdict(len(found), within, [r for r in found if _far_off(r)], best)


def _far_off(result: Result) -> bool:
    loss, ours = result.cell.loss, result.ours
    if loss is None or abs(ours.mean / loss - 1) <= 0.15:
        return False
    noisy = ours.std > 0.05 * ours.mean
    return not (noisy and abs(ours.mean - loss) <= 2 * ours.std)
