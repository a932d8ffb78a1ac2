"""Memory of one step over many microbatches: a plain loop that accumulates, beside LazyOptimizer.step([f1, f2, ...]).

python benchmarks/microbatches.py

Each way runs in a process of its own, whose peak of resident memory is compared; beside it by how much the step raised
that peak. The lazy optimizer holds some vectors as long as the model besides, however many microbatches there are.
"""

from __future__ import annotations

import argparse
import functools
import multiprocessing
import resource
from typing import Any

WIDTH, LAYERS, SAMPLES = 512, 8, 4096


def megabytes() -> float:
    """Return this process's peak of resident memory so far, in 10^6 bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def peak(way: str, microbatches: int, results: Any) -> None:
    """Take one step over so many microbatches; report the peak, and by how much the step raised it."""
    import torch
    from torch import Tensor, nn

    import lasg

    torch.set_num_threads(1)
    model = nn.Sequential(*(part for _ in range(LAYERS) for part in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def loss(seed: int) -> Tensor:
        x = torch.randn(SAMPLES, WIDTH, generator=torch.Generator().manual_seed(seed))
        found: Tensor = model(x).square().mean()
        return found

    functions = [functools.partial(loss, seed) for seed in range(microbatches)]
    before = megabytes()
    if way == "plain loop":
        for function in functions:
            (function() / microbatches).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
    elif way == "step([f1, f2, ...])":
        lasg.LazyOptimizer(optimizer).step(functions)
    else:
        lasg.LazyOptimizer(optimizer).step(lambda: torch.stack([function() for function in functions]).mean())
    results.put((megabytes(), megabytes() - before))


def main() -> None:
    """Print a line per way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--microbatches", type=int, default=32)
    given = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    found: dict[str, tuple[float, float]] = {}
    for way in ("plain loop", "step([f1, f2, ...])", "step of one function"):
        results: Any = context.Queue()
        process = context.Process(target=peak, args=(way, given.microbatches, results))
        process.start()
        found[way] = results.get()
        process.join()
        (whole, step), (plain, plain_step) = found[way], found["plain loop"]
        print(f"{way:22} {whole:6.0f} MB {whole / plain:6.2f}x; the step {step:6.0f} MB {step / plain_step:6.2f}x")


if __name__ == "__main__":
    main()
