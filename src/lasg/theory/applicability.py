"""Where settings stand: within the range of a theorem of Section 4, outside it, or where there is no theorem.

Only L, mu, M and D decide that; the variances are in the bounds alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

from lasg.core.optimizers import Constant, Decreasing
from lasg.theory.bounds import Known, Nonconvex, Quantised, StronglyConvex

COVERED = ("always", "wk1", "wk2", "ps")
"""The rules that the theorems are about. `always` is SGD, which is any of them at D = 1."""
SLACK = 1 + 1e-9
"""A setting that lies on the edge lies inside, rounding or not."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The step, the weight of the moves, and how stale a gradient may get."""

    schedule: Constant | Decreasing
    D: int
    c: float = 0.1
    window: int = 10
    c_d: float | None = None
    """A constant weight; None: c / eta_k^2."""

    def weight(self, rounds: int) -> float:
        """Return the largest c_d of so many rounds: of c / eta_k^2 the last, since steps do not grow."""
        return self.c / self.schedule(rounds - 1) ** 2 if self.c_d is None else self.c_d

    def changes(self) -> dict[str, Any]:
        """Return them as keys of a spec."""
        step: dict[str, Any] = {"eta": self.schedule(0), "schedule": "constant", "schedule_options": {}}
        if isinstance(self.schedule, Decreasing):
            step |= {"schedule": "decreasing", "schedule_options": {"mu": self.schedule.mu, "K0": self.schedule.K0}}
        return {**step, "D": self.D, "c": self.c, "window": self.window, "c_d": self.c_d}


@dataclass(frozen=True, kw_only=True)
class Applicability:
    """What a theorem allows, beside what is set."""

    theorem: str | None
    """The paper's label; None: no theorem is about such a run."""
    reason: str = ""
    """Why there is none."""
    L: float
    eta: float
    """The first step, which is the largest."""
    largest_eta: float | None = None
    c_d: float
    """The largest of the run; 0 where no worker is ever silent."""
    largest_c_d: float | None = None

    @property
    def inside(self) -> bool:
        """Whether the theorem holds for the run."""
        return self.theorem is not None and max(self.excess) <= SLACK

    @property
    def excess(self) -> tuple[float, float]:
        """How many times the step, and c_d, are what the theorem allows."""
        assert self.largest_eta is not None
        assert self.largest_c_d is not None
        return self.eta / self.largest_eta, self.c_d / self.largest_c_d

    def row(self) -> dict[str, Any]:
        """Return it as JSON values, to six digits; JSON has no infinity, so an infinite c_d is None."""
        numbers = ("L", "eta", "largest_eta", "c_d", "largest_c_d")
        found = {name: getattr(self, name) for name in numbers}
        there = {name: value for name, value in found.items() if value is not None and math.isfinite(value)}
        rounded = {name: float(f"{there[name]:.6g}") if name in there else None for name in numbers}
        return {"theorem": self.theorem, "inside": self.inside, "reason": self.reason, **rounded}


def judge(
    settings: Settings, rule: str, *, L: float, mu: float | None, M: int, rounds: int, quantised: bool = False
) -> Applicability:
    """Compare settings of a rule and plain SGD with the theorem that is about them."""
    lazy = rule != "always"
    eta, c_d = settings.schedule(0), settings.weight(rounds) if lazy else 0.0
    if rule not in COVERED:
        return Applicability(theorem=None, reason=f"no theorem is about the rule {rule}", L=L, eta=eta, c_d=c_d)
    # Neither variance nor gap nor B changes the range.
    known = Known(L=L, M=M, D=settings.D if lazy else 1, variance=0.0, gap=0.0, B=1.0, p=1, bits=2)
    if isinstance(settings.schedule, Constant):
        theorem = Quantised(known) if quantised else Nonconvex(known)
        largest, heaviest = theorem.largest_step, theorem.largest_c(eta)
        return Applicability(theorem=theorem.label, L=L, eta=eta, largest_eta=largest, c_d=c_d, largest_c_d=heaviest)
    reason = _unfit(settings.schedule, mu, quantised)
    if reason:
        return Applicability(theorem=None, reason=reason, L=L, eta=eta, c_d=c_d)
    convex = StronglyConvex(replace(known, mu=settings.schedule.mu))
    first = convex.schedule()(0)
    return Applicability(
        theorem=convex.label, L=L, eta=eta, largest_eta=first, c_d=c_d, largest_c_d=convex.largest_c(max(eta, first))
    )


def _unfit(schedule: Decreasing, mu: float | None, quantised: bool) -> str:
    """Say why thm:stronglyconvex is not about a run, if it is not."""
    if quantised:
        return "no theorem is about quantised uploads with a decreasing step"
    if mu is None or schedule.mu > mu * SLACK:
        return f"the schedule's mu = {schedule.mu:g} is more than the loss's, {mu or 0:g}"
    return ""
