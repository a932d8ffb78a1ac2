"""Gradients against torch's autograd, losses against direct formulas, smoothness against Hessians."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from lasg.errors import LasgError
from lasg.problems.regression import Regression

EQUAL = (20, 20, 20, 20)
RAGGED = (11, 40, 1, 23)
D = 6
each_classes = pytest.mark.parametrize("classes", [2, 3])
each_shape = pytest.mark.parametrize("sizes", [EQUAL, RAGGED])
Values = npt.NDArray[Any]


def data(classes: int, sizes: tuple[int, ...]) -> tuple[Values, Values, list[Values]]:
    rng = np.random.default_rng(8)
    total = sum(sizes)
    features, labels = rng.normal(size=(total, D)), rng.integers(0, classes, total)
    return features, labels, np.split(rng.permutation(total), np.cumsum(sizes)[:-1])


def make(classes: int, sizes: tuple[int, ...] = RAGGED, **options: Any) -> Regression:
    settings: dict[str, Any] = {"batch": 0.3, "seed": 1, "lam": 0.01, "dtype": np.float64, **options}
    return Regression(*data(classes, sizes), classes=classes, **settings)


def data_of(problem: Regression) -> tuple[Values, Values, list[Values]]:
    return data(problem.classes, tuple(problem.sizes.tolist()))


def sample_losses(x: torch.Tensor, y: torch.Tensor, theta: torch.Tensor, classes: int) -> torch.Tensor:
    if classes == 2:
        return torch.nn.functional.softplus(-(2 * y - 1) * (x @ theta))
    return torch.nn.functional.cross_entropy(x @ theta.reshape(D, classes), y, reduction="none")


def contribution(problem: Regression, m: int, rows: Values, theta: Values) -> Values:
    """Worker m's contribution by autograd: (n_m / N) mean loss of its minibatch + (lam / 2M) ||theta||^2."""
    features, labels, shards = data_of(problem)
    chosen = np.concatenate(shards)[rows]
    assert set(chosen) <= set(shards[m])
    x, y = torch.tensor(features[chosen]), torch.tensor(labels[chosen])
    point = torch.tensor(theta, dtype=torch.float64, requires_grad=True)
    loss = len(shards[m]) / len(labels) * sample_losses(x, y, point, problem.classes).mean()
    loss = loss + problem.lam / (2 * len(shards)) * (point @ point)
    [grad] = torch.autograd.grad(loss, point)
    return np.asarray(grad.numpy())


def parts(problem: Regression, iteration: int) -> list[Values]:
    return np.split(problem.batches.draw_all(iteration), np.cumsum(problem.batch)[:-1])


# -- gradients -------------------------------------------------------------------------------------------------


@each_classes
@pytest.mark.parametrize("sizes", [EQUAL, RAGGED, (1, 300, 5, 60)])
@pytest.mark.parametrize("batch", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("rows", [None, [0], [2], [1, 3], [0, 1, 2, 3]])
def test_gradients_equal_autograd(classes: int, sizes: tuple[int, ...], batch: float, rows: list[int] | None) -> None:
    """At a point that all share and at one of each worker's own, for equal and very unequal minibatches."""
    problem = make(classes, sizes, batch=batch)
    chosen = list(range(4)) if rows is None else rows
    rng = np.random.default_rng(0)
    for iteration in (0, 1, 1000):
        shared, own = rng.normal(size=problem.p), rng.normal(size=(len(chosen), problem.p))
        asked = None if rows is None else np.array(rows)
        at_shared, at_own = problem.gradients(iteration, [shared, own], asked)
        assert at_shared.shape == at_own.shape == (len(chosen), problem.p)
        batches = parts(problem, iteration)
        for i, m in enumerate(chosen):
            for found, theta in ((at_shared[i], shared), (at_own[i], own[i])):
                expected = contribution(problem, m, batches[m], theta)
                np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-12)


@each_classes
def test_a_hundred_uneven_workers_at_once_equal_each_alone(classes: int) -> None:
    sizes = tuple(int(n) for n in np.random.default_rng(2).integers(1, 90, 100))
    problem = make(classes, sizes)
    rng = np.random.default_rng(3)
    shared, own = rng.normal(size=problem.p), rng.normal(size=(100, problem.p))
    at_shared, at_own = problem.gradients(6, [shared, own], None)
    for m in range(100):
        one, other = problem.gradients(6, [shared, own[m : m + 1]], np.array([m]))
        np.testing.assert_allclose(at_shared[m], one[0], rtol=1e-10, atol=1e-14)
        np.testing.assert_allclose(at_own[m], other[0], rtol=1e-10, atol=1e-14)


