"""Who uploads. A rule is one function beside its equation: the left side of an inequality.

All rules share the right side, which the server computes (`server.Server.open`). A worker stays silent while
left <= right. The function sees two records of the same workers: now, and at their last upload. Vectors are
stacked, `(W, p)` or `(p,)` where all workers share one; a left side has one number per worker.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol, TypeAlias

import numpy as np

from lasg.core.arrays import (
    AT_ONCE,
    LONG,
    Array,
    FloatArray,
    IntArray,
    Mask,
    all_finite,
    finite_rows,
    host,
    pieces,
    sq,
    sq_distance,
    zeros,
)
from lasg.core.codecs import State
from lasg.errors import LasgError


class Record(NamedTuple):
    """What is known of the workers at one moment. A field is None where the rule did not ask for it."""

    theta: Array = None
    """The model: theta^k now, theta^{k - tau_m} at the last upload."""
    k: int = 0
    """The round."""
    eta: float = 0.0
    """The server's step size."""
    workers: int = 1
    """M."""
    grad: Array = None
    """The exact contribution at `theta` on the sample of that round: not quantised, and before any estimator."""
    probe: Array = None
    """The contribution on the SAME sample at another point: the one `Rule.probe` names."""
    moved: Array = None
    """||theta^k - theta^{k - tau_m}||^2, one number per worker; known now, where the last theta is kept."""
    smoothness: Array = None
    """L_m, or its running estimate, one number per worker."""
    previous: Array = None
    """The model of the last round in which the workers computed, where the rule or the estimator probes there."""
    estimate: Array = None
    """What the workers would contribute now: what the estimator makes of `grad`. Known where `Rule.sees_belief`."""
    believed: Array = None
    """What the server takes the workers to contribute. Known where `Rule.sees_belief`."""
    message: Array = None
    """What the server would decode if the workers uploaded now. Known where `Rule.sees_message`."""
    error: Array = None
    """What that message leaves out: estimate - believed - message. Known where `Rule.sees_message`."""
    estimator: State | None = None
    """What the estimator knows now. Known where `Rule.sees_belief`."""
    state: State | None = None
    """What the rule's own watch knows now, if it has one."""
    work: State | None = None
    """What the work remembers after the round's steps. Known to `Rule.report`."""
    reports: Array = None
    """What the workers reported in the round before, `(M, n)`; NaN: nothing. Known where `Rule.where` is all."""
    weights: Array = None
    """n_m / N of all workers, where `reports` are."""


def rows_of(now: Record, some: Any) -> Record:
    """Return the record of some of the workers that computed."""
    if isinstance(now.previous, list) and not isinstance(some, slice):
        previous: Any = [now.previous[i] for i in some]
    else:
        previous = None if now.previous is None else now.previous[some]
    rows = ("grad", "probe", "moved", "estimate", "believed", "message", "error")
    chosen: dict[str, Any] = {name: value[some] for name in rows if (value := getattr(now, name)) is not None}
    for name in ("estimator", "state"):
        if (state := getattr(now, name)) is not None:
            chosen[name] = {part: value[some] for part, value in state.items()}
    return now._replace(previous=previous, **chosen)


def reports_of(rule: Rule, now: Record, places: Any, broken: Mask | None, workers: int) -> FloatArray:
    """Return what so many workers report, `(workers, n)`, in float32: those at `places` computed; others say NaN."""
    assert rule.report is not None
    said = np.full((workers, REPORTED), np.nan, np.float32)
    with np.errstate(over="ignore", invalid="ignore"):
        said[places] = rule.report(now)
    if broken is not None:
        said[broken] = np.nan
    return said.astype(np.float64)


def all_sound(rule: Rule, now: Record, *numbers: FloatArray | None, probed: bool) -> bool:
    """Tell whether all gradients are finite, given a rule's numbers: they show a probe that is not.

    A probe that an estimator takes, `probed`, is looked at; nothing else, where the left side shows all.
    """
    if rule.left in (lag, wk2) and numbers[0] is not None and not probed:
        return all_finite(numbers[0])
    looked_at = [now.grad, now.probe] if probed and now.probe is not now.grad else [now.grad]
    return all(all_finite(found) for found in (*looked_at, *numbers) if found is not None)


