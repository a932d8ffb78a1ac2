"""What seals cost: the share of a run's time in which files' digests are computed, when written and when read.

    python benchmarks/checking.py --csv results/checking.csv        # two minutes

Every row is one run as users do it: begun, ended, read and reported; a federation on Flower's in-process grid, whose
server writes a checkpoint after every round. Checkpoints of simulated runs come as often as the share of a run allows
that they may take.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from lasg import ModuleProblem
from lasg.report.page import build
from lasg.report.paper_tables import to_csv
from lasg.runs import runner, seals, store
from lasg.runs.spec import Spec

sys.path.insert(0, str(Path(__file__).parents[1]))

BAR = 0.02
"""Checking costs less than this share."""
OUTERMOST = ("seal", "of_array", "of_file", "of_arrays", "seal_json", "open_json", "seal_text", "open_text")


class Meter:
    """Counts the seconds in the functions that seal and check; one inside another counts once."""

    def __init__(self) -> None:
        self.seconds, self._depth = 0.0, 0

    def install(self) -> None:
        """Measure from now on."""
        for name in OUTERMOST:
            setattr(seals, name, self._measured(getattr(seals, name)))

    def _measured(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*given: Any, **named: Any) -> Any:
            self._depth += 1
            began = time.perf_counter()
            try:
                return function(*given, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.perf_counter() - began

        return call


def simulated(folder: Path, **settings: Any) -> None:
    """Run a spec, read what it stored, and report it."""
    spec = Spec(**settings)
    runner.run(spec, folder)
    (run,) = store.read_runs(folder)
    build([run])


def federated(folder: Path, width: int, rounds: int) -> None:
    """Train a network of two layers on four nodes."""
    from tests.flower.grid import Inline

    from lasg.flower import Settings, apps, client_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(4000, 64)).astype(np.float32), chance.integers(0, 10, 4000)
    shards = [np.arange(m, len(y), 4) for m in range(4)]

    def module() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))

    def problem(_: Any, worker: int) -> Any:
        loss = nn.functional.cross_entropy
        return ModuleProblem(module(), loss, (x, y), [shards[worker]], batch=0.1, ids=[worker])

    config = {"workers": 4, "rounds": rounds, "rule": "wk2", "codec": "qsgd8:512", "wait": 30.0, "out": str(folder)}
    grid = Inline(client_app(problem), 4, config)
    apps.train(grid, Settings.from_config(config), module())
    (run,) = store.read_runs(folder)
    build([run])


DIGITS: dict[str, Any] = {"task": "digits", "data": "digits", "workers": 10, "batch": 0.1, "eta": 0.1}
CASES: dict[str, Callable[[Path], None]] = {
    "simulation, regression, 3,000 rounds": functools.partial(
        simulated, **DIGITS, algorithm="lasg-wk2", iterations=3000
    ),
    "simulation, mlp, 1,000 rounds": functools.partial(
        simulated, **DIGITS, algorithm="lasg-wk2", model="mlp", iterations=1000
    ),
    "federation, 1,290 parameters, 40 rounds": lambda folder: federated(folder, 17, 40),
    "federation, 75,010 parameters, 40 rounds": lambda folder: federated(folder, 1000, 40),
    "federation, 1,000,010 parameters, 20 rounds": lambda folder: federated(folder, 13_333, 20),
}


def main() -> None:
    """Print a row per case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose names have this in them")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    torch.set_num_threads(1)
    meter, rows = Meter(), list[dict[str, Any]]()
    meter.install()
    for name, run in CASES.items():
        if options.only not in name:
            continue
        with tempfile.TemporaryDirectory() as folder:
            before, began = meter.seconds, time.perf_counter()
            run(Path(folder) / "run")
            whole, checking = time.perf_counter() - began, meter.seconds - before
        rows.append(
            {
                "run": name,
                "seconds": f"{whole:.2f}",
                "checking_ms": f"{1000 * checking:.1f}",
                "share": f"{checking / whole:.4%}",
            }
        )
        print(*rows[-1].values(), sep=", ", flush=True)
    if options.csv:
        options.csv.write_text(to_csv(rows))


if __name__ == "__main__":
    main()
