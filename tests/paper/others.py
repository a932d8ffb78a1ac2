"""The other algorithms of the table, each written out after its own paper: plain loops over workers, float64.

Nothing of lasg is imported, and no optimizer of torch. Minibatches and random numbers are given as functions, so that
two programs can be compared on the same draws. Symbols are the papers'. f(x) = sum_m f_m(x), where f_m is n_m / N times
worker m's mean loss: where a paper writes (1 / n) sum, its f_i / n is our f_m. What a message says is rounded as it is
on the wire: numbers to float32, magnitudes to bfloat16. A line with "row:" is where lasg's row differs from the paper.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

Vector = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Setting:
    """A distributed logistic regression, and the constants of the algorithms."""

    x: list[Vector]
    """x[m]: the features of worker m's samples, a row each."""
    y: list[Vector]
    """y[m]: their labels, -1 or +1."""
    lam: float
    xi: Callable[[int, int], list[int]]
    """The minibatch of worker m at iteration k."""
    eta: float
    """The server's step size, or the outer one."""
    D: int = 100
    c: float = 0.1
    H: int = 1
    bound: float | None = None
    """FDA's Theta; None: as FDA-Opt finds it."""
    inner: Callable[[], Inner] = lambda: SGD(0.1)
    """A worker's own optimizer."""
    shapes: tuple[tuple[int, ...], ...] = ()
    """The tensors of the model."""
    Q0: Vector = field(default_factory=lambda: np.zeros(0))
    """PowerSGD's first Q of all matrices, one after the other."""

    @property
    def M(self) -> int:  # noqa: N802
        """The number of workers."""
        return len(self.x)

    @property
    def p(self) -> int:
        """The number of parameters."""
        return int(self.x[0].shape[1])

    def weight(self, m: int) -> float:
        """Return n_m / N."""
        return len(self.x[m]) / sum(map(len, self.x))

    def zeros(self) -> list[Vector]:
        """Return a vector of zeros per worker."""
        return [np.zeros(self.p) for _ in range(self.M)]


@dataclass
class Outcome:
    """What an algorithm did."""

    theta: list[Vector]
    """theta^0, theta^1, ..."""
    uploaders: list[set[int]] = field(default_factory=list)
    why: Counter[str] = field(default_factory=Counter)
    """How often each reason to upload, or to be silent, occurred."""


def grad(s: Setting, m: int, theta: Vector, k: int) -> Vector:
    """Return the gradient of f_m on xi_m^k."""
    rows = s.xi(m, k)
    x, y = s.x[m][rows], s.y[m][rows]
    g: Vector = -(y / (1.0 + np.exp(y * (x @ theta)))) @ x / len(rows)
    return s.weight(m) * g + s.lam / s.M * theta


def norm2(a: Vector) -> float:
    return float((a * a).sum())


def begin(s: Setting) -> Outcome:
    return Outcome([np.zeros(s.p)])


# -- what messages say ---------------------------------------------------------------------------------------------


def float32(value: float) -> float:
    return float(np.float32(value))


def bfloat16(value: float) -> float:
    """Round to a significand of 8 bits, ties to even, by way of float32."""
    significand, exponent = math.frexp(float32(value))
    return math.ldexp(round(significand * 256), exponent - 8)


def top_k(v: Vector, k: int) -> list[int]:
    """Return where the k entries of largest magnitude are, of equal ones the first."""
    order = np.argsort(-np.abs(v), kind="stable").tolist()
    return sorted(i for i in order[:k] if v[i] != 0)


def entries(share: float, p: int) -> int:
    return max(1, round(share * p))


def warm_up(share: float, warm: int, sent: int) -> float:
    """Return the share after so many messages: from 25 %, by the same factor each time."""
    return float(0.25 * (share / 0.25) ** min(1.0, sent / warm))


def say_floats(v: Vector, where: list[int]) -> Vector:
    said = np.zeros(len(v))
    for i in where:
        said[i] = float32(v[i])
    return said


def by_tensor(s: Setting, where: list[int]) -> list[list[int]]:
    """Return the positions in each tensor."""
    ends = [sum(math.prod(shape) for shape in s.shapes[: j + 1]) for j in range(len(s.shapes))]
    return [[i for i in where if end - math.prod(shape) <= i < end] for end, shape in zip(ends, s.shapes, strict=True)]


def mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def say_signs(s: Setting, v: Vector, where: list[int]) -> Vector:
    """Say sign times the mean magnitude, per tensor."""
    said = np.zeros(len(v))
    for here in by_tensor(s, where):
        size = bfloat16(mean([abs(float32(v[i])) for i in here]))
        for i in here:
            said[i] = math.copysign(size, v[i])
    return said


