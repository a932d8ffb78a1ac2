"""Long vectors on ranks: what a rank holds between steps, what it needs at most, and that the numbers are the same."""

from __future__ import annotations

import csv
import functools
import gc
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import lasg
from lasg.loops import memory
from tests import benchmark
from tests.transports.ranks import on_ranks

P = 1_200_000
"""Just long enough to be a large model's."""
HELD = {
    ("wk2+dense+difference", ()): 4,  # last model, belief, aggregate, and room for a probe or what others say
    ("wk2+dense", ()): 4,  # the sum of what was said is kept as under difference
    ("wk2+qsgd8:512+difference", ()): 4,
    ("lag+dense+difference", ()): 3,  # belief, which is the last gradient; aggregate; room
    ("lag+dense", (("c", 0.1),)): 3,
}
"""Vectors as long as the model that a rank holds between steps, besides the model and a gradient."""
LOOPS = {("lasg-local", 0): 3, ("diloco", 0): 3, ("diloco", 1): 4}
"""Of `lasg.lazy`, by algorithm and delay: model at the start of a round, residual, sum; where a delayed one began."""


def held(p: int) -> float:
    """Return how many vectors of p entries in float32 the tensors of this process take."""
    gc.collect()
    found = {}
    for thing in gc.get_objects():
        if type(thing) in (torch.Tensor, torch.nn.Parameter):
            found[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    return float(sum(size for size in found.values() if size >= p) / (4 * p))


def peak() -> int:
    """Return the largest resident size of this process so far, in bytes."""
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return 1024 * int(status.partition("VmHWM:")[2].split()[0])


def step_of(algorithm: str, p: int, **settings: Any) -> tuple[lasg.LazyOptimizer, torch.nn.Parameter]:
    weight = torch.nn.Parameter(torch.zeros(p))
    return lasg.LazyOptimizer(torch.optim.SGD([weight], lr=0.3), algorithm=algorithm, **settings), weight


def target(p: int) -> torch.Tensor:
    """Return where this rank's loss is least."""
    return torch.randn(p, generator=torch.Generator().manual_seed(torch.distributed.get_rank()))


def half_square(weight: torch.Tensor, goal: torch.Tensor) -> torch.Tensor:
    return (weight - goal).square().sum() / 2


def vectors_held(cases: list[tuple[str, tuple[tuple[str, float], ...]]], p: int, steps: int) -> list[float]:
    """Return what a rank holds between steps, besides its model, its data and a gradient."""
    found = []
    for algorithm, settings in cases:
        optimizer, weight = step_of(algorithm, p, **dict(settings))
        goal = target(p)
        for _ in range(steps):
            optimizer.step(functools.partial(half_square, weight, goal))
        found.append(held(p) - 3)
        del optimizer, weight, goal
    return found


def test_a_rank_holds_few_vectors_between_steps_and_names_each_of_them() -> None:
    for found in on_ranks(2, vectors_held, list(HELD), P, 3):
        assert found == pytest.approx(list(HELD.values()), abs=0.1)


def loops_held(cases: list[tuple[str, int]], p: int) -> list[float]:
    found = []
    for algorithm, delay in cases:
        model = torch.nn.Linear(p // 1000, 1000, bias=False)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        with lasg.lazy(model, optimizer, every=1, algorithm=algorithm, delay=delay) as loop:
            for _ in range(3):
                model.weight.square().sum().backward()
                optimizer.step()
                optimizer.zero_grad()
            outer = getattr(loop._training.server.optimizer, "optimizer", None)
            own = 0 if outer is None else sum(v.numel() for s in outer.state.values() for v in s.values()) / p
            loop._finish_exchange()
            found.append(held(p) - 1 - own)
        del model, optimizer, loop, outer
    return found


def test_a_lazy_loop_holds_few_vectors_between_rounds() -> None:
    for found in on_ranks(2, loops_held, list(LOOPS), P):
        assert found == pytest.approx(list(LOOPS.values()), abs=0.2)


def peaks(p: int, steps: int) -> float:
    """Return how many vectors the largest resident size of steps is above that of the data and the model."""
    small, _ = step_of("wk2+dense+difference", 1000)
    small.step(lambda: torch.dot(small.flat.parameters[0], target(1000)))  # so that all code is loaded
    goal = target(p)
    weight = torch.nn.Parameter(torch.zeros(p))
    before = peak()
    optimizer = lasg.LazyOptimizer(torch.optim.SGD([weight], lr=0.3), algorithm="wk2+dense+difference")
    for _ in range(steps):
        optimizer.step(lambda: torch.dot(weight, goal))
    return (peak() - before) / (4 * p)


LONGEST = 10**7 if os.environ.get("LASG_TEST_ALL") else 2_000_000
"""`make test-all` measures more parameters."""
MOST = 10
"""Vectors: a gradient, four that are held, the model and its copy, autograd's gradient, and 16 MB of anything else."""


@pytest.mark.parametrize("ranks", [2, 4])
def test_the_peak_of_a_rank_is_a_few_vectors_and_no_more_of_them_with_more_ranks(ranks: int) -> None:
    assert max(on_ranks(ranks, peaks, LONGEST, 3)) < MOST


def both_ways(p: int) -> tuple[torch.Tensor, list[bool], float]:
    """Train long vectors; return the model, who uploaded, and how far the aggregate is from the sum of what is said."""
    optimizer, weight = step_of("wk2+dense", p, c=0.1)
    goal = target(p)
    uploads = []
    for _ in range(12):
        optimizer.step(lambda: (weight - goal).square().sum() / (2 * p) ** 0.5)
        assert optimizer.last is not None
        uploads += optimizer.last.uploaded.tolist()
    believed = optimizer._training.workers.speaker.rows[0].clone()  # type: ignore[union-attr]
    torch.distributed.all_reduce(believed)
    apart = float((believed - optimizer._training.server.aggregate).norm() / believed.norm())
    return weight.detach()[:100].clone(), uploads, apart


def test_long_vectors_train_as_short_ones_do_and_all_ranks_agree() -> None:
    results = on_ranks(3, both_ways, P)
    for weight, uploads, apart in results:
        assert torch.equal(weight, results[0][0])
        assert uploads == results[0][1]
        assert not all(uploads)
        assert apart < 1e-6


def too_little(p: int) -> list[str]:
    """Return what is said where memory is not enough, of an optimizer and of a loop."""
    said = []
    memory.free_bytes = lambda: 10**8
    model = torch.nn.Linear(p // 1000, 1000, bias=False)
    inner = torch.optim.AdamW(model.parameters(), lr=0.1)
    for make in (
        lambda: lasg.LazyOptimizer(inner, "wk1", "qsgd8:512"),
        lambda: lasg.LazyOptimizer(inner, algorithm="lag+dense+difference"),
        lambda: lasg.lazy(model, inner),
    ):
        with pytest.raises(lasg.LasgError) as refused:
            make()
        said.append(str(refused.value))
    return said


def test_too_little_memory_is_said_before_the_first_step_with_what_needs_less() -> None:
    for of_wk1, of_lag, of_loop in on_ranks(2, too_little, 4_000_000):
        assert "4,000,000 parameters need about 0.35 GB of memory on " in of_wk1
        assert "besides the model, and 0.10 GB are free: algorithm='lag+dense+difference' needs 0.22 GB" in of_wk1
        assert of_wk1.endswith("or start fewer than 2 ranks there")
        assert "0.22 GB of memory" in of_lag
        assert ": an optimizer without momentum needs less, or start fewer than 2 ranks there" in of_lag
        assert "4,000,000 parameters need about 0.2" in of_loop
        assert not any("\n" in said for said in (of_wk1, of_lag, of_loop))


@pytest.mark.skipif("LASG_TEST_ALL" not in os.environ, reason="starts eight processes: make test-all")
def test_the_benchmark_of_a_transformer_trains_a_small_one_and_resumes_to_the_bit(tmp_path: Path) -> None:
    large = benchmark.load("large")
    command = [sys.executable, large.__file__, "--small", "--csv", str(tmp_path / "large.csv")]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    with (tmp_path / "large.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    rounds = [(algorithm, str(k)) for algorithm in large.ALGORITHMS for k in range(large.ROUNDS)]
    assert [(row["algorithm"], row["round"]) for row in rows] == rounds
    assert {row["resumed"] for row in rows} == {"same bits"}
