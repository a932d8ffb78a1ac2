"""Local steps with an optimizer of the workers' own: the same as the optimizer alone, and remembered per worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from lasg.core.codecs import State
from lasg.core.estimators import Momentum
from lasg.core.stages import Stages
from lasg.core.work import OptimizerSteps
from lasg.errors import LasgError
from tests.core.toy import KINDS, WEIGHTS, M, P, Toy, as_kind, numpy_of

OPTIMIZERS: dict[str, dict[str, Any]] = {
    "SGD": {"momentum": 0.9, "nesterov": True},
    "AdamW": {"weight_decay": 0.1, "amsgrad": True},
    "Adagrad": {},
    "ASGD": {},
    "NAdam": {},
    "RAdam": {},
    "RMSprop": {"momentum": 0.5, "centered": True},
    "Rprop": {},
    "Adadelta": {},
    "Adamax": {},
    "Adafactor": {},
}
each_kind = pytest.mark.parametrize("kind", KINDS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
OUTER = 0.7
"""The server's step size: work with an optimizer of its own does not look at it."""


def one_round(
    work: OptimizerSteps, k: int, theta: Any, state: State, toy: Toy, rows: Sequence[int] = range(M)
) -> tuple[Any, State]:
    who = np.array(rows)
    mine = {name: value[who] for name, value in state.items()}

    def gradients(iteration: int, points: Sequence[Any]) -> list[Any]:
        return toy.gradients(iteration, points, who)

    moves, mine = work.update(k, OUTER, gradients, [theta], WEIGHTS[who], mine)
    for name, value in mine.items():
        state[name][who] = value
    return moves[0], state


def models(k: int, kind: str, dtype: str) -> Any:
    return as_kind(np.random.default_rng(k).normal(size=P), kind, dtype)


@each_kind
@each_dtype
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_worker_takes_the_steps_of_its_own_torch_optimizer(optimizer: str, kind: str, dtype: str) -> None:
    work = OptimizerSteps(steps=3, optimizer=optimizer, eta=0.05, options=OPTIMIZERS[optimizer])
    toy = Toy(kind, dtype)
    state = work.init(M, models(0, kind, dtype))
    shapes = {name: value.shape for name, value in state.items()}
    locals_ = [torch.nn.Parameter(torch.zeros(P, dtype=getattr(torch, dtype))) for _ in range(M)]
    own = [getattr(torch.optim, optimizer)([local], lr=0.05, **OPTIMIZERS[optimizer]) for local in locals_]
    for k in range(4):
        theta = models(k, kind, dtype)
        asked = [m for m in range(M) if (m + k) % 3]  # who is not asked remembers what it did
        move, state = one_round(work, k, theta, state, toy, asked)
        assert move.dtype == theta.dtype
        assert type(move) is type(theta)
        assert {name: value.shape for name, value in state.items()} == shapes
        for i, m in enumerate(asked):
            locals_[m].data = torch.tensor(numpy_of(theta))
            for h in range(3):
                point = locals_[m].detach().numpy()[None]
                gradient = Toy("numpy", dtype).gradients(3 * k + h, [point], np.array([m]))[0][0] / WEIGHTS[m]
                locals_[m].grad = torch.tensor(gradient.astype(dtype))
                own[m].step()
            expected = WEIGHTS[m] * (numpy_of(theta) - locals_[m].detach().numpy())
            tolerance = 1e-10 if dtype == "float64" else 1e-5
            np.testing.assert_allclose(numpy_of(move)[i], expected, rtol=0, atol=tolerance)


@each_kind
@each_dtype
def test_drift_is_corrected_by_what_all_workers_moved_and_what_each_did(kind: str, dtype: str) -> None:
    """SCAFFOLD's option II, where the outer step is an average: written out here, worker by worker."""
    H, eta, drift = 2, 0.05, 0.3
    work = OptimizerSteps(steps=H, eta=eta, drift=drift)
    toy, fresh = Toy(kind, dtype), Toy("numpy", "float64")
    theta = models(0, kind, dtype)
    state = work.init(M, theta)
    before: Any = None
    own = np.zeros((M, P))
    for k in range(5):
        now = numpy_of(theta).astype(np.float64)
        push = 0.0 if before is None else drift * ((before - now) / (H * eta) - own)
        local = np.repeat(now[None], M, 0)
        for h in range(H):
            gradient = fresh.gradients(H * k + h, [local], None)[0] / WEIGHTS[:, None]
            local = local - eta * (gradient + push)
        own, before = (now - local) / (H * eta) - push, now  # the mean gradient itself, without the correction
        move, state = one_round(work, k, theta, state, toy)
        tolerance = 1e-12 if dtype == "float64" else 1e-5
        np.testing.assert_allclose(numpy_of(move), WEIGHTS[:, None] * (now - local), rtol=0, atol=tolerance)
        assert move.dtype == theta.dtype
        theta = theta - move.sum(0)


