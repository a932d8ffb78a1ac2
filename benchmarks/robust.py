"""What a bound on the workers' influence costs honest workers whose data differ: sorted by label, with and without.

python benchmarks/robust.py --csv results/robust.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import lasg
from lasg.report.paper_tables import to_csv
from lasg.runs.spec import Spec

STEPS = {"digits": 0.3, "breast-cancer": 1.0}
ALGORITHMS = ("always+qsgd8:512", "wk2+qsgd8:512", "always+qsgd8:512+H10", "wk2+qsgd8:512+difference")
BOUNDS = ("none", "median-clip3", "median-clip", "trimmed")
ITERATIONS = 300


def run(data: str, algorithm: str, workers: int, robust: str, seed: int) -> tuple[float, float, int]:
    """Return loss, accuracy and uploads of a run."""
    shared = {"data": data, "task": data, "partition": "sorted", "batch": 0.1, "iterations": ITERATIONS}
    spec = Spec(algorithm=algorithm, workers=workers, robust=robust, seed=seed, eta=STEPS[data], **shared)  # type: ignore[arg-type]
    training = lasg.training(spec)
    for _ in range(ITERATIONS // spec.stages.local_steps):
        training.step()
    return training.loss(), training.accuracy() or 0.0, training.ledger.uploads


def main() -> None:
    """Print a row for each task, algorithm, number of workers and bound: means over seeds, and the spread."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows = []
    for data in STEPS:
        for algorithm in ALGORITHMS:
            for workers in (2, 4, 10):
                for robust in BOUNDS:
                    found = np.array([run(data, algorithm, workers, robust, seed) for seed in range(options.seeds)])
                    loss, accuracy, uploads = found.mean(0)
                    row = {"data": data, "algorithm": algorithm, "workers": workers, "robust": robust}
                    row |= {"loss": f"{loss:.4f}", "accuracy": f"{100 * accuracy:.1f}", "uploads": f"{uploads:.0f}"}
                    rows.append({**row, "accuracy_spread": f"{100 * np.ptp(found[:, 1]):.1f}"})
                    print(*rows[-1].values(), flush=True)
    if options.csv:
        options.csv.write_text(to_csv(rows))


if __name__ == "__main__":
    main()
