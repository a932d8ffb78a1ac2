"""Logistic and softmax regression with an l2 term: what the paper's first experiments minimise.

The loss is the mean over all N samples plus (lam / 2) ||theta||^2, without a bias term. Worker m contributes
(n_m / N) * (mean gradient of its minibatch) + (lam / M) * theta, so the contributions sum to the gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from lasg.data.batches import Batches, batch_sizes
from lasg.errors import LasgError

FloatArray = npt.NDArray[np.floating[Any]]
IntArray = npt.NDArray[np.integer[Any]]

# A group of workers is padded to its largest minibatch; beyond so many wasted numbers a further group is cheaper.
WASTE = 40_000
# Rows of the full data set that are multiplied at once when the loss is computed.
CHUNK = 65_536


class Regression:
    """A linear model on stacked shards; the gradients of many workers are batched products."""

    def __init__(
        self,
        features: FloatArray,
        labels: IntArray,
        shards: Sequence[IntArray],
        *,
        classes: int,
        batch: float,
        seed: int,
        lam: float = 1e-5,
        dtype: npt.DTypeLike = np.float32,
        test: tuple[FloatArray, IntArray] | None = None,
    ) -> None:
        if lam < 0:
            raise LasgError(f"lam, the weight of the l2 term, must be >= 0, got {lam!r}")
        sizes = np.array([len(shard) for shard in shards])
        if not sizes.all():
            raise LasgError("every worker needs at least one sample: take fewer workers or another partition")
        order = np.concatenate(list(shards))
        self.dtype = np.dtype(dtype)
        self.classes, self.lam, self.test = classes, lam, test
        self.samples, self.sizes = len(order), sizes
        self.workers = len(sizes)
        self.weights: FloatArray = sizes / self.samples
        self.features = features.take(order, 0).astype(self.dtype, copy=False)
        self.labels = np.asarray(labels).take(order)
        self.binary = classes == 2
        if self.binary:
            # sigmoid(-y z) y x needs the product y x only: one gather instead of two.
            self.features *= (2 * self.labels - 1)[:, None].astype(self.dtype)
        self.outputs = 1 if self.binary else classes
        self.p = features.shape[1] * self.outputs
        self.batch = batch_sizes(sizes, batch)
        self.batches = Batches(sizes, self.batch, ids=np.arange(self.workers), seed=seed)
        self._groups = _groups(self.batch, features.shape[1])
        self._plan = [self._lay_out(rows) for rows in self._groups]
        self._buffer = np.empty((int(self.batch.sum()), features.shape[1]), self.dtype)

    # -- gradients ---------------------------------------------------------------------------------------

    def gradients(self, iteration: int, points: Sequence[FloatArray], rows: IntArray | None) -> list[FloatArray]:
        """Return the contributions of the chosen workers at each point, all on one minibatch a worker."""
        if rows is None:
            return self._evaluate(self.batches.everybody(iteration), points, self._plan, self.workers)
        plan = [self._lay_out(rows, members) for members in self._members(rows)]
        return self._evaluate(self.batches.of(iteration, rows), points, plan, len(rows))

    def _members(self, rows: IntArray) -> list[IntArray]:
        """Positions in `rows` of each group's workers."""
        if len(self._groups) == 1:
            return [np.arange(len(rows))]
        members = [np.flatnonzero(np.isin(rows, group)) for group in self._groups]
        return [chosen for chosen in members if len(chosen)]

    def _lay_out(self, rows: IntArray, members: IntArray | None = None) -> _Padded:
        """Plan the batched products of the workers at `rows[members]` (a whole group if None)."""
        everyone = np.arange(self.workers) if members is None else rows
        chosen = rows if members is None else members
        batch = self.batch[everyone]
        start, mine = (np.cumsum(batch) - batch)[chosen], batch[chosen]
        scale = self.weights[everyone[chosen]] / mine
        widest = int(mine.max())
        column = np.arange(widest)
        if len(chosen) == len(everyone) and (mine == widest).all():
            return _Padded(None, None, len(chosen), widest, scale.astype(self.dtype)[:, None])
        flat = start[:, None] + np.minimum(column, mine[:, None] - 1)
        padded = np.where(column < mine[:, None], scale[:, None], 0.0).astype(self.dtype)
        return _Padded(chosen, flat.ravel(), len(chosen), widest, padded)

    def _evaluate(
        self, flat: IntArray, points: Sequence[FloatArray], plan: Sequence[_Padded], count: int
    ) -> list[FloatArray]:
        results = []
        if len(plan) == 1 and plan[0].workers is None:
            results = self._products(flat, points, plan[0])
        else:
            results = [np.empty((count, self.p), self.dtype) for _ in points]
            for part in plan:
                assert part.workers is not None
                mine = [point if point.ndim == 1 else point[part.workers] for point in points]
                for result, found in zip(results, self._products(flat[part.flat], mine, part), strict=True):
                    result[part.workers] = found
        l2 = self.lam / self.workers
        for result, point in zip(results, points, strict=True):
            result += l2 * point
        return results

    def _products(self, flat: IntArray, points: Sequence[FloatArray], part: _Padded) -> list[FloatArray]:
        """Return the scaled sums of the minibatches' gradients for one group."""
        out = self._buffer[: len(flat)] if len(flat) <= len(self._buffer) else None
        x = self.features.take(flat, 0, out=out, mode="clip")
        stacked = x.reshape(part.count, part.widest, -1)
        if self.binary:
            return [self._binary(x, stacked, point, part.scale) for point in points]
        labels = self.labels.take(flat)
        return [self._softmax(x, stacked, labels, point, part.scale) for point in points]

    def _binary(self, x: FloatArray, stacked: FloatArray, point: FloatArray, scale: FloatArray) -> FloatArray:
        """Return sum_i scale_i * grad log(1 + exp(-z_i)), with z_i = y_i x_i . theta."""
        z = x @ point if point.ndim == 1 else stacked @ point[:, :, None]
        z *= 0.5
        np.tanh(z, out=z)  # sigmoid(-z) = (1 - tanh(z / 2)) / 2, without an overflow
        z -= 1
        z = z.reshape(stacked.shape[:2])
        z *= 0.5 * scale
        return cast("FloatArray", (z[:, None, :] @ stacked)[:, 0, :])

    def _softmax(
        self, x: FloatArray, stacked: FloatArray, labels: IntArray, point: FloatArray, scale: FloatArray
    ) -> FloatArray:
        """Return sum_i scale_i * x_i (softmax(x_i Theta) - e_{y_i})^T, flattened."""
        count, widest, d = stacked.shape
        if point.ndim == 1:
            z = x @ point.reshape(d, -1)
        else:
            z = (stacked @ point.reshape(count, d, -1)).reshape(count * widest, -1)
        z -= z.max(-1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(-1, keepdims=True)
        z[np.arange(len(z)), labels] -= 1
        z = z.reshape(count, widest, -1)
        z *= scale[:, :, None]
        return cast("FloatArray", (stacked.transpose(0, 2, 1) @ z).reshape(count, -1))

    # -- what is measured --------------------------------------------------------------------------------

    def loss(self, theta: FloatArray) -> float:
        """Return the objective over all samples, summed in float64."""
        total = 0.0
        for start in range(0, self.samples, CHUNK):
            x = self.features[start : start + CHUNK]
            if self.binary:
                total += float(np.logaddexp(0, -(x @ theta), dtype=np.float64).sum())
            else:
                z = (x @ theta.reshape(x.shape[1], -1)).astype(np.float64)
                top = z.max(-1)
                picked = z[np.arange(len(z)), self.labels[start : start + CHUNK]]
                total += float((np.log(np.exp(z - top[:, None]).sum(-1)) + top - picked).sum())
        wide = theta.astype(np.float64)
        return total / self.samples + 0.5 * self.lam * float(wide @ wide)

    def accuracy(self, theta: FloatArray) -> float | None:
        """Return the share of the test set that is classified right; None without a test set."""
        if self.test is None:
            return None
        features, labels = self.test
        z = features @ theta.reshape(features.shape[1], -1).astype(features.dtype)
        predicted = (z[:, 0] > 0).astype(np.int64) if self.binary else z.argmax(-1)
        return float((predicted == labels).mean())

    def smoothness(self, reading: Literal["paper", "tight"] = "paper") -> FloatArray:
        """Return a bound on L_m, the smoothness of worker m's contribution: factor * lambda_max(X'X) / N + lam / M.

        The factor bounds the second derivative of the sample's loss in its outputs. Binary: 1/4 is tight, and
        1 is what reproduces the paper's tables. Softmax: 1/2 (Boehning 1992) in both readings.
        """
        factor = 0.5 if not self.binary else {"paper": 1.0, "tight": 0.25}[reading]
        ends = np.cumsum(self.sizes)
        largest = [
            np.linalg.eigvalsh(_gram(self.features[end - size : end]))[-1]
            for size, end in zip(self.sizes, ends, strict=True)
        ]
        bound: FloatArray = factor * np.maximum(np.array(largest), 0.0) / self.samples + self.lam / self.workers
        return bound


@dataclass(frozen=True, slots=True)
class _Padded:
    """One group of workers as rows of equal length: `count` x `widest`, missing entries scaled by 0."""

    workers: IntArray | None
    flat: IntArray | None
    count: int
    widest: int
    scale: FloatArray = field(repr=False)


def _gram(x: FloatArray) -> FloatArray:
    """Return X'X or XX', whichever is smaller, in float64: they share the largest eigenvalue."""
    if len(x) < x.shape[1]:
        wide = x.astype(np.float64)
        return wide @ wide.T
    total = np.zeros((x.shape[1], x.shape[1]))
    for start in range(0, len(x), CHUNK):
        wide = x[start : start + CHUNK].astype(np.float64)
        total += wide.T @ wide
    return total


def _groups(batch: IntArray, d: int) -> list[IntArray]:
    """Split workers into groups of like minibatch sizes, so that little is wasted on padding."""
    order = np.argsort(-batch, kind="stable")
    groups: list[list[int]] = [[]]
    waste = 0
    for worker in order:
        widest = batch[groups[-1][0]] if groups[-1] else batch[worker]
        waste += (int(widest) - int(batch[worker])) * d
        if waste > WASTE:
            groups.append([])
            waste = 0
        groups[-1].append(int(worker))
    return [np.sort(np.array(group)) for group in groups]
