"""What a simulated round costs, beside the least that NumPy could do for the same gradients.

    python benchmarks/simulation.py [--data-dir DIR] [--quick]

Floor: one call draws all indices, the rows are gathered, as many gradients as the algorithm needs are computed
with batched products, and nothing else; one thread. Floor and round are timed in turns in one run; each figure
is the median over repetitions, so that ratios hold on a noisy machine.
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from threadpoolctl import threadpool_limits

from lasg.core.training import Training
from lasg.data.partition import homogeneous
from lasg.problems.regression import Regression
from lasg.runs import factories
from lasg.runs.tasks import task

TASKS = ("ijcnn1-lr", "covtype-lr", "mnist-lr")
GRADIENTS = {"sgd": 1, "lasg-wk2": 2, "lasg-pse": 2}


def floor(problem: Regression, gradients: int) -> Callable[[], Any]:
    """Return the least work of a round: draw, gather, `gradients` gradients a worker on minibatches of the same sizes.

    Minibatches of unequal sizes are laid out in the same tiles as the engine's: the quickest way that was found.
    """
    rng = np.random.default_rng(0)
    tiles, d = problem._tiles, problem.features.shape[1]
    # One bound for all is NumPy's quickest draw; shards that differ by more than a sample need a bound each.
    even = int(np.ptp(problem.sizes)) <= 1
    size: Any = int(problem.sizes.min()) if even else np.repeat(problem.sizes, problem.batch)
    total = int(problem.batch.sum())
    offset = np.repeat(problem.batches.offsets, problem.batch)
    shared = np.zeros(d, problem.dtype)
    own = np.zeros((len(tiles.scale), d), problem.dtype)
    out = np.empty((tiles.scale.size, d), problem.dtype)

    def gradient(z: Any, x: Any) -> Any:
        z = z.reshape(tiles.scale.shape)
        z *= 0.5
        np.tanh(z, out=z)
        z -= 1
        z *= tiles.scale
        return tiles.gather(np.vecmat(z, x))

    def run() -> Any:
        index = rng.integers(0, size, total) + offset
        if tiles.source is not None:
            index = index.take(tiles.source)
        rows = problem.features.take(index, 0, out=out, mode="clip")
        x = rows.reshape(*tiles.scale.shape, d)
        found = [gradient(rows @ shared, x)]
        if gradients == 2:
            found.append(gradient(np.matvec(x, own), x))
        return found

    return run


def in_turns(functions: dict[str, Callable[[], Any]], rounds: int, repetitions: int) -> dict[str, float]:
    """Time the functions in turns; return the median microseconds a call."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        for _ in range(20):
            function()
    for _ in range(repetitions):
        for name, function in functions.items():
            started = time.perf_counter()
            for _ in range(rounds):
                function()
            times[name].append((time.perf_counter() - started) / rounds * 1e6)
    return {name: statistics.median(found) for name, found in times.items()}


def per_task(data_dir: Path | None, rounds: int, repetitions: int) -> None:
    """Print the cost of a round of SGD, WK2 and PSE beside its floor, for both settings of the paper."""
    print("| task | setting | algorithm | round (us) | floor (us) | ratio |")
    print("| --- | --- | --- | ---: | ---: | ---: |")
    for name, setting in itertools.product(TASKS, ("homogeneous", "heterogeneous")):
        specs = {a: task(name).spec(a, setting=setting) for a in GRADIENTS}
        problem = factories.problem(specs["sgd"], data_dir)
        assert isinstance(problem, Regression)
        functions: dict[str, Callable[[], Any]] = {}
        for algorithm, gradients in GRADIENTS.items():
            functions[algorithm] = factories.training(specs[algorithm], problem).step
            functions[f"floor of {algorithm}"] = floor(problem, gradients)
        found = in_turns(functions, rounds, repetitions)
        for algorithm in GRADIENTS:
            least = found[f"floor of {algorithm}"]
            ratio = found[algorithm] / least
            figures = f"{found[algorithm]:.0f} | {least:.0f} | {ratio:.2f}"
            print(f"| {name} | {setting} | {algorithm} | {figures} |", flush=True)
    print(f"\nPeak memory, all tasks loaded in turn: {peak_memory():.0f} MB")


def growth(rounds: int) -> None:
    """Print how the cost of a WK2 round grows with the number of workers (22 features, batch 9 of 90)."""
    print("\n| workers | WK2 round (us) | us a worker | SGD round (us) | PSE round (us) |")
    print("| ---: | ---: | ---: | ---: | ---: |")
    rng = np.random.default_rng(0)
    for workers in (10, 100, 1_000, 10_000):
        labels = rng.integers(0, 2, 90 * workers)
        features = rng.random((len(labels), 22), dtype=np.float32)
        shards = homogeneous(labels, workers, 0)
        problem = Regression(features, labels, shards, classes=2, batch=0.1, seed=0)
        base = {"workers": workers, "data": "none", "iterations": 1}
        functions = {a: _simulation(problem, a, base).step for a in ("lasg-wk2", "sgd", "lasg-pse")}
        found = in_turns(functions, max(5, rounds * 10 // workers), 5)
        wk2 = found["lasg-wk2"]
        figures = f"{wk2:.0f} | {wk2 / workers:.2f} | {found['sgd']:.0f} | {found['lasg-pse']:.0f}"
        print(f"| {workers:,} | {figures} |", flush=True)


def _simulation(problem: Regression, algorithm: str, values: dict[str, Any]) -> Training:
    return factories.training(task("ijcnn1-lr").spec(algorithm, **values), problem)


def peak_memory() -> float:
    """Return the largest resident size of this process so far, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments = parser.parse_args()
    rounds, repetitions = (200, 5) if arguments.quick else (500, 15)
    with threadpool_limits(1):
        per_task(arguments.data_dir, rounds, repetitions)
        growth(rounds)


if __name__ == "__main__":
    main()
