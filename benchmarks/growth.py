"""How time and memory grow: with the parameters, with the ranks, and with simulated workers.

    python benchmarks/growth.py ranks --csv results/growth-ranks.csv        # 10^3 to 10^8 parameters on 2, 4, 8 ranks
    python benchmarks/growth.py workers --csv results/growth-workers.csv    # 10 to 100,000 simulated workers

On ranks: wk2+dense+difference, a loss that is linear in the parameters, one thread per rank on the cores there are.
A step is silent, or all ranks upload; memory is the largest resident size of a rank above that of a tiny model, also in
vectors of the model's length in float32. What needs more than --memory GB on all ranks together is left out. Workers: a
simulated round with 22 features, 90 samples per worker and minibatches of 9. A slope is the exponent of growth from the
row before.
"""

from __future__ import annotations

import argparse
import csv
import math
import multiprocessing
import os
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import lasg
from lasg.data.partition import homogeneous
from lasg.problems.regression import Regression
from lasg.runs import factories
from lasg.runs.tasks import task

SIZES = tuple(10**n for n in range(3, 9))
RANKS = (2, 4, 8)
WORKERS = (10, 100, 1_000, 10_000, 100_000)
VECTORS = 11
"""What a rank is taken to need at most, its data included."""
TINY = 1_000


def peak() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def times(p: int, rounds: int) -> dict[str, float]:
    """Return the median seconds of steps in which nobody uploads, and in which all do."""
    direction = torch.randn(p, generator=torch.Generator().manual_seed(dist.get_rank())) / p
    parameter = torch.nn.Parameter(torch.zeros(p))
    optimizer = lasg.LazyOptimizer(
        torch.optim.SGD([parameter], lr=1e-3), algorithm="wk2+dense+difference", rho=1e9, guard=False, D=4
    )
    found: dict[str, list[float]] = {"silent": [], "all": []}
    for k in range(4 * rounds):  # with D = 4 all upload in every fourth step, and nobody in between
        dist.barrier()
        began = time.perf_counter()
        optimizer.step(lambda: torch.dot(parameter, direction))
        assert optimizer.last is not None
        if k > 1:
            found["all" if optimizer.last.uploaded.all() else "silent"].append(time.perf_counter() - began)
    return {name: statistics.median(some) for name, some in found.items()}


def on_rank(rank: int, ranks: int, folder: str, p: int, results: Any) -> None:
    """On a rank: measure a tiny model first, so that all code is loaded."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
    times(TINY, 2)
    before = peak()
    found = times(p, 2 if p > 10**7 else 5)
    most = torch.tensor([float(peak() - before)])
    dist.all_reduce(most, dist.ReduceOp.MAX)
    if rank == 0:
        results.put({**found, "bytes": float(most)})
    dist.barrier()
    dist.destroy_process_group()


def slope(now: float, before: float, ratio: float) -> str:
    """Return the exponent of growth, from one row to the next."""
    return f"{math.log(now / before) / math.log(ratio):.2f}" if before > 0 and now > 0 else ""


def grow_ranks(ranks: int, memory: float) -> list[dict[str, Any]]:
    """Return a row per number of parameters."""
    rows: list[dict[str, Any]] = []
    before: dict[str, float] = {}
    for p in SIZES:
        if ranks * VECTORS * 4 * p > memory * 1e9:
            break
        with tempfile.TemporaryDirectory() as folder:
            results = multiprocessing.get_context("spawn").SimpleQueue()
            spawn(on_rank, (ranks, folder, p, results), nprocs=ranks)  # type: ignore[no-untyped-call]
            found = results.get()
        rows.append(
            {
                "ranks": ranks,
                "parameters": p,
                "silent_ms": f"{1e3 * found['silent']:.2f}",
                "all_upload_ms": f"{1e3 * found['all']:.2f}",
                "memory_mb": f"{found['bytes'] / 1e6:.1f}",
                "vectors": f"{found['bytes'] / (4 * p):.1f}" if p >= 10**6 else "",
                "slope_silent": slope(found["silent"], before["silent"], 10) if before else "",
                "slope_all": slope(found["all"], before["all"], 10) if before else "",
                "slope_memory": slope(found["bytes"], before["bytes"], 10) if before and p > 10**6 else "",
            }
        )
        before = found
        print(*rows[-1].values(), sep=",", flush=True)
    return rows


def rounds_of(workers: int, algorithm: str, results: Any) -> None:
    """In a process of its own: put the median seconds of a round, and the bytes that the run holds per worker and p."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 90 * workers)
    features = rng.random((len(labels), 22), dtype=np.float32)
    problem = Regression(features, labels, homogeneous(labels, workers, 0), classes=2, batch=0.1, seed=0)
    before = peak()
    spec = task("ijcnn1-lr").spec(algorithm, workers=workers, data="none", iterations=1)
    training = factories.training(spec, problem)
    found = []
    for _ in range(8 if workers > 10_000 else 40):
        began = time.perf_counter()
        training.step()
        found.append(time.perf_counter() - began)
    results.put((statistics.median(found[2:]), peak() - before, held(training.state(live=True))))


def held(node: Any) -> int:
    """Return the bytes of all arrays in nested state."""
    if isinstance(node, dict):
        return sum(map(held, node.values()))
    if isinstance(node, list | tuple):
        return sum(map(held, node))
    return int(node.nbytes) if hasattr(node, "nbytes") else 0


def grow_workers() -> list[dict[str, Any]]:
    """Return a row per algorithm and number of workers."""
    rows: list[dict[str, Any]] = []
    for algorithm in ("lasg-wk2", "wk2+dense+difference"):
        before: tuple[float, int, int] | None = None
        for workers in WORKERS:
            context = multiprocessing.get_context("spawn")
            results = context.SimpleQueue()
            process = context.Process(target=rounds_of, args=(workers, algorithm, results))
            process.start()
            found = results.get()
            process.join()
            seconds, most, kept = found
            rows.append(
                {
                    "algorithm": algorithm,
                    "workers": workers,
                    "round_ms": f"{1e3 * seconds:.3f}",
                    "us_per_worker": f"{1e6 * seconds / workers:.2f}",
                    "peak_mb": f"{most / 1e6:.1f}",
                    "kept_numbers_per_worker": f"{kept / 4 / workers:.1f}",
                    "slope_time": slope(seconds, before[0], 10) if before else "",
                    "slope_kept": slope(kept, before[2], 10) if before else "",
                }
            )
            before = found
            print(*rows[-1].values(), sep=",", flush=True)
    return rows


def main() -> None:
    """Print rows, and write them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ranks", "workers"))
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--memory", type=float, default=14.0, help="GB for all ranks together")
    parser.add_argument("--csv", type=Path)
    options = parser.parse_args()
    if options.what == "workers":
        rows = grow_workers()
    else:
        rows = [row for ranks in options.ranks for row in grow_ranks(ranks, options.memory)]
    if options.csv:
        with options.csv.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
