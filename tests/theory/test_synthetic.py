"""The synthetic problems are what they say: their constants by other means, their samples by many draws."""

from __future__ import annotations

import itertools

import numpy as np
import numpy.typing as npt
import pytest

from lasg.theory.synthetic import BLOCK, Quadratics, Ripples, Synthetic, normals, quadratics, ripples

SHAPES: list[Quadratics | Ripples] = [quadratics(M=3, p=4), ripples(M=3, p=4)]
each_shape = pytest.mark.parametrize("shape", SHAPES, ids=["quadratics", "ripples"])


def numeric(shape: Quadratics | Ripples, theta: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    h = 1e-6
    steps = h * np.eye(len(theta))
    return np.array([(shape.loss(theta + one) - shape.loss(theta - one)) / (2 * h) for one in steps])


@each_shape
def test_the_exact_gradients_sum_to_the_slope_of_the_loss(shape: Quadratics | Ripples) -> None:
    theta = np.array([0.3, -1.0, 2.0, 0.7])
    np.testing.assert_allclose(shape.gradients(theta).sum(0), numeric(shape, theta), atol=1e-7)


@each_shape
def test_the_mean_and_variance_over_many_samples_are_the_exact_ones(shape: Quadratics | Ripples) -> None:
    problem, theta = Synthetic(shape, 1), shape.start()
    drawn = np.stack([problem.gradients(k, [theta], None)[0] for k in range(4000)])
    exact = shape.gradients(theta)
    np.testing.assert_allclose(drawn.mean(0), exact, atol=5 * drawn.std(0).max() / np.sqrt(4000))
    variance = ((drawn - exact) ** 2).sum(-1).mean(0)
    assert (variance <= 1.08 * shape.variances).all()
    if isinstance(shape, Quadratics):
        np.testing.assert_allclose(variance, shape.variances, rtol=0.08)


def test_the_variance_of_ripples_is_largest_where_their_gradient_is_zero() -> None:
    shape = ripples(M=1, p=2)
    problem = Synthetic(shape, 0)
    flat = np.stack([problem.gradients(k, [shape.phase[0]], None)[0] for k in range(4000)])
    np.testing.assert_allclose((flat**2).sum(-1).mean(0), shape.variances, rtol=0.08)
    steep = np.stack([problem.gradients(k, [shape.phase[0] + np.pi / 2], None)[0] for k in range(4000)])
    assert (steep**2).sum(-1).mean() == pytest.approx(shape.largest_square, rel=0.08)


@each_shape
def test_no_second_difference_exceeds_the_smoothness(shape: Quadratics | Ripples) -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(-4, 4, (400, 4))
    pairs = list(itertools.pairwise(points)) + [(one, one + 1e-4) for one in points]
    changes = np.stack([(shape.gradients(a) - shape.gradients(b)) / np.linalg.norm(a - b) for a, b in pairs])
    assert np.linalg.norm(changes.sum(1), axis=-1).max() <= shape.L * (1 + 1e-9)
    assert (np.linalg.norm(changes, axis=-1).max(0) <= shape.smoothness * (1 + 1e-9)).all()


@each_shape
def test_no_loss_is_below_the_lowest_and_one_point_has_it(shape: Quadratics | Ripples) -> None:
    best = shape.minimiser
    assert shape.loss(best) == pytest.approx(shape.lowest, abs=1e-12)
    assert np.abs(shape.gradients(best).sum(0)).max() < 1e-12
    points = np.random.default_rng(0).uniform(-4, 4, (500, 4))
    assert min(map(shape.loss, points)) > shape.lowest


def test_quadratics_have_the_curvature_that_was_asked_for() -> None:
    shape = quadratics(M=5, p=30, L=7.0, mu=0.5)
    assert (shape.L, shape.mu) == pytest.approx((7.0, 0.5))


def test_ripples_are_not_convex() -> None:
    shape = SHAPES[1]
    top = shape.minimiser + np.pi
    assert 2 * shape.loss(top) > shape.loss(top + 0.5) + shape.loss(top - 0.5)
    assert np.linalg.norm(shape.gradients(shape.start()).sum(0)) > 0


def test_a_sample_depends_on_seed_worker_and_round_only() -> None:
    one, other = Synthetic(SHAPES[0], 3), Synthetic(SHAPES[0], 3)
    rounds = (0, BLOCK - 1, BLOCK, 5 * BLOCK + 1)
    forth = [one.samples(k).copy() for k in rounds]
    back = [other.samples(k).copy() for k in reversed(rounds)]
    np.testing.assert_array_equal(forth, back[::-1])
    assert not np.allclose(forth[0], Synthetic(SHAPES[0], 4).samples(0))
    rows, theta = np.array([2, 0]), SHAPES[0].start()
    np.testing.assert_array_equal(one.gradients(7, [theta], rows)[0], one.gradients(7, [theta], None)[0][rows])


def test_the_normal_numbers_are_normal() -> None:
    keys = np.arange(1, 2001, dtype=np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    drawn = normals(keys, 25).ravel()
    assert drawn.mean() == pytest.approx(0, abs=0.02)
    assert drawn.var() == pytest.approx(1, abs=0.03)
    assert (drawn**4).mean() == pytest.approx(3, abs=0.15)
    assert np.isfinite(drawn).all()