def say_two_bits(s: Setting, v: Vector, where: list[int]) -> Vector:
    """Say sign times the mean magnitude of the small, or of the large ones, per tensor: four bins, by their means."""
    said = np.zeros(len(v))
    for here in by_tensor(s, where):
        sizes = {i: abs(float32(v[i])) for i in here}
        middle = mean(list(sizes.values()))
        small = bfloat16(mean([size for size in sizes.values() if size <= middle]))
        large = bfloat16(mean([size for size in sizes.values() if size > middle]))
        for i in here:
            said[i] = math.copysign(large if sizes[i] > middle else small, v[i])
    return said


def say_on_grid(d: Vector, beta: float = 0.25) -> Vector:
    """Say n_i t, n_i = floor(|d_i| / t + .4), t = 2^(j/4) the coarsest with an error <= beta ||d||^2."""
    if not d.any():
        return np.zeros(len(d))
    j = 4 * math.ceil(math.log2(float(np.abs(d).max()))) + 8  # says nothing
    while True:
        t = 2.0 ** (j / 4)
        said = np.array([math.copysign(t * math.floor(abs(d_i) / t + 0.4), d_i) for d_i in d])
        if norm2(d - said) <= beta * norm2(d):
            return said
        j -= 1


# -- optimizers, written out -----------------------------------------------------------------------------------------


class Inner(Protocol):
    """A worker's own optimizer."""

    def step(self, theta: Vector, g: Vector) -> Vector:
        """Return the model after one step."""
        ...


class SGD:
    """b <- mu b + g; theta <- theta - eta b, or with Nesterov's momentum theta - eta (g + mu b)."""

    def __init__(self, eta: float, mu: float = 0.0, *, nesterov: bool = False) -> None:
        self.eta, self.mu, self.nesterov = eta, mu, nesterov
        self.b: Vector | float = 0.0

    def step(self, theta: Vector, g: Vector) -> Vector:
        self.b = self.mu * self.b + g
        return theta - self.eta * (g + self.mu * self.b if self.nesterov else self.b)


class Adam:
    """Adam (Kingma and Ba 2015), AdamW with a decay, AMSGrad with `maximum`; eps after the root, biases corrected."""

    def __init__(
        self,
        eta: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        *,
        decay: float = 0.0,
        maximum: bool = False,
    ) -> None:
        self.eta, self.betas, self.eps, self.decay, self.maximum = eta, betas, eps, decay, maximum
        self.t = 0
        self.m: Vector | float = 0.0
        self.v: Vector | float = 0.0
        self.largest: Vector | float = 0.0

    def step(self, theta: Vector, g: Vector) -> Vector:
        self.t += 1
        beta1, beta2 = self.betas
        self.m = beta1 * self.m + (1 - beta1) * g
        self.v = beta2 * self.v + (1 - beta2) * g * g
        self.largest = np.maximum(self.largest, self.v)
        v = self.largest if self.maximum else self.v
        m_hat, v_hat = self.m / (1 - beta1**self.t), v / (1 - beta2**self.t)
        return theta - self.eta * self.decay * theta - self.eta * m_hat / (np.sqrt(v_hat) + self.eps)


def local_steps(s: Setting, m: int, optimizer: Inner, theta: Vector, t: int) -> Vector:
    """Return worker m's model after H steps of its own optimizer on its own loss, f_m / (n_m / N)."""
    theta_m = theta
    for h in range(s.H):
        theta_m = optimizer.step(theta_m, grad(s, m, theta_m, t * s.H + h) / s.weight(m))
    return theta_m


# -- one gradient per round ------------------------------------------------------------------------------------------


def lasg_vr(s: Setting, K: int) -> Outcome:
    """lasg's own: lazy variance-reduced gradients. The estimator is STORM's (Cutkosky and Orabona 2019), a adapted."""
    out, v, h, H = begin(s), s.zeros(), s.zeros(), np.zeros(s.p)
    s2, d2, a = [0.0] * s.M, [0.0] * s.M, [1.0] * s.M
    squares: list[float] = []
    for k in range(K):
        M_k = set()
        for m in range(s.M):
            g = grad(s, m, out.theta[k], k)
            if k == 0:
                v[m] = g
            else:
                before = grad(s, m, out.theta[k - 1], k)
                rate = max(0.05, 1 / k)
                s2[m] = (1 - rate) * s2[m] + rate * norm2(before - v[m])
                d2[m] = (1 - rate) * d2[m] + rate * norm2(g - before)
                a[m] = max(1 / (k + 1), min(max(math.sqrt(d2[m] / max(s2[m], 1e-30)), 0.003), 1.0))
                v[m] = g + (1 - a[m]) * (v[m] - before)
            overshoots = k > 0 and s.M * float((h[m] - v[m]) @ H) > 0.5 * norm2(H)
            news = k > 0 and norm2(v[m] - h[m]) > 0.3 / s.M * mean(squares[-10:]) + 2.0 * a[m] * s2[m]
            out.why[f"overshoots {overshoots}, news {news}"] += 1
            if k == 0 or overshoots or news:
                h[m] = h[m] + say_on_grid(v[m] - h[m])
                M_k.add(m)
        H = sum(h, np.zeros(s.p))
        squares.append(norm2(H))
        out.uploaders.append(M_k)
        out.theta.append(out.theta[k] - s.eta * H)
    return out