@pytest.mark.parametrize("optimizer", ["LBFGS", "SparseAdam", "Muon"])
def test_an_optimizer_that_cannot_step_a_flat_vector_is_refused_and_another_is_named(optimizer: str) -> None:
    with pytest.raises(LasgError, match=f"^{optimizer} cannot take local steps on a flat vector: take SGD, AdamW"):
        OptimizerSteps(optimizer=optimizer)


@pytest.mark.parametrize("drift", [-0.1, 1.1, float("nan")])
def test_a_drift_that_is_no_share_is_refused(drift: float) -> None:
    with pytest.raises(LasgError, match=r"must be 0 to 1"):
        OptimizerSteps(drift=drift)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"optimizer": "Foo"}, "unknown optimizer 'Foo': a class of torch.optim such as SGD or AdamW"),
        ({"options": {"foo": 1}}, "SGD refused its options: "),
        ({"options": {"momentum": -1.0}}, "SGD refused its options: "),
        ({"schedule": "Foo"}, "unknown schedule 'Foo': constant, or a class of torch.optim.lr_scheduler"),
        ({"schedule": "StepLR"}, "StepLR refused its options: "),
        ({"schedule": "ReduceLROnPlateau"}, "ReduceLROnPlateau has no step size by itself: "),
        ({"schedule": "LRScheduler"}, "LRScheduler has no step size by itself: "),
        ({"schedule": "Optimizer"}, "unknown schedule 'Optimizer': constant, or a class of torch.optim.lr_scheduler"),
        (
            {"schedule": "OneCycleLR", "schedule_options": {"max_lr": 1.0, "total_steps": 2}},
            "OneCycleLR has no step size",
        ),
    ],
)
def test_what_torch_does_not_know_or_take_is_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    def one() -> None:
        work = OptimizerSteps(**settings)
        one_round(work, 1, models(0, "numpy", "float64"), work.init(M, np.zeros(P)), Toy())
        work.rate(3)

    with pytest.raises(LasgError) as refused:
        one()
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_a_schedule_goes_on_over_local_steps_and_rounds() -> None:
    work = OptimizerSteps(
        steps=2, eta=0.4, schedule="StepLR", schedule_options={"step_size": 3, "gamma": 0.5}, memory="reset"
    )
    assert [work.rate(i) for i in (7, 0, 3, 2)] == [0.1, 0.4, 0.2, 0.4]
    theta = models(0, "numpy", "float64")
    state = work.init(M, theta)
    assert state == {}
    for k in range(3):
        move, state = one_round(work, k, theta, state, Toy())
        local = np.repeat(theta[None], M, 0)
        for h in range(2):
            gradient = Toy().gradients(2 * k + h, [local], None)[0] / WEIGHTS[:, None]
            local = local - 0.4 * 0.5 ** ((2 * k + h) // 3) * gradient
        np.testing.assert_allclose(move, WEIGHTS[:, None] * (theta - local), rtol=0, atol=1e-12)


def test_rounds_grow_as_the_step_size_falls_and_the_last_ends_with_the_run() -> None:
    halved = {"eta": 0.1, "schedule": "StepLR", "schedule_options": {"step_size": 10, "gamma": 0.5}}
    work = OptimizerSteps(steps=4, qsr=0.3, total=100, **halved)  # type: ignore[arg-type]
    rounds = [work.steps_of(k) for k in (3, 0, 1, 2)]
    # 9 = (.3 / .1)^2 at steps 0 and 9, 36 = (.3 / .05)^2 at step 18, and 96^2 at step 54, where eta is .1 / 32.
    assert rounds == [range(54, 100), range(9), range(9, 18), range(18, 54)]
    assert OptimizerSteps(steps=4, qsr=0.3, **halved).steps_of(3) == range(54, 54 + 96**2)  # type: ignore[arg-type]


def test_with_a_small_alpha_or_none_every_round_has_as_many_steps() -> None:
    for work in (OptimizerSteps(steps=3), OptimizerSteps(steps=3, qsr=0.17)):
        assert [work.steps_of(k) for k in (2, 0)] == [range(6, 9), range(3)]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"qsr": -0.1}, "qsr, the alpha of H = (alpha / eta)^2, must be >= 0 and finite, got -0.1"),
        ({"qsr": float("nan")}, "qsr, the alpha of H = (alpha / eta)^2, must be >= 0 and finite, got nan"),
        ({"qsr": 0.1, "drift": 0.5}, "drift divides by one number of local steps, and with qsr rounds differ: set one"),
        (
            {"qsr": 0.1, "schedule": "LambdaLR", "schedule_options": {"lr_lambda": lambda _: 0.0}},
            "qsr makes a round of inf steps at eta = 0: take a schedule that ends above 0",
        ),
    ],
)
def test_rounds_that_cannot_grow_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError) as refused:
        OptimizerSteps(**settings).steps_of(0)
    assert str(refused.value).startswith(words)


