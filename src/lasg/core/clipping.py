"""Gradient clipping, of the local gradient and before any rule sees it, at every point alike."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, cast, norms
from lasg.core.work import Oracle
from lasg.errors import LasgError


class Clipped:
    """An oracle whose workers' mean gradients are scaled down to a norm of at most `norm`."""

    def __init__(self, oracle: Oracle, norm: float) -> None:
        check_norm(norm)
        self.oracle, self.norm = oracle, norm

    @property
    def weights(self) -> FloatArray:
        """n_m / N for each worker."""
        return self.oracle.weights

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """Return the contributions; one is n_m / N times the local gradient, so its limit is that much smaller."""
        found = self.oracle.gradients(iteration, points, rows)
        limits = self.norm * (self.weights if rows is None else self.weights[rows])
        for grads in found:
            sizes = norms(grads)
            longer = sizes > limits
            if longer.any():
                factors = np.where(longer, limits / np.where(longer, sizes, 1.0), 1.0)  # a norm may be 0
                with np.errstate(invalid="ignore"):  # a row that is not finite stays so
                    grads *= cast(factors[:, None], grads)
        return found


def check_norm(norm: float) -> None:
    """Refuse a norm that nothing can be clipped to."""
    if isinstance(norm, bool) or not isinstance(norm, int | float) or not 0 < norm < float("inf"):
        raise LasgError(f"clip must be a positive number, the largest norm of a local gradient, got {norm!r}")