def corrected_momentum(s: Setting, K: int, share: float, say: Callable[[Vector, list[int]], Vector]) -> Outcome:
    """Deep gradient compression (Lin et al. 2017), for momentum SGD: momentum correction, factor masking, warm-up."""
    out, u, v = begin(s), s.zeros(), s.zeros()
    for t in range(K):
        total = np.zeros(s.p)
        for m in range(s.M):
            g = grad(s, m, out.theta[t], t)  # row: the local gradient is clipped only where the task says so
            u[m] = 0.9 * u[m] + g
            v[m] = v[m] + u[m]
            # row: the largest of all tensors together, not of each; the warm-up is by message, not by epoch
            where = top_k(v[m], entries(warm_up(share, 100, t), s.p))
            said = say(v[m], where)
            v[m] = v[m] - said  # v * not mask, but for what rounding took away
            u[m] = np.where(said == 0, u[m], 0.0)
            total = total + said
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * total)
    return out


def dgc(s: Setting, K: int) -> Outcome:
    return corrected_momentum(s, K, 0.001, say_floats)


def lasg_sparse(s: Setting, K: int) -> Outcome:
    return corrected_momentum(s, K, 0.01, lambda v, where: say_signs(s, v, where))


def ef21(s: Setting, K: int) -> Outcome:
    """EF21 (Richtarik, Sokolov, Fatkhullin 2021), with stochastic gradients."""
    out, g = begin(s), s.zeros()
    for t in range(K):
        for i in range(s.M):
            difference = grad(s, i, out.theta[t], t) - g[i]  # at t = 0 g_i^0 = C(grad f_i(x^0))
            g[i] = g[i] + say_floats(difference, top_k(difference, entries(0.01, s.p)))
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * sum(g, np.zeros(s.p)))
    return out


def ef21_sgdm(s: Setting, K: int) -> Outcome:
    """EF21-SGDM (Fatkhullin, Tyurin, Richtarik 2023), with eta = .1."""
    out, g, v = begin(s), s.zeros(), s.zeros()
    for t in range(K):
        for i in range(s.M):
            fresh = grad(s, i, out.theta[t], t)
            v[i] = fresh if t == 0 else (1 - 0.1) * v[i] + 0.1 * fresh
            difference = v[i] - g[i]  # row: g_i^0 = C(v_i^0), where the paper has g_i^0 = v_i^0
            g[i] = g[i] + say_floats(difference, top_k(difference, entries(0.01, s.p)))
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * sum(g, np.zeros(s.p)))
    return out


def clag(s: Setting, K: int) -> Outcome:
    """CLAG (Richtarik et al. 2022, 3PC) with zeta = 1, with stochastic gradients."""
    out, g, before, tau = begin(s), s.zeros(), s.zeros(), [1] * s.M
    for t in range(K):
        M_t = set()
        for i in range(s.M):
            fresh = grad(s, i, out.theta[t], t)
            triggered = norm2(fresh - g[i]) > norm2(fresh - before[i])
            due = tau[i] >= s.D  # row: who was silent for D rounds uploads
            out.why["triggered" if triggered else "due" if due else "silent"] += 1
            if t == 0 or triggered or due:
                difference = fresh - g[i]
                g[i] = g[i] + say_floats(difference, top_k(difference, entries(0.01, s.p)))
                M_t.add(i)
                tau[i] = 1
            else:
                tau[i] += 1
            before[i] = fresh
        out.uploaders.append(M_t)
        out.theta.append(out.theta[t] - s.eta * sum(g, np.zeros(s.p)))
    return out


