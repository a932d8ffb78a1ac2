"""Networks: ways to compute the gradients of many workers, a round of WK2 beside one of SGD, and peak memory.

    python benchmarks/networks.py            # all, some minutes
    python benchmarks/networks.py ways       # or: rounds, memory

The inputs are random: only their shapes matter here.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from lasg.core.algorithms import algorithm
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.problems.models import model
from lasg.problems.module import ModuleProblem
from lasg.transports.local import simulate


class Case(NamedTuple):
    """A model, its samples and its workers."""

    name: str
    shape: tuple[int, ...]
    workers: int
    batch: int
    norm: Literal["local", "frozen"] = "local"


CASES = (
    Case("mlp", (1, 8, 8), 10, 15),
    Case("mlp", (1, 8, 8), 100, 15),
    Case("mlp", (1, 28, 28), 10, 12),
    Case("cnn", (1, 28, 28), 10, 12),
    Case("resnet18", (3, 64, 64), 10, 8, "frozen"),
)


def problem(case: Case, how: Literal["auto", "loop", "vmap"] = "auto", channels_last: bool = True) -> ModuleProblem:
    """Return a problem with random samples."""
    count = 4 * case.batch * case.workers
    rng = np.random.default_rng(0)
    samples = rng.random((count, *case.shape), np.float32), rng.integers(0, 10, count)
    module = model(case.name, case.shape, 10, 0)
    if not channels_last:
        module = module.to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    shards = np.array_split(np.arange(count), case.workers)
    return ModuleProblem(module, cross_entropy, samples, shards, batch=0.25, batch_norm=case.norm, how=how)


def gradients(of: ModuleProblem) -> Callable[[], Any]:
    """Return what computes every worker's gradient at one model."""
    theta = of.start()
    return lambda: of.gradients(0, [theta], None)


def sum_of_all(of: ModuleProblem) -> Callable[[], Any]:
    """One backward of all minibatches together: the sum alone, which no rule can use. A floor."""
    x, y = of.data.read(of.order[of.batches.draw_all(0)])
    x, y = of._move(x), of._move(y)
    theta = of.start()

    def run() -> tuple[Tensor | None, ...]:
        of.flat.point_at(theta)
        return torch.autograd.grad(of._value(x, y), of.flat.parameters, allow_unused=True)

    return run


def in_turns(functions: dict[str, Callable[[], Any]], seconds: float) -> dict[str, float]:
    """Return the median time of each, called in turns, so that noise meets all alike."""
    taken: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or min(map(len, taken.values())) < 3:
        for name, function in functions.items():
            began = time.perf_counter()
            function()
            taken[name].append(time.perf_counter() - began)
    return {name: float(np.median(times)) for name, times in taken.items()}


def ways(seconds: float) -> None:
    """Print what a round's gradients cost each way, and which one is chosen."""
    columns = ("loop (ms)", "vmap (ms)", "loop, channels first (ms)", "sum only (ms)", "chosen")
    print("| model | parameters | workers x batch | " + " | ".join(columns) + " |")
    print("| --- | ---: | --- | ---: | ---: | ---: | ---: | --- |")
    for case in CASES:
        chosen = problem(case)
        loop, vmap, first = problem(case, "loop"), problem(case, "vmap"), problem(case, "loop", channels_last=False)
        functions = {"loop": gradients(loop), "vmap": gradients(vmap), "first": gradients(first)}
        functions["sum"] = sum_of_all(loop)
        found = in_turns(functions, seconds)
        shown = " | ".join(f"{1e3 * found[name]:.1f}" for name in ("loop", "vmap", "first", "sum"))
        print(f"| {case.name} {case.shape} | {chosen.p:,} | {case.workers} x {case.batch} | {shown} | {chosen.how} |")


def simulation(case: Case, name: str) -> Training:
    """Return a simulation of an algorithm, some rounds old."""
    of, chosen = problem(case), algorithm(name)
    found = simulate(
        of,
        ClosedFormSGD(of.start(), Constant(0.05)),
        rule=chosen.rule,
        codec=chosen.codec(8, None),
        laziness=Laziness(workers=case.workers, D=50),
    )
    for _ in range(3):
        found.step()
    return found


def rounds(seconds: float) -> None:
    """Print a round of each algorithm as a multiple of SGD's."""
    names = ("sgd", "lag-wk", "lasg-wk1", "lasg-wk2", "lasg-pse", "laqsg-wk2")
    print("| model | SGD round (ms) | " + " | ".join(names[1:]) + " |")
    print("| --- | ---: |" + " ---: |" * (len(names) - 1))
    for case in CASES:
        # Of ResNet-18 only the pair that matters: a simulation of it takes gigabytes.
        chosen = names if case.name != "resnet18" else ("sgd", "lasg-wk2")
        found = in_turns({name: simulation(case, name).step for name in chosen}, seconds)
        ratios = " | ".join(f"{found[name] / found['sgd']:.2f}" if name in found else "-" for name in names[1:])
        print(f"| {case.name} {case.shape}, {case.workers} workers | {1e3 * found['sgd']:.1f} | {ratios} |")


def memory() -> None:
    """Print the peak memory of a process that trains ResNet-18 with 10 workers, one process an algorithm."""
    print("| algorithm | peak memory (GB) |")
    print("| --- | ---: |")
    for name in ("sgd", "lag-wk", "lasg-wk1", "lasg-wk2", "lasg-pse", "laqsg-wk2"):
        command = [sys.executable, __file__, "peak", name]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        print(f"| {name} | {float(done.stdout):.2f} |")


def peak(name: str) -> None:
    """Train a few rounds, take a checkpoint's state, print the peak."""
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from lasg.runs import store

    found = simulation(CASES[-1]._replace(norm="local"), name)
    for _ in range(3):
        found.step()
    with TemporaryDirectory() as folder:
        store.write_checkpoint(Path(folder), found.state(live=True))
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6)


def main() -> None:
    """Run what was asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", default="all", choices=["all", "ways", "rounds", "memory", "peak"])
    parser.add_argument("algorithm", nargs="?")
    parser.add_argument("--seconds", type=float, default=10.0, help="for each model")
    given = parser.parse_args()
    torch.set_num_threads(1)
    if given.what == "peak":
        peak(given.algorithm)
        return
    if given.what in {"all", "ways"}:
        ways(given.seconds)
        print()
    if given.what in {"all", "rounds"}:
        rounds(given.seconds)
        print()
    if given.what in {"all", "memory"}:
        memory()


if __name__ == "__main__":
    main()
