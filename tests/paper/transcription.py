"""Algorithms 1-4 of the paper, and what it compares them with, written out literally: plain loops, float64.

Nothing of lasg is imported. The samples xi_m^k and the quantiser's uniform numbers are given as functions, so that
two programs can be compared on the same draws. Every function keeps the paper's symbols and the order of its
pseudocode; the numbers in comments are the pseudocode's lines. What the paper leaves open is as NOTES.md reads it:
everybody uploads at k = 0, moves before k = 0 are zero, c_d = c / eta_k^2 with the 1/M^2 counted once.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

Vector = list[float]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A distributed logistic regression, and the constants of the algorithms."""

    x: list[list[Vector]]
    """x[m][n]: the features of worker m's n-th sample."""
    y: list[list[int]]
    """y[m][n]: its label, -1 or +1."""
    lam: float
    eta: Callable[[int], float]
    c: Vector
    """c_1, c_2, ..., before the division by eta_k^2."""
    D: int
    xi: Callable[[int, int], list[int]]
    """The minibatch of worker m at iteration k."""
    u: Callable[[int, int], Vector]
    """The quantiser's uniform numbers of worker m at iteration k."""
    bits: int | None = None
    H: int = 1
    L: Vector = field(default_factory=list)
    """The smoothness constants of PS."""
    start: str = "zero"
    """PSE: 'zero', or 'ask-twice' (everybody is asked at k = 1 too)."""

    @property
    def M(self) -> int:  # noqa: N802
        """The number of workers."""
        return len(self.x)

    @property
    def p(self) -> int:
        """The number of parameters."""
        return len(self.x[0][0])

    @property
    def N(self) -> int:  # noqa: N802
        """The number of samples of all workers."""
        return sum(len(shard) for shard in self.x)


@dataclass
class Outcome:
    """What an algorithm did."""

    theta: list[Vector] = field(default_factory=list)
    """theta^0, theta^1, ..."""
    uploaders: list[set[int]] = field(default_factory=list)
    """M^0, M^1, ..."""
    violated: int = 0
    """Uploads because a condition was violated (not because they were due)."""
    forced: int = 0
    """Uploads, after k = 0, because they were due, the condition being satisfied."""
    gradients: int = 0
    downloads: int = 0
    bits: int = 0

    @property
    def uploads(self) -> int:
        """The paper's 'communication rounds'."""
        return sum(len(M_k) for M_k in self.uploaders)


# -- the pieces that all algorithms share --------------------------------------------------------------------


def grad(s: Setting, out: Outcome, m: int, theta: Vector, k: int) -> Vector:
    """Return worker m's contribution: (n_m / N) * mean logistic gradient on xi_m^k + (lam / M) * theta."""
    out.gradients += 1
    xi = s.xi(m, k)
    n_m = len(s.x[m])
    g = [0.0] * s.p
    for n in xi:
        z = 0.0
        for i in range(s.p):
            z += s.x[m][n][i] * theta[i]
        z *= s.y[m][n]
        for i in range(s.p):
            g[i] += -s.y[m][n] * s.x[m][n][i] / (1.0 + math.exp(z))
    for i in range(s.p):
        g[i] = n_m / s.N * g[i] / len(xi) + s.lam / s.M * theta[i]
    return g


def minus(a: Vector, b: Vector) -> Vector:
    return [a_i - b_i for a_i, b_i in zip(a, b, strict=True)]


def norm2(a: Vector) -> float:
    total = 0.0
    for a_i in a:
        total += a_i * a_i
    return total


def Q(s: Setting, out: Outcome, m: int, g: Vector, k: int) -> Vector:  # noqa: N802
    """Quantise (Alistarh et al. 2017, one norm a vector), and count the message; exact if `bits` is None."""
    if s.bits is None:
        out.bits += 64 * s.p
        return list(g)
    out.bits += 32 + 8 * math.ceil(s.bits * s.p / 8)
    levels = 2 ** (s.bits - 1) - 1
    norm = float(np.float32(math.sqrt(norm2(g))))
    u = s.u(m, k)
    quantised = []
    for i in range(s.p):
        if norm == 0.0:
            quantised.append(0.0)
            continue
        level = min(math.floor(abs(g[i]) / norm * levels + u[i]), levels)
        quantised.append(math.copysign(norm * level / levels, g[i]))
    return quantised


