"""Settings in three columns: within a theorem, the task's own, and one that is worth trying first.

docs/choosing.md says why the practical column is what it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lasg.core.optimizers import Constant
from lasg.theory.applicability import COVERED, Applicability, Settings, judge
from lasg.theory.bounds import Nonconvex, Quantised, StronglyConvex
from lasg.theory.constants import quantiser_variance
from lasg.theory.measures import Measures
from lasg.theory.names import name_of

Name = Literal["safe", "paper", "practical"]

FORCED = 10
"""Uploads that the practical D forces in a run, at the least."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is to be run, besides its settings."""

    rule: str
    rounds: int
    bits: int | None = None
    """Of an entry of a quantised upload; None: not quantised."""
    bucket: int | None = None
    """Entries per norm."""
    neural: bool = False
    """Whether a neural network is trained."""


@dataclass(frozen=True, kw_only=True)
class Column:
    """One set of settings, and what it costs."""

    name: Name
    settings: Settings
    applicability: Applicability
    bound: float | None
    """What the theorem promises after the run's rounds; None: nothing."""
    gives_up: str
    """In a sentence."""


def advise(measures: Measures, task: Settings, run: Run) -> tuple[Column, Column, Column]:
    """Return the three columns: safe, paper, practical."""
    safe = _safe(measures, task, run)
    practical = _practical(measures, task, run)
    judged = {name: _judge(measures, one, run) for name, one in (("task", task), ("practical", practical))}
    slower, slowness = (task.schedule(0) / one.schedule(0) for one in (safe, practical))
    bound = _bound(measures, safe, run)
    return (
        Column(
            name="safe",
            settings=safe,
            applicability=_judge(measures, safe, run),
            bound=bound,
            gives_up=_price_of_safety(slower, bound, measures, run),
        ),
        Column(
            name="paper",
            settings=task,
            applicability=judged["task"],
            bound=_bound(measures, task, run),
            gives_up=_price_of_freedom(judged["task"]),
        ),
        Column(
            name="practical",
            settings=practical,
            applicability=judged["practical"],
            bound=_bound(measures, practical, run),
            gives_up=f"{_price_of_freedom(judged['practical'])}; its step is {_beside(1 / slowness)}",
        ),
    )


def _safe(measures: Measures, task: Settings, run: Run) -> Settings:
    """Return the theorem's own settings: the decreasing step where the loss is strongly convex, else a constant."""
    D = task.D if run.rule != "always" else 1
    known = measures.known(D, run.bits)
    if run.bits is None and known.mu is not None:
        convex = StronglyConvex(known)
        return Settings(schedule=convex.schedule(), D=D, c=task.c, window=D, c_d=convex.largest_c())
    theorem = Nonconvex(known) if run.bits is None else Quantised(known)
    eta = theorem.best_step(run.rounds)
    return Settings(schedule=Constant(eta), D=D, c=task.c, window=D, c_d=theorem.largest_c(eta))


def _practical(measures: Measures, task: Settings, run: Run) -> Settings:
    """Return the step 1 / (L (1 + omega)), and the experiments' c, window and D.

    L is the curvature at theta^0, and omega the quantiser's: E||Q(g)||^2 <= (1 + omega) ||g||^2. A network's curvature
    grows from theta^0 on, so its step is at most the task's.
    """
    length = min(run.bucket or measures.p, measures.p)
    omega = 0.0 if run.bits is None else quantiser_variance(length, run.bits)
    eta = 1 / (measures.L_start * (1 + omega))
    if run.neural:
        eta = min(eta, task.schedule(0))
    D = min(task.D, max(1, run.rounds // FORCED))
    return Settings(schedule=Constant(float(f"{eta:.2g}")), D=D)


def _judge(measures: Measures, settings: Settings, run: Run) -> Applicability:
    return judge(
        settings,
        run.rule,
        L=measures.L,
        mu=measures.mu,
        M=measures.M,
        rounds=run.rounds,
        quantised=run.bits is not None,
    )


def _bound(measures: Measures, settings: Settings, run: Run) -> float | None:
    """Return what the theorem promises after the run's rounds, if it holds."""
    if not _judge(measures, settings, run).inside:
        return None
    known = measures.known(settings.D if run.rule != "always" else 1, run.bits)
    if isinstance(settings.schedule, Constant):
        theorem = Nonconvex(known) if run.bits is None else Quantised(known)
        return theorem.bound(run.rounds, settings.schedule.eta)
    return StronglyConvex(known).bound(run.rounds)


def _price_of_safety(slower: float, bound: float | None, measures: Measures, run: Run) -> str:
    if run.rule not in COVERED:
        return f"no promise: no theorem is about the rule {run.rule}; with the other rules' settings {_against(slower)}"
    holds = "the theorem holds if L is nowhere larger than at theta^0" if run.neural else "the theorem holds"
    words = f"{holds}, and {_against(slower)}"
    on_gap = run.bits is None and measures.mu is not None
    if bound is not None and on_gap and bound >= measures.gap:
        return f"{words}; after {run.rounds:,} rounds it promises {bound:.3g}, and the start is at {measures.gap:.3g}"
    return words


def _against(slower: float) -> str:
    if slower <= 1:
        return "the step is not below the task's"
    return f"the step is {number(slower)} times smaller than the task's: safe, and slow"


def _beside(ratio: float) -> str:
    return "the task's" if ratio == 1 else f"{number(ratio)} times the task's"


def _price_of_freedom(applicability: Applicability) -> str:
    """Say by how much settings leave the theorem."""
    if applicability.theorem is None:
        return f"no promise: {applicability.reason}"
    if applicability.inside:
        return f"nothing: the {name_of(applicability.theorem)} holds"
    return f"no promise: {beyond(applicability)}"


def beyond(applicability: Applicability) -> str:
    """Say how many times the step and c_d are what the theorem allows."""
    assert applicability.theorem is not None
    named = zip(("step", "c_d"), applicability.excess, strict=True)
    parts = [f"the {name} is {number(times)} times" for name, times in named if times > 1]
    return f"{' and '.join(parts)} what the {name_of(applicability.theorem)} allows"


def number(value: float) -> str:
    """Write a factor in two or three digits."""
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"
