"""What a round of the lazy optimizer costs beyond its gradients, beside an all_reduce in the same run.

    python benchmarks/distributed.py                     # ranks 2, 4, 8; 1e3 to 1e7 parameters; some minutes

The loss is linear in the parameters, so that a gradient is cheap. What one costs is measured in the same run, and taken
off: what is left is lasg's, flags, exchange, server and optimizer. The median of rounds of each kind, in turns; the
loopback, one thread a rank.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

import lasg

SIZES = (1_000, 10_000, 100_000, 1_000_000, 10_000_000)
RANKS = (2, 4, 8)
KINDS = {"nobody uploads": 2, "one uploads": 1, "all upload": 1, "all upload, 4 bits": 1, "all upload, 8 bits": 1}
"""Rounds, and how many gradients each has."""


def made(kind: str, p: int, rank: int) -> Callable[[], None]:
    """Return a round of a kind: who uploads is settled by the rule's constants."""
    parameter = torch.nn.Parameter(torch.zeros(p))
    direction = torch.randn(p, generator=torch.Generator().manual_seed(rank)) / p
    if kind == "all_reduce":
        gradient = direction.clone()
        return lambda: dist.all_reduce(gradient)
    if kind == "gradient":

        def differentiate() -> None:
            torch.autograd.grad(parameter @ direction, parameter)

        return differentiate
    optimizer = torch.optim.SGD([parameter], lr=1e-3)
    if kind == "one uploads":
        # A rule of our own: rank 0 always has news, the others never.
        rule = lasg.Rule(
            name="one", left=lambda now, last: (now.grad[:, :1] * 0).sum(-1) + (1.0 if rank == 0 else -1.0)
        )
        opt = lasg.LazyOptimizer(optimizer, rule, "dense", c=0.0, D=10**9)
    elif kind == "nobody uploads":
        opt = lasg.LazyOptimizer(optimizer, "wk2", "dense", c=float("inf"), D=10**9)
    else:
        opt = lasg.LazyOptimizer(optimizer, "always", f"qsgd{kind[-6]}:512" if "bits" in kind else "dense")
    return lambda: _step(opt, parameter, direction)


def _step(opt: lasg.LazyOptimizer, parameter: torch.nn.Parameter, direction: torch.Tensor) -> None:
    opt.step(lambda: parameter @ direction)


def timed(rank: int, ranks: int, folder: str, p: int, results: Any) -> None:
    """On a rank: time rounds of every kind in turns."""
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=ranks)
    rounds = {kind: made(kind, p, rank) for kind in ("all_reduce", "gradient", *KINDS)}
    times: dict[str, list[float]] = {kind: [] for kind in rounds}
    began = time.monotonic()
    for turn in range(200):
        for kind, round_ in rounds.items():
            dist.barrier()
            start = time.perf_counter()
            round_()
            if turn > 2:
                times[kind].append(time.perf_counter() - start)
        enough = torch.tensor([time.monotonic() - began > 15 and turn > 5])
        dist.broadcast(enough, 0)
        if enough.item():
            break
    if rank == 0:
        results.put({kind: statistics.median(found) for kind, found in times.items()})
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Print milliseconds a round, and how many all_reduces that is beyond its gradients."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, nargs="+", default=RANKS)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    options = parser.parse_args()
    kinds = " | ".join(f"{kind}, ms (x)" for kind in KINDS)
    print(f"| ranks | parameters | all_reduce, ms | a gradient, ms | {kinds} |")
    print("| ---: | ---: | ---: | ---: |" + " ---: |" * len(KINDS))
    for ranks in options.ranks:
        for p in options.sizes:
            with tempfile.TemporaryDirectory() as folder:
                results = multiprocessing.get_context("spawn").SimpleQueue()
                spawn(timed, (ranks, folder, p, results), nprocs=ranks)  # type: ignore[no-untyped-call]
                found = results.get()
            base, gradient = found["all_reduce"], found["gradient"]
            beyond = {kind: found[kind] - count * gradient for kind, count in KINDS.items()}
            cells = [f"{1e3 * found[kind]:.2f} ({beyond[kind] / base:.2f})" for kind in KINDS]
            head = f"| {ranks} | {p:,} | {1e3 * base:.2f} | {1e3 * gradient:.2f} | "
            print(head + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
