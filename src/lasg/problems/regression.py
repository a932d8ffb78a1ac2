"""Logistic and softmax regression with an l2 term: what the paper's first experiments minimise.

The loss is the mean over all N samples plus (lam / 2) ||theta||^2, without a bias term. Worker m contributes
(n_m / N) * (mean gradient of its minibatch) + (lam / M) * theta, so the contributions sum to the gradient.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import FloatArray, IntArray
from lasg.data.batches import Batches, batch_sizes, shard_sizes
from lasg.errors import LasgError
from lasg.problems.tiles import Tiles, best_length

# Rows of the full data set that are multiplied at once when the loss is computed.
CHUNK = 65_536
# Up to so many draws a round everybody's are drawn, even if only some workers are asked.
FEW = 4_096


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
        sizes = shard_sizes(shards)
        labels = np.asarray(labels)
        if classes < 2 or labels.min() < 0 or labels.max() >= classes:
            raise LasgError(
                f"labels must be 0 to {classes - 1} for {classes} classes, got {labels.min()} to {labels.max()}"
            )
        order = np.concatenate(list(shards))
        self.dtype = np.dtype(dtype)
        self.classes, self.lam, self.test = classes, lam, test
        self.samples, self.sizes = len(order), sizes
        self.workers = len(sizes)
        self.weights: FloatArray = sizes / self.samples
        self.features = features.take(order, 0).astype(self.dtype, copy=False)
        self.labels = labels.take(order)
        self.binary = classes == 2
        if self.binary:
            # sigmoid(-y z) y x needs the product y x only: one gather instead of two.
            self.features *= (2 * self.labels - 1)[:, None].astype(self.dtype)
        self.outputs = 1 if self.binary else classes
        self.p = features.shape[1] * self.outputs
        self.share, self.seed = batch, seed
        self.batch = batch_sizes(sizes, batch)
        self.batches = Batches(sizes, self.batch, ids=np.arange(self.workers), seed=seed)
        self._l2 = lam / self.workers
        self._tile_length = best_length(self.batch, features.shape[1])
        self._tiles = self._tile(np.arange(self.workers))
        self._few = self._tiles.scale.size <= FEW
        self._buffer = np.empty((self._tiles.scale.size, features.shape[1]), self.dtype)

    # -- what a simulation begins with -------------------------------------------------------------------

    def start(self) -> FloatArray:
        """Return theta^0 = 0."""
        return np.zeros(self.p, self.dtype)

    def fresh(self) -> Regression:
        """Return the problem for one run: itself, since nothing in it changes."""
        return self

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""

    def fingerprint(self) -> str:
        """Return a checksum of what decides the gradients: samples, shards, minibatches and the l2 term."""
        ways = [self.classes, self.share, self.seed, self.lam, self.dtype.str]
        digest = hashlib.sha256(repr(ways).encode())
        for values in (self.sizes, self.labels, self.features):
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    def export(self, theta: FloatArray) -> dict[str, FloatArray]:
        """Return the model by name: `(features, outputs)`, one output for two classes."""
        return {"theta": theta.reshape(-1, self.outputs)}

    # -- gradients ---------------------------------------------------------------------------------------

    def gradients(self, iteration: int, points: Sequence[FloatArray], rows: IntArray | None) -> list[FloatArray]:
        """Return the contributions of the chosen workers at each point, all on one minibatch per worker."""
        if rows is None:
            flat, tiles = self.batches.draw_all(iteration), self._tiles
        elif self._few and (rows[1:] > rows[:-1]).all():
            # The draws are the same; a block of everybody's, picked from, is quicker than a draw for a few.
            flat, tiles = self.batches.draw_all(iteration), self._tiles.only(rows)
        else:
            flat, tiles = self.batches.draw(iteration, rows), self._tile(rows)
        if tiles.source is not None:
            flat = flat.take(tiles.source)
        out = self._buffer[: len(flat)] if len(flat) <= len(self._buffer) else None
        x = self.features.take(flat, 0, out=out, mode="clip")
        stacked = x.reshape(*tiles.scale.shape, -1)
        tiled = [tiles.spread(point) for point in points]
        if self.binary:
            partial = self._binary(x, stacked, tiled, tiles.scale)
        else:
            labels = self.labels.take(flat)
            partial = np.stack([self._softmax(x, stacked, labels, point, tiles.scale) for point in tiled])
        results = list(tiles.gather(partial))
        for result, point in zip(results, points, strict=True):
            result += self._l2 * point
        return results

    def _tile(self, rows: IntArray) -> Tiles:
        # The 1/2 is the one of (tanh(z / 2) - 1) / 2.
        weights = 0.5 * self.weights[rows] if self.binary else self.weights[rows]
        return Tiles.from_batches(self.batch[rows], weights, self._tile_length, self.dtype)

    def _binary(
        self, x: FloatArray, stacked: FloatArray, points: Sequence[FloatArray], scale: FloatArray
    ) -> FloatArray:
        """Return sum_i scale_i * grad log(1 + exp(-z_i)) at each point, with z_i = y_i x_i . theta."""
        z = np.empty((len(points), *scale.shape), self.dtype)
        for of_point, point in zip(z, points, strict=True):
            if point.ndim == 1:
                np.matmul(x, point, out=of_point.reshape(-1))
            else:
                np.matvec(stacked, point, out=of_point)
        # -sigmoid(-z) = (tanh(z / 2) - 1) / 2 cannot overflow, and tanh is quicker than exp; scale has the last 1/2.
        z *= 0.5
        np.tanh(z, out=z)
        z -= 1
        z *= scale
        return cast("FloatArray", np.vecmat(z, stacked))

    def _softmax(
        self, x: FloatArray, stacked: FloatArray, labels: IntArray, point: FloatArray, scale: FloatArray
    ) -> FloatArray:
        """Return sum_i scale_i * x_i (softmax(x_i Theta) - e_{y_i})^T, flattened."""
        count, length, d = stacked.shape
        if point.ndim == 1:
            z = x @ point.reshape(d, -1)
        else:
            z = (stacked @ point.reshape(count, d, -1)).reshape(count * length, -1)
        z -= z.max(-1, keepdims=True)
        np.exp(z, out=z)
        z /= z.sum(-1, keepdims=True)
        z[np.arange(len(z)), labels] -= 1
        z = z.reshape(count, length, -1)
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
        factor = 1.0 if self.binary and reading == "paper" else self.steepest
        largest = np.array([_largest(self.features[rows]) for rows in self.shards()])
        return factor * largest / self.samples + self.lam / self.workers

    @property
    def steepest(self) -> float:
        """The largest second derivative of a sample's loss in its outputs: 1/4, or for softmax at most 1/2."""
        return 0.25 if self.binary else 0.5

    @functools.cached_property
    def whole_smoothness(self) -> float:
        """L of the whole loss, factor * lambda_max(X'X) / N + lam: exact for two classes, else a bound."""
        return self.steepest * _largest(self.features) / self.samples + self.lam

    def shards(self) -> list[slice]:
        """Return where each worker's samples lie."""
        return [slice(end - size, end) for size, end in zip(self.sizes, np.cumsum(self.sizes), strict=True)]


def _largest(x: FloatArray) -> float:
    """Return the largest eigenvalue of X'X."""
    return max(0.0, float(np.linalg.eigvalsh(_gram(x))[-1]))


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
