"""Problems whose L, mu, L_m, sigma_m^2 and minimum are known exactly, for the engine that trains everything else.

A shape says what the workers' losses are; `Synthetic` is the oracle that draws their samples, from the project's
counter. Both shapes are separable: entry i of a gradient depends on entry i of the model only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from lasg import counter

Vector = npt.NDArray[np.float64]
Indices = npt.NDArray[np.integer[Any]]

BLOCK = 64
"""The samples of so many rounds are drawn at once: the same numbers, sooner."""


class Shape(Protocol):
    """The losses of all workers, and what is known of them."""

    @property
    def size(self) -> tuple[int, int]:
        """(M, p)."""
        ...

    @property
    def L(self) -> float:  # noqa: N802
        """The smoothness of the whole loss."""
        ...

    @property
    def smoothness(self) -> Vector:
        """L_m of each worker."""
        ...

    @property
    def variances(self) -> Vector:
        """sigma_m^2 of each worker: the largest of any theta."""
        ...

    @property
    def lowest(self) -> float:
        """L*, the least of the whole loss."""
        ...

    def start(self) -> Vector:
        """Return theta^0."""
        ...

    def sampled(self, theta: Vector, workers: Indices | slice, xi: Vector) -> Vector:
        """Return the stochastic gradients of some workers on the samples `xi`, one row each."""
        ...

    def loss(self, theta: Vector) -> float:
        """Return L(theta), with no noise."""
        ...

    def gradients(self, theta: Vector) -> Vector:
        """Return the exact gradient of every worker, one row each."""
        ...


@dataclass(frozen=True, eq=False)
class Quadratics:
    """L_m = 1/2 sum_i h_mi (theta_i - t_mi)^2, and Gaussian noise of deviation s_m added to each entry.

    Strongly convex. The noise is in the linear term, so a worker's curvature is the same on every sample.
    """

    curvature: Vector
    """h, one row per worker."""
    centre: Vector
    """t, one row per worker."""
    deviation: Vector
    """s, one number per worker."""

    @property
    def size(self) -> tuple[int, int]:
        """(M, p)."""
        return self.curvature.shape[0], self.curvature.shape[1]

    @cached_property
    def total(self) -> Vector:
        """The curvature of the whole loss."""
        found: Vector = self.curvature.sum(0)
        return found

    @property
    def L(self) -> float:  # noqa: N802
        """The largest curvature of the whole loss."""
        return float(self.total.max())

    @property
    def mu(self) -> float:
        """The least curvature of the whole loss."""
        return float(self.total.min())

    @property
    def smoothness(self) -> Vector:
        """L_m."""
        found: Vector = self.curvature.max(-1)
        return found

    @property
    def variances(self) -> Vector:
        """sigma_m^2 = p s_m^2, at every theta."""
        return self.size[1] * self.deviation**2

    @cached_property
    def minimiser(self) -> Vector:
        """theta*."""
        found: Vector = (self.curvature * self.centre).sum(0) / self.total
        return found

    @cached_property
    def lowest(self) -> float:
        """L*."""
        return float(0.5 * (self.curvature * (self.minimiser - self.centre) ** 2).sum())

    def start(self) -> Vector:
        """Return theta^0 = 0."""
        return np.zeros(self.size[1])

    def sampled(self, theta: Vector, workers: Indices | slice, xi: Vector) -> Vector:
        """Return h_m (theta - t_m) + s_m xi."""
        exact = self.curvature[workers] * (theta - self.centre[workers])
        found: Vector = exact + self.deviation[workers, None] * xi
        return found

    def loss(self, theta: Vector) -> float:
        """Return L(theta) = L* + 1/2 sum_i h_i (theta_i - theta*_i)^2."""
        away = theta - self.minimiser
        return self.lowest + 0.5 * float(self.total @ (away * away))

    def gradients(self, theta: Vector) -> Vector:
        """Return the exact gradient of every worker."""
        return self.curvature * (theta - self.centre)


@dataclass(frozen=True, eq=False)
class Ripples:
    """l(theta; xi) = a_m sum_i (1 - cos(theta_i - u_mi - s xi_i)), xi standard normal: smooth, bounded, not convex.

    E cos(x - s xi) = exp(-s^2 / 2) cos x, so L_m is a ripple too, and the sum over workers is one ripple an entry, of
    amplitude R_i and phase phi_i. The curvature differs from sample to sample, as with real data.
    """

    height: Vector
    """a, one number per worker."""
    phase: Vector
    """u, one row per worker."""
    deviation: float
    """s."""

    @property
    def size(self) -> tuple[int, int]:
        """(M, p)."""
        return self.phase.shape[0], self.phase.shape[1]

    @cached_property
    def flattened(self) -> Vector:
        """a_m exp(-s^2 / 2): the heights of the L_m."""
        return self.height * math.exp(-(self.deviation**2) / 2)

    @cached_property
    def _sum(self) -> npt.NDArray[np.complex128]:
        """R_i exp(i phi_i)."""
        found: npt.NDArray[np.complex128] = (self.flattened[:, None] * np.exp(1j * self.phase)).sum(0)
        return found

    @cached_property
    def amplitude(self) -> Vector:
        """R."""
        return np.abs(self._sum)

    @property
    def L(self) -> float:  # noqa: N802
        """The largest second derivative of the whole loss."""
        return float(self.amplitude.max())

    @property
    def smoothness(self) -> Vector:
        """L_m."""
        return self.flattened

    @property
    def variances(self) -> Vector:
        """sigma_m^2 = p a_m^2 (1 - exp(-2 s^2)) / 2: the variance where the mean gradient is zero, the largest."""
        found: Vector = self.size[1] * self.height**2 * (1 - math.exp(-2 * self.deviation**2)) / 2
        return found

    @property
    def largest_square(self) -> float:
        """B: the largest E||grad l(theta; xi_m)||^2, p a_m^2 (1 + exp(-2 s^2)) / 2, where sin is +-1."""
        return self.size[1] * float(self.height.max()) ** 2 * (1 + math.exp(-2 * self.deviation**2)) / 2

    @cached_property
    def lowest(self) -> float:
        """L*."""
        return float(self.size[1] * self.height.sum() - self.amplitude.sum())

    @cached_property
    def minimiser(self) -> Vector:
        """theta*, one of them: cos is 1 in every entry of the sum."""
        return np.angle(self._sum)

    def start(self) -> Vector:
        """Return theta^0: theta*, but every tenth entry two radians away, where the loss is not convex.

        With all entries away the noise would be lost beside the way to the minimum.
        """
        found = self.minimiser.copy()
        found[::10] += 2.0
        return found

    def sampled(self, theta: Vector, workers: Indices | slice, xi: Vector) -> Vector:
        """Return a_m sin(theta - u_m - s xi)."""
        found: Vector = self.height[workers, None] * np.sin(theta - self.phase[workers] - self.deviation * xi)
        return found

    def loss(self, theta: Vector) -> float:
        """Return L(theta)."""
        shifted = np.exp(1j * theta) * self._sum.conj()
        return float(self.size[1] * self.height.sum() - shifted.real.sum())

    def gradients(self, theta: Vector) -> Vector:
        """Return the exact gradient of every worker."""
        return self.flattened[:, None] * np.sin(theta - self.phase)


class Synthetic:
    """A shape with samples: the problem that an engine runs."""

    def __init__(self, shape: Shape, seed: int) -> None:
        self.shape, self.seed = shape, seed
        self.workers, self.p = shape.size
        self.weights: Vector = np.full(self.workers, 1 / self.workers)
        self._keys = counter.worker_keys(seed, counter.NOISE, np.arange(self.workers))
        self._drawn, self._block = -1, np.empty(0)

    def samples(self, iteration: int) -> Vector:
        """Return the samples of all workers in a round, standard normal: a function of (seed, worker, round)."""
        block, within = divmod(iteration, BLOCK)
        if block != self._drawn:
            keys = counter.round_keys(self._keys, np.arange(block * BLOCK, (block + 1) * BLOCK))
            self._block, self._drawn = normals(keys, self.p), block
        found: Vector = self._block[within]
        return found

    def gradients(self, iteration: int, points: Sequence[Vector], rows: Indices | None) -> list[Vector]:
        """Return the contributions of the chosen workers at each point, all on one sample a worker."""
        xi = self.samples(iteration)
        if rows is None:
            return [self.shape.sampled(point, slice(None), xi) for point in points]
        return [self.shape.sampled(point, rows, xi[rows]) for point in points]

    def loss(self, theta: Vector) -> float:
        """Return L(theta), with no noise."""
        return self.shape.loss(theta)

    def accuracy(self, theta: Vector) -> float | None:  # noqa: ARG002
        """Return None: there is no test set."""
        return None

    def export(self, theta: Vector) -> dict[str, Vector]:
        """Return the model by name."""
        return {"theta": theta}

    def fresh(self) -> Synthetic:
        """Return the problem for one run: itself, since what is drawn depends on the round only."""
        return self

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: nothing."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""


def normals(keys: counter.UInt64, n: int) -> Vector:
    """Return `n` standard normal numbers a key, by Box and Muller, as a last dimension."""
    half = -(-n // 2)
    uniform = counter.uniforms(keys, 2 * half)
    radius = np.sqrt(-2 * np.log1p(-uniform[..., :half]))  # 1 - u is never 0
    angle = 2 * math.pi * uniform[..., half:]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], -1)[..., :n]


def quadratics(M: int = 4, p: int = 500, L: float = 3.0, mu: float = 1.0, seed: int = 0) -> Quadratics:
    """Return quadratics of uneven workers: each has half the curvature of the one before, and a centre of its own."""
    rng = np.random.default_rng(seed)
    share = 0.5 ** np.arange(M)
    curvature = share[:, None] * rng.uniform(0.5, 1.5, (M, p))
    curvature *= np.linspace(mu, L, p) / curvature.sum(0)
    centre = 0.5 + 0.5 * rng.normal(size=(M, p))
    return Quadratics(curvature, centre, np.linspace(1.0, 0.5, M))


def ripples(M: int = 4, p: int = 40, deviation: float = 1.0, seed: int = 0) -> Ripples:
    """Return ripples of uneven workers: each is half as high as the one before, and somewhat out of phase."""
    rng = np.random.default_rng(seed)
    height = 0.5 ** np.arange(M)
    return Ripples(height / height.sum(), rng.uniform(-1, 1, (M, p)), deviation)