def by_block(s: Setting, K: int, rule: str) -> Outcome:
    """lag or clag, and what is said, for every tensor by itself; clag says float32 numbers.

    Tensor b of worker m is said if left > right, or if it was not said for D rounds, and at k = 0:
    lag: ||g_b - (g_b when b was said last)||^2 > c / (eta^2 M^2) sum of the last ten ||theta_b^{j+1} - theta_b^j||^2;
    clag: ||g_b - h_b||^2 > ||g_b - g'_b||^2, g' of the round before.
    """
    out = begin(s)
    h, then, before = s.zeros(), s.zeros(), s.zeros()
    tensors = by_tensor(s, list(range(s.p)))
    tau = [[1] * len(tensors) for _ in range(s.M)]
    for k in range(K):
        theta, uploaders = out.theta[-1], set()
        moves = [b - a for a, b in itertools.pairwise(out.theta[-1 - min(10, s.D) :])]
        for m in range(s.M):
            g = grad(s, m, theta, k)
            for b, where in enumerate(tensors):
                if rule == "lag":
                    left = norm2(g[where] - then[m][where])
                    right = s.c / (s.eta * s.M) ** 2 * sum(norm2(move[where]) for move in moves)
                else:
                    left, right = norm2(g[where] - h[m][where]), norm2(g[where] - before[m][where])
                why = "violated" if left > right else "due" if tau[m][b] >= s.D else "silent"
                if k and why == "silent":
                    tau[m][b] += 1
                else:
                    d = g - h[m]
                    h[m][where] += d[where] if rule == "lag" else say_floats(d, where)[where]
                    then[m][where], tau[m][b] = g[where], 1
                    uploaders.add(m)
                out.why[why if k else "first"] += 1
                out.why["entries"] += len(where) * (not k or why != "silent")
            out.why["parts"] += m in uploaders and tau[m] != [1] * len(tensors)
            before[m] = g
        out.uploaders.append(uploaders)
        out.theta.append(theta - s.eta * sum(h))
    return out


def quantised(d: Vector, bits: int) -> Vector:
    """LAQ's quantiser: q_i = floor((d_i + R) / (2 tau R) + 1/2), tau = 1 / (2^b - 1), decoded to 2 tau R q_i - R.

    row: R is the next float32 above the largest magnitude, so that it can be said in 32 bits.
    """
    R = float(np.nextafter(np.float32(np.abs(d).max()), np.float32(np.inf)))
    tau = 1 / (2**bits - 1)
    return np.array([2 * tau * R * math.floor((d_i + R) / (2 * tau * R) + 0.5) - R for d_i in d])


def laq(s: Setting, K: int) -> Outcome:
    """LAQ (Sun, Chen, Giannakis, Yin 2019) with 4 bits, stochastic gradients, xi_d = c for the last 10 moves."""
    out, Q, eps, tau = begin(s), s.zeros(), s.zeros(), [1] * s.M
    for k in range(K):
        M_k = set()
        moves = [norm2(out.theta[j + 1] - out.theta[j]) for j in range(k)][-min(10, s.D) :]
        right = s.c / (s.eta**2 * s.M**2) * sum(moves)
        for m in range(s.M):
            difference = grad(s, m, out.theta[k], k) - Q[m]
            dQ = quantised(difference, 4)
            error = difference - dQ
            violated = norm2(dQ) > right + 3 * (norm2(error) + norm2(eps[m]))
            out.why["violated" if violated else "due" if tau[m] >= s.D else "silent"] += 1
            if k == 0 or violated or tau[m] >= s.D:
                Q[m], eps[m] = Q[m] + dQ, error
                M_k.add(m)
                tau[m] = 1
            else:
                tau[m] += 1
        out.uploaders.append(M_k)
        out.theta.append(out.theta[k] - s.eta * sum(Q, np.zeros(s.p)))
    return out


def sasg(s: Setting, K: int) -> Outcome:
    """SASG (Deng, Sun, Liu, Li 2021): the rule of LASG-WK2, the 1 % largest of gradient and error, stale ones reused.

    row: the error is kept in gradients, not in steps of the model: the same for a constant step.
    """
    out, latest, e, tau = begin(s), s.zeros(), s.zeros(), [1] * s.M
    for k in range(K):
        M_k = set()
        moves = [norm2(out.theta[j + 1] - out.theta[j]) for j in range(k)][-min(10, s.D) :]
        right = s.c / (s.eta**2 * s.M**2) * sum(moves)
        for m in range(s.M):
            fresh = grad(s, m, out.theta[k], k)
            violated = k > 0 and norm2(fresh - grad(s, m, out.theta[k - tau[m]], k)) > right
            out.why["violated" if violated else "due" if tau[m] >= s.D else "silent"] += 1
            if k == 0 or violated or tau[m] >= s.D:
                wanted = fresh + e[m]
                latest[m] = say_floats(wanted, top_k(wanted, entries(0.01, s.p)))
                e[m] = wanted - latest[m]
                M_k.add(m)
                tau[m] = 1
            else:
                tau[m] += 1
        out.uploaders.append(M_k)
        out.theta.append(out.theta[k] - s.eta * sum(latest, np.zeros(s.p)))
    return out


