"""Sparse algorithms through the lazy optimizer: one gradient per step, momentum kept on the ranks."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

import lasg
from lasg.errors import LasgError
from tests.loops.test_lazy_optimizer import data, flat, loss_of, module, sgd, trained
from tests.transports.ranks import on_ranks

ALGORITHMS = (
    "lasg-sparse",
    "dgc",
    "always+topk0.1:2bit+ec+residual0.95+correction0.8",
    "always+sign:16+residual",
    "powersgd",
    "clag+grid0.25+ec+difference+blocks",
)


def outcome(algorithm: str) -> tuple[Tensor, Tensor, float, float, int]:
    """On a rank: the model, the same resumed half-way, its loss before and after, and the bytes it sent."""
    rank = dist.get_rank()
    model = module()
    before = mean_loss(model, rank)
    opt = lasg.LazyOptimizer(sgd(model, momentum=0.9), algorithm=algorithm)
    middle: dict[str, Any] = {}
    for k, (x, y) in enumerate(data(rank)):
        if k == 15:
            middle = copy.deepcopy(opt.state_dict())
        opt.step(lambda x=x, y=y: loss_of(model, x, y))  # type: ignore[misc]
    again = module(seed=1)
    other = lasg.LazyOptimizer(sgd(again, momentum=0.9), algorithm=algorithm)
    other.load_state_dict(middle)
    for x, y in data(rank)[15:]:
        other.step(lambda x=x, y=y: loss_of(again, x, y))  # type: ignore[misc]
    return flat(model), flat(again), before, mean_loss(model, rank), int(opt.sent.sum())


def mean_loss(model: torch.nn.Module, rank: int) -> float:
    with torch.no_grad():
        return float(sum(loss_of(model, x, y) for x, y in data(rank)) / len(data(rank)))


def outcomes() -> dict[str, Any]:
    return {name: outcome(name) for name in ALGORITHMS}


def test_ranks_agree_to_the_bit_learn_and_resume() -> None:
    first, second = on_ranks(2, outcomes)
    for name in ALGORITHMS:
        model, resumed, before, after, _ = first[name]
        assert torch.equal(model, second[name][0]), name
        assert torch.equal(model, resumed), name
        assert after < before, name


def test_the_momentum_is_taken_over_by_the_ranks() -> None:
    model = module()
    wrapped = sgd(model, momentum=0.7)
    opt = lasg.LazyOptimizer(wrapped, algorithm="lasg-sparse")
    assert wrapped.param_groups[0]["momentum"] == 0
    assert "beta=0.7" in repr(opt._training.stages.estimator)
    trained(opt, model, 0, 5)


@pytest.mark.parametrize(
    ("make", "algorithm", "hint"),
    [
        (torch.optim.AdamW, "lasg-sparse", "torch.optim.SGD"),
        (torch.optim.SGD, "diloco", "without them"),
        (torch.optim.SGD, "always+inner", "lasg-sparse"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(make: Any, algorithm: str, hint: str) -> None:
    with pytest.raises(LasgError, match=hint):
        lasg.LazyOptimizer(make(module().parameters(), lr=0.1), algorithm=algorithm)