def is_sound(now: Record) -> Mask:
    """Tell of each worker that computed whether its gradients are finite."""
    sound = finite_rows(now.grad)
    if now.probe is not None and now.probe is not now.grad:
        sound = sound & finite_rows(now.probe)
    return sound


Left: TypeAlias = Callable[[Record, Record], Array]
Right: TypeAlias = Callable[[float, int], float]
Report: TypeAlias = Callable[[Record], FloatArray]
Probe: TypeAlias = Literal["last", "snapshot", "previous"]


REPORTED = 2
"""Numbers in a worker's report."""


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
    where: Literal["worker", "server", "all"] = "worker"
    """Who evaluates it. A server rule sees `theta`, `moved` and `smoothness` only, and asks nobody else. With all, the
    server evaluates it once, on what all workers report: all upload in the next round, or nobody does."""
    probe: Probe | None = None
    """Where, besides theta^k, the gradient is needed: at the last upload's theta, at the snapshot that is taken every
    D rounds, or at the model of the worker's last round. Each costs one more gradient evaluation."""
    remembers: tuple[Literal["grad", "probe", "error"], ...] = ()
    """Which vectors of the last record a worker must keep: p numbers each."""
    estimate: Left | None = None
    """An estimate of L_m from an asked worker; the server keeps the largest, of all or of the most recent."""
    watch: Watch | None = None
    """What it keeps of every round, if anything: `now.state`."""
    right: Right | None = None
    """A right side of its own, of (mean ||aggregate||^2 of the last rounds, M); None: the one that all share."""
    sees_belief: bool = False
    """Whether it compares the estimate with what is believed: then it is evaluated after the estimator."""
    sees_message: bool = False
    """Whether it also looks at what would be said; the codec must then draw nothing at random."""
    needs: str | None = None
    """What the estimator must know, by its name in the estimator's state."""
    recent: int | None = None
    """Of how many asks the largest estimate counts; None: of all."""
    forces: bool = True
    """Whether who was silent for D rounds uploads; a rule that bounds staleness itself needs no D."""
    report: Report | None = None
    """What every worker says in every round, two float32, where the server decides for all."""

    def __post_init__(self) -> None:
        if self.where == "server" and (self.remembers or self.probe == "snapshot"):
            raise LasgError(f"rule {self.name}: a server rule sees no gradients, so it cannot remember any")
        if self.estimate is not None and (self.where, self.probe) != ("server", "last"):
            raise LasgError(f"rule {self.name}: an estimate needs where='server' and probe='last'")
        if self.where == "server" and self.sees_belief:
            raise LasgError(f"rule {self.name}: a server rule is evaluated before anybody computes")
        if (self.where == "all") != (self.report is not None) or (self.where == "all" and self.left is None):
            raise LasgError(f"rule {self.name}: where='all' goes with a report of the workers, and a left side of them")
        if self.where == "all" and (self.probe or self.remembers or self.watch or self.sees_belief):
            raise LasgError(f"rule {self.name}: a rule for all sees reports alone: no probe, nothing remembered")

    @property
    def periodic(self) -> bool:
        """Whether uploads are forced when k mod D = 0 (with the snapshot) instead of when tau >= D."""
        return self.probe == "snapshot"

    @property
    def flag_bits(self) -> int:
        """What a worker says in every round besides its contribution: whether it uploads, or what it reports."""
        if self.where == "all":
            return REPORTED * 32
        return 1 if self.left is not None and self.where == "worker" else 0

    @property
    def estimate_bits(self) -> int:
        """What rides along with an upload: the estimate of L_m, a float32."""
        return 32 if self.estimate else 0


def left_sides(rule: Rule, now: Record, memory: Mapping[str, Array], rows: IntArray | None) -> FloatArray:
    """Evaluate a worker rule, of long vectors piece by piece: a number per worker that computed.

    `memory` is what workers keep of their last record; `rows` are those that computed, None: all.
    """
    count, p = now.grad.shape
    if rows is None and p * count <= AT_ONCE:
        left = _evaluate(rule, now, Record(**memory))
    else:
        parts = []
        for some in pieces(count, p):
            which: Any = some if rows is None else rows[some]
            last = Record(**{name: kept[which] for name, kept in memory.items()})
            parts.append(_evaluate(rule, rows_of(now, some), last))
        left = np.concatenate(parts)
    if left.shape != (count,):
        expected = f"one number per worker, {(count,)}"
        raise LasgError(f"rule {rule.name}: its left side must be {expected}, got an array {left.shape}")
    return left


