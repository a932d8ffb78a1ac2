"""The lazy optimizer is an optimizer of torch: hooks, schedulers and checkpoints take it as any other."""

from __future__ import annotations

import functools
import io
import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lasg
from lasg.errors import LasgError
from tests.loops.test_lazy_optimizer import data, flat, loss_of, module, sgd, trained

STEPS = 12


def step(opt: lasg.LazyOptimizer, model: nn.Module) -> Tensor | None:
    x, y = data(0, 1)[0]
    return opt.step(functools.partial(loss_of, model, x, y))


def test_it_is_an_optimizer_with_the_wrapped_ones_groups_state_and_defaults() -> None:
    inner = sgd(module(), momentum=0.9)
    opt = lasg.LazyOptimizer(inner)
    assert isinstance(opt, torch.optim.Optimizer)
    assert opt.param_groups is inner.param_groups
    assert opt.state is inner.state
    assert opt.defaults is inner.defaults


@pytest.mark.parametrize("rule", ["always", "wk2"])
def test_hooks_before_and_after_a_step_fire_once_a_step(rule: str) -> None:
    model = module()
    inner = sgd(model)
    opt = lasg.LazyOptimizer(inner, rule)
    seen: list[tuple[str, Any]] = []
    opt.register_step_pre_hook(lambda which, args, kwargs: seen.append(("before", which)))
    opt.register_step_post_hook(lambda which, args, kwargs: seen.append(("after", which)))
    inner.register_step_post_hook(lambda which, args, kwargs: seen.append(("inside", which)))
    for _ in range(3):
        step(opt, model)
    assert seen == 3 * [("before", opt), ("inside", inner), ("after", opt)]


def test_a_hook_that_was_removed_fires_no_more_and_one_optimizers_are_not_anothers() -> None:
    first, second = module(), module()
    one, other = lasg.LazyOptimizer(sgd(first)), lasg.LazyOptimizer(sgd(second))
    seen: list[int] = []
    handle = one.register_step_post_hook(lambda *_: seen.append(1))
    step(other, second)
    assert not seen
    step(one, first)
    handle.remove()
    step(one, first)
    assert seen == [1]


def test_a_hook_after_the_step_sees_the_model_that_the_step_made() -> None:
    model = module()
    opt = lasg.LazyOptimizer(sgd(model))
    before = flat(model).clone()
    seen: list[Tensor] = []
    opt.register_step_pre_hook(lambda *_: seen.append(flat(model).clone()))
    opt.register_step_post_hook(lambda *_: seen.append(flat(model).clone()))
    step(opt, model)
    assert torch.equal(seen[0], before)
    assert torch.equal(seen[1], flat(model))
    assert not torch.equal(*seen)


@pytest.mark.parametrize(
    "make",
    [
        lambda opt: torch.optim.lr_scheduler.StepLR(opt, 2, gamma=0.5),
        lambda opt: torch.optim.lr_scheduler.LambdaLR(opt, lambda k: 1 / (1 + k)),
        lambda opt: torch.optim.lr_scheduler.OneCycleLR(opt, max_lr=0.5, total_steps=6),
    ],
)
def test_the_wrapped_rate_follows_a_scheduler_as_if_it_were_alone(make: Any) -> None:
    model = module()
    inner, alone = sgd(model, momentum=0.9), sgd(module(), momentum=0.9)
    opt = lasg.LazyOptimizer(inner)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        scheduler, expected = make(opt), make(alone)
        for _ in range(5):
            before = flat(model).clone()
            step(opt, model)
            alone.step()
            assert not torch.equal(flat(model), before)
            scheduler.step()
            expected.step()
            assert inner.param_groups[0]["lr"] == opt.param_groups[0]["lr"] == alone.param_groups[0]["lr"]
            assert inner.param_groups[0]["momentum"] == alone.param_groups[0]["momentum"]
    assert isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler)


