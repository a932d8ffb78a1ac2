"""The settings of an algorithm: one set of names and defaults for specs, the command line, LazyOptimizer and Flower."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from lasg.core.algorithms import DEFAULT
from lasg.core.server import DEFAULT_D, Laziness, laziness_of

LAZINESS = ("rho", "c", "guard", "D", "window", "start", "c_d", "variance_bound")
"""Of them, those that say how lazy workers are."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a run says and when, wherever it runs. docs/spec.md has the whole list."""

    algorithm: str = DEFAULT
    """One of the twelve, or rule+codec+local steps+belief such as wk2+qsgd8+H4+difference."""
    seed: int = 0
    eta: float = 0.1
    """The step size (the first one, under a schedule)."""
    D: int | float = DEFAULT_D
    """The largest staleness, in rounds; inf only where a guard or the rule itself bounds what staleness does."""
    c: float | None = None
    """The paper's constant, the weight of a move in the threshold before division by eta^2 M^2; absent: see rho."""
    rho: float | None = None
    """A bound on the aggregate's relative error, in place of c. Where neither is given: c = 0.1 on lasg's own tasks
    with plain SGD, as in the paper; rho = 0.5 on the user's data, or with an optimizer that has a memory."""
    guard: bool | None = None
    """Whether laziness is given up where it hurts; absent: with rho."""
    window: int = 10
    """How many moves the threshold sums."""
    c_d: float | None = None
    """A constant weight of a move, before division by M^2, in place of c / eta^2: the theorems'."""
    variance_bound: float | None = None
    """Theta of fda: the variance of the workers' models at which all upload; absent: that of the first ten rounds."""
    start: Literal["ask-twice", "zero"] = "ask-twice"
    """How PSE begins."""
    clip: float | None = None
    """The largest norm of a local gradient, before the rule; absent: any."""
    robust: str | None = None
    """What bounds how much one worker adds to the sum: median-clip3, trimmed, none; absent: the algorithm's."""
    patience: int | None = None
    """How many rounds in a row a worker's gradient may be NaN or infinite before the run stops; absent: 10."""

    def laziness_of(self, workers: int) -> Laziness:
        """Return the constants of the rules for so many workers."""
        options: dict[str, Any] = {name: getattr(self, name) for name in LAZINESS}
        return laziness_of(workers, **options)
