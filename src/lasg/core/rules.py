"""Who uploads. A rule is one function beside its equation: the left side of an inequality.

All rules share the right side, which the server computes (`server.Server.open`). A worker stays silent while
left <= right. The function sees two records of the same workers: now, and at their last upload. Vectors are
stacked, `(W, p)` or `(p,)` where all workers share one; a left side has one number per worker.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from lasg.core.arrays import Array, IntArray, Mask, host, sq, zeros
from lasg.core.codecs import State
from lasg.errors import LasgError


class Record(NamedTuple):
    """What is known of the workers at one moment. A field is None where the rule did not ask for it."""

    theta: Array = None
    """The model: theta^k now, theta^{k - tau_m} at the last upload."""
    grad: Array = None
    """The exact contribution at `theta` on the sample of that round: not quantised, and before any estimator."""
    probe: Array = None
    """The contribution on the SAME sample at another point: the one `Rule.probe` names."""
    moved: Array = None
    """||theta^k - theta^{k - tau_m}||^2, one number per worker; known now, where the last theta is kept."""
    smoothness: Array = None
    """L_m, or its running estimate, one number per worker."""
    state: State | None = None
    """What the rule's own watch knows now, if it has one."""


Left: TypeAlias = Callable[[Record, Record], Array]


class Watch(Protocol):
    """What a rule keeps of every round, whether a worker uploads in it or not: arrays with a row per worker."""

    def init(self, workers: int, theta: Array) -> State:
        """Return the state of so many workers before the first round."""
        ...

    def update(self, now: Record, state: State) -> State:
        """Return the state of the workers that computed, after this round, as new arrays."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A left side, and what it needs to be evaluated."""

    name: str
    left: Left | None = None
    """None: nobody is ever silent."""
    where: Literal["worker", "server"] = "worker"
    """Who evaluates it. A server rule sees `theta`, `moved` and `smoothness` only, and asks nobody else."""
    probe: Literal["last", "snapshot"] | None = None
    """Where, besides theta^k, the gradient is needed: at the last upload's theta, or at the snapshot that is
    taken every D rounds. Each costs one more gradient evaluation."""
    remembers: tuple[Literal["grad", "probe"], ...] = ()
    """Which vectors of the last record a worker must keep: p numbers each."""
    estimate: Left | None = None
    """An estimate of L_m from an asked worker; the server keeps the largest."""
    watch: Watch | None = None
    """What it keeps of every round, if anything: `now.state`."""

    def __post_init__(self) -> None:
        if self.where == "server" and (self.remembers or self.probe == "snapshot"):
            raise LasgError(f"rule {self.name}: a server rule sees no gradients, so it cannot remember any")
        if self.estimate is not None and (self.where, self.probe) != ("server", "last"):
            raise LasgError(f"rule {self.name}: an estimate needs where='server' and probe='last'")

    @property
    def periodic(self) -> bool:
        """Whether uploads are forced when k mod D = 0 (with the snapshot) instead of when tau >= D."""
        return self.probe == "snapshot"

    @property
    def flag_bits(self) -> int:
        """What a worker says in every round besides its contribution: whether it uploads, where it may be silent."""
        return 1 if self.left is not None and self.where == "worker" else 0

    @property
    def estimate_bits(self) -> int:
        """What rides along with an upload: the estimate of L_m, a float32."""
        return 32 if self.estimate else 0

    def points(self, k: Any, D: int) -> Any:
        """At how many models a worker that computes needs its gradient in round k (or in many): 1 or 2.

        1 where the two models coincide: at first, and whenever the snapshot is taken.
        """
        if self.probe is None:
            return 1 + 0 * k
        return 2 - (k % D == 0) if self.periodic else 2 - (k == 0)


def lag(now: Record, last: Record) -> Array:
    """Left side of eqn:LAGrule: ||grad(theta^k; xi^k) - grad(theta^{k-tau}; xi^{k-tau})||^2."""
    return sq(now.grad - last.grad)


def wk1(now: Record, last: Record) -> Array:
    """Left side of eqn:workerrule1: ||delta~^k - delta~^{k-tau}||^2, delta~ = grad(theta) - grad(snapshot)."""
    return sq((now.grad - now.probe) - (last.grad - last.probe))


def wk2(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of eqn:workerrule2: ||grad(theta^k; xi^k) - grad(theta^{k-tau}; xi^k)||^2."""
    return sq(now.grad - now.probe)


def ps(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of eqn:serverrule and eqn:eserversule: L_m^2 ||theta^k - theta^{k-tau}||^2."""
    return now.smoothness**2 * now.moved


def smoothness_estimate(now: Record, last: Record) -> Array:  # noqa: ARG001
    """The ratio in eqn:Lmestimate; 0 where theta did not move (0/0 at k = 0), which changes no maximum."""
    with np.errstate(invalid="ignore", over="ignore"):  # a gradient that is not finite is the workers' business
        changed = host(sq(now.grad - now.probe))
        return np.sqrt(np.divide(changed, now.moved, out=np.zeros_like(changed), where=now.moved > 0))


ALWAYS = Rule(name="always")
LAG = Rule(name="lag", left=lag, remembers=("grad",))
WK1 = Rule(name="wk1", left=wk1, probe="snapshot", remembers=("grad", "probe"))
WK2 = Rule(name="wk2", left=wk2, probe="last")
PS = Rule(name="ps", left=ps, where="server")
PSE = Rule(name="pse", left=ps, where="server", probe="last", estimate=smoothness_estimate)

RULES = {rule.name: rule for rule in (ALWAYS, LAG, WK1, WK2, PS, PSE)}


class Iterates:
    """theta at the last upload of each worker, stored once per model: at most min(workers, D) + 1 are distinct."""

    def __init__(self, workers: int, theta: Array) -> None:
        self.points = zeros((1, theta.shape[-1]), theta)
        self.slot: IntArray = np.zeros(workers, np.int64)

    def keep(self, theta: Array, uploaded: Mask) -> None:
        """Remember `theta` as the last model of the workers that uploaded."""
        used = np.bincount(self.slot[~uploaded], minlength=len(self.points))
        free = int(used.argmin())
        if used[free]:
            free = len(self.points)
            # Beside the new one at most one model a worker is in use: more room is never needed.
            grown = zeros((min(2 * free, len(self.slot) + 1), self.points.shape[-1]), self.points)
            grown[:free] = self.points
            self.points = grown
        self.points[free] = theta
        self.slot[uploaded] = free

    def rows(self, workers: IntArray | None = None) -> Array:
        """Return the stored model of each worker: `(n, p)`, or for tensors a list of views, which copies nothing."""
        slot = self.slot if workers is None else self.slot[workers]
        if isinstance(self.points, np.ndarray):
            return self.points.take(slot, 0)
        return [self.points[i] for i in slot.tolist()]

    def moved(self, theta: Array, workers: IntArray | None = None) -> Array:
        """Return ||theta - stored||^2 for each worker, at the cost of one distance per distinct model."""
        distances = host(sq(self.points - theta))
        return distances[self.slot if workers is None else self.slot[workers]]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"points": self.points, "slot": self.slot}

    def restore(self, state: dict[str, Array]) -> None:
        """Take a checkpoint's state."""
        self.points, self.slot = state["points"], host(state["slot"])