@each_classes
@each_shape
def test_contributions_over_full_batches_sum_to_the_gradient_of_the_loss(classes: int, sizes: tuple[int, ...]) -> None:
    problem = make(classes, sizes, batch=1.0)
    rng = np.random.default_rng(3)
    theta = rng.normal(size=problem.p)
    [found] = problem.gradients(4, [theta], None)
    h = 1e-5
    numerical = [(problem.loss(theta + h * e) - problem.loss(theta - h * e)) / (2 * h) for e in np.eye(problem.p)]
    np.testing.assert_allclose(found.sum(0), numerical, rtol=1e-6, atol=1e-8)


@each_classes
def test_a_minibatch_gradient_is_unbiased(classes: int) -> None:
    """The mean over many iterations is the contribution over the full shard, within 5 standard errors."""
    problem, full = make(classes), make(classes, batch=1.0)
    theta = np.random.default_rng(1).normal(size=problem.p)
    [expected] = full.gradients(0, [theta], None)
    draws = np.array([problem.gradients(k, [theta], None)[0] for k in range(2000)])
    error = np.abs(draws.mean(0) - expected)
    assert (error <= 5 * draws.std(0) / np.sqrt(len(draws)) + 1e-12).all()


@each_classes
def test_all_points_are_evaluated_on_the_same_minibatch(classes: int) -> None:
    problem = make(classes)
    theta = np.random.default_rng(2).normal(size=problem.p)
    stacked = np.repeat(theta[None], 4, axis=0)
    one, other, third = problem.gradients(7, [theta, stacked, theta.copy()], None)
    np.testing.assert_allclose(one, other, atol=1e-14)
    np.testing.assert_array_equal(one, third)


@each_classes
def test_what_was_returned_is_not_overwritten_by_the_next_call(classes: int) -> None:
    problem = make(classes, EQUAL)
    theta = np.random.default_rng(2).normal(size=problem.p)
    [kept] = problem.gradients(0, [theta], None)
    copy = kept.copy()
    problem.gradients(1, [theta + 1], None)
    np.testing.assert_array_equal(kept, copy)


@each_classes
def test_points_are_not_changed(classes: int) -> None:
    problem = make(classes)
    shared, own = np.ones(problem.p), np.ones((4, problem.p))
    problem.gradients(0, [shared, own], None)
    assert (shared == 1).all()
    assert (own == 1).all()


@each_classes
def test_float32_gradients_are_those_of_float64_rounded(classes: int) -> None:
    single, double = make(classes, dtype=np.float32), make(classes)
    theta = np.random.default_rng(4).normal(size=double.p)
    [one], [other] = single.gradients(3, [theta.astype(np.float32)], None), double.gradients(3, [theta], None)
    assert one.dtype == np.float32
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@each_classes
@pytest.mark.parametrize("scale", [1e3, 1e6])
def test_huge_margins_neither_overflow_nor_warn(classes: int, scale: float) -> None:
    problem = make(classes)
    theta = scale * np.random.default_rng(5).normal(size=problem.p)
    assert np.isfinite(problem.gradients(0, [theta], None)[0]).all()
    assert np.isfinite(problem.loss(theta))


def test_the_callers_features_are_left_alone() -> None:
    """The problem keeps y x instead of x: it must not write that into what it was given."""
    features = np.ones((6, 2), np.float32)
    Regression(features, np.array([0, 1] * 3), [np.arange(6)], classes=2, batch=1.0, seed=0)
    assert (features == 1).all()


# -- the loss --------------------------------------------------------------------------------------------------


@each_classes
@pytest.mark.parametrize("sizes", [EQUAL, RAGGED, (30_000, 1, 40_000, 17)])
def test_the_loss_is_the_mean_over_all_samples_plus_the_l2_term(classes: int, sizes: tuple[int, ...]) -> None:
    problem = make(classes, sizes)
    features, labels, _ = data_of(problem)
    theta = np.random.default_rng(6).normal(size=problem.p)
    if classes == 2:
        losses = np.log1p(np.exp(-(2 * labels - 1) * (features @ theta)))
    else:
        z = features @ theta.reshape(D, classes)
        losses = np.log(np.exp(z).sum(-1)) - z[np.arange(len(z)), labels]
    assert problem.loss(theta) == pytest.approx(losses.mean() + 0.5 * problem.lam * theta @ theta, rel=1e-12)


