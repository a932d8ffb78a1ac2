"""Bytes to 95 % over Flower's grid, both ways: the paper's CNN, MNIST sorted by label, four nodes, 20 local steps.

    python benchmarks/federated.py --data-dir DIR               # choose the steps, then three seeds each
    python benchmarks/federated.py --data-dir DIR --methods lasg-local --again

Server and nodes are lasg's own apps on Flower's in-process state and grid: every message is Flower's, and every node
starts again from its memory for each of them. Megabytes are all that the federation sent and received, the first model
to every node among it. Each method has the step, of two that are tried on the tuning seed, that needs the fewest bytes
both ways together. The runs that are reported have other seeds: another start, other minibatches. A row that is in the
results is not run again; --again forgets those of the methods that are named.
"""

from __future__ import annotations

import argparse
import csv
import functools
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from lasg.data.loaders import load
from lasg.errors import LasgError
from lasg.flower import Settings, client_app
from lasg.flower.apps import serve
from lasg.problems import models
from lasg.problems.module import ModuleProblem
from lasg.report.paper_tables import to_csv

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT))
from tests.flower.grid import Inline  # noqa: E402 (which is not installed with lasg)

NODES, STEPS, BATCH, CAP = 4, 20, 32, 40
"""CAP: rounds after which a run is given up."""
HOPELESS = (12, 0.3)
"""Who has not that accuracy after so many rounds is given up, too."""
TUNING, SEEDS = 100, (0, 1, 2)
MOMENTUM = {"optimizer": "SGD", "optimizer-options.momentum": 0.9}
METHODS: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {
    "fedavg": ({"rule": "always", "codec": "dense"}, tuple({"eta": eta} for eta in (0.2, 0.1))),
    "fedadam": (
        {"algorithm": "fedadam"},
        tuple({"eta": eta, "outer-eta": outer} for eta, outer in ((0.1, 0.01), (0.1, 0.003))),
    ),
    "wk2, 8 bits": (
        {"rule": "wk2", "codec": "qsgd8:512", "c": 0.1, "D": 50},
        tuple({"eta": eta} for eta in (0.2, 0.1)),
    ),
    "sparseloco": (
        {"algorithm": "sparseloco"},
        ({"eta": 0.1}, {"eta": 0.02, **MOMENTUM}),
    ),
    "lasg-local": (
        {"algorithm": "lasg-local"},
        ({"eta": 0.1}, {"eta": 0.02, **MOMENTUM}),
    ),
}
"""By the names of the rows: what a federation is told, and the steps that are tried."""
Row = dict[str, Any]


class Images:
    """A data set as the nodes and the server have it: sorted by label and cut in four, and test images."""

    def __init__(self, data_dir: Path | None, name: str = "mnist", model: str = "cnn", test_every: int = 4) -> None:
        found = load(name, data_dir=data_dir)
        assert found.test is not None
        self.name, self.shape, self.classes = model, found.shape, found.classes
        self.x, self.y = (torch.from_numpy(np.asarray(part)) for part in (found.features, found.labels))
        self.test_x, self.test_y = (torch.from_numpy(np.asarray(part[::test_every])) for part in found.test)
        self.shards = np.array_split(np.argsort(found.labels, kind="stable"), NODES)

    def model(self, seed: int) -> nn.Module:
        """Return the network at its start."""
        return models.model(self.name, self.shape, self.classes, seed)

    @functools.lru_cache(maxsize=NODES)  # noqa: B019 (it lives as long as the benchmark)
    def problem(self, worker: int, seed: int) -> ModuleProblem:
        """Return a node's module, loss and data."""
        rows = self.shards[worker]
        data = (self.x[rows].reshape(-1, *self.shape), self.y[rows].long())
        options: dict[str, Any] = {"batch": min(1.0, BATCH / len(rows)), "seed": seed, "ids": [worker]}
        return ModuleProblem(self.model(seed), cross_entropy, data, [np.arange(len(rows))], **options)

    def accuracy(self, model: nn.Module) -> float:
        """Return the share of the test images that a model knows."""
        with torch.no_grad():
            parts = torch.split(self.test_x.reshape(-1, *self.shape), 500)
            known = torch.cat([model(part).argmax(1) for part in parts]) == self.test_y
        return float(known.double().mean())


def run(data: Images, settings: Mapping[str, Any], seed: int, target: float, most: float = float("inf")) -> Row:
    """Train over the grid until the target, the limit of rounds, or more bytes both ways than `most`."""
    bound = {} if settings.get("algorithm") == "sparseloco" else {"robust": "none"}  # as published
    config = {"workers": NODES, "local-steps": STEPS, "seed": seed, "rounds": CAP, "wait": 60.0, **bound, **settings}
    grid = Inline(client_app(lambda _, worker: data.problem(worker, seed)), NODES, config)
    training, federation, trained = serve(grid, Settings.from_config(config), data.model(seed))
    federation.gather(60.0)
    members, accuracy, began = federation.members, 0.0, time.process_time()
    try:
        for _ in range(CAP):
            training.step()
            accuracy = data.accuracy(trained())
            hopeless = training.ledger.rounds >= HOPELESS[0] and accuracy < HOPELESS[1]
            if accuracy >= target or hopeless or members.bytes_up + members.bytes_down > most:
                break
    except LasgError as error:  # it diverges
        accuracy = 0.0
        print(error, file=sys.stderr, flush=True)
    return {
        "reached": accuracy >= target,
        "accuracy": round(accuracy, 4),
        "rounds": training.ledger.rounds,
        "uploads": training.ledger.uploads,
        "bytes_up": members.bytes_up,
        "bytes_down": members.bytes_down,
        "message_bytes": training.ledger.bits_up // 8,
        "gradients": training.ledger.gradients,
        "seconds": round(time.process_time() - began, 1),
    }


