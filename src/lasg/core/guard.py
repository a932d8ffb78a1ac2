"""A guard against laziness that hurts: it watches what stale contributions are worth, and takes laziness back.

Three things are watched; the first two are known to the server without another byte:

- **Agreement.** An upload replaces a stale contribution by a fresh one. Over the last rounds, r = ||sum of the
  innovations||^2 / (s ||aggregate||^2) is 0 where fresh and stale ones are the same and 2 where they have nothing in
  common: 1 - r / 2 is their agreement, -1 where they point apart. s is the uploaders' share, sum w_m^2 over them by
  that over all, u / M for equal weights. With minibatches it is the part of the aggregate that is gradient, not noise.
- **Reuse.** Over h rounds a gradient adds up to h^2 times its squared size, fresh noise to h times, noise that is used
  tau times to h tau times. So a contribution may be used for as long as the extra noise is at most `EXTRA` of the
  gradient: (tau - 1) (1 - agreement) <= EXTRA h agreement; older ones must be uploaded. The horizon h is the window for
  plain SGD. Momentum beta makes the same steps in fewer rounds: it is (1 - beta) / (1 + beta) of that. Where not
  even one more round is allowed, for a whole window, laziness is given up.
- **The loss**, where the engine knows it: if its mean over a window is above the lowest window's by more than chance
  and a tenth, while contributions were stale, laziness is given up.

Given up means that everybody uploads from then on, and nobody computes a second gradient.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from lasg.errors import LasgError

if TYPE_CHECKING:
    from lasg.core.server import Laziness
    from lasg.core.stages import Stages

WINDOW = 20
"""Rounds over which everything is averaged."""
EXTRA = 0.5
"""How much noise reuse may add over the horizon, as a share of what the gradient adds up to."""
CHANCE = 6.0
"""How many standard errors are chance: the lowest of many windows is compared with every later one."""
RISE = 0.1
"""By how much of the lowest mean loss a later one must be above it."""


@dataclass
class Guard:
    """The watch over one run. Its fields are numbers, the same in every process; `given_up` says why and when."""

    horizon: float = WINDOW
    """Over how many rounds noise may average out; the server sets it from the optimizer in every round."""
    news: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """||innovation||^2 / s of the last rounds with uploads."""
    sizes: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """||aggregate||^2 of the same rounds: the mean of before and after."""
    losses: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    lowest: tuple[float, float] = (math.inf, 0.0)
    """The lowest mean of the losses over a window so far, and its variance."""
    fresh_only: int = 0
    """Rounds in a row in which no reuse at all was allowed."""
    since_silence: int = 0
    """Rounds since somebody was silent last."""
    given_up: str = ""

    @property
    def agreement(self) -> float:
        """How far stale contributions agree with the fresh ones that replace them: 1 is fully; 1 before it is known."""
        if len(self.news) < WINDOW:
            return 1.0
        total = sum(self.sizes)
        return 1.0 - 0.5 * sum(self.news) / total if total > 0 else 1.0

    @property
    def reuse_limit(self) -> float:
        """In how many rounds a contribution may be used: with a staleness of so many it is due."""
        agreement = self.agreement
        if agreement >= 1:
            return math.inf
        return 1.0 + math.floor(EXTRA * self.horizon * max(agreement, 0.0) / (1.0 - agreement))

    def close(
        self, k: int, share: float, news: float, size: float, loss: float | None, *, silent: bool | None = None
    ) -> None:
        """Take what round k showed.

        `share` is the uploaders', 0 to 1; `news` and `size` the squared norms of innovation and aggregate, `loss` the
        mean over the minibatches. `silent`: whether anybody was, where the share does not say it.
        """
        if self.given_up:
            return
        if share > 0:
            self.news.append(news / share)
            self.sizes.append(size)
        self.since_silence = 0 if (share < 1 if silent is None else silent) else self.since_silence + 1
        self.fresh_only = self.fresh_only + 1 if self.reuse_limit <= 1 else 0
        if self.fresh_only >= WINDOW:
            self.given_up = (
                f"laziness was given up in round {k}: stale contributions say little about fresh ones (agreement "
                f"{self.agreement:.2f}, 1 is full), so using one again mostly repeats noise, of minibatch or codec"
            )
        elif loss is not None and math.isfinite(loss):
            self._watch_loss(k, loss)

    def _watch_loss(self, k: int, loss: float) -> None:
        self.losses.append(loss)
        if len(self.losses) < WINDOW:
            return
        mean = sum(self.losses) / WINDOW
        variance = sum((value - mean) ** 2 for value in self.losses) / (WINDOW - 1)
        if mean <= self.lowest[0]:
            self.lowest = (mean, variance)
        lowest, then = self.lowest
        chance = CHANCE * math.sqrt((variance + then) / WINDOW)
        if self.since_silence < WINDOW and mean - lowest > max(chance, RISE * abs(lowest)):
            self.given_up = (
                f"laziness was given up in round {k}: the loss rose to {mean:.3g}, from {lowest:.3g} before, "
                "while some contributions were stale"
            )

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: numbers, and lists of them."""
        found = {name: value for name, value in asdict(self).items() if name != "horizon"}
        return {name: list(value) if isinstance(value, deque | tuple) else value for name, value in found.items()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        for name in ("news", "sizes", "losses"):
            setattr(self, name, deque(state[name], maxlen=WINDOW))
        self.lowest = (float(state["lowest"][0]), float(state["lowest"][1]))
        self.fresh_only, self.since_silence = int(state["fresh_only"]), int(state["since_silence"])
        self.given_up = str(state["given_up"])


def is_guarded(stages: Stages, laziness: Laziness) -> bool:
    """Tell whether a guard watches: what is said once is never stale, so there it has nothing to guard."""
    return laziness.guard and stages.rule.left is not None and stages.belief != "residual"


def check_staleness(stages: Stages, laziness: Laziness) -> None:
    """Refuse an infinite D where nothing else bounds how stale a contribution gets."""
    rule = stages.rule
    if math.isfinite(laziness.D) or rule.left is None or not rule.forces:
        return
    if rule.where == "all":
        if laziness.variance_bound is None or math.isfinite(laziness.variance_bound):
            return
        raise LasgError("D = inf and variance_bound = inf let nobody upload, ever: take a finite one of them")
    if rule.periodic:
        raise LasgError(f"rule {rule.name} takes its snapshot every D rounds: D = inf is for wk2, clag and the like")
    if not is_guarded(stages, laziness):
        guard = "take vr" if stages.belief == "residual" else "set rho or guard = true, take lasg-vr"
        raise LasgError(
            f"D = inf lets a worker be silent for ever, and nothing watches that here: {guard}, or a finite D"
        )
