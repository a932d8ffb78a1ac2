"""What the theorems of Section 4 allow and promise, from the numbers of a problem.

Each theorem is a class with one shape: the largest step, the largest c_d, the schedule, and the bound after K rounds.
They differ from the paper's print where that has a slip: docs/theory.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from lasg.core.optimizers import Constant, Decreasing
from lasg.errors import LasgError
from lasg.theory.constants import PLAIN, QUANTISED, STALE, Factors, Setting, effective_variance
from lasg.theory.names import name_of

ASSUMPTIONS: Mapping[str, tuple[str, ...]] = {
    "assump:smoothness": ("L",),
    "assump:gradientestimator": ("variance",),
    "assump:strongconvexity": ("mu",),
    "assump:boundedgradient": ("B", "p", "bits"),
}
"""Which assumption gives which number. assump:localsmoothness gives the L_m, which only the rule of LASG-PS needs."""


@dataclass(frozen=True, kw_only=True)
class Known:
    """The numbers of a problem. None: not known, which some theorems do not mind."""

    L: float
    """The smoothness of the whole loss."""
    M: int
    D: int
    variance: float
    """The sum over workers of sigma_m^2."""
    gap: float
    """L(theta^0) - L*."""
    mu: float | None = None
    """The strong convexity of the whole loss."""
    B: float | None = None
    """The largest E||grad l(theta; xi_m)||^2, of any theta and worker."""
    p: int | None = None
    bits: int | None = None
    """An entry of a quantised upload, sign included."""

    def __post_init__(self) -> None:
        for name, least in (("M", 1), ("D", 1)):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < least:
                raise LasgError(f"{name} must be an integer >= {least}, got {getattr(self, name)!r}")
        for name in ("L", "mu", "B"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise LasgError(f"{name} must be a positive number, got {value!r}")
        for name in ("variance", "gap"):
            if not 0 <= getattr(self, name) < math.inf:
                raise LasgError(f"{name} must be a number >= 0, got {getattr(self, name)!r}")
        if self.mu is not None and self.mu > self.L:
            raise LasgError(f"mu cannot exceed L, got mu = {self.mu!r}, L = {self.L!r}")

    @property
    def reach(self) -> float:
        """sqrt(M) D, which stands in most of the constants."""
        return math.sqrt(self.M) * self.D


@dataclass(frozen=True)
class Theorem:
    """What the three have in common."""

    known: Known
    label: ClassVar[str]
    needs: ClassVar[tuple[str, ...]] = ("assump:smoothness", "assump:gradientestimator")
    factors: ClassVar[Factors] = PLAIN

    def __post_init__(self) -> None:
        for assumption in self.needs:
            missing = [name for name in ASSUMPTIONS[assumption] if getattr(self.known, name) is None]
            if missing:
                what = f"the {name_of(self.label)} needs {', '.join(missing)}"
                raise LasgError(f"{what}: the assumption '{name_of(assumption)}' gives it")

    @property
    def noise(self) -> float:
        """What the noise terms multiply: sum sigma_m^2."""
        return self.known.variance

    @property
    def largest_gamma(self) -> float:
        """What gamma_1 stays below: sqrt(M) D L / 3, or / 2 where uploads are quantised."""
        return self.factors.gamma * self.known.reach * self.known.L

    @property
    def largest_step(self) -> float:
        """1 / (2 L + 4 gamma_1): below it B_0^k >= eta_k / 2."""
        return 1 / (2 * self.known.L + 4 * self.largest_gamma)

    @property
    def growth(self) -> float:
        """What B_1^k stays below, over L eta_k^2: 9/2 + 12 sqrt(M) D, or 6 + 18 sqrt(M) D."""
        factors = self.factors
        return factors.noise + (STALE + factors.moved_by_noise * factors.gamma) * self.known.reach

    def _largest_c(self, eta: float, share: float) -> float:
        by_step = share / (self.factors.moved_by_moves * self.known.D * eta**2)
        return min(by_step, self.factors.curvature * math.sqrt(self.known.M) * self.known.L**2)

    def setting(self, c_d: float) -> Setting:
        """Return the setting with c_1 = ... = c_D = c_d, for the functions of `constants`."""
        return Setting(L=self.known.L, M=self.known.M, c=(c_d,) * self.known.D, factors=self.factors)


class Nonconvex(Theorem):
    """thm:nonconvex: the mean squared gradient over K rounds is O(1 / sqrt(K)) with eta = O(1 / sqrt(K))."""

    label = "thm:nonconvex"

    def largest_c(self, eta: float | None = None) -> float:
        """min{1 / (12 D eta^2), sqrt(M) L^2 / 18}, at the largest step by default."""
        return self._largest_c(eta or self.largest_step, 1 / 2)

    def schedule(self, K: int, c_eta: float) -> Constant:
        """eta = min{largest step, c_eta / sqrt(K)}."""
        return Constant(min(self.largest_step, c_eta / math.sqrt(K)))

    def best_step(self, K: int) -> float:
        """Return the step with the least bound after K rounds, among those that are allowed."""
        slope = self.growth * self.known.L * self.noise
        return min(self.largest_step, math.sqrt(self.known.gap / (K * slope)) if slope else math.inf)

    def bound(self, K: int, eta: float) -> float:
        """On the mean of E||grad L(theta^k)||^2 over k < K: 2 gap / (K eta) + 2 growth L eta noise."""
        if not 0 < eta <= self.largest_step * (1 + 1e-12):
            what = f"the {name_of(self.label)} promises nothing at eta = {eta:g}"
            raise LasgError(f"{what}: take 0 < eta <= {self.largest_step:g}")
        return 2 * self.known.gap / (K * eta) + 2 * self.growth * self.known.L * eta * self.noise


class Quantised(Nonconvex):
    """thm:LAQSG: the same for quantised uploads, with constants of its own and sigma_m^2 + B'/2 for sigma_m^2."""

    label = "thm:LAQSG"
    needs = (*Nonconvex.needs, "assump:boundedgradient")
    factors = QUANTISED

    @property
    def noise(self) -> float:
        """sum_m (sigma_m^2 + B'/2)."""
        known = self.known
        assert known.p is not None
        assert known.bits is not None
        assert known.B is not None
        return effective_variance(known.variance, known.M, known.p, known.bits, known.B)


