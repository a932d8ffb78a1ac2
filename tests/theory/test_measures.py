"""The measured numbers of a problem are those of its Hessian and of its minibatches."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.functional import cross_entropy

from lasg.core.arrays import norms
from lasg.data.batches import batch_sizes
from lasg.problems.module import ModuleProblem
from lasg.problems.regression import Regression
from lasg.theory.curvature import power_iteration, smoothness_from_below
from lasg.theory.measures import Measures, measure, pieces

Values = npt.NDArray[Any]
SIZES = (3, 5, 4)


def regression(classes: int, *, lam: float = 0.01, batch: float = 0.5, seed: int = 0) -> Regression:
    random = np.random.default_rng(seed)
    x = random.standard_normal((sum(SIZES), 4)) + 0.5
    y = np.arange(sum(SIZES)) % classes
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return Regression(x, y, shards, classes=classes, batch=batch, seed=seed, lam=lam, dtype=np.float64)


def losses(problem: Regression, theta: torch.Tensor) -> torch.Tensor:
    """The loss of every sample, written down a second time."""
    z = torch.from_numpy(problem.features) @ theta.reshape(problem.features.shape[1], -1)
    if problem.binary:
        return nn.functional.softplus(-z[:, 0])
    return cross_entropy(z, torch.from_numpy(problem.labels), reduction="none")


def hessian(problem: Regression, theta: Values, rows: slice = slice(None)) -> Values:
    """Of the sum of the samples' losses over N."""
    found = torch.autograd.functional.hessian(
        lambda t: losses(problem, t)[rows].sum() / problem.samples, torch.from_numpy(theta)
    )
    return np.asarray(found)


def sample_gradients(problem: Regression, theta: Values) -> Values:
    return np.asarray(torch.autograd.functional.jacobian(lambda t: losses(problem, t), torch.from_numpy(theta)))


def gradient(problem: Regression, theta: Values) -> Values:
    found: Values = sample_gradients(problem, theta).mean(0) + problem.lam * theta
    return found


# -- curvature -------------------------------------------------------------------------------------------------


def test_the_smoothness_of_logistic_regression_is_the_largest_eigenvalue_at_zero() -> None:
    problem = regression(2)
    dense = np.linalg.eigvalsh(hessian(problem, problem.start()))[-1] + problem.lam
    found = measure(problem)
    assert pytest.approx(dense) == found.L
    assert found.L_start == pytest.approx(dense)
    assert found.how["L"] == "exact"


def test_the_smoothness_at_the_start_of_softmax_regression_is_the_largest_eigenvalue_there() -> None:
    problem = regression(4)
    found = measure(problem)
    assert found.L_start == pytest.approx(np.linalg.eigvalsh(hessian(problem, problem.start()))[-1] + problem.lam)
    assert found.how["L"] == "bound"


@pytest.mark.parametrize("classes", [2, 3])
@given(seed=st.integers(0, 2**32), near=st.floats(1e-3, 10), far=st.floats(1e-3, 100))
@settings(max_examples=20, deadline=None)
def test_gradients_differ_by_at_most_the_smoothness_and_at_least_mu_times_the_distance(
    classes: int, seed: int, near: float, far: float
) -> None:
    problem, random = regression(classes), np.random.default_rng(seed)
    found = measure(problem)
    one = near * random.standard_normal(problem.p)
    two = one + far * random.standard_normal(problem.p)
    moved = gradient(problem, one) - gradient(problem, two)
    assert np.linalg.norm(moved) <= found.L * np.linalg.norm(one - two) * (1 + 1e-9)
    assert found.mu is not None
    assert moved @ (one - two) >= found.mu * np.sum((one - two) ** 2) * (1 - 1e-6)