@each_classes
def test_the_loss_at_zero_is_the_logarithm_of_the_classes(classes: int) -> None:
    problem = make(classes)
    assert problem.loss(np.zeros(problem.p)) == pytest.approx(np.log(classes), rel=1e-12)


@each_classes
def test_accuracy_is_the_share_of_the_test_set_that_is_classified_right(classes: int) -> None:
    rng = np.random.default_rng(7)
    features, labels = rng.normal(size=(50, D)), rng.integers(0, classes, 50)
    problem = make(classes, test=(features, labels))
    theta = rng.normal(size=problem.p)
    right = 0
    for x, y in zip(features, labels, strict=True):
        z = x @ theta.reshape(D, -1)
        predicted = int(z[0] > 0) if classes == 2 else int(np.argmax(z))
        right += predicted == y
    assert problem.accuracy(theta) == right / 50
    assert 0 < right < 50


def test_there_is_no_accuracy_without_a_test_set() -> None:
    assert make(2).accuracy(np.zeros(D)) is None


# -- smoothness ------------------------------------------------------------------------------------------------


@each_classes
@each_shape
def test_the_tight_smoothness_bounds_the_hessian_of_each_contribution(classes: int, sizes: tuple[int, ...]) -> None:
    problem = make(classes, sizes, lam=0.1)
    features, labels, shards = data_of(problem)
    bounds = problem.smoothness("tight")
    rng = np.random.default_rng(9)
    for m, shard in enumerate(shards):
        x, y = torch.tensor(features[shard]), torch.tensor(labels[shard])

        def objective(
            theta: torch.Tensor, x: torch.Tensor = x, y: torch.Tensor = y, n: int = len(shard)
        ) -> torch.Tensor:
            mean = n / len(labels) * sample_losses(x, y, theta, classes).mean()
            return mean + problem.lam / (2 * len(shards)) * (theta @ theta)

        largest = []
        for scale in (0.0, 0.3, 1.0, 3.0):
            theta = torch.tensor(scale * rng.normal(size=problem.p))
            hessian = torch.autograd.functional.hessian(objective, theta)
            largest.append(float(torch.linalg.eigvalsh(hessian)[-1]))
        assert max(largest) <= bounds[m] * (1 + 1e-9)
        if classes == 2:
            assert largest[0] == pytest.approx(bounds[m], rel=1e-9)  # attained at theta = 0


@each_shape
def test_the_papers_smoothness_is_without_the_quarter(sizes: tuple[int, ...]) -> None:
    problem = make(2, sizes, lam=0.1)
    features, labels, shards = data_of(problem)
    expected = [np.linalg.norm(features[shard], 2) ** 2 / len(labels) + problem.lam / len(shards) for shard in shards]
    np.testing.assert_allclose(problem.smoothness(), expected, rtol=1e-10)
    np.testing.assert_allclose(problem.smoothness("paper"), expected, rtol=1e-10)


# -- refusals --------------------------------------------------------------------------------------------------


def test_a_negative_weight_and_an_empty_shard_are_refused() -> None:
    with pytest.raises(LasgError, match="lam"):
        make(2, lam=-1.0)
    with pytest.raises(LasgError, match="at least one sample"):
        make(2, (3, 0, 4))


@each_classes
def test_gradients_come_in_the_order_of_the_rows_that_were_asked(classes: int) -> None:
    problem = make(classes)
    theta = np.random.default_rng(1).normal(size=problem.p)
    [everyone] = problem.gradients(2, [theta], None)
    [found] = problem.gradients(2, [theta], np.array([3, 1]))
    np.testing.assert_allclose(found, everyone[[3, 1]], rtol=1e-12)


@pytest.mark.parametrize(("classes", "label"), [(2, -1), (2, 2), (3, -1), (3, 3)])
def test_labels_outside_the_classes_are_refused(classes: int, label: int) -> None:
    labels = np.array([0, 1, label, 1])
    with pytest.raises(LasgError, match="label"):
        Regression(np.ones((4, 2)), labels, [np.arange(4)], classes=classes, batch=1.0, seed=0)