def both_ways(row: Row) -> int:
    """Return what a run sent and received."""
    return int(row["bytes_up"]) + int(row["bytes_down"])


def words(trial: Mapping[str, Any]) -> str:
    """Return the settings of a trial, as a cell of the table."""
    return " ".join(f"{name}={value}" for name, value in trial.items())


class Table:
    """The rows that are there, and their file."""

    def __init__(self, path: Path) -> None:
        self.path, self.rows = path, []
        if path.exists():
            with path.open() as file:
                self.rows = list(csv.DictReader(file))

    rows: list[Row]

    def find(self, method: str, trial: Mapping[str, Any], seed: int) -> Row | None:
        """Return the row of a run, if it is there."""
        key = (method, words(trial), str(seed))
        return next((row for row in self.rows if (row["method"], row["settings"], str(row["seed"])) == key), None)

    def add(self, row: Row) -> Row:
        """Write one more row."""
        self.rows.append(row)
        order = list(METHODS)
        self.rows.sort(key=lambda one: (one["kind"], order.index(one["method"]), int(one["seed"])))
        self.path.write_text(to_csv(self.rows))
        print(row, file=sys.stderr, flush=True)
        return row

    def forget(self, methods: Iterable[str]) -> None:
        """Drop the rows of methods."""
        self.rows = [row for row in self.rows if row["method"] not in set(methods)]


def compare(
    table: Table, data: Images, methods: Iterable[str], seeds: Iterable[int], target: float, play: Callable[..., Row]
) -> None:
    """Try the steps of every method, then run the best with every seed: what is missing of it."""
    for method in methods:
        fixed, trials = METHODS[method]
        best: tuple[int, dict[str, Any]] | None = None
        for trial in trials:
            row = table.find(method, trial, TUNING)
            if row is None:
                most = float("inf") if best is None else best[0]
                found = play(data, {**fixed, **trial}, TUNING, target, most)
                named = {"kind": "tuning", "method": method, "settings": words(trial), "seed": TUNING}
                row = table.add({**named, "target": target, **found})
            if str(row["reached"]) == "True" and (best is None or both_ways(row) < best[0]):
                best = (both_ways(row), trial)
        if best is None:
            print(f"{method} does not reach {target:.0%} with any step", file=sys.stderr)
            continue
        for seed in seeds:
            if table.find(method, best[1], seed) is None:
                named = {"kind": "final", "method": method, "settings": words(best[1]), "seed": seed}
                table.add({**named, "target": target, **play(data, {**fixed, **best[1]}, seed, target)})


def show(rows: Iterable[Row]) -> str:
    """Return the table: means over the seeds, and how many times fewer bytes than the lazy 8 bits of today."""
    final = [row for row in rows if row["kind"] == "final"]
    lines = [f"{'method':14} {'seeds':>5} {'rounds':>11} {'MB up':>14} {'MB down':>15} {'up':>7} {'down':>7}"]
    base = [row for row in final if row["method"] == "wk2, 8 bits"]
    for method in METHODS:
        found = [row for row in final if row["method"] == method and str(row["reached"]) == "True"]
        missed = sum(row["method"] == method for row in final) - len(found)
        if not found:
            continue
        cells = []
        for name, unit in (("rounds", 1.0), ("bytes_up", 1e6), ("bytes_down", 1e6)):
            values = [float(row[name]) / unit for row in found]
            cells.append(f"{statistics.mean(values):.4g} ({min(values):.3g}-{max(values):.3g})")
        fewer = [
            statistics.mean(float(row[name]) for row in base) / statistics.mean(float(row[name]) for row in found)
            if base
            else float("nan")
            for name in ("bytes_up", "bytes_down")
        ]
        numbers = f"{cells[0]:>11} {cells[1]:>14} {cells[2]:>15} {fewer[0]:6.1f}x {fewer[1]:6.1f}x"
        lines.append(f"{method:14} {len(found):5} {numbers}{f'  {missed} not reached' if missed else ''}")
    return "\n".join(lines)


def main() -> None:
    """Run what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="where MNIST is")
    parser.add_argument("--csv", type=Path, default=ROOT / "results" / "federated.csv", help="where the rows are")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), metavar="METHOD")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(SEEDS))
    parser.add_argument("--target", type=float, default=0.95, help="the accuracy to reach")
    parser.add_argument("--again", action="store_true", help="forget the rows of these methods first")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(options.csv)
    if options.again:
        table.forget(options.methods)
    compare(table, Images(options.data_dir), options.methods, options.seeds, options.target, run)
    print(show(table.rows))


if __name__ == "__main__":
    main()
