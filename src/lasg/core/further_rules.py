"""Rules of other papers, of the authors' code, and lasg's own, each beside its equation. `rules.py` has the paper's."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lasg.core.arrays import Array, FloatArray, host, sq, stacked, zeros
from lasg.core.codecs import State
from lasg.core.rules import RULES, Record, Rule, ps, smoothness_estimate


def clag(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of CLAG's trigger (Richtarik et al. 2022, 3PC): ||v - h||^2 - zeta ||g - g'||^2, zeta = 1, against 0.

    g' is the worker's gradient of its last round, h what the server believes of it.
    """
    assert now.state is not None
    return host(sq(now.estimate - now.believed)) - host(now.state["changed"])


def clag_right(mean: float, workers: int) -> float:  # noqa: ARG001
    """Return the right side of `clag`: both sizes are on the left."""
    return 0.0


def laq(now: Record, last: Record) -> Array:
    """Left side of LAQ's trigger (Sun et al. 2019, eq. 7a): ||dQ||^2 - 3 (||eps^k||^2 + ||eps^{k-tau}||^2).

    dQ is the quantised difference to what is believed, eps what quantising takes away.
    """
    return host(sq(now.message)) - 3 * (host(sq(now.error)) + host(sq(last.error)))


@dataclass(frozen=True)
class LastGradient:
    """Keeps every round's gradient, and by how much it changed: ||g - g'||^2."""

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros."""
        return {"grad": zeros((workers, theta.shape[-1]), theta), "changed": zeros((workers,), theta)}

    def update(self, now: Record, state: State) -> State:
        """Return the gradient of now, and its change."""
        return {"grad": now.grad, "changed": sq(now.grad - state["grad"])}


OVERSHOOT, SHARE, NOISE = 0.5, 0.3, 2.0
"""theta, c and kappa of `vr`."""


def vr(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Speak if M <h - v, H> > theta ||H||^2, or ||v - h||^2 > (c / M) mean ||H||^2 + kappa a s2.

    v is the worker's estimate, h what the server believes of it, H the aggregate of the last round, which the model's
    move says: H = (theta^{k-1} - theta^k) / eta. The first condition: what is stale of h, if all workers were like this
    one, overshoots by more than the share theta of the step. The second: the news is more than a share of the step and
    kappa times the noise of the estimate itself, a s2 (`estimators.Storm`). theta = 0.5, c = 0.3, kappa = 2.
    """
    assert now.estimator is not None
    stale = now.believed - now.estimate
    news = host(sq(stale)) - NOISE * host(now.estimator["a"] * now.estimator["s2"])
    if now.previous is None or not now.eta:
        return news
    moved = stacked(now.previous) - now.theta  # eta H
    overshoot = now.workers * now.eta * host((stale * moved).sum(-1)) > OVERSHOOT * host(sq(moved))
    return np.where(overshoot, np.inf, news)


def vr_right(mean: float, workers: int) -> float:
    """Return the right side of `vr`: (c / M) mean ||H||^2 of the last rounds."""
    return SHARE / workers * mean


def ps_code(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of PSE as the authors' released code has it: L_m ||theta^k - theta^{k-tau}||^2, L_m not squared."""
    return now.smoothness * now.moved


def fda(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of FDA (Theologitis et al. 2024), LinearFDA: mean ||u_m||^2 - (mean <xi, u_m>)^2, against Theta.

    u_m is how far worker m is from the model of the last synchronisation, xi the unit direction of that model's last
    move. The mean is over those that reported, weighted by n_m / N. Since |<xi, mean u>| <= ||mean u||, it is at least
    the variance of the workers' models, mean ||u_m - mean u||^2. While somebody knows no direction xi counts as 0.
    """
    squares, along = now.reports.T
    heard = ~np.isnan(squares)
    shares = now.weights[heard] / now.weights[heard].sum()
    common = 0.0 if np.isnan(along[heard]).any() else shares @ along[heard]
    return shares @ squares[heard] - common**2


def fda_report(now: Record) -> FloatArray:
    """Return (||u_m||^2, <xi, u_m>) of each worker; the second is NaN while it knows no two models of the server."""
    assert now.work is not None
    drift, xi, known = now.work["local"] - now.theta, now.work["xi"], host(now.work["models"]) >= 2
    return np.stack([host(sq(drift)), np.where(known, host((xi * drift).sum(-1)), np.nan)], -1)


PSE_RECENT = Rule(name="pse-recent", left=ps, where="server", probe="last", estimate=smoothness_estimate, recent=10)
PSE_CODE = Rule(name="pse-code", left=ps_code, where="server", probe="last", estimate=smoothness_estimate)
CLAG = Rule(name="clag", left=clag, watch=LastGradient(), right=clag_right, sees_belief=True)
LAQ = Rule(name="laq", left=laq, remembers=("error",), sees_belief=True, sees_message=True)
VR = Rule(name="vr", left=vr, right=vr_right, sees_belief=True, forces=False, needs="s2")
FDA = Rule(name="fda", left=fda, where="all", report=fda_report)
ALL_RULES = RULES | {rule.name: rule for rule in (PSE_RECENT, PSE_CODE, CLAG, LAQ, VR, FDA)}