def right_side(s: Setting, theta: list[Vector], k: int) -> float:
    """Return (1 / M^2) sum_d c_d ||theta^{k+1-d} - theta^{k-d}||^2."""
    total = 0.0
    for d in range(1, len(s.c) + 1):
        if k - d >= 0:
            total += s.c[d - 1] / s.eta(k) ** 2 * norm2(minus(theta[k + 1 - d], theta[k - d]))
    return total / s.M**2


def server_updates(s: Setting, out: Outcome, k: int, latest: list[Vector]) -> None:
    """eqn:LASGiteration: step along the sum of every worker's latest contribution, stale or fresh."""
    theta = list(out.theta[k])
    for i in range(s.p):
        total = 0.0
        for m in range(s.M):
            total += latest[m][i]
        theta[i] -= s.eta(k) * total
    out.theta.append(theta)


def begin(s: Setting) -> tuple[Outcome, list[Vector], list[int]]:
    out = Outcome(theta=[[0.0] * s.p])
    return out, [[0.0] * s.p for _ in range(s.M)], [1] * s.M


# -- the algorithms --------------------------------------------------------------------------------------------


def sgd(s: Setting, K: int) -> Outcome:
    """eqn:SGDiteration; with bits, QSGD."""
    out, latest, _ = begin(s)
    for k in range(K):
        out.downloads += s.M
        for m in range(s.M):
            latest[m] = Q(s, out, m, grad(s, out, m, out.theta[k], k), k)
        out.uploaders.append(set(range(s.M)))
        server_updates(s, out, k, latest)
    return out


def local_sgd(s: Setting, K: int) -> Outcome:
    """H steps on the local function, whose gradient is worker m's contribution / (n_m / N); then average."""
    out, _, _ = begin(s)
    for k in range(K):
        out.downloads += s.M
        average = [0.0] * s.p
        for m in range(s.M):
            weight = len(s.x[m]) / s.N
            theta_m = list(out.theta[k])
            for h in range(s.H):
                g = grad(s, out, m, theta_m, k * s.H + h)
                for i in range(s.p):
                    theta_m[i] -= s.eta(k) * g[i] / weight
            for i in range(s.p):
                average[i] += weight * theta_m[i]
            out.bits += 64 * s.p
        out.uploaders.append(set(range(s.M)))
        out.theta.append(average)
    return out


def lag_wk(s: Setting, K: int) -> Outcome:
    """Direct stochastic LAG, eqn:LAGrule."""
    out, latest, tau = begin(s)
    last = [[0.0] * s.p for _ in range(s.M)]
    for k in range(K):
        out.downloads += s.M
        M_k = set()
        for m in range(s.M):
            fresh = grad(s, out, m, out.theta[k], k)
            violated = norm2(minus(fresh, last[m])) > right_side(s, out.theta, k)
            if k == 0 or violated or tau[m] >= s.D:
                latest[m] = Q(s, out, m, fresh, k)
                last[m] = fresh
                M_k.add(m)
                out.violated += k > 0 and violated
                out.forced += k > 0 and not violated
                tau[m] = 1
            else:
                tau[m] += 1
        out.uploaders.append(M_k)
        server_updates(s, out, k, latest)
    return out


def lasg_wk1(s: Setting, K: int) -> Outcome:
    """Algorithm 1."""
    out, latest, tau = begin(s)
    snapshot = out.theta[0]
    stored = [[0.0] * s.p for _ in range(s.M)]  # delta~_m^{k - tau_m^k}
    for k in range(K):  # 2
        out.downloads += s.M  # 3
        if k % s.D == 0:  # 4
            snapshot = out.theta[k]
        M_k = set()
        for m in range(s.M):  # 5
            fresh = grad(s, out, m, out.theta[k], k)  # 6
            at_snapshot = fresh if k % s.D == 0 else grad(s, out, m, snapshot, k)
            delta = minus(fresh, at_snapshot)
            violated = norm2(minus(delta, stored[m])) > right_side(s, out.theta, k)  # 7
            if violated or k % s.D == 0:  # 8
                latest[m] = Q(s, out, m, fresh, k)  # 9
                stored[m] = delta
                M_k.add(m)
                out.violated += k % s.D != 0
                out.forced += k > 0 and k % s.D == 0
                tau[m] = 1
            else:  # 11
                tau[m] += 1
        out.uploaders.append(M_k)
        server_updates(s, out, k, latest)  # 14
    return out