@pytest.mark.parametrize("rule", ["always", "lag", "wk1", "wk2", "pse"])
@pytest.mark.parametrize("kind", [sgd, lambda model: torch.optim.Adam(model.parameters(), lr=0.01)])
def test_a_state_dict_on_disk_holds_no_code_and_a_run_goes_on_from_it_bit_for_bit(kind: Any, rule: str) -> None:
    batches = data(0, STEPS)
    ends = []
    for stops in (False, True):
        model = module()
        opt = lasg.LazyOptimizer(kind(model), rule)
        for k, (x, y) in enumerate(batches):
            if stops and k == 5:
                file = io.BytesIO()
                torch.save(opt.state_dict(), file)
                file.seek(0)
                model = module(seed=9)
                opt = lasg.LazyOptimizer(kind(model), rule)
                opt.load_state_dict(torch.load(file, weights_only=True))
            opt.step(functools.partial(loss_of, model, x, y))
        ends.append((flat(model), opt.ledger.row()))
    assert torch.equal(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]


def test_a_state_dict_does_not_change_when_the_run_goes_on() -> None:
    model = module()
    opt = lasg.LazyOptimizer(sgd(model, momentum=0.9), "wk2")
    trained(opt, model, 0, 3)
    state, file, later = opt.state_dict(), io.BytesIO(), io.BytesIO()
    torch.save(state, file)
    trained(opt, model, 0, 3)
    torch.save(state, later)
    assert file.getvalue() == later.getvalue()


def test_a_step_without_a_function_is_refused_in_one_line_that_says_what_to_write() -> None:
    model = module()
    opt = lasg.LazyOptimizer(sgd(model))
    seen: list[int] = []
    opt.register_step_post_hook(lambda *_: seen.append(1))
    before = flat(model).clone()
    with pytest.raises(LasgError) as error:
        opt.step()
    assert "\n" not in str(error.value)
    assert "write opt.step(lambda: loss_function(model(x), y))" in str(error.value)
    assert torch.equal(flat(model), before)
    assert opt.ledger.rounds == 0
    assert not seen
    assert step(opt, model) is not None


def test_parameters_are_not_added_after_construction() -> None:
    model = module()
    opt = lasg.LazyOptimizer(sgd(model))
    with pytest.raises(LasgError, match="make a new one around the wrapped optimizer"):
        opt.add_param_group({"params": [nn.Parameter(torch.zeros(3))]})
    assert len(opt.param_groups) == 1
    step(opt, model)


@pytest.mark.parametrize("set_to_none", [True, False])
def test_zero_grad_clears_the_gradients_as_the_wrapped_optimizer_does(set_to_none: bool) -> None:
    model = module()
    opt = lasg.LazyOptimizer(sgd(model))
    x, y = data(0, 1)[0]
    loss_of(model, x, y).backward()
    opt.zero_grad(set_to_none)
    left = [value.grad for value in model.parameters()]
    assert all(grad is None if set_to_none else grad is not None and not grad.any() for grad in left)


def test_it_says_what_it_wraps_and_how_lazy_it_is() -> None:
    said = repr(lasg.LazyOptimizer(torch.optim.AdamW(module().parameters(), lr=0.25), "wk2"))
    assert said.startswith("LazyOptimizer(AdamW (")
    assert "lr: 0.25" in said
    assert "rule='wk2'" in said
    assert "codec=Dense()" in said  # alone nothing travels


def scaled_by_a_hook(rate: float, scale: float) -> torch.Tensor:
    torch.manual_seed(0)
    model = nn.Linear(3, 1)
    inner = torch.optim.SGD(model.parameters(), lr=rate)

    def shrink(*_: Any) -> None:
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(scale)

    inner.register_step_pre_hook(shrink)
    optimizer = lasg.LazyOptimizer(inner, "lag", "dense", c=float("inf"), D=100)
    for _ in range(4):
        optimizer.step(lambda: model(torch.ones(4, 3)).square().mean())
    return torch.cat([value.detach().reshape(-1) for value in model.parameters()])


def test_a_hook_that_scales_gradients_scales_them_once_per_step() -> None:
    """Silent rounds use the aggregate again: what a hook wrote into the gradients must not be in it."""
    torch.testing.assert_close(scaled_by_a_hook(0.02, 0.5), scaled_by_a_hook(0.01, 1.0), rtol=0, atol=1e-7)
