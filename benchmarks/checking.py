"""What seals cost: the share of a run's time in which files' digests are computed, when written and when read.

    python benchmarks/checking.py --csv results/checking.csv        # two minutes

Every row is one run as users do it: begun, ended, read and reported; a federation on Flower's in-process grid, whose
server writes a checkpoint after every round. Both sides of the share are processor time: what a run waits for a disk or
for nodes would only make it smaller.
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
from lasg.problems import models
from lasg.report.page import build
from lasg.report.paper_tables import to_csv
from lasg.runs import runner, seals, store
from lasg.runs.spec import Spec

sys.path.insert(0, str(Path(__file__).parents[1]))

OUTERMOST = ("seal", "of_array", "of_file", "of_arrays", "seal_json", "open_json", "seal_text", "open_text")


class Meter:
    """Counts the processor time in the functions that seal and check; one inside another counts once."""

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
            began = time.process_time()
            try:
                return function(*given, **named)
            finally:
                self._depth -= 1
                if not self._depth:
                    self.seconds += time.process_time() - began

        return call


def simulated(folder: Path, **settings: Any) -> None:
    """Run a spec, read what it stored, and report it."""
    spec = Spec(**settings)
    runner.run(spec, folder)
    (run,) = store.read_runs(folder)
    build([run])


def federated(folder: Path, model: Callable[[], nn.Module], shape: tuple[int, ...], rounds: int) -> None:
    """Train a network on four nodes, with minibatches of a hundred samples."""
    from tests.flower.grid import Inline

    from lasg.flower import Settings, apps, client_app

    logging.getLogger("flwr").setLevel(logging.ERROR)
    chance = np.random.default_rng(0)
    x, y = chance.normal(size=(4000, *shape)).astype(np.float32), chance.integers(0, 10, 4000)
    shards = [np.arange(m, len(y), 4) for m in range(4)]

    def problem(_: Any, worker: int) -> Any:
        loss = nn.functional.cross_entropy
        return ModuleProblem(model(), loss, (x, y), [shards[worker]], batch=0.1, ids=[worker])

    config = {"workers": 4, "rounds": rounds, "rule": "wk2", "codec": "qsgd8:512", "wait": 30.0, "out": str(folder)}
    grid = Inline(client_app(problem), 4, config)
    apps.train(grid, Settings.from_config(config), model(), lambda _: (1.0, None))
    (run,) = store.read_runs(folder)
    build([run])


def layers(width: int) -> nn.Module:
    """Return a network of two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))


def cnn() -> nn.Module:
    """Return the paper's network."""
    return models.model("cnn", (1, 28, 28), 10, 0)


DIGITS: dict[str, Any] = {"task": "digits", "data": "digits", "workers": 10, "batch": 0.1, "eta": 0.1}
CASES: dict[str, Callable[[Path], None]] = {
    "simulation, regression, 3,000 rounds": functools.partial(
        simulated, **DIGITS, algorithm="lasg-wk2", iterations=3000
    ),
    "simulation, mlp, 1,000 rounds": functools.partial(
        simulated, **DIGITS, algorithm="lasg-wk2", model="mlp", iterations=1000
    ),
    "federation, layers of 1,285 parameters, 40 rounds": lambda to: federated(to, lambda: layers(17), (64,), 40),
    "federation, layers of 75,010 parameters, 40 rounds": lambda to: federated(to, lambda: layers(1000), (64,), 40),
    "federation, cnn of 431,080 parameters, 10 rounds": lambda to: federated(to, cnn, (1, 28, 28), 10),
    "federation, layers of 999,985 parameters, 20 rounds": lambda to: federated(to, lambda: layers(13_333), (64,), 20),
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
            before, began, clock = meter.seconds, time.process_time(), time.perf_counter()
            run(Path(folder) / "run")
            whole, checking = time.process_time() - began, meter.seconds - before
            clock = time.perf_counter() - clock
        rows.append(
            {
                "run": name,
                "seconds": f"{clock:.2f}",
                "cpu_seconds": f"{whole:.2f}",
                "checking_ms": f"{1000 * checking:.1f}",
                "share_of_cpu": f"{checking / whole:.2%}",
            }
        )
        print(*rows[-1].values(), sep=", ", flush=True)
    if options.csv:
        options.csv.write_text(to_csv(rows))


if __name__ == "__main__":
    main()