@pytest.mark.parametrize("classes", [2, 3])
def test_the_smoothness_of_a_worker_is_that_of_the_contribution(classes: int) -> None:
    problem = regression(classes)
    found = measure(problem)
    for rows, bound in zip(problem.shards(), found.L_m, strict=True):
        dense = np.linalg.eigvalsh(hessian(problem, problem.start(), rows))[-1] + problem.lam / problem.workers
        assert bound == pytest.approx(dense) if classes == 2 else bound >= dense


@pytest.mark.parametrize("classes", [2, 3])
def test_the_quick_smoothness_is_the_slow_one_to_three_digits_and_not_above_it(classes: int) -> None:
    problem = regression(classes)
    slow = problem.whole_smoothness
    assert 0.998 * slow <= smoothness_from_below(problem) <= slow * (1 + 1e-12)


def test_without_an_l2_term_nothing_is_known_of_mu() -> None:
    assert measure(regression(2, lam=0.0)).mu is None


@given(st.integers(1, 6), st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_power_iteration_never_exceeds_the_largest_eigenvalue(p: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((p, p))
    matrix = matrix + matrix.T
    largest = np.abs(np.linalg.eigvalsh(matrix)).max()
    found = power_iteration(lambda v: matrix @ v, random.standard_normal(p), steps=2000, tolerance=1e-9)
    assert 0.98 * largest <= found <= largest * (1 + 1e-9)


def test_power_iteration_of_nothing_is_zero() -> None:
    assert power_iteration(lambda v: 0 * v, np.ones(3)) == 0


# -- noise -----------------------------------------------------------------------------------------------------


def enumerated(problem: Regression, theta: Values) -> list[tuple[float, float]]:
    """Variance and mean square of every contribution, over all minibatches there are."""
    gradients, found = sample_gradients(problem, theta), []
    for m, rows in enumerate(problem.shards()):
        own = gradients[rows]
        chosen = itertools.combinations(range(len(own)), int(problem.batch[m]))
        pull = problem.lam / problem.workers * theta
        every = np.array([problem.weights[m] * own[list(some)].mean(0) + pull for some in chosen])
        found.append((float(((every - every.mean(0)) ** 2).sum(1).mean()), float((every**2).sum(1).mean())))
    return found


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("batch", [0.2, 0.5, 0.8, 1.0])
def test_the_variances_at_the_start_are_those_of_all_minibatches(classes: int, batch: float) -> None:
    problem = regression(classes, batch=batch)
    wanted = [variance for variance, _ in enumerated(problem, problem.start())]
    assert measure(problem).variances_start == pytest.approx(wanted, abs=1e-15)


@pytest.mark.parametrize("classes", [2, 3])
@given(seed=st.integers(0, 2**32), scale=st.floats(0.01, 30))
@settings(max_examples=10, deadline=None)
def test_no_theta_has_a_larger_variance_than_the_bound(classes: int, seed: int, scale: float) -> None:
    problem = regression(classes)
    theta = scale * np.random.default_rng(seed).standard_normal(problem.p)
    for bound, (variance, _) in zip(measure(problem).variances, enumerated(problem, theta), strict=True):
        assert variance <= bound * (1 + 1e-9)


@pytest.mark.parametrize("classes", [2, 3])
@given(seed=st.integers(0, 2**32), scale=st.floats(0.01, 30))
@settings(max_examples=10, deadline=None)
def test_the_bound_on_squared_gradients_holds_where_the_loss_is_not_above_the_starts(
    classes: int, seed: int, scale: float
) -> None:
    problem = regression(classes)
    found = measure(problem)
    theta = scale * np.random.default_rng(seed).standard_normal(problem.p)
    if problem.loss(theta) <= found.gap:
        assert max(square for _, square in enumerated(problem, theta)) <= found.B * (1 + 1e-9)


def test_a_shard_of_one_sample_has_no_noise() -> None:
    x, shards = np.ones((3, 2)), [np.array([0]), np.array([1, 2])]
    found = measure(Regression(x, np.array([0, 1, 1]), shards, classes=2, batch=0.5, seed=0, lam=0.0))
    assert found.variances[0] == found.variances_start[0] == 0


# -- networks --------------------------------------------------------------------------------------------------


def network(lam: float = 0.0, batch: float = 0.5) -> ModuleProblem:
    torch.manual_seed(3)
    module = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 3))
    x = torch.randn(sum(SIZES), 3, dtype=torch.float64)
    y = torch.arange(sum(SIZES)) % 3
    shards = np.split(np.arange(sum(SIZES)), np.cumsum(SIZES)[:-1])
    return ModuleProblem(module, cross_entropy, (x, y), shards, batch=batch, lam=lam, dtype="float64")


