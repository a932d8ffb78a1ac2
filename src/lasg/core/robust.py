"""How much one worker may add to a round's sum, whatever it says: a bound that the other workers' uploads set."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lasg.core.arrays import Array, FloatArray, cast, copy, norms
from lasg.core.codecs import Shapes, tensor_ends
from lasg.errors import LasgError


@dataclass(frozen=True)
class MedianClip:
    """Scale every upload of a round, tensor by tensor, down to the median of the uploads' norms.

    q_m <- q_m min(1, median_j (||q_j|| / w_j) / (||q_m|| / w_m)), over the workers j that upload in the round, w = n_m
    / N; of an even number of norms the lower of the two in the middle. As the authors of SparseLoCo do where they train
    among strangers (Lidin et al. 2026, Covenant-72B): there all w are equal. It is a function of the round's uploads
    alone, so all who hear them find the same. The workers do not learn of it: what is clipped away is lost.
    """

    shapes: Shapes = field(default=(), repr=False)
    """The tensors of a vector, each with a median of its own; empty: it is one."""

    def for_shapes(self, shapes: Shapes) -> MedianClip:
        """Return the same for these tensors."""
        return replace(self, shapes=shapes)

    def bound(self, rows: Array, weights: FloatArray) -> Array:
        """Return what is added up of the rows that were said in a round, by workers of these weights."""
        if len(rows) < 2:
            return rows
        bounded, start = copy(rows), 0
        for end in tensor_ends(self.shapes, rows.shape[-1]).tolist():
            with np.errstate(over="ignore"):  # what is too large to be squared is clipped to nothing
                sizes = norms(rows[:, start:end])
            # Who counts for nothing says nothing.
            sizes = np.divide(sizes, weights, out=np.zeros_like(sizes), where=weights > 0)
            median = np.sort(sizes)[(len(sizes) - 1) // 2]
            factors = np.divide(median, sizes, out=np.ones_like(sizes), where=sizes > median)
            if (factors < 1).any():
                bounded[:, start:end] = rows[:, start:end] * cast(factors[:, None], rows)
            start = end
        return bounded


ROBUST = {"median-clip": MedianClip()}
"""By the names that compositions use."""


def robust_named(robust: Any) -> MedianClip | None:
    """Return a bound by its name; None, or one that is no name, as it is."""
    if robust is None or isinstance(robust, MedianClip):
        return robust
    if robust not in ROBUST:
        raise LasgError(f"unknown bound on the workers' influence {robust!r}: one of {', '.join(ROBUST)}")
    return ROBUST[robust]