def cada(s: Setting, K: int) -> Outcome:
    """CADA2 (Chen, Guo, Sun, Yin 2021).

    row: the right side is (c / M^2) sum_d ||nabla^{k-d}||^2, as the authors' code has it; the paper prints
    (c / d_max) sum_d ||theta^{k+1-d} - theta^{k-d}||^2. AMSGrad is torch's: biases are corrected, eps is added after
    the root, and v goes on from v; the paper has no correction, the root of eps + v_hat, and v going on from v_hat.
    """
    out, latest, tau = begin(s), s.zeros(), [1] * s.M
    server = Adam(s.eta, maximum=True)
    squares: list[float] = []
    for k in range(K):
        M_k = set()
        right = s.c / s.M**2 * sum(squares[-min(10, s.D) :])
        for m in range(s.M):
            fresh = grad(s, m, out.theta[k], k)
            violated = k > 0 and norm2(fresh - grad(s, m, out.theta[k - tau[m]], k)) > right
            out.why["violated" if violated else "due" if tau[m] >= s.D else "silent"] += 1
            if k == 0 or violated or tau[m] >= s.D:
                latest[m] = fresh
                M_k.add(m)
                tau[m] = 1
            else:
                tau[m] += 1
        nabla = sum(latest, np.zeros(s.p))
        squares.append(norm2(nabla))
        out.uploaders.append(M_k)
        out.theta.append(server.step(out.theta[k], nabla))
    return out


def orthonormal(A: Vector) -> Vector:
    """Return the basis that Gram and Schmidt would: of QR's, the one whose R has a positive diagonal."""
    basis, R = np.linalg.qr(A)
    signs: Vector = np.sign(np.diag(R))
    return basis * signs


def powersgd(s: Setting, K: int, rank: int = 2) -> Outcome:
    """PowerSGD (Vogels, Karimireddy, Jaggi 2019), algorithms 1 and 2, without momentum.

    row: every worker has P and Q of its own, where the paper averages P among the workers before it computes Q, and Q
    after it.
    """
    out, e = begin(s), s.zeros()
    Q: list[dict[int, Vector]] = [{} for _ in range(s.M)]
    for t in range(K):
        total = np.zeros(s.p)
        for w in range(s.M):
            e[w] = e[w] + grad(s, w, out.theta[t], t)
            said, start, drawn = np.zeros(s.p), 0, 0
            for j, shape in enumerate(s.shapes):
                size = math.prod(shape)
                part = e[w][start : start + size]
                if len(shape) == 1:
                    said[start : start + size] = part.astype(np.float32)
                else:
                    G = part.reshape(shape[0], -1)
                    columns = G.shape[1]
                    first = s.Q0[drawn : drawn + columns * rank].reshape(columns, rank)
                    P = orthonormal(G @ Q[w].get(j, first))
                    Q[w][j] = G.T @ P
                    sent = P.astype(np.float32).astype(np.float64), Q[w][j].astype(np.float32).astype(np.float64)
                    said[start : start + size] = (sent[0] @ sent[1].T).reshape(-1)
                    drawn += columns * rank
                start += size
            e[w] = e[w] - said
            total = total + said
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * total)
    return out


# -- local steps -------------------------------------------------------------------------------------------------------


def diloco(s: Setting, K: int) -> Outcome:
    """DiLoCo (Douillard et al. 2023), algorithm 1: outer Nesterov momentum of .9. Workers count by n_m / N."""
    out, inner = begin(s), [s.inner() for _ in range(s.M)]
    outer = SGD(s.eta, 0.9, nesterov=True)
    for t in range(K):
        delta = np.zeros(s.p)
        for m in range(s.M):
            delta = delta + s.weight(m) * (out.theta[t] - local_steps(s, m, inner[m], out.theta[t], t))
        out.uploaders.append(set(range(s.M)))
        out.theta.append(outer.step(out.theta[t], delta))
    return out


def sparse_moves(
    s: Setting, K: int, beta: float, choose: Callable[[Vector, int], list[int]], say: Callable[..., Vector]
) -> Outcome:
    """SparseLoCo (Sarfi et al. 2025), algorithm 1: e <- beta e + Delta; hat = Q(TopK(e)); e <- e - hat."""
    return clipped_moves(s, K, beta, choose, say, lambda hats: hats)


def clipped_moves(
    s: Setting,
    K: int,
    beta: float,
    choose: Callable[[Vector, int], list[int]],
    say: Callable[..., Vector],
    clip: Callable[[list[Vector]], list[Vector]],
) -> Outcome:
    """The same, with something done to what all workers say before it is added up."""
    out, inner, e = begin(s), [s.inner() for _ in range(s.M)], s.zeros()
    for t in range(K):
        hats = []
        for m in range(s.M):
            delta = s.weight(m) * (out.theta[t] - local_steps(s, m, inner[m], out.theta[t], t))
            e[m] = beta * e[m] + delta
            hat = say(s, e[m], choose(e[m], t))
            e[m] = e[m] - hat  # of what is clipped below, nothing comes back
            hats.append(hat)
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * sum(clip(hats), np.zeros(s.p)))
    return out


