"""How much one worker may add to what the server adds up, whatever it says: a bound that the others' rows set.

Under `residual` the rows are what was said in a round. Under `replace` and `difference` they are all that is believed:
what is bounded is each row's part of the sum, and the rows stay what was said. So both sides believe the same, a worker
needs to know no factor, and what was said once is bounded again in every round.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lasg.core.arrays import BLOCK, Array, FloatArray, cast, copy, float64, host, norms
from lasg.core.codecs import Shapes, tensor_ends
from lasg.errors import LasgError

NONE = "none"
"""The name of no bound."""
FACTOR_BITS = 11
"""Factors have so many bits: machines whose norms differ in the last digits find the same ones."""


@dataclass(frozen=True, repr=False)
class MedianClip:
    """Scale every row down to the median of the rows' norms, times a slack.

    q_m <- q_m min(1, s median_j (||q_j|| / w_j) / (||q_m|| / w_m)), over the rows j, w = n_m / N; of an even number of
    norms the lower of the two in the middle. With s = 1 and tensor by tensor, as the authors of SparseLoCo do where
    they train among strangers (Lidin et al. 2026, Covenant-72B; there all w are equal), half of the workers are clipped
    in every round, and what is clipped away is lost. A slack leaves workers alone whose data merely differ.
    """

    slack: float = 1.0
    """s: how many times the median a worker may say, of two its square. With s = 1 every tensor has its own median."""
    shapes: Shapes = field(default=(), repr=False)
    """The tensors of a vector; empty: it is one."""

    def __post_init__(self) -> None:
        if not 1 <= self.slack < float("inf"):
            raise LasgError(f"median-clip's slack must be at least 1 and finite, got {self.slack!r}")

    def __repr__(self) -> str:
        """Return what processes of one run must agree on, as lasg 0.2 has it."""
        return "MedianClip()" if self.slack == 1 else f"MedianClip({self.slack:g})"

    @property
    def name(self) -> str:
        """As compositions and settings say it."""
        return "median-clip" if self.slack == 1 else f"median-clip{self.slack:g}"

    def for_shapes(self, shapes: Shapes) -> MedianClip:
        """Return the same for these tensors."""
        return replace(self, shapes=shapes) if self.slack == 1 else self

    def bound(self, rows: Array, weights: FloatArray) -> Array:
        """Return what is added up of rows of workers of these weights."""
        if len(rows) < 2:
            return rows
        bounded, start = copy(rows), 0
        for end in tensor_ends(self.shapes, rows.shape[-1]).tolist():
            with np.errstate(over="ignore"):  # what is too large to be squared is clipped to nothing
                sizes = norms(rows[:, start:end])
            # Who counts for nothing says nothing.
            sizes = np.divide(sizes, weights, out=np.zeros_like(sizes), where=weights > 0)
            # Of two rows none is in the middle, so the other one says less of what is usual.
            slack = self.slack if len(rows) > 2 else self.slack**2
            median = slack * np.sort(sizes)[(len(sizes) - 1) // 2]
            factors = np.divide(median, sizes, out=np.ones_like(sizes), where=sizes > median)
            if self.slack != 1:
                factors = _short(factors)
            if (factors < 1).any():
                bounded[:, start:end] = rows[:, start:end] * cast(factors[:, None], rows)
            if not (sizes < np.inf).all():  # nor is anything left of what is not finite
                bounded[np.flatnonzero(~(sizes < np.inf)), start:end] = 0
            start = end
        return bounded


@dataclass(frozen=True)
class Trimmed:
    """Leave out of every entry's mean the largest and the smallest, a share of the workers at either end.

    The trimmed mean of Yin et al. 2018 of the rows q_m / w_m, weighted by w and times the sum of w: of M workers
    max(1, floor(s M)) at either end, of fewer than three none. A worker whose data alone know an entry is outvoted.
    """

    share: float = 0.2
    """s: which share of the workers is left out at either end."""

    def __post_init__(self) -> None:
        if not 0 < self.share < 0.5:
            raise LasgError(f"trimmed leaves out a share of the workers in (0, 0.5) at either end, got {self.share!r}")

    @property
    def name(self) -> str:
        """As compositions and settings say it."""
        return "trimmed" if self == Trimmed() else f"trimmed{self.share:g}"

    def for_shapes(self, shapes: Shapes) -> Trimmed:  # noqa: ARG002
        """Return the same: every entry stands for itself."""
        return self

    def bound(self, rows: Array, weights: FloatArray) -> Array:
        """Return what is added up of rows of workers of these weights: 0 where a worker is left out of an entry."""
        counted = np.flatnonzero(weights > 0)
        if len(counted) < 3:
            return rows
        ends = min(max(1, int(self.share * len(counted))), (len(counted) - 1) // 2)
        w = weights[counted][:, None]
        bounded = copy(rows)
        for start in range(0, rows.shape[-1], BLOCK):
            block = host(float64(rows[counted, start : start + BLOCK]))
            kept = np.zeros_like(block, dtype=np.bool_)
            order = np.argsort(block / w, axis=0, kind="stable")
            np.put_along_axis(kept, order[ends : len(order) - ends], True, axis=0)
            block = np.where(kept, block, 0) * (w.sum() / np.where(kept, w, 0).sum(0))
            bounded[counted, start : start + BLOCK] = cast(block, rows)
        return bounded


Bound = MedianClip | Trimmed
"""What bounds each worker's part of a sum: `bound(rows, weights)` gives rows whose sum is taken in place of theirs'."""
KINDS: dict[str, Callable[..., Bound]] = {"median-clip": MedianClip, "trimmed": Trimmed}
"""By the names that settings and compositions use; a number may follow, the slack or the share."""


def bound_of_name(name: str) -> Bound | None:
    """Return a bound by its name; None if it is the name of none."""
    found = re.fullmatch(rf"({'|'.join(KINDS)})(\d*\.?\d+)?", name)
    return None if found is None else KINDS[found[1]](*map(float, filter(None, [found[2]])))


def as_bound(robust: Any) -> Bound | None:
    """Return a bound by its name; None, or one that is no name, as it is."""
    if robust is None or isinstance(robust, Bound):
        return robust
    if robust == NONE:
        return None
    found = bound_of_name(robust) if isinstance(robust, str) else None
    if found is None:
        raise LasgError(f"unknown bound on the workers' influence {robust!r}: one of {', '.join((*KINDS, NONE))}")
    return found


def bounded_sum(robust: Bound, rows: Array, weights: FloatArray) -> Array:
    """Return the sum of all that is believed, in double precision, as a bound has it.

    A row of zeros is of nobody that has said anything yet; one that is not finite says nothing.
    """
    with np.errstate(over="ignore", invalid="ignore"):
        sizes = norms(rows)
    spoke = np.flatnonzero((sizes > 0) & (sizes < np.inf))
    return float64(robust.bound(rows if len(spoke) == len(rows) else rows[spoke], weights[spoke])).sum(0)


def _short(factors: FloatArray) -> FloatArray:
    """Return factors rounded to `FACTOR_BITS` bits."""
    mantissas, exponents = np.frexp(factors)
    return np.asarray(np.ldexp(np.rint(mantissas * 2**FACTOR_BITS), exponents - FACTOR_BITS), np.float64)