def lasg_wk2(s: Setting, K: int) -> Outcome:
    """Algorithm 2."""
    out, latest, tau = begin(s)
    for k in range(K):  # 2
        out.downloads += s.M  # 3
        M_k = set()
        for m in range(s.M):  # 4
            fresh = grad(s, out, m, out.theta[k], k)  # 5
            before = fresh if k == 0 else grad(s, out, m, out.theta[k - tau[m]], k)
            violated = norm2(minus(fresh, before)) > right_side(s, out.theta, k)  # 6
            if k == 0 or violated or tau[m] >= s.D:  # 7
                latest[m] = Q(s, out, m, fresh, k)  # 8
                M_k.add(m)
                out.violated += k > 0 and violated
                out.forced += k > 0 and not violated
                tau[m] = 1
            else:  # 10
                tau[m] += 1
        out.uploaders.append(M_k)
        server_updates(s, out, k, latest)  # 13
    return out


def lasg_ps(s: Setting, K: int) -> Outcome:
    """Algorithm 3."""
    out, latest, tau = begin(s)
    for k in range(K):  # 2
        M_k = set()
        for m in range(s.M):  # 3
            violated = k > 0 and (
                s.L[m] ** 2 * norm2(minus(out.theta[k], out.theta[k - tau[m]])) > right_side(s, out.theta, k)
            )  # 4
            if k == 0 or violated or tau[m] >= s.D:  # 5
                out.downloads += 1  # 6
                latest[m] = Q(s, out, m, grad(s, out, m, out.theta[k], k), k)  # 7, 8
                M_k.add(m)
                out.violated += violated
                out.forced += k > 0 and not violated
                tau[m] = 1
            else:  # 9
                tau[m] += 1
        out.uploaders.append(M_k)
        server_updates(s, out, k, latest)  # 13
    return out


def lasg_pse(s: Setting, K: int) -> Outcome:
    """Algorithm 4."""
    out, latest, tau = begin(s)
    L_hat = [0.0] * s.M
    for k in range(K):  # 2
        M_k = set()
        for m in range(s.M):  # 3
            moved = 0.0 if k == 0 else norm2(minus(out.theta[k], out.theta[k - tau[m]]))
            violated = L_hat[m] ** 2 * moved > right_side(s, out.theta, k)  # 4
            asked_twice = k == 1 and s.start == "ask-twice"
            if k == 0 or asked_twice or violated or tau[m] >= s.D:  # 5
                out.downloads += 1  # 6
                fresh = grad(s, out, m, out.theta[k], k)  # 7
                latest[m] = Q(s, out, m, fresh, k)  # 8
                if k > 0:  # 9, eqn:Lmestimate
                    before = grad(s, out, m, out.theta[k - tau[m]], k)
                    if moved > 0:
                        L_hat[m] = max(L_hat[m], math.sqrt(norm2(minus(fresh, before))) / math.sqrt(moved))
                M_k.add(m)
                out.violated += violated
                out.forced += k > 0 and not asked_twice and not violated
                tau[m] = 1
            else:  # 10
                tau[m] += 1
        out.uploaders.append(M_k)
        server_updates(s, out, k, latest)  # 14
    return out


ALGORITHMS: dict[str, Callable[[Setting, int], Outcome]] = {
    "sgd": sgd,
    "lag-wk": lag_wk,
    "lasg-wk1": lasg_wk1,
    "lasg-wk2": lasg_wk2,
    "lasg-ps": lasg_ps,
    "lasg-pse": lasg_pse,
    "local-sgd": local_sgd,
    "qsgd": sgd,
    "laqsg-wk1": lasg_wk1,
    "laqsg-wk2": lasg_wk2,
    "laqsg-ps": lasg_ps,
    "laqsg-pse": lasg_pse,
}
QUANTISED = {"qsgd", "laqsg-wk1", "laqsg-wk2", "laqsg-ps", "laqsg-pse"}