def sparseloco(s: Setting, K: int) -> Outcome:
    """With the clipping of the authors' code: per tensor, to the median of the norms, the lower of two in the middle.

    row: chunks of 4,096 entries of a tensor, row after row, not squares of 64 x 64; bins by sign and size, not by
    sigmas; norms are compared without the weights n_m / N, which are equal there; the average is over all workers, as
    in the paper, where the code takes, entry by entry, the mean of those that sent it.
    """
    out_of: Counter[str] = Counter()

    def choose(e: Vector, _: int) -> list[int]:
        where, start = [], 0
        for shape in s.shapes:
            end = start + math.prod(shape)
            for first in range(start, end, 4096):
                where += [first + i for i in top_k(e[first : min(first + 4096, end)], 64)]
            start = end
        return where

    def clip(hats: list[Vector]) -> list[Vector]:
        clipped, start = [hat.copy() for hat in hats], 0
        for shape in s.shapes:
            part = slice(start, start + math.prod(shape))
            sizes = [math.sqrt(norm2(hat[part])) / s.weight(m) for m, hat in enumerate(hats)]
            median = sorted(sizes)[(len(sizes) - 1) // 2]
            for m, size in enumerate(sizes):
                out_of["clipped" if size > median else "whole"] += 1
                clipped[m][part] = hats[m][part] * min(1.0, median / size if size else 1.0)
            start = part.stop
        return clipped

    out = clipped_moves(s, K, 0.95, choose, say_two_bits, clip)
    out.why = out_of
    return out


def lasg_sparse_local(s: Setting, K: int) -> Outcome:
    return sparse_moves(s, K, 1.0, lambda e, t: top_k(e, entries(warm_up(0.01, 10, t), s.p)), say_signs)


def lasg_grid_local(s: Setting, K: int) -> Outcome:
    """lasg's own: a worker's move, with what it has not said yet, on a coarse grid; some of Nesterov's momentum."""
    out, inner, e = begin(s), [s.inner() for _ in range(s.M)], s.zeros()
    outer = SGD(s.eta, 0.4, nesterov=True)
    for t in range(K):
        total = np.zeros(s.p)
        for m in range(s.M):
            e[m] = e[m] + s.weight(m) * (out.theta[t] - local_steps(s, m, inner[m], out.theta[t], t))
            said = say_on_grid(e[m], 0.6)
            e[m] = e[m] - said
            total = total + said
        out.uploaders.append(set(range(s.M)))
        out.theta.append(outer.step(out.theta[t], total))
    return out


def rounded(column: Vector) -> Vector:
    """Round to multiples of half the root mean square, itself rounded to bfloat16."""
    step = bfloat16(0.5 * math.sqrt(norm2(column) / len(column)))
    return np.array([step * round(x / step) if step else 0.0 for x in column])


def lasg_local(s: Setting, K: int, rank: int = 8) -> Outcome:
    """lasg's own: DiLoCo, where a worker says its move, with what it has not said yet, in rank 8, factors rounded."""
    out, inner, e = begin(s), [s.inner() for _ in range(s.M)], s.zeros()
    outer = SGD(s.eta, 0.9, nesterov=True)
    Q: list[dict[int, Vector]] = [{} for _ in range(s.M)]
    for t in range(K):
        total = np.zeros(s.p)
        for m in range(s.M):
            e[m] = e[m] + s.weight(m) * (out.theta[t] - local_steps(s, m, inner[m], out.theta[t], t))
            said, start, drawn = np.zeros(s.p), 0, 0
            for j, shape in enumerate(s.shapes):
                size = math.prod(shape)
                part = e[m][start : start + size]
                if len(shape) == 1:
                    said[start : start + size] = rounded(part)
                else:
                    G = part.reshape(shape[0], -1)
                    columns = G.shape[1]
                    first = s.Q0[drawn : drawn + columns * rank].reshape(columns, rank)
                    P = orthonormal(G @ Q[m].get(j, first))
                    Q[m][j] = G.T @ P
                    sent = [np.stack([rounded(column) for column in factor.T]) for factor in (P, Q[m][j])]
                    said[start : start + size] = (sent[0].T @ sent[1]).reshape(-1)
                    drawn += columns * rank
                start += size
            e[m] = e[m] - said
            total = total + said
        out.uploaders.append(set(range(s.M)))
        out.theta.append(outer.step(out.theta[t], total))
    return out


def slowmo(s: Setting, K: int) -> Outcome:
    """SlowMo (Wang et al. 2019), algorithm 1, with beta = .5, alpha = eta, and a constant gamma, which then cancels."""
    out, inner = begin(s), [s.inner() for _ in range(s.M)]
    gamma, u = 0.3, np.zeros(s.p)
    for t in range(K):
        x = np.zeros(s.p)
        for m in range(s.M):
            x = x + s.weight(m) * local_steps(s, m, inner[m], out.theta[t], t)
        u = 0.5 * u + (out.theta[t] - x) / gamma
        out.uploaders.append(set(range(s.M)))
        out.theta.append(out.theta[t] - s.eta * gamma * u)
    return out


def fedadam(s: Setting, K: int) -> Outcome:
    """FedAdam (Reddi et al. 2021), with tau = .001.

    row: biases are corrected, from v = 0 on; the paper corrects none, and begins with v >= tau^2.
    """
    out, inner = begin(s), [s.inner() for _ in range(s.M)]
    server = Adam(s.eta, (0.9, 0.99), 1e-3)
    for t in range(K):
        delta = np.zeros(s.p)
        for m in range(s.M):
            delta = delta + s.weight(m) * (local_steps(s, m, inner[m], out.theta[t], t) - out.theta[t])
        out.uploaders.append(set(range(s.M)))
        out.theta.append(server.step(out.theta[t], -delta))
    return out


def qsr(s: Setting, K: int, alpha: float, eta: Callable[[int], float], make: Callable[[float], Inner]) -> Outcome:
    """Local OPT with the quadratic synchronization rule (Gu et al. 2024), algorithm 2; why: steps per round.

    H = max(H_base, floor((alpha / eta_t)^2)), of the step size with which the round begins.
    """
    out, inner, t = begin(s), [make(eta(0)) for _ in range(s.M)], 0
    for k in range(K):
        H = max(s.H, math.floor((alpha / eta(t)) ** 2))
        x = np.zeros(s.p)
        for m in range(s.M):
            theta_m = out.theta[k]
            for h in range(H):
                inner[m].eta = eta(t + h)  # type: ignore[attr-defined]
                theta_m = inner[m].step(theta_m, grad(s, m, theta_m, t + h) / s.weight(m))
            x = x + s.weight(m) * theta_m
        t += H
        out.why[f"round {k}"] = H
        out.uploaders.append(set(range(s.M)))
        out.theta.append(x)
    return out


def fda(s: Setting, K: int) -> Outcome:
    """FDA (Theologitis et al. 2024), algorithm 1 with LinearFDA; monitoring every H steps.

    row: u_m is known to the server one check later than in the paper, where all upload in the check that exceeds Theta;
    xi is 0 and not random before the second synchronisation, which is after the first H steps; means by n_m / N.
    Without a Theta it is the mean variance of the first rounds of H steps (FDA-Opt, 2025; row: their estimates, evenly
    weighted; there the weights grow with the cube root of the round).
    """
    out, inner = begin(s), [s.inner() for _ in range(s.M)]
    Theta, first, since = s.bound, [], 0
    synchronised = [out.theta[0]]  # w_0, w_1, ... of the synchronisations
    w = [out.theta[0]] * s.M
    estimate: float | None = None  # of the check before; None: there was none since the synchronisation
    for t in range(K):
        for m in range(s.M):
            w[m] = local_steps(s, m, inner[m], w[m], t)
        u = [w[m] - synchronised[-1] for m in range(s.M)]
        since += 1
        exceeded = Theta == 0 or (estimate is not None and Theta is not None and estimate > Theta)
        sync = t == 0 or Theta is None or exceeded or since >= s.D
        out.why["first" if t == 0 or Theta is None else "exceeded" if exceeded else "due" if sync else "silent"] += 1
        estimate = sum(s.weight(m) * norm2(u[m]) for m in range(s.M))
        if len(synchronised) > 1:
            ksi = synchronised[-1] - synchronised[-2]
            ksi = ksi / math.sqrt(norm2(ksi))
            estimate -= sum(s.weight(m) * float(ksi @ u[m]) for m in range(s.M)) ** 2
        mean_u = sum((s.weight(m) * u[m] for m in range(s.M)), np.zeros(s.p))
        variance = sum(s.weight(m) * norm2(u[m] - mean_u) for m in range(s.M))
        assert estimate >= variance - 1e-12, "an overestimate, as the paper proves"
        if Theta is None and t:
            first.append(estimate)
        if Theta is None and t == 9:
            Theta = mean(first)
        if sync:
            synchronised.append(synchronised[-1] + s.eta * mean_u)
            w, since, estimate = [synchronised[-1]] * s.M, 0, None
        out.uploaders.append(set(range(s.M)) if sync else set())
        out.theta.append(synchronised[-1])
    return out


def averaged(s: Setting, K: int) -> Outcome:
    """Local steps after which all that the workers' optimizers remember is averaged like their models.

    With SGD's momentum it is parallel restarted SGD with momentum (Yu, Jin, Yang 2019), which averages both. Local
    AMSGrad averages second moments (Chen, Li, Li 2020).
    """
    out, inner = begin(s), [s.inner() for _ in range(s.M)]
    for t in range(K):
        x = np.zeros(s.p)
        for m in range(s.M):
            x = x + s.weight(m) * local_steps(s, m, inner[m], out.theta[t], t)
        for name in ("b", "m", "v", "largest"):
            if hasattr(inner[0], name):
                mean_state = sum(s.weight(m) * getattr(inner[m], name) for m in range(s.M))
                for one in inner:
                    setattr(one, name, mean_state)
        out.uploaders.append(set(range(s.M)))
        out.theta.append(x)
    return out


def scaffold(s: Setting, K: int, eta: float) -> Outcome:
    """SCAFFOLD (Karimireddy et al. 2020), algorithm 1, option II, everybody taking part, eta_g = 1: lasg's `drift`."""
    out, c_m, c = begin(s), s.zeros(), np.zeros(s.p)
    for t in range(K):
        x, fresh = np.zeros(s.p), np.zeros(s.p)
        for m in range(s.M):
            y = out.theta[t]
            for h in range(s.H):
                y = y - eta * (grad(s, m, y, t * s.H + h) / s.weight(m) - c_m[m] + c)
            c_m[m] = c_m[m] - c + (out.theta[t] - y) / (s.H * eta)
            x, fresh = x + s.weight(m) * y, fresh + s.weight(m) * c_m[m]
        c = fresh
        out.uploaders.append(set(range(s.M)))
        out.theta.append(x)
    return out


# -- rules -------------------------------------------------------------------------------------------------------------


def lasg_pse(s: Setting, K: int, *, recent: int | None, power: int) -> Outcome:
    """Algorithm 4 of LASG with two changes: of how many asks the largest estimate counts, and the power of L_m.

    Everybody is asked at k = 0 and k = 1.
    """
    out, latest, tau = begin(s), s.zeros(), [1] * s.M
    estimates: list[list[float]] = [[0.0] for _ in range(s.M)]
    for k in range(K):
        M_k = set()
        moves = [norm2(out.theta[j + 1] - out.theta[j]) for j in range(max(0, k - min(10, s.D)), k)]
        right = s.c / s.eta**2 / s.M**2 * sum(moves)
        for m in range(s.M):
            moved = 0.0 if k == 0 else norm2(out.theta[k] - out.theta[k - tau[m]])
            L = max(estimates[m] if recent is None else estimates[m][-recent:])
            violated = L**power * moved > right
            out.why["violated" if violated else "due" if tau[m] >= s.D else "silent"] += 1
            if k <= 1 or violated or tau[m] >= s.D:
                latest[m] = fresh = grad(s, m, out.theta[k], k)
                if k > 0:
                    changed = norm2(fresh - grad(s, m, out.theta[k - tau[m]], k))
                    estimates[m].append(math.sqrt(changed / moved))
                M_k.add(m)
                tau[m] = 1
            else:
                tau[m] += 1
        out.uploaders.append(M_k)
        out.theta.append(out.theta[k] - s.eta * sum(latest, np.zeros(s.p)))
    return out


def pse_recent(s: Setting, K: int) -> Outcome:
    return lasg_pse(s, K, recent=10, power=2)


def pse_code(s: Setting, K: int) -> Outcome:
    """As the authors' code has it: L_m is not squared."""
    return lasg_pse(s, K, recent=None, power=1)


ONE_GRADIENT: dict[str, Callable[[Setting, int], Outcome]] = {
    "lasg-vr": lasg_vr,
    "lasg-sparse": lasg_sparse,
    "dgc": dgc,
    "ef21": ef21,
    "ef21-sgdm": ef21_sgdm,
    "clag": clag,
    "laq": laq,
    "sasg": sasg,
    "cada": cada,
    "powersgd": powersgd,
}
LOCAL: dict[str, Callable[[Setting, int], Outcome]] = {
    "lasg-sparse-local": lasg_sparse_local,
    "lasg-grid-local": lasg_grid_local,
    "lasg-local": lasg_local,
    "diloco": diloco,
    "sparseloco": sparseloco,
    "slowmo": slowmo,
    "fedadam": fedadam,
    "fda": fda,
}
RULES: dict[str, Callable[[Setting, int], Outcome]] = {"pse-recent": pse_recent, "pse-code": pse_code}