class StronglyConvex(Theorem):
    """thm:stronglyconvex: the gap after K rounds is O(1 / K) with eta_k = 2 / (mu (k + K0))."""

    label = "thm:stronglyconvex"
    needs = (*Theorem.needs, "assump:strongconvexity")

    @property
    def mu(self) -> float:
        """The strong convexity."""
        assert self.known.mu is not None
        return self.known.mu

    @property
    def printed_K0(self) -> float:  # noqa: N802
        """K0 as the paper prints it: it ensures B_0^k >= 0, not the B_0^k >= eta_k / 2 that its proof goes on with."""
        return max(2 * (self.known.L + 2 * self.largest_gamma) / self.mu, 16 * self.known.D)

    @property
    def K0(self) -> float:  # noqa: N802
        """max{4 (L + 2/3 sqrt(M) D L) / mu, 16 D}: ensures B_0^k >= eta_k / 2 and eta_k <= 1 / (8 mu D)."""
        return max(4 * (self.known.L + 2 * self.largest_gamma) / self.mu, 16 * self.known.D)

    def schedule(self) -> Decreasing:
        """eta_k = 2 / (mu (k + K0))."""
        return Decreasing(self.mu, self.K0)

    def largest_c(self, eta: float | None = None) -> float:
        """min{1 / (24 D eta_0^2), sqrt(M) L^2 / 18}."""
        return self._largest_c(eta or self.schedule()(0), 1 / 4)

    def bound(self, K: int) -> float:
        """On E L(theta^K) - L*: ((K0-1)/(K+K0-1))^2 gap + 4 R K / (mu^2 (K+K0-1)^2), R = growth L noise."""
        last = K + self.K0 - 1
        R = self.growth * self.known.L * self.noise
        return ((self.K0 - 1) / last) ** 2 * self.known.gap + 4 * R * K / (self.mu * last) ** 2
