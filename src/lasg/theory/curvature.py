"""The largest curvature of a loss, by power iteration: only products with the Hessian are needed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np

from lasg.core.arrays import Array, norms
from lasg.problems.regression import Regression

STEPS = 50
TOLERANCE = 1e-3


def power_iteration(
    times: Callable[[Array], Array], start: Array, *, steps: int = STEPS, tolerance: float = TOLERANCE
) -> float:
    """Return the largest |eigenvalue| of a symmetric matrix, from below; `times` multiplies it with a vector.

    ||A v|| of a unit vector never exceeds it, and grows from step to step. It ends when it grows by less than
    `tolerance` of itself.
    """
    vector = start / float(norms(start))
    largest = 0.0
    for _ in range(steps):
        product = times(vector)
        size = float(norms(product))
        if size <= largest * (1 + tolerance):
            return max(size, largest)
        largest, vector = size, product / size
    return largest


@functools.lru_cache(maxsize=1)
def smoothness_from_below(problem: Regression) -> float:
    """Return `whole_smoothness` to three digits and never above it: a few passes over the data."""
    x = problem.features
    start = np.asarray(np.random.default_rng(0).standard_normal(x.shape[1]), problem.dtype)
    return problem.steepest * power_iteration(lambda v: (x @ v) @ x, start) / problem.samples + problem.lam
