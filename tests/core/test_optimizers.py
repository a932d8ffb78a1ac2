"""The server's optimizers, and what they mean for the threshold."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, TorchOptimizer
from lasg.errors import LasgError
from tests.core.toy import KINDS, LAZY, M, P, Run, as_kind, numpy_of

each_kind = pytest.mark.parametrize("kind", KINDS)
Make = Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]
MakeScheduler = Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler]


class Renamed(torch.optim.SGD):
    """Plain SGD that lasg cannot know to be plain."""


OPTIMIZERS: dict[str, Make] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True),
    "nesterov-foreach": lambda p: torch.optim.SGD(p, lr=0.02, momentum=0.9, nesterov=True, foreach=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, foreach=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}
SCHEDULERS: dict[str, MakeScheduler] = {
    "step": lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=5, gamma=0.5),
    "cosine": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=60, eta_min=0.001),
    "exponential": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, gamma=0.95),
    "lambda": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: 1 / (1 + k)),
}


def zeros(kind: str = "numpy", dtype: str = "float64") -> Any:
    return as_kind(np.zeros(P), kind, dtype)


def aggregates(rounds: int) -> npt.NDArray[np.float64]:
    return np.random.default_rng(4).normal(size=(rounds, P))


# -- plain SGD -------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-14), ("float32", 1e-6)])
@pytest.mark.parametrize("schedule", [Constant(0.3), Decreasing(0.7, 3.0)])
def test_closed_form_sgd_equals_torch_sgd(
    kind: str, dtype: str, tolerance: float, schedule: Constant | Decreasing
) -> None:
    start = np.linspace(-1, 1, P)
    closed = ClosedFormSGD(as_kind(start, kind, dtype), schedule)
    by_torch = TorchOptimizer(
        as_kind(start, kind, dtype),
        lambda p: torch.optim.SGD(p, lr=schedule(0)),
        lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda k: schedule(k) / schedule(0)),
    )
    assert closed.plain
    assert by_torch.plain
    for k, aggregate in enumerate(aggregates(50)):
        assert closed.rate(k) == pytest.approx(by_torch.rate(k), rel=1e-14)
        one, other = closed.step(k, as_kind(aggregate, kind)), by_torch.step(k, as_kind(aggregate, kind))
        assert type(one) is type(other)
        assert one.dtype == other.dtype == as_kind(start, kind, dtype).dtype
        np.testing.assert_allclose(numpy_of(one), numpy_of(other), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("rule", LAZY)
@each_kind
def test_a_lazy_run_under_torch_sgd_is_the_run_under_closed_form_sgd(rule: str, kind: str) -> None:
    closed = Run(rule, kind=kind)
    by_torch = Run(rule, kind=kind, optimizer=TorchOptimizer(zeros(kind), OPTIMIZERS["sgd"]))
    for _ in range(40):
        request, uploads = closed.step()
        again, answer = by_torch.step()
        np.testing.assert_array_equal(uploads.uploaded, answer.uploaded)
        assert request.threshold == pytest.approx(again.threshold, rel=1e-9)
        np.testing.assert_allclose(closed.theta, by_torch.theta, atol=1e-12)


def test_the_decreasing_schedule_is_the_one_of_the_theorem() -> None:
    schedule = Decreasing(0.5, 8.0)
    assert [schedule(k) for k in (0, 1, 32)] == [2 / (0.5 * 8), 2 / (0.5 * 9), 2 / (0.5 * 40)]


@pytest.mark.parametrize("wrong", [0.0, -1.0, float("inf"), float("nan"), "0.1", None])
def test_step_sizes_that_are_no_positive_numbers_are_refused(wrong: Any) -> None:
    with pytest.raises(LasgError, match="positive"):
        Constant(wrong)
    with pytest.raises(LasgError, match="positive"):
        Decreasing(wrong, 1.0)
    with pytest.raises(LasgError, match="positive"):
        Decreasing(1.0, wrong)


# -- the threshold ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("window", "D", "summed"), [(1, 20, 1), (3, 20, 3), (10, 20, 10), (10, 4, 4)])
def test_the_threshold_of_plain_sgd_is_the_papers(window: int, D: int, summed: int) -> None:
    """c / (eta_k^2 M^2) times the sum of the last squared moves, at most D of them, with the eta of this round."""
    c, schedule = 0.4, Decreasing(0.5, 20.0)
    run = Run("wk2", c=c, window=window, D=D, schedule=schedule)
    moves: list[float] = []
    for k in range(30):
        before = run.theta.copy()
        request, _ = run.step()
        assert request.threshold == pytest.approx(c / (schedule(k) ** 2 * M**2) * sum(moves[-summed:]), rel=1e-12)
        moves.append(float(((run.theta - before) ** 2).sum()))


@pytest.mark.parametrize("name", [name for name in OPTIMIZERS if name != "sgd"])
@each_kind
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_threshold_of_other_optimizers_is_in_gradient_units(name: str, kind: str, dtype: str) -> None:
    """c / M^2 times the sum of the last ||aggregate||^2, the aggregate being what the workers last sent."""
    c, window = 0.1, 4
    optimizer = TorchOptimizer(zeros(kind, dtype), OPTIMIZERS[name])
    assert not optimizer.plain
    run = Run("wk2", c=c, window=window, kind=kind, dtype=dtype, optimizer=optimizer)
    sizes: list[float] = []
    for _ in range(30):
        request, _ = run.step()
        assert request.threshold == pytest.approx(c / M**2 * sum(sizes[-window:]), rel=1e-6)
        sent = numpy_of(run.contributed).astype(np.float64).sum(0)
        sizes.append(float((sent**2).sum()))


@pytest.mark.parametrize("rule", LAZY)
@each_kind
def test_gradient_units_and_the_paper_agree_for_constant_step_sgd(rule: str, kind: str) -> None:
    paper = Run(rule, kind=kind, optimizer=TorchOptimizer(zeros(kind), OPTIMIZERS["sgd"]))
    other = Run(rule, kind=kind, optimizer=TorchOptimizer(zeros(kind), lambda p: Renamed(p, lr=0.1)))
    assert paper.server.optimizer.plain
    assert not other.server.optimizer.plain
    for _ in range(40):
        request, uploads = paper.step()
        again, answer = other.step()
        assert again.threshold == pytest.approx(request.threshold, rel=1e-9)
        np.testing.assert_array_equal(uploads.uploaded, answer.uploaded)
        np.testing.assert_array_equal(paper.theta, other.theta)


@pytest.mark.parametrize("setting", ["momentum", "weight_decay", "nesterov", "maximize", "dampening"])
def test_torch_sgd_with_an_option_is_not_plain(setting: str) -> None:
    options: dict[str, Any] = {"lr": 0.1, setting: True if setting in {"nesterov", "maximize"} else 0.5}
    if setting in {"nesterov", "dampening"}:
        options["momentum"] = 0.5
    assert not TorchOptimizer(zeros(), lambda p: torch.optim.SGD(p, **options)).plain


# -- schedulers ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULERS)
@each_kind
def test_any_scheduler_works_and_its_rate_enters_the_threshold(name: str, kind: str) -> None:
    c, window = 0.3, 5
    reference = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    scheduler = SCHEDULERS[name](reference)
    optimizer = TorchOptimizer(zeros(kind), OPTIMIZERS["sgd"], SCHEDULERS[name])
    run = Run("wk2", c=c, window=window, kind=kind, optimizer=optimizer)
    moves: list[float] = []
    for _ in range(25):
        eta = reference.param_groups[0]["lr"]
        before = run.theta.copy()
        request, _ = run.step()
        assert request.eta == eta
        assert request.threshold == pytest.approx(c / (eta**2 * M**2) * sum(moves[-window:]), rel=1e-12)
        np.testing.assert_allclose(run.theta, before - eta * numpy_of(run.server.aggregate), atol=1e-14)
        moves.append(float(((run.theta - before) ** 2).sum()))
        reference.step()
        scheduler.step()
    assert request.eta != 0.1


def test_a_scheduler_may_reach_a_rate_of_zero() -> None:
    """CosineAnnealingLR ends at 0 unless told otherwise; theta then stands still, which is no reason to crash."""
    optimizer = TorchOptimizer(
        zeros(), OPTIMIZERS["sgd"], lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=10)
    )
    Run("wk2", optimizer=optimizer).play(12)


def test_a_rate_of_zero_does_not_spoil_local_steps() -> None:
    """The pseudo-gradient is the sum of the H contributions, which needs no division."""
    optimizer = TorchOptimizer(
        zeros(), OPTIMIZERS["sgd"], lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, T_max=5)
    )
    run = Run("always", H=3, optimizer=optimizer)
    run.play(6)
    assert np.isfinite(run.theta).all()


# -- state -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", OPTIMIZERS)
@each_kind
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_an_optimizer_does_not_write_into_the_aggregate(name: str, kind: str, dtype: str) -> None:
    """The server adds innovations to it for ever: one in-place step would spoil every later round."""
    optimizer = TorchOptimizer(zeros(kind, dtype), OPTIMIZERS[name])
    for k, values in enumerate(aggregates(5)):
        aggregate = as_kind(values, kind)
        optimizer.step(k, aggregate)
        np.testing.assert_array_equal(numpy_of(aggregate), values)


@pytest.mark.parametrize("name", OPTIMIZERS)
@each_kind
def test_a_step_does_not_write_into_a_model_that_was_handed_out(name: str, kind: str) -> None:
    optimizer = TorchOptimizer(zeros(kind), OPTIMIZERS[name])
    handed, copies = [], []
    for k, values in enumerate(aggregates(5)):
        theta = optimizer.step(k, as_kind(values, kind))
        handed.append(theta)
        copies.append(numpy_of(theta).copy())
    for theta, kept in zip(handed, copies, strict=True):
        np.testing.assert_array_equal(numpy_of(theta), kept)


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("scheduler", [None, *SCHEDULERS])
@each_kind
def test_a_run_under_any_optimizer_continues_bit_for_bit(name: str, scheduler: str | None, kind: str) -> None:
    def fresh() -> Run:
        made = TorchOptimizer(zeros(kind), OPTIMIZERS[name], SCHEDULERS[scheduler] if scheduler else None)
        return Run("wk2", "qsgd8", kind=kind, optimizer=made)

    whole, resumed = fresh(), fresh()
    whole.play(9)
    resumed.restore(whole.state())
    for _ in range(10):
        request, uploads = whole.step()
        again, answer = resumed.step()
        assert (again.eta, again.threshold) == (request.eta, request.threshold)
        np.testing.assert_array_equal(answer.uploaded, uploads.uploaded)
        np.testing.assert_array_equal(resumed.theta, whole.theta)


def test_closed_form_sgd_gives_its_state_and_takes_it_back() -> None:
    one = ClosedFormSGD(zeros(), Constant(0.1))
    one.step(0, np.ones(P))
    other = ClosedFormSGD(zeros(), Constant(0.1))
    other.restore(copy.deepcopy(one.state()))
    np.testing.assert_array_equal(other.theta, one.theta)
