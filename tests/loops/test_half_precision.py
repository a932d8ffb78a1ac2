"""Models in bfloat16 and float16: what is believed and stepped is in float32, and the weights are rounded from it."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import lasg
from tests.transports.ranks import on_ranks

STEPS = 8


def data(rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return torch.randn(STEPS, 16, 6, generator=generator), torch.randint(3, (STEPS, 16), generator=generator)


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).to(torch.bfloat16)


def loss_of(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return cross_entropy(model(x.bfloat16()).float(), y)


def by_hand(optimizer_of: Any) -> list[torch.Tensor]:
    """Train with weights in float32 that a model in bfloat16 is rounded from."""
    model, (x, y) = network(), data(0)
    wide = [nn.Parameter(value.detach().float()) for value in model.parameters()]
    optimizer = optimizer_of(wide)
    for k in range(STEPS):
        model.zero_grad()
        loss_of(model, x[k], y[k]).backward()
        for parameter, value in zip(wide, model.parameters(), strict=True):
            assert value.grad is not None
            parameter.grad = value.grad.float()
        optimizer.step()
        for parameter, value in zip(wide, model.parameters(), strict=True):
            value.data.copy_(parameter)
    return [value.detach() for value in wide]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_alone_a_bfloat16_model_is_rounded_from_float32_weights_that_the_optimizer_steps(kind: Any) -> None:
    model, (x, y) = network(), data(0)
    narrow = list(model.parameters())
    optimizer = lasg.LazyOptimizer(kind(model.parameters(), lr=0.05), "always", "dense")
    for k in range(STEPS):
        loss = optimizer.step(functools.partial(loss_of, model, x[k], y[k]))
        assert loss is not None
    for wide, value, held in zip(
        by_hand(lambda wide: kind(wide, lr=0.05)), model.parameters(), optimizer.param_groups[0]["params"], strict=True
    ):
        assert value.dtype == torch.bfloat16
        assert held.dtype == torch.float32
        assert torch.equal(held, wide)
        assert torch.equal(value, wide.bfloat16())
    assert all(one is other for one, other in zip(narrow, model.parameters(), strict=True))


def lazily() -> tuple[list[torch.Tensor], list[torch.Tensor], list[bool]]:
    """Train on ranks, resume in between; return the weights of a run without and with a break, and who uploaded."""
    found, uploads = [], []
    x, y = data(torch.distributed.get_rank())
    for breaks in (False, True):
        model = network()
        optimizer = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), "wk2", "qsgd8:512")
        for k in range(STEPS):
            if breaks and k == STEPS // 2:
                saved = optimizer.state_dict()
                model = network()
                inner = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
                optimizer = lasg.LazyOptimizer(inner, "wk2", "qsgd8:512")
                optimizer.load_state_dict(saved)
            optimizer.step(functools.partial(loss_of, model, x[k], y[k]))
            assert optimizer.last is not None
            uploads += optimizer.last.uploaded.tolist()
        found.append([value.detach().clone() for value in model.parameters()])
    return found[0], found[1], uploads


def test_bfloat16_on_ranks_agrees_on_all_and_resumes_to_the_bit() -> None:
    (first, resumed, uploads), (second, _, _) = on_ranks(2, lazily)
    assert all(map(torch.equal, first, resumed))
    assert all(map(torch.equal, first, second))
    assert uploads[: len(uploads) // 2] == uploads[len(uploads) // 2 :]


def scaled(dtype: torch.dtype) -> list[torch.Tensor]:
    """Train a loop with gradients in half precision, scaled so that they do not vanish."""
    torch.manual_seed(0)
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14)
    x, _ = data(torch.distributed.get_rank())
    with lasg.lazy(model, optimizer, every=2):
        for k in range(STEPS):
            with torch.autocast("cpu", dtype):
                loss = mse_loss(model(x[k]).float(), 1e-4 * x[k][:, :1])
            scaler.scale(loss * 1e-4).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return [value.detach() for value in model.parameters()]


def test_float16_with_a_gradscaler_trains_in_a_loop_without_a_closure() -> None:
    torch.manual_seed(0)
    before = list(nn.Linear(6, 1).parameters())
    first, second = on_ranks(2, scaled, torch.float16)
    assert all(map(torch.equal, first, second))
    assert not any(map(torch.equal, first, before))
    assert all(value.isfinite().all() for value in first)


def test_float16_parameters_are_refused_with_what_to_take() -> None:
    model = nn.Linear(6, 1).half()
    with pytest.raises(lasg.LasgError, match=r"got torch\.float16, whose gradients need a GradScaler: take lasg\.lazy"):
        lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), "always", "dense")
