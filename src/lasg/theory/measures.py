"""The numbers that the theorems of Section 4 want, measured on a problem: L, L_m, mu, sigma_m^2, B and the gap.

Everything is of the workers' contributions, (n_m / N) * (mean gradient of a minibatch) + (lam / M) * theta, since these
are what the server sums. Of a regression most numbers are known; of a network they are estimates at theta^0, and its L
may be larger elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import cast, float64, norms
from lasg.problems.regression import Regression
from lasg.theory.bounds import Known
from lasg.theory.curvature import power_iteration

if TYPE_CHECKING:
    from lasg.problems.module import ModuleProblem  # imports torch, which regressions do without

How = Literal["exact", "bound", "estimate"]
Vector = npt.NDArray[np.float64]
Tell: TypeAlias = Callable[[int, str], None]

SAMPLES = 256
"""Of a network's data, at which the curvature of the whole loss is taken."""
OWN_SAMPLES = 64
"""Of a worker's shard, at which the curvature of its loss is taken."""
MINIBATCHES = 10
"""A worker, from which the variance of a network's gradients is estimated."""
PRECISION = 1e-2
"""At which the power iteration of a network ends: a product with its Hessian costs four gradients."""


@dataclass(frozen=True, kw_only=True)
class Measures:
    """The numbers of a problem; sequences have one per worker."""

    L: float
    """The smoothness of the whole loss."""
    L_start: float
    """The largest curvature of the whole loss at theta^0."""
    L_m: tuple[float, ...]
    """The smoothness of every contribution."""
    mu: float | None
    """The strong convexity; None: there is none, or nobody knows it."""
    variances: tuple[float, ...]
    """sigma_m^2, at every theta."""
    variances_start: tuple[float, ...]
    """sigma_m^2, at theta^0."""
    B: float
    """The largest E||contribution||^2; of a regression with an l2 term where the loss is not above the start's."""
    gap: float
    """L(theta^0), less 0, which a cross entropy never falls below."""
    p: int
    how: Mapping[str, How]
    """How each number is known."""

    @property
    def M(self) -> int:  # noqa: N802
        """The number of workers."""
        return len(self.L_m)

    def known(self, D: int, bits: int | None = None) -> Known:
        """Return them as the theorems take them."""
        return Known(
            L=self.L,
            M=self.M,
            D=D,
            variance=sum(self.variances),
            gap=self.gap,
            mu=self.mu,
            B=self.B,
            p=self.p,
            bits=bits,
        )


def measure(problem: Regression | ModuleProblem, tell: Tell = lambda _count, _note: None) -> Measures:
    """Measure a problem; `tell` is called with how many of `pieces` more are done, and what is under way."""
    return measure_regression(problem) if isinstance(problem, Regression) else measure_module(problem, tell)


def pieces(problem: Regression | ModuleProblem) -> int:
    """Return how many pieces of work measuring a problem is."""
    return 1 if isinstance(problem, Regression) else 1 + problem.workers + MINIBATCHES


# -- regressions -----------------------------------------------------------------------------------------------


def measure_regression(problem: Regression) -> Measures:
    """Measure a regression, whose theta^0 is 0.

    A sample's gradient is x r', with r = softmax - e_y, or for two classes -1 < r < 0 on y x. So ||r||^2 is at most 2
    or 1, and ||grad||^2 at most that times ||x||^2.
    """
    largest = 1.0 if problem.binary else 2.0
    shards = [problem.features[rows].astype(np.float64) for rows in problem.shards()]
    lengths = np.array([np.vecdot(x, x).sum() for x in shards])
    n, weights = problem.sizes, problem.weights
    noise = weights**2 * without_replacement(n, problem.batch)
    gap = problem.loss(problem.start())
    spread = np.array([_spread(problem, m, x) for m, x in enumerate(shards)])
    L = problem.whole_smoothness
    pull = np.sqrt(2 * problem.lam * gap) / problem.workers  # of the l2 term, where L(theta) <= L(theta^0)
    steepest: How = "exact" if problem.binary else "bound"
    return Measures(
        L=L,
        L_start=L if problem.binary else (L - problem.lam) * 2 / problem.classes + problem.lam,
        L_m=tuple(problem.smoothness("tight").tolist()),
        mu=problem.lam or None,
        variances=tuple((noise * largest * lengths / np.maximum(n - 1, 1)).tolist()),
        variances_start=tuple((noise * spread).tolist()),
        B=float(((weights * np.sqrt(largest * lengths / n) + pull) ** 2).max()),
        gap=gap,
        p=problem.p,
        how={
            **dict.fromkeys(("L_start", "mu", "variances_start"), "exact"),
            **dict.fromkeys(("variances", "B", "gap"), "bound"),
            **dict.fromkeys(("L", "L_m"), steepest),
        },
    )


