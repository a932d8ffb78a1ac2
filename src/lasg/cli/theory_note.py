"""Whether the theorems of Section 4 apply to a run: noted in its meta data and said in one line; nothing needs it.

Only of regressions, whose L is a few passes over the data.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lasg.core.codecs import Dense
from lasg.errors import LasgError
from lasg.problems.regression import Regression
from lasg.runs import factories, store
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.theory.advice import beyond, number
from lasg.theory.applicability import Applicability, Settings, judge
from lasg.theory.curvature import smoothness_from_below

NEAR = 0.9
"""So near to a theorem's edge the quick L does not do: it has three digits."""


def assess(spec: Spec, problem: Any) -> dict[str, Any] | None:
    """Return where a run stands, as JSON values; None where L is not known, or the numbers are beyond floats."""
    if not isinstance(problem, Regression):
        return None
    try:
        applicability = judge_spec(spec, smoothness_from_below(problem))
        if applicability.theorem is not None and NEAR < max(applicability.excess) < 1 / NEAR:
            applicability = judge_spec(spec, problem.whole_smoothness)
        return applicability.row()
    except (LasgError, ArithmeticError):  # steps of 1e-200, features that are all 0: no reason to stop a run
        return None


def judge_spec(spec: Spec, L: float) -> Applicability:
    """Return where a regression stands whose loss has smoothness L."""
    chosen, why = spec.composition, unfit(spec)
    if why:
        return Applicability(theorem=None, reason=why, L=L, eta=spec.eta, c_d=0.0)
    return judge(
        settings_of(spec),
        chosen.rule.name,
        L=L,
        mu=spec.lam or None,
        M=spec.workers,
        rounds=spec.iterations,
        quantised=not isinstance(chosen.codec(spec.bits, spec.bucket), Dense),
    )


def unfit(spec: Spec) -> str:
    """Say why no theorem is about a run, whatever its numbers."""
    if spec.optimizer != "sgd" or spec.schedule not in {"constant", "decreasing"}:
        return "the theorems are about plain SGD with a constant or the decreasing step"
    if spec.own_rule or spec.own_codec:
        return "no theorem is about a rule or codec of your own"
    if spec.composition.local_steps(spec.H) > 1:
        return "no theorem is about local steps"
    if math.isinf(spec.D):
        return "the theorems are about a largest staleness D that is finite"
    return "no theorem is about clipped gradients" if spec.clip is not None else ""


def settings_of(spec: Spec) -> Settings:
    """Return what of a spec decides whether a theorem holds.

    A threshold from rho is about that of c = rho^2 / window while contributions are fresh, and lower later.
    """
    c = spec.laziness.c if spec.rho is None else spec.rho**2 / min(spec.window, spec.D)
    return Settings(schedule=factories.schedule(spec), D=int(spec.D), c=c, window=spec.window, c_d=spec.c_d)


def annotate(runs: Sequence[Run], data_dir: Path | None = None) -> None:
    """Note in the meta data of ended runs which theorem applies, where that is not there yet."""
    for run in runs:
        if run.status == "running" or "theory" in run.meta or run.spec.neural:
            continue
        found = assess(run.spec, factories.problem(run.spec, data_dir))
        if found is not None:
            run.meta["theory"] = found
            store.write_meta(run.folder, run.meta)


def lines(runs: Sequence[Run]) -> list[str]:
    """Say in one line, whichever and however many the runs, which are outside the theorems; no line if none is."""
    noted = [(run.spec, run.meta["theory"]) for run in runs if isinstance(run.meta.get("theory"), dict)]
    outside = {spec.algorithm: theory for spec, theory in noted if not theory["inside"]}
    if not outside:
        return []
    named = f"lasg advise {noted[0][0].task} says more"
    if len(outside) == 1:
        ((name, theory),) = outside.items()
        return [f"Outside the paper's theorems: {name}: {_why(theory)}. {named}."]
    excess = [_applicability(theory).excess for theory in outside.values() if theory["theorem"]]
    most = [max(parts) for parts in zip(*excess, strict=True)]
    reach = f" (step up to {number(most[0])} times, c_d up to {number(most[1])} times what they allow)" if most else ""
    everyone = len(outside) == len({spec.algorithm for spec, _ in noted})
    who = f"all {len(outside)} algorithms" if everyone else ", ".join(outside)
    return [f"Outside the paper's theorems: {who}{reach}. {named}."]


def _why(theory: dict[str, Any]) -> str:
    return beyond(_applicability(theory)) if theory["theorem"] else str(theory["reason"])


def _applicability(theory: dict[str, Any]) -> Applicability:
    """Read it back from a run's meta data."""
    values = {name: value for name, value in theory.items() if name != "inside"}
    return Applicability(**{**values, "c_d": math.inf if theory["c_d"] is None else theory["c_d"]})