@each_kind
def test_an_optimizer_whose_memory_is_reset_begins_every_round_as_the_first(kind: str) -> None:
    options = {"momentum": 0.9}
    kept, reset = (OptimizerSteps(steps=3, options=options, memory=memory) for memory in ("kept", "reset"))
    theta = models(0, kind, "float64")
    states = {work: work.init(M, theta) for work in (kept, reset)}
    for k in range(3):
        found = {}
        for work in (kept, reset):
            found[work], states[work] = one_round(work, k, theta, states[work], Toy(kind))
        first, _ = one_round(reset, k, theta, reset.init(M, theta), Toy(kind))
        np.testing.assert_array_equal(numpy_of(found[reset]), numpy_of(first))
        assert (numpy_of(found[kept]) == numpy_of(first)).all() == (k == 0)
    assert states[reset] == {}


@pytest.mark.parametrize("optimizer", sorted(set(OPTIMIZERS) - {"ASGD", "NAdam"}))
@each_kind
def test_averaged_states_of_one_worker_are_kept_ones(optimizer: str, kind: str) -> None:
    """The mean of one worker is its own: theta and state move as if its optimizer had never stopped."""
    settings: dict[str, Any] = {"steps": 2, "optimizer": optimizer, "eta": 0.05, "options": OPTIMIZERS[optimizer]}
    kept, averaged = OptimizerSteps(**settings), OptimizerSteps(**settings, memory="averaged")
    count, theta = 1 + len(averaged.averaged), models(0, kind, "float64")
    vector = as_kind(np.concatenate([numpy_of(theta), np.zeros((count - 1) * P)]), kind, "float64")
    state = kept.init(M, theta)
    assert averaged.init(M, vector) == {}
    for k in range(4):
        move, state = one_round(kept, k, theta, state, Toy(kind), [1])
        whole, _ = one_round(averaged, k, vector, {}, Toy(kind), [1])
        theta, vector = theta - move[0] / WEIGHTS[1], vector - whole[0] / WEIGHTS[1]
        np.testing.assert_allclose(numpy_of(vector)[:P], numpy_of(theta), rtol=0, atol=1e-10)
        for i, name in enumerate(averaged.averaged, start=1):
            found = numpy_of(vector)[i * P : (i + 1) * P]
            np.testing.assert_allclose(found, numpy_of(state[name])[1], rtol=0, atol=1e-10, err_msg=name)


def test_a_second_moment_that_came_out_below_zero_counts_as_zero() -> None:
    work = OptimizerSteps(optimizer="Adam", eta=0.01, memory="averaged")
    assert work.averaged == ("exp_avg", "exp_avg_sq")
    vector = np.concatenate([np.ones(P), np.zeros(P), np.full(P, -1e-9)])
    zeroed = np.concatenate([np.ones(P), np.zeros(2 * P)])
    move, same = (one_round(work, 3, start, {}, Toy())[0] for start in (vector, zeroed))
    np.testing.assert_array_equal(move[:, : 2 * P], same[:, : 2 * P])
    assert np.isfinite(move).all()


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({}, "inner_memory = averaged: SGD with these options remembers nothing to average. Give it momentum, or take"),
        ({"optimizer": "NAdam"}, "inner_memory = averaged: NAdam also keeps mu_product, which no average says: take"),
        ({"optimizer": "ASGD"}, "inner_memory = averaged: ASGD also keeps eta, which no average says: take AdamW"),
    ],
)
def test_states_that_cannot_be_averaged_are_refused_in_one_line(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError) as refused:
        Stages(inner=OptimizerSteps(**settings, memory="averaged"))
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("stages", "words"),
    [
        ({"rule": "lag"}, "rule lag compares moves of the model, and with inner_memory = averaged"),
        ({"estimator": Momentum()}, "Momentum filters moves of the model, and with inner_memory = averaged"),
    ],
)
def test_what_weighs_moves_does_not_go_with_averaged_states(stages: dict[str, Any], words: str) -> None:
    inner = OptimizerSteps(options={"momentum": 0.9}, memory="averaged")
    with pytest.raises(LasgError, match=words):
        Stages(inner=inner, **stages)