def dense_hessian(problem: ModuleProblem, rows: Values) -> Values:
    x, y = problem.data.read(rows)

    def value(theta: torch.Tensor) -> torch.Tensor:
        named = dict(zip(problem.flat.names, problem.flat.views(theta), strict=True))
        return cross_entropy(torch.func.functional_call(problem.module, named, (x,)), y)

    return np.asarray(torch.autograd.functional.hessian(value, problem.start()))


def test_hessian_vector_products_are_those_of_the_dense_hessian() -> None:
    problem = network()
    rows, vector = np.arange(sum(SIZES)), torch.randn(problem.p, dtype=torch.float64)
    found = problem.hessian_times(problem.start(), vector, rows)
    assert np.allclose(found, dense_hessian(problem, rows) @ vector.numpy(), atol=1e-12)


@pytest.mark.parametrize("lam", [0.0, 0.3])
def test_the_curvatures_of_a_network_are_those_of_the_dense_hessian(lam: float) -> None:
    problem = network(lam)
    found = measure(problem)
    diagonal = np.eye(problem.p)
    whole = np.abs(np.linalg.eigvalsh(dense_hessian(problem, problem.order) + lam * diagonal)).max()
    assert 0.9 * whole <= found.L <= whole * (1 + 1e-9)
    for m, shard in enumerate(np.split(problem.order, np.cumsum(SIZES)[:-1])):
        own = problem.weights[m] * dense_hessian(problem, shard) + lam / problem.workers * diagonal
        largest = np.abs(np.linalg.eigvalsh(own)).max()
        assert 0.9 * largest <= found.L_m[m] <= largest * (1 + 1e-9)
    assert found.mu is None
    assert set(found.how.values()) == {"estimate"}


def test_a_network_on_whole_shards_has_no_noise_and_its_gap_is_its_loss() -> None:
    problem = network(batch=1.0)
    found = measure(problem)
    assert sum(found.variances) == pytest.approx(0, abs=1e-20)
    assert found.gap == pytest.approx(problem.loss(problem.start()))
    (grads,) = problem.gradients(0, [problem.start()], None)
    assert pytest.approx((norms(grads) ** 2).max()) == found.B


def test_the_variance_of_a_network_comes_near_that_of_all_minibatches() -> None:
    """Ten minibatches a worker: within a factor of three."""
    problem = network(batch=0.4)
    wanted = 0.0
    for m, shard in enumerate(np.split(problem.order, np.cumsum(SIZES)[:-1])):
        own = []
        for row in shard:
            x, y = problem.data.read(np.array([row]))
            problem.flat.point_at(problem.start())
            parts = torch.autograd.grad(cross_entropy(problem.module(x), y), problem.flat.parameters)
            own.append(torch.cat([part.reshape(-1) for part in parts]).numpy())
        n, b = SIZES[m], int(batch_sizes(np.array([SIZES[m]]), 0.4)[0])
        wanted += (problem.weights[m] ** 2) * (1 - b / n) / b * float(np.var(own, axis=0, ddof=1).sum())
    assert wanted / 3 < sum(measure(problem).variances) < 3 * wanted


def test_measuring_twice_gives_the_same_numbers_and_tells_every_piece() -> None:
    problem, told = network(), []
    first = measure(problem, lambda count, _: told.append(count))
    assert sum(told) == pieces(problem)
    assert measure(problem) == first
    assert isinstance(first, Measures)
