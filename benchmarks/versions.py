"""Two versions of lasg in turns, in one run: what a simulated round and a step on ranks cost, as a ratio.

    git worktree add ../before COMMIT
    python benchmarks/versions.py --before ../before/src [--data-dir DIR] [--turns 5] [--size 1000000] [--only ranks]

Every measurement is a process of its own with one thread, the two versions one after the other; what is printed is the
median over the turns. Steps on ranks are measured several in a row of each kind; their lower quintile counts,
since other jobs only add to a step. `--cpu` measures the processor time of both ranks in place of rank 0's wall time,
which other jobs disturb more. Versions 0.1 and 0.2 are known.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve()
TASKS = ("ijcnn1-lr", "covtype-lr", "mnist-lr")
ALGORITHMS = ("sgd", "lasg-wk2", "lasg-pse", "laqsg-wk2", "lasg-wk1")
STEPS = ("all_reduce", "nobody uploads", "one uploads", "all upload", "wk2, all upload, 8 bits", "always, 8 bits")
ROUNDS, REPETITIONS, WARM = 200, 15, 100


def simulated(data_dir: str) -> dict[str, float]:
    """Return microseconds per simulated round."""
    old = importlib.util.find_spec("lasg.experiments") is not None and not _has("lasg.runs")
    runs = importlib.import_module("lasg.experiments.build" if old else "lasg.runs.factories")
    task = importlib.import_module("lasg.experiments.tasks" if old else "lasg.runs.tasks").task
    make = runs.simulation if old else runs.training
    times = {}
    for name in TASKS:
        for algorithm in ALGORITHMS:
            spec = task(name).spec(algorithm)
            step = make(spec, runs.problem(spec, data_dir or None)).step
            for _ in range(WARM):
                step()
            times[f"{name}, {algorithm}"] = statistics.median(_timed(step) for _ in range(REPETITIONS))
    return times


def _has(name: str) -> bool:
    try:
        return importlib.util.find_spec(f"{name}.factories") is not None
    except ModuleNotFoundError:
        return False


def _timed(step: Callable[[], Any]) -> float:
    began = time.perf_counter()
    for _ in range(ROUNDS):
        step()
    return (time.perf_counter() - began) / ROUNDS * 1e6


def _step(kind: str, p: int, rank: int) -> Callable[[], Any]:
    """Return a step of a kind: who uploads is settled by the rule's constants."""
    import torch
    import torch.distributed as dist

    import lasg

    parameter = torch.nn.Parameter(torch.zeros(p))
    direction = torch.randn(p, generator=torch.Generator().manual_seed(rank)) / p
    if kind == "all_reduce":
        return lambda: dist.all_reduce(direction)
    sgd = torch.optim.SGD([parameter], lr=1e-3)

    def left(now: Any, _: Any) -> Any:
        return (now.grad[:, :1] * 0).sum(-1) + (1.0 if rank == 0 else -1.0)

    lazy = {
        "nobody uploads": ("wk2", "dense", {"c": float("inf"), "D": 10**9}),
        "one uploads": (lasg.Rule(name="one", left=left), "dense", {"c": 0.0, "D": 10**9}),
        "all upload": ("always", "dense", {}),
        "wk2, all upload, 8 bits": ("wk2", "qsgd8:512", {"c": 0.0}),
        "always, 8 bits": ("always", "qsgd8:512", {}),
    }[kind]
    optimizer = lasg.LazyOptimizer(sgd, lazy[0], lazy[1], **lazy[2])  # type: ignore[arg-type]
    return lambda: optimizer.step(lambda: parameter @ direction)


def on_a_rank(rank: int, folder: str, p: int, cpu: bool) -> None:
    """On one of two ranks: time steps of every kind in turns."""
    clock = time.process_time if cpu else time.perf_counter
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=2)
    steps = {kind: _step(kind, p, rank) for kind in STEPS}
    times: dict[str, list[float]] = {kind: [] for kind in STEPS}
    for turn in range(9):
        for kind, step in steps.items():
            dist.barrier()
            for number in range(7):
                began = clock()
                step()
                if turn and number:  # the first one still waits for the barrier, with the others' vectors in the cache
                    times[kind].append(1e3 * (clock() - began))
    # The lower quintile: other jobs only add to a step.
    quintiles = {kind: statistics.quantiles(some, n=5)[0] for kind, some in times.items()}
    Path(folder, str(rank)).write_text(json.dumps(quintiles))
    dist.barrier()
    dist.destroy_process_group()


def on_ranks(p: int, cpu: bool) -> dict[str, float]:
    """Return milliseconds per step on two ranks."""
    from torch.multiprocessing.spawn import spawn

    with tempfile.TemporaryDirectory() as folder:
        spawn(on_a_rank, (folder, p, cpu), nprocs=2)  # type: ignore[no-untyped-call]
        first, second = (json.loads(Path(folder, str(rank)).read_text()) for rank in range(2))
    return {kind: first[kind] + second[kind] if cpu else first[kind] for kind in first}


def measure(source: Path, *words: str) -> dict[str, float]:
    """Run this script in a process with another version of lasg."""
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(HERE), "--here", *words], env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(done.stderr)
    times: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return times


def compare(before: Path, turns: int, words: tuple[str, ...], unit: str) -> None:
    """Print the medians of both versions, and their ratios."""
    now = HERE.parents[1] / "src"
    found = [(measure(before, *words), measure(now, *words)) for _ in range(turns)]
    print(f"\n| | before ({unit}) | now ({unit}) | ratio |\n| --- | ---: | ---: | ---: |")
    ratios = []
    for name in found[0][0]:
        old, new = (statistics.median(pair[i][name] for pair in found) for i in (0, 1))
        if name != "all_reduce":
            ratios.append(new / old)
        print(f"| {name} | {old:.2f} | {new:.2f} | {new / old:.3f} |")
    print(f"\nMedian ratio: {statistics.median(ratios):.3f}", flush=True)


def main() -> None:
    """Compare two versions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, help="the src folder of the version before")
    parser.add_argument("--data-dir", default="")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--size", type=int, default=1_000_000, help="parameters of a step on ranks")
    parser.add_argument("--cpu", action="store_true", help="of a step on ranks, the processor time of both")
    parser.add_argument("--only", choices=("simulated", "ranks"), help="compare these alone")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.here:
        print(
            json.dumps(
                simulated(options.data_dir) if options.only == "simulated" else on_ranks(options.size, options.cpu)
            )
        )
        return
    if options.before is None:
        parser.error("--before is needed: the src folder of the version before")
    if options.only != "ranks":
        compare(options.before, options.turns, ("--only", "simulated", "--data-dir", options.data_dir), "us")
    if options.only != "simulated":
        clock = ("--cpu",) if options.cpu else ()
        compare(options.before, options.turns, ("--only", "ranks", "--size", str(options.size), *clock), "ms")


if __name__ == "__main__":
    main()
