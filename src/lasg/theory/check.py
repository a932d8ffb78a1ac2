"""Section 4 measured: which runs are made, what is kept of each, and the claims they decide.

The runs are those of the simulation engine with its rules and codecs, at the largest c_d that the theorems allow, on
problems of which every constant is known.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, NamedTuple

import numpy as np

from lasg.core.algorithms import algorithm as named
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing
from lasg.core.server import Laziness
from lasg.core.training import Round, Training
from lasg.errors import LasgError
from lasg.theory import constants
from lasg.theory.bounds import Known, Nonconvex, Quantised, StronglyConvex
from lasg.theory.estimates import Claim, Curve, Estimate, Vector, curve, highest, interval, jackknife, lowest, slope
from lasg.theory.synthetic import Quadratics, Ripples, Synthetic, quadratics, ripples
from lasg.transports.local import simulate

D = 4
BITS = 4
PLAIN = ("sgd", "lasg-wk1", "lasg-wk2", "lasg-ps")
QUANTISED = ("qsgd", "laqsg-wk1", "laqsg-wk2", "laqsg-ps")
LAG = "lag-wk"
ALWAYS = ("sgd", "qsgd")
"""Of these there is no left side."""

Part = Literal["convex", "nonconvex", "descent-convex", "descent-nonconvex"]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How much is measured."""

    seeds: int = 12
    """Of the strongly convex runs. The others are scaled from it."""
    reach: int = 60
    """The strongly convex runs go on to this many K0; slopes are taken from 10 K0 on."""
    rounds: tuple[int, ...] = (200, 400, 800, 1600)
    """K of the nonconvex runs, which have a step of their own each."""
    descent_rounds: int = 40

    def __post_init__(self) -> None:
        if self.seeds < 3:
            raise LasgError(f"a confidence interval needs at least 3 seeds, got {self.seeds}")
        if self.reach < 20 or len(self.rounds) < 3 or self.descent_rounds < 1:
            raise LasgError("a plan needs reach >= 20, three numbers of rounds, and rounds to look at the descent")

    def count(self, part: Part, algorithm: str) -> int:
        """Return how many seeds a part takes: the single rounds of a descent need most, long means fewest."""
        if part.startswith("descent"):
            return 8 * self.seeds
        if part == "nonconvex":
            return max(3, self.seeds // 2)
        return max(3, self.seeds // 4) if algorithm in QUANTISED else self.seeds


QUICK = Plan(seeds=6, reach=30, rounds=(100, 200, 400), descent_rounds=20)


class Job(NamedTuple):
    """One run."""

    part: Part
    algorithm: str
    rounds: int
    seed: int


class Trace(NamedTuple):
    """What is kept of a run: a number per round."""

    gap: Vector
    """L(theta^k) - L*, k = 0, ..., K."""
    squares: Vector
    """||grad L(theta^k)||^2, k = 0, ..., K - 1."""
    moves: Vector
    """||theta^{k+1} - theta^k||^2, k = 0, ..., K - 1."""
    left: Vector
    """The rule's left side over sigma_m^2, the mean over workers; nan where nobody evaluated it."""
    drift: Vector
    """||grad L_m(theta^k) - grad L_m(theta^{k-tau})||^2 over sigma_m^2, the mean over workers: LAG only, else nan."""
    saved: float
    """The share of all possible uploads that was not sent."""


Traces = Mapping[tuple[Part, str, int], Sequence[Trace]]
"""By part, algorithm and rounds; one per seed."""


# -- the problems ---------------------------------------------------------------------------------------------


@cache
def convex() -> Quadratics:
    """Return the strongly convex problem."""
    return quadratics()


@cache
def nonconvex() -> Ripples:
    """Return the problem that is not convex."""
    return ripples()


def strongly_convex_theorem() -> StronglyConvex:
    """Return thm:stronglyconvex for the quadratics."""
    shape = convex()
    return StronglyConvex(_known(shape, mu=shape.mu))


def nonconvex_theorem(algorithm: str) -> Nonconvex:
    """Return thm:nonconvex or thm:LAQSG for the ripples."""
    shape = nonconvex()
    theorem = Quantised if named(algorithm).quantised else Nonconvex
    return theorem(_known(shape, B=shape.largest_square))


def _known(shape: Quadratics | Ripples, mu: float | None = None, B: float | None = None) -> Known:
    M, p = shape.size
    gap = shape.loss(shape.start()) - shape.lowest
    return Known(L=shape.L, M=M, D=D, variance=float(shape.variances.sum()), gap=gap, mu=mu, B=B, p=p, bits=BITS)


def step_scale(rounds: Sequence[int]) -> float:
    """Return c_eta: the largest with which eta = c_eta / sqrt(K) obeys both theorems at every K."""
    return nonconvex_theorem("qsgd").largest_step * math.sqrt(min(rounds))


# -- the runs --------------------------------------------------------------------------------------------------


def jobs(plan: Plan) -> list[Job]:
    """Return every run of a plan."""
    last = math.ceil(plan.reach * strongly_convex_theorem().K0)
    wanted: list[tuple[Part, str, int]] = [("convex", name, last) for name in (*PLAIN, LAG, *QUANTISED)]
    wanted += [("nonconvex", name, K) for name in (*PLAIN, *QUANTISED) for K in plan.rounds]
    wanted += [("descent-convex", name, plan.descent_rounds) for name in PLAIN]
    wanted += [("descent-nonconvex", name, plan.descent_rounds) for name in (*PLAIN, *QUANTISED)]
    return [Job(*one, seed) for one in wanted for seed in range(plan.count(one[0], one[1]))]


def schedule(job: Job, plan: Plan) -> Constant | Decreasing:
    """Return the steps of a run."""
    if job.part in {"convex", "descent-convex"}:
        return strongly_convex_theorem().schedule()
    theorem = nonconvex_theorem(job.algorithm)
    if job.part == "nonconvex":
        return theorem.schedule(job.rounds, step_scale(plan.rounds))
    return Constant(theorem.largest_step)


def run(job: Job, plan: Plan) -> Trace:
    """Make one run."""
    is_convex = job.part in {"convex", "descent-convex"}
    shape = convex() if is_convex else nonconvex()
    theorem = strongly_convex_theorem() if is_convex else nonconvex_theorem(job.algorithm)
    steps, chosen = schedule(job, plan), named(job.algorithm)
    simulation = simulate(
        Synthetic(shape, job.seed),
        ClosedFormSGD(shape.start(), steps),
        rule=chosen.rule,
        codec=chosen.codec(BITS, None),
        laziness=Laziness(workers=theorem.known.M, D=D, window=D, c_d=theorem.largest_c(steps(0))),
        seed=job.seed,
        smoothness=shape.smoothness,
    )
    return _follow(simulation, shape, job.rounds, with_drift=job.algorithm == LAG)


def _follow(simulation: Training, shape: Quadratics | Ripples, rounds: int, with_drift: bool) -> Trace:
    empty = np.full((4, rounds), np.nan)
    trace = Trace(np.empty(rounds + 1), empty[0], empty[1], empty[2], empty[3], 0.0)
    past: deque[Vector] = deque(maxlen=D + 1)
    """The exact gradients of the last rounds, the newest first."""
    for k in range(rounds):
        theta = simulation.theta
        exact = shape.gradients(theta)
        whole = exact.sum(0)
        trace.gap[k], trace.squares[k] = shape.loss(theta) - shape.lowest, whole @ whole
        past.appendleft(exact)
        done = simulation.step()
        moved = simulation.theta - theta
        trace.moves[k] = moved @ moved
        if done.left is not None:
            trace.left[k] = (done.left / shape.variances).mean()
            if with_drift:
                trace.drift[k] = (_drift(past, done) / shape.variances).mean()
    trace.gap[rounds] = shape.loss(simulation.theta) - shape.lowest
    return trace._replace(saved=1 - simulation.ledger.uploads / (rounds * len(shape.smoothness)))


def _drift(past: Sequence[Vector], done: Round) -> Vector:
    """Return ||grad L_m(theta^k) - grad L_m(theta^{k - tau_m})||^2 of each worker."""
    then = np.stack([past[tau][m] for m, tau in enumerate(done.tau)])
    found: Vector = ((past[0] - then) ** 2).sum(-1)
    return found


# -- the claims -----------------------------------------------------------------------------------------------


class Findings(NamedTuple):
    """What was found."""

    claims: list[Claim]
    curves: list[Curve]


def judge(plan: Plan, traces: Traces) -> Findings:
    """Return all claims, and the curves they are read from."""
    measures = (_descents, _strongly_convex, _nonconvex, _variances)
    found = [one for measure in measures for one in measure(plan, traces)]
    return Findings([one for one in found if isinstance(one, Claim)], [one for one in found if isinstance(one, Curve)])


def _claim(runs: Sequence[Trace], label: str, what: str, algorithm: str, found: Estimate, **limits: Any) -> Claim:
    """Return a claim that was measured on some runs, one per seed."""
    values = {"seeds": len(runs), "saved": float(np.mean([one.saved for one in runs])), **limits}
    return Claim(label=label, what=what, algorithm=algorithm, found=found, **values)


def _descents(plan: Plan, traces: Traces) -> Iterator[Claim | Curve]:
    """Lemmas 1 and 2: how much of the noise term on the right the left side needs; at most 1."""
    parts: tuple[tuple[Part, str, tuple[str, ...]], ...] = (
        ("descent-convex", "quadratics", PLAIN),
        ("descent-nonconvex", "ripples", (*PLAIN, *QUANTISED)),
    )
    for part, on, algorithms in parts:
        for name in algorithms:
            job = Job(part, name, plan.descent_rounds, 0)
            runs = traces[job[:3]]
            for lemma, used in zip(("lossdescent", "lyapunovdescent"), _used(job, plan, runs), strict=True):
                yield _claim(runs, f"lemma:{lemma}", f"noise term needed, {on}", name, highest(used), most=1.0)
                yield curve(f"{lemma}-{on}", name, np.arange(1.0, plan.descent_rounds + 1), used)


def _used(job: Job, plan: Plan, runs: Sequence[Trace]) -> tuple[Vector, Vector]:
    """Return, a row per seed, what is left for the noise term of eqn:lossdescent and eqn:lyapunovdescent, over it."""
    is_convex = job.part == "descent-convex"
    theorem = strongly_convex_theorem() if is_convex else nonconvex_theorem(job.algorithm)
    steps = schedule(job, plan)
    setting = theorem.setting(theorem.largest_c(steps(0)))
    gamma = constants.gammas(setting, steps(0), theorem.known.mu or 0.0)
    gap, squares = (np.stack([one[i] for one in runs]) for i in (0, 1))
    # Moves before the first are zero: moved[:, k + D - d] is the move d rounds before round k.
    moved = np.pad(np.stack([one.moves for one in runs]), ((0, 0), (D, 0)))
    loss, energy = np.empty_like(squares), np.empty_like(squares)
    for k in range(job.rounds):
        eta, last = steps(k), moved[:, k : k + D][:, ::-1]
        weights = np.array([constants.move_weight(setting, eta, c_d) for c_d in setting.c])
        rise = gap[:, k + 1] - gap[:, k]
        kept = rise + constants.gradient_weight(setting, eta) * squares[:, k] - last @ weights
        loss[:, k] = kept / (constants.noise_weight(setting, eta) * theorem.noise)
        now, then = last @ np.array(gamma), moved[:, k + 1 : k + 1 + D][:, ::-1] @ np.array(gamma)
        falls = constants.B_0(setting, eta, gamma) * squares[:, k] - last @ np.array(constants.A(setting, eta, gamma))
        energy[:, k] = (rise + then - now + falls) / (constants.B_1(setting, eta, gamma) * theorem.noise)
    return loss, energy


def _strongly_convex(plan: Plan, traces: Traces) -> Iterator[Claim | Curve]:
    """thm:stronglyconvex: the gap falls as 1 / K, and stays below the bound."""
    theorem = strongly_convex_theorem()
    last = math.ceil(plan.reach * theorem.K0)
    edges = _edges(theorem.K0, last)
    x = np.sqrt(edges[:-1] * edges[1:])
    for name in (*PLAIN, LAG, *QUANTISED):
        runs = traces["convex", name, last]
        gaps = np.stack([one.gap for one in runs])
        binned = _binned(gaps, edges)
        promised = name in PLAIN
        yield _claim(
            runs, theorem.label, "slope of the gap", name, slope(x, binned), least=-1.1, most=-0.9, promised=promised
        )
        if promised and name not in ALWAYS:
            yield _price(name, runs, traces["convex", "sgd", last], edges)
        seen = np.unique(np.geomspace(1, last, 60).astype(int))
        bound = np.array([theorem.bound(int(K)) for K in seen])
        if promised:
            yield _claim(runs, theorem.label, "gap over its bound", name, highest(gaps[:, seen] / bound), most=1.0)
        yield curve("stronglyconvex", name, seen.astype(np.float64), gaps[:, seen], bound if promised else None)


def _price(name: str, runs: Sequence[Trace], sgds: Sequence[Trace], edges: Vector) -> Claim:
    """Return what laziness costs: the gap over SGD's after as many rounds, from 10 K0 on. The paper is silent on it."""
    both = np.stack([_binned(np.stack([one.gap for one in group]), edges).mean(-1) for group in (runs, sgds)], axis=-1)
    return _claim(
        runs,
        StronglyConvex.label,
        "gap over SGD's",
        name,
        jackknife(lambda mean: float(mean[0] / mean[1]), both),
        promised=False,
    )


def _edges(K0: float, last: int) -> Vector:
    """Return where the pieces begin over which a slope is taken: from 10 K0 on, of one width on a logarithmic axis."""
    return np.geomspace(10 * K0, last, 17)


def _binned(values: Vector, edges: Vector) -> Vector:
    """Return the means over the pieces between the edges, along the last dimension."""
    whole = np.ceil(edges).astype(int)
    return np.stack([np.nanmean(values[:, a:b], axis=-1) for a, b in itertools.pairwise(whole)], axis=-1)


def _nonconvex(plan: Plan, traces: Traces) -> Iterator[Claim | Curve]:
    """thm:nonconvex and thm:LAQSG: the mean squared gradient falls as 1 / sqrt(K), and stays below the bound."""
    x = np.array(plan.rounds, np.float64)
    for name in (*PLAIN, *QUANTISED):
        theorem = nonconvex_theorem(name)
        groups = [traces["nonconvex", name, K] for K in plan.rounds]
        means = np.stack([[one.squares.mean() for one in group] for group in groups], axis=-1)
        steps = [schedule(Job("nonconvex", name, K, 0), plan)(0) for K in plan.rounds]
        bound = np.array([theorem.bound(K, eta) for K, eta in zip(plan.rounds, steps, strict=True)])
        runs = [one for group in groups for one in group]
        yield _claim(
            runs,
            theorem.label,
            "slope of the mean squared gradient",
            name,
            slope(x, means),
            least=-0.6,
            most=-0.4,
            seeds=len(means),
        )
        yield _claim(
            runs,
            theorem.label,
            "mean squared gradient over its bound",
            name,
            highest(means / bound),
            most=1.0,
            seeds=len(means),
        )
        yield curve("nonconvex", name, x, means, bound)


def _variances(plan: Plan, traces: Traces) -> Iterator[Claim | Curve]:
    """Section 2: LAG's left side stays above the floor of eqn:variance-wk; those of LASG fall to zero."""
    K0 = strongly_convex_theorem().K0
    last = math.ceil(plan.reach * K0)
    edges = np.geomspace(3 * D, last, 25)  # a round in D has no left side under WK1: a piece must be longer than one
    x = np.sqrt(edges[:-1] * edges[1:])
    late = _edges(K0, last)
    for name in (LAG, *(name for name in PLAIN if name not in ALWAYS)):
        runs = traces["convex", name, last]
        left = np.stack([one.left for one in runs])
        binned = _binned(left, edges)
        if name == LAG:
            floor = _binned(1 - np.stack([one.drift for one in runs]), edges)
            yield _claim(
                runs,
                "eqn:variance-wk",
                "left side less its floor, over sigma^2",
                name,
                lowest(binned - floor),
                least=0.0,
            )
            yield curve("variance", name, x, binned, interval(floor)[0])
            continue
        yield _claim(
            runs,
            "eqn:variance-server" if name == "lasg-ps" else f"eqn:variance-{name[-3:]}",
            "slope of the left side",
            name,
            slope(np.sqrt(late[:-1] * late[1:]), _binned(left, late)),
            most=-1.0,
        )
        yield curve("variance", name, x, binned)
