"""The constants of Section 4 and its appendix, one small function an equation.

The plain and the quantised analysis are the same formulas with other numbers: `PLAIN` and `QUANTISED`. A_d has the
appendix's sign: the Lyapunov function falls by B_0 ||grad||^2 and grows by A_d ||move_d||^2, so A_d <= 0 is wanted.
docs/theory.md lists where the paper's print differs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lasg.errors import LasgError


@dataclass(frozen=True, kw_only=True)
class Factors:
    """The numbers in which the two analyses differ."""

    step: float
    """Of eta_k, in the weight of c_d (eqn:lossdescent)."""
    drift: float
    """Of sqrt(M) L, for every move (eqn:lossdescent)."""
    noise: float
    """Of L eta_k^2 sum sigma_m^2, besides the 6 sqrt(M) D (eqn:lossdescent)."""
    moved_by_moves: float
    """Of c_d eta_k^2 in the next squared move (proof of lemma:lyapunovdescent)."""
    moved_by_noise: float
    """Of eta_k^2 sum sigma_m^2 in the next squared move."""
    gamma: float
    """Of sqrt(M) D L: what the theorem's c_d keep gamma_1 below."""
    curvature: float
    """Of sqrt(M) L^2: the largest c_d, whatever the step."""


PLAIN = Factors(step=1, drift=1 / 12, noise=9 / 2, moved_by_moves=6, moved_by_noise=18, gamma=1 / 3, curvature=1 / 18)
QUANTISED = Factors(
    step=3 / 2, drift=1 / 6, noise=6, moved_by_moves=8, moved_by_noise=24, gamma=1 / 2, curvature=1 / 24
)
STALE = 6
"""Of sqrt(M) D L eta_k^2 sum sigma_m^2: what stale samples add to the noise, in both."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """The smoothness, the workers and how lazy they are: c = (c_1, ..., c_D)."""

    L: float
    M: int
    c: tuple[float, ...]
    factors: Factors = PLAIN

    def __post_init__(self) -> None:
        if not 0 < self.L < math.inf:
            raise LasgError(f"L must be a positive number, got {self.L!r}")
        if self.M < 1 or not self.c or min(self.c) < 0:
            raise LasgError(f"at least one worker and c_1, ..., c_D >= 0 are needed, got M = {self.M}, c = {self.c}")

    @property
    def D(self) -> int:  # noqa: N802
        """The largest staleness."""
        return len(self.c)


def gradient_weight(setting: Setting, eta: float) -> float:
    """Of -||grad L(theta^k)||^2 in eqn:lossdescent: eta_k - L eta_k^2."""
    return eta - setting.L * eta**2


def move_weight(setting: Setting, eta: float, c_d: float) -> float:
    """Of ||theta^{k+1-d} - theta^{k-d}||^2 in eqn:lossdescent: (eta_k + 1 / (2 L)) c_d + sqrt(M) L / 12."""
    factors, L = setting.factors, setting.L
    return (factors.step * eta + 1 / (2 * L)) * c_d + factors.drift * math.sqrt(setting.M) * L


def noise_weight(setting: Setting, eta: float) -> float:
    """Of sum sigma_m^2 in eqn:lossdescent: L eta_k^2 (9/2 + 6 sqrt(M) D)."""
    return setting.L * eta**2 * (setting.factors.noise + STALE * math.sqrt(setting.M) * setting.D)


def gamma_1(setting: Setting, eta: float, mu: float = 0.0) -> float:
    """The closed form of gamma_1 in the proof of thm:nonconvex; with mu > 0 that of thm:stronglyconvex.

    `eta` is the largest step of the run, eta-bar.
    """
    total = sum(setting.c)
    left = 1 - setting.factors.moved_by_moves * total * eta**2 - 2 * mu * setting.D * eta
    if left <= 0:
        raise LasgError(
            f"no gamma_1 exists at eta = {eta:g}: 1 - {setting.factors.moved_by_moves:g} eta^2 sum c_d - 2 mu D eta "
            f"is {left:.3g}. Take a smaller eta or c_d."
        )
    drift = setting.factors.drift * math.sqrt(setting.M) * setting.D * setting.L
    return ((setting.factors.step * eta + 1 / (2 * setting.L)) * total + drift) / left


def gammas(setting: Setting, eta: float, mu: float = 0.0) -> tuple[float, ...]:
    """Return gamma_1, ..., gamma_D: A_d = -2 mu eta gamma_1 at the largest step, solved from d = D down."""
    first = gamma_1(setting, eta, mu)
    found = [0.0]  # gamma_{D+1}
    for c_d in reversed(setting.c):
        growth = setting.factors.moved_by_moves * c_d * first * eta**2
        found.append(found[-1] + move_weight(setting, eta, c_d) + growth + 2 * mu * eta * first)
    return tuple(reversed(found[1:]))


def A(setting: Setting, eta: float, gamma: Sequence[float]) -> tuple[float, ...]:  # noqa: N802
    """A_1^k, ..., A_D^k of eqn:lyapunovdescent, with the appendix's sign; lemma:lyapunovdescent prints -A_d."""
    after = (*gamma[1:], 0.0)
    growth = setting.factors.moved_by_moves * gamma[0] * eta**2
    return tuple(
        move_weight(setting, eta, c_d) + growth * c_d + following - own
        for c_d, own, following in zip(setting.c, gamma, after, strict=True)
    )


def B_0(setting: Setting, eta: float, gamma: Sequence[float]) -> float:  # noqa: N802
    """B_0^k of eqn:lyapunovdescent: eta_k - (L + 2 gamma_1) eta_k^2."""
    return eta - (setting.L + 2 * gamma[0]) * eta**2


def B_1(setting: Setting, eta: float, gamma: Sequence[float]) -> float:  # noqa: N802
    """B_1^k of eqn:lyapunovdescent: (9/2 + 6 sqrt(M) D) L eta_k^2 + 18 gamma_1 eta_k^2."""
    return noise_weight(setting, eta) + setting.factors.moved_by_noise * gamma[0] * eta**2


def lyapunov(gap: float, moves: Sequence[float], gamma: Sequence[float]) -> float:
    """V^k of eqn:Lyapunov: the gap L(theta^k) - L* plus gamma_d times the squared moves, the newest first.

    Moves before the first are zero, so fewer than D may be given.
    """
    if len(moves) > len(gamma):
        raise LasgError(f"V^k sums at most D = {len(gamma)} moves, got {len(moves)}")
    return gap + sum(weight * move for weight, move in zip(gamma, moves, strict=False))


def quantiser_variance(p: int, bits: int) -> float:
    """Lemma 3.1 of Alistarh et al. 2017: E||Q(v) - v||^2 <= min(p / s^2, sqrt(p) / s) ||v||^2, s = 2^(bits-1) - 1."""
    if p < 1 or bits < 2:
        raise LasgError(f"a quantiser takes p >= 1 entries of at least 2 bits, got p = {p}, bits = {bits}")
    levels = float(2 ** (bits - 1) - 1)
    return min(p / levels**2, math.sqrt(p) / levels)


def effective_variance(variance: float, M: int, p: int, bits: int, B: float) -> float:
    """sum_m (sigma_m^2 + B'/2) of thm:LAQSG, with B' = min(p / s^2, sqrt(p) / s) B; the paper's print drops the B."""
    return variance + M * quantiser_variance(p, bits) * B / 2
