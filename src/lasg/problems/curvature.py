"""The largest curvature of a loss, by power iteration: only products with the Hessian are needed."""

from __future__ import annotations

from collections.abc import Callable

from lasg.core.arrays import Array, norms

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
