"""Whether `lasg-local` diverges where dense DiLoCo, with the same inner optimizer and step, does not.

    python benchmarks/stability.py --data-dir DIR                      # what results/stability.csv does not have yet
    python benchmarks/stability.py ... --algorithms lasg-local --again # the same runs with another lasg-local

Every combination of task, partition, inner optimizer, inner step and H is run twice from the same start on the same
minibatches: `diloco`, dense, outer Nesterov of 0.7 and 0.9, and `lasg-local`, each with its own outer optimizer. The
steps go from a cautious one to the largest at which DiLoCo still trains, or beyond it. A run diverged if a number in it
was not finite, or if its last loss is more than 1.5 times the loss that it began with. Losses are measured after every
round on the training data, of mnist-nn on every 60th image, of text-lm on every 64th window.
"""

from __future__ import annotations

import argparse
import csv
import math
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from lasg.errors import LasgError
from lasg.report.paper_tables import to_csv
from lasg.runs import factories
from lasg.runs.spec import Spec
from lasg.runs.tasks import task

RESULTS = Path(__file__).parent.parent / "results"
ALGORITHMS = ("diloco", "lasg-local")
DIVERGED = 1.5
"""A last loss of so many times the first is a run that diverged."""
SETTLED = 5
"""The largest loss is that after so many rounds: at the start it may rise."""
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD .9": {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}},
    "AdamW": {"optimizer": "AdamW"},
}
Row = dict[str, Any]


class Case(NamedTuple):
    """What both algorithms are run on."""

    task: str
    setting: str
    inner: str
    eta: float
    H: int
    rounds: int = 20

    def spec(self, algorithm: str) -> Spec:
        """Return the run of an algorithm."""
        given = {**TASKS[self.task], **OPTIMIZERS[self.inner], "eta": self.eta, "H": self.H}
        return task(self.task).spec(algorithm, setting=self.setting, **given)

    @property
    def name(self) -> Row:
        """What tells its rows from others."""
        return {"task": self.task, "partition": self.setting, "inner": self.inner, "eta": self.eta, "H": self.H}


TASKS: dict[str, dict[str, Any]] = {
    "digits": {"model": "mlp", "workers": 4, "lam": 0.0},
    "mnist-nn": {"workers": 4, "batch": 32 / 15_000, "measured": 60},
    "text-lm": {"measured": 64},
}
SETTINGS = ("homogeneous", "heterogeneous")
STEPS = {"SGD .9": (0.02, 0.1, 0.3, 1.0), "AdamW": (0.001, 0.01, 0.03, 0.1)}


def cases() -> Iterator[Case]:
    """Every combination, the cheap ones first."""
    for setting in SETTINGS:
        for inner, steps in STEPS.items():
            for eta in steps:
                for H in (5, 20):
                    yield Case("digits", setting, inner, eta, H)
    for setting in SETTINGS:
        yield Case("mnist-nn", setting, "SGD .9", 0.02, 5, 12)
        yield Case("mnist-nn", setting, "SGD .9", 0.1, 5, 12)
        yield Case("mnist-nn", setting, "AdamW", 0.003, 5, 12)
        yield Case("mnist-nn", setting, "SGD .9", 0.05, 20, 12)
    yield Case("text-lm", "heterogeneous", "AdamW", 0.003, 5, 8)


def run(case: Case, algorithm: str, data_dir: Path | None) -> Row:
    """Return what an algorithm did in a case."""
    spec = case.spec(algorithm)
    began = time.process_time()
    training = factories.training(spec, factories.problem(spec, data_dir))
    losses, reason = [training.loss()], ""
    try:
        for _ in range(case.rounds):
            training.step()
            losses.append(training.loss())
            if not math.isfinite(losses[-1]):
                break
    except LasgError as error:
        losses.append(math.inf)
        reason = str(error).partition(":")[0]
    last = losses[-1]
    return {
        **case.name,
        "algorithm": algorithm,
        "rounds": training.ledger.rounds,
        "first_loss": losses[0],
        "last_loss": last,
        "largest_loss": max(losses[SETTLED + 1 :], default=last),
        "diverged": not last <= DIVERGED * losses[0],
        "bits_up": training.ledger.bits_up,
        "seconds": round(time.process_time() - began, 1),
        "reason": reason,
    }


def key(row: Row) -> tuple[str, ...]:
    """Return what tells a row from others, however it was written."""
    return (*(str(row[name]) for name in ("task", "partition", "inner")), f"{float(row['eta']):g}", str(row["H"]))


def stored(path: Path) -> list[Row]:
    """Return the rows that are there already."""
    if not path.exists():
        return []
    with path.open() as file:
        return list(csv.DictReader(file))


def compare(
    rows: list[Row], some: Iterable[Case], algorithms: Iterable[str], data_dir: Path | None, path: Path
) -> None:
    """Run what is missing, and write every row as it comes."""
    there = {(key(row), row["algorithm"]) for row in rows}
    for case in some:
        for algorithm in algorithms:
            if (key(case.name), algorithm) not in there:
                rows.append(run(case, algorithm, data_dir))
                path.write_text(to_csv(rows))
                print(rows[-1], file=sys.stderr, flush=True)


def show(rows: Iterable[Row]) -> str:
    """Return the table, and what it comes to."""
    pairs: dict[tuple[str, ...], dict[str, Row]] = {}
    for row in rows:
        pairs.setdefault(key(row), {})[row["algorithm"]] = row
    whole = {name: pair for name, pair in pairs.items() if set(pair) == set(ALGORITHMS)}
    lines = [
        f"| task | partition | inner | step | H | start | {' | '.join(f'{name} | largest' for name in ALGORITHMS)} |"
    ]
    lines.append("| --- | --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, pair in whole.items():
        cells = [*name, f"{float(pair['diloco']['first_loss']):.3g}"]
        for algorithm in ALGORITHMS:
            row = pair[algorithm]
            cells += ["diverged" if diverged(row) else f"{float(row['last_loss']):.3g}"]
            cells += [f"{float(row['largest_loss']):.3g}"]
        lines.append(f"| {' | '.join(cells)} |")
    theirs = [pair for pair in whole.values() if not diverged(pair["diloco"])]
    ours = sum(diverged(pair["lasg-local"]) for pair in theirs)
    lines.append("")
    lines.append(f"{len(whole)} combinations; DiLoCo holds in {len(theirs)}, lasg-local diverges in {ours} of these")
    return "\n".join(lines)


def diverged(row: Row) -> bool:
    """Tell whether a row's run diverged."""
    return str(row["diverged"]) == "True"


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where MNIST is")
    parser.add_argument("--csv", type=Path, default=RESULTS / "stability.csv", help="where the rows are")
    parser.add_argument("--algorithms", nargs="+", choices=ALGORITHMS, default=list(ALGORITHMS))
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--again", action="store_true", help="forget the rows of these algorithms and tasks first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = stored(options.csv)
    if options.again:
        rows = [row for row in rows if row["algorithm"] not in options.algorithms or row["task"] not in options.tasks]
    chosen = [case for case in cases() if case.task in options.tasks]
    compare(rows, chosen, options.algorithms, options.data_dir, options.csv)
    print(show(rows))


if __name__ == "__main__":
    main()