def _evaluate(rule: Rule, now: Record, last: Record) -> FloatArray:
    """Return a rule's numbers; refuse what is no array, such as the pair that torch's max(-1) gives."""
    assert rule.left is not None
    left = rule.left(now, last)
    if not hasattr(left, "shape"):
        kind = type(left).__name__
        raise LasgError(f"rule {rule.name}: its left side must be an array, one number per worker, got {kind}")
    return host(left)


def points_of(probe: Probe | None, k: Any, D: float) -> Any:
    """At how many models a gradient is needed in round k (or in many): 1, or 2 where a probe is at another.

    1 where the two models coincide: at first, and whenever the snapshot is taken.
    """
    if probe is None:
        return 1 + 0 * k
    return 2 - (k % D == 0) if probe == "snapshot" else 2 - (k == 0)


def lag(now: Record, last: Record) -> Array:
    """Left side of eqn:LAGrule: ||grad(theta^k; xi^k) - grad(theta^{k-tau}; xi^{k-tau})||^2."""
    return sq_distance(now.grad, last.grad)


def wk1(now: Record, last: Record) -> Array:
    """Left side of eqn:workerrule1: ||delta~^k - delta~^{k-tau}||^2, delta~ = grad(theta) - grad(snapshot)."""
    return sq_distance(now.grad - now.probe, last.grad - last.probe)


def wk2(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of eqn:workerrule2: ||grad(theta^k; xi^k) - grad(theta^{k-tau}; xi^k)||^2."""
    return sq_distance(now.grad, now.probe)


def ps(now: Record, last: Record) -> Array:  # noqa: ARG001
    """Left side of eqn:serverrule and eqn:eserversule: L_m^2 ||theta^k - theta^{k-tau}||^2."""
    return now.smoothness**2 * now.moved


def smoothness_estimate(now: Record, last: Record) -> Array:  # noqa: ARG001
    """The ratio in eqn:Lmestimate; 0 where theta did not move (0/0 at k = 0), which changes no maximum."""
    with np.errstate(invalid="ignore", over="ignore"):  # a gradient that is not finite is the workers' business
        changed = host(sq_distance(now.grad, now.probe))
        return np.sqrt(np.divide(changed, now.moved, out=np.zeros_like(changed), where=now.moved > 0))


ALWAYS = Rule(name="always")
LAG = Rule(name="lag", left=lag, remembers=("grad",))
WK1 = Rule(name="wk1", left=wk1, probe="snapshot", remembers=("grad", "probe"))
WK2 = Rule(name="wk2", left=wk2, probe="last")
PS = Rule(name="ps", left=ps, where="server")
PSE = Rule(name="pse", left=ps, where="server", probe="last", estimate=smoothness_estimate)
RULES = {rule.name: rule for rule in (ALWAYS, LAG, WK1, WK2, PS, PSE)}
"""The paper's, which go with any estimator, codec and belief."""


class Iterates:
    """theta at the last upload of each worker, stored once per model: at most min(workers, D) + 1 are distinct."""

    def __init__(self, workers: int, theta: Array) -> None:
        self.points = zeros((1, theta.shape[-1]), theta)
        self.slot: IntArray = np.zeros(workers, np.int64)

    def keep(self, theta: Array, uploaded: Mask) -> None:
        """Remember `theta` as the last model of the workers that uploaded."""
        slots = self.slot[~uploaded]
        used = np.bincount(slots[slots >= 0], minlength=len(self.points))
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
        far = self.points.shape[-1] > LONG  # then without a difference as large as all points
        distances = host(sq_distance(self.points, theta) if far else sq(self.points - theta))
        return distances[self.slot if workers is None else self.slot[workers]]

    def state(self) -> dict[str, Array]:
        """Return what a checkpoint must hold."""
        return {"points": self.points, "slot": self.slot}

    def restore(self, state: dict[str, Array]) -> None:
        """Take a checkpoint's state."""
        self.points, self.slot = state["points"], host(state["slot"])