def without_replacement(n: npt.NDArray[Any], b: npt.NDArray[Any]) -> Vector:
    """By what a sample variance (over n - 1) is multiplied to be that of the mean of b of n samples: (1 - b/n) / b."""
    factor: Vector = (1 - b / n) / b
    return factor


def _spread(problem: Regression, m: int, x: Vector) -> float:
    """Return the sample variance of worker m's gradients at theta = 0, over n - 1."""
    n = len(x)
    square = 0.25 if problem.binary else 1 - 1 / problem.classes
    total = square * float(np.vecdot(x, x).sum())
    return (total - n * _mean_square(problem, m, x)) / max(n - 1, 1)


def _mean_square(problem: Regression, m: int, x: Vector) -> float:
    """Return the squared norm of worker m's mean gradient at theta = 0."""
    if problem.binary:
        mean = x.mean(0) / 2
    else:
        residual = 1 / problem.classes - np.eye(problem.classes)[problem.labels[problem.shards()[m]]]
        mean = x.T @ residual / len(x)
    return float((mean * mean).sum())


# -- networks --------------------------------------------------------------------------------------------------


def measure_module(problem: ModuleProblem, tell: Tell) -> Measures:
    """Estimate a network's numbers at theta^0, from fixed samples and the run's first minibatches."""
    theta = problem.start()
    everywhere = _evenly(problem.order, SAMPLES)
    tell(0, "curvature of the whole loss")
    L = _curvature(problem, theta, everywhere, problem.lam)
    tell(1, "curvature of the whole loss")
    local = []
    for m, shard in enumerate(np.split(problem.order, np.cumsum(problem.sizes)[:-1])):
        weight = float(problem.weights[m])
        own = _curvature(problem, theta, _evenly(shard, OWN_SAMPLES), problem.lam / (problem.workers * weight))
        local.append(weight * own)
        tell(1, f"curvature of worker {m}'s loss")
    variances, squares = _noise(problem, theta, tell)
    names = ("L", "L_start", "L_m", "mu", "variances", "variances_start", "B", "gap")
    return Measures(
        L=L,
        L_start=L,
        L_m=tuple(local),
        mu=None,
        variances=tuple(variances.tolist()),
        variances_start=tuple(variances.tolist()),
        B=float(squares.max()),
        gap=problem.loss(theta, np.sort(everywhere)),
        p=problem.p,
        how=dict.fromkeys(names, "estimate"),
    )


def _curvature(problem: ModuleProblem, theta: Any, rows: npt.NDArray[Any], lam: float) -> float:
    """Return the largest |eigenvalue| of the Hessian of the mean loss over some rows, plus lam on its diagonal."""
    start = cast(np.random.default_rng(0).standard_normal(problem.p), theta)
    return power_iteration(lambda v: problem.hessian_times(theta, v, rows) + lam * v, start, tolerance=PRECISION)


def _noise(problem: ModuleProblem, theta: Any, tell: Tell) -> tuple[Vector, Vector]:
    """Return the variance of every contribution, and its mean square, over a few minibatches."""
    fresh = problem.fresh()  # what BatchNorm remembers is the run's own business
    total, squares = 0.0, np.zeros(problem.workers)
    for k in range(MINIBATCHES):
        (grads,) = fresh.gradients(k, [theta], None)
        total = total + float64(grads)
        squares += norms(grads) ** 2
        tell(1, "variance of the gradients")
    mean = norms(total / MINIBATCHES) ** 2
    return np.maximum(squares - MINIBATCHES * mean, 0) / (MINIBATCHES - 1), squares / MINIBATCHES


def _evenly(rows: npt.NDArray[Any], count: int) -> npt.NDArray[Any]:
    """Return so many rows at equal distances, or all: sorted by label, they hold every class."""
    return rows[np.unique(np.linspace(0, len(rows) - 1, min(count, len(rows))).astype(np.int64))]
