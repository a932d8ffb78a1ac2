"""Numbers with 95 % confidence intervals, claims about them, and the curves they come from. Runs nothing."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lasg.errors import LasgError

Vector = npt.NDArray[np.float64]


class Estimate(NamedTuple):
    """A number, and the ends of its 95 % confidence interval."""

    value: float
    low: float
    high: float


def student(freedom: int) -> float:
    """Return the 97.5 % point of Student's t, by Cornish and Fisher's expansion: 3 % low at 2 degrees, 0.1 % at 5."""
    z = 1.959964
    first, second = (z**3 + z) / 4, (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / freedom + second / freedom**2 + third / freedom**3


def interval(samples: Vector) -> tuple[Vector, Vector]:
    """Return the mean over seeds (the first dimension) and half the width of its interval."""
    n = len(samples)
    if n < 3:
        raise LasgError(f"a confidence interval needs at least 3 seeds, got {n}")
    spread = samples.std(0, ddof=1) / math.sqrt(n)
    return samples.mean(0), student(n - 1) * spread


def jackknife(of_mean: Callable[[Vector], float], samples: Vector) -> Estimate:
    """Return a function of the mean over seeds, with an interval from leaving out one seed at a time."""
    n = len(samples)
    total = samples.sum(0)
    whole = of_mean(total / n)
    left_out = np.array([of_mean((total - one) / (n - 1)) for one in samples])
    _, half = interval(n * whole - (n - 1) * left_out)
    return Estimate(whole, whole - float(half), whole + float(half))


def slope(x: Vector, samples: Vector) -> Estimate:
    """Return the slope of log (mean over seeds) against log x, by least squares."""
    away = np.log(x) - np.log(x).mean()
    weights = away / (away @ away)
    return jackknife(lambda mean: float(weights @ np.log(mean)), samples)


def highest(samples: Vector) -> Estimate:
    """Return the largest mean over seeds along a curve, with the largest ends of the intervals along it."""
    mean, half = interval(samples)
    return Estimate(float(mean.max()), float((mean - half).max()), float((mean + half).max()))


def lowest(samples: Vector) -> Estimate:
    """Return the least mean over seeds along a curve, with the least ends of the intervals along it."""
    value, low, high = highest(-samples)
    return Estimate(-value, -high, -low)


@dataclass(frozen=True, kw_only=True)
class Claim:
    """What was said, what was measured, and whether it holds."""

    label: str
    """The paper's label."""
    what: str
    algorithm: str
    found: Estimate
    least: float = -math.inf
    most: float = math.inf
    """Between these it must lie, with its whole interval."""
    saved: float = 0.0
    """The share of SGD's uploads that was not sent."""
    seeds: int = 0
    promised: bool = True
    """Whether the paper says so. If not, it is an observation, and no verdict."""

    @property
    def verdict(self) -> str:
        """One word: holds; unclear, where only the interval reaches out; fails; observed."""
        if not self.promised:
            return "observed"
        if not self.least <= self.found.value <= self.most:
            return "fails"
        inside = self.least <= self.found.low and self.found.high <= self.most
        return "holds" if inside else "unclear"

    def row(self) -> dict[str, Any]:
        """Return it as a row of a table."""
        return {
            "claim": self.label,
            "what": self.what,
            "algorithm": self.algorithm,
            "value": self.found.value,
            "low": self.found.low,
            "high": self.found.high,
            "least": self.least,
            "most": self.most,
            "saved": self.saved,
            "seeds": self.seeds,
            "verdict": self.verdict,
        }


@dataclass(frozen=True, kw_only=True)
class Curve:
    """What was measured along the rounds: the mean over seeds, its interval, and what the paper bounds it by."""

    part: str
    algorithm: str
    x: Vector
    mean: Vector
    half: Vector
    bound: Vector | None = None

    def rows(self) -> list[dict[str, Any]]:
        """Return it as rows of a table."""
        bound = np.full(len(self.x), np.nan) if self.bound is None else self.bound
        table = np.column_stack([self.x, self.mean, self.mean - self.half, self.mean + self.half, bound])
        names = ("x", "mean", "low", "high", "bound")
        return [
            {"part": self.part, "algorithm": self.algorithm, **dict(zip(names, map(float, row), strict=True))}
            for row in table
        ]


def curve(part: str, algorithm: str, x: Vector, samples: Vector, bound: Vector | None = None) -> Curve:
    """Return the curve of samples, one row per seed."""
    mean, half = interval(samples)
    return Curve(part=part, algorithm=algorithm, x=np.asarray(x, np.float64), mean=mean, half=half, bound=bound)
