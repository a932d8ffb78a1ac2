"""What a worker makes of its gradients before anything is said: momentum, variance reduction, or one of your own.

The paper's rules see the gradients themselves; what is said, and believed, is what the estimator makes of them. Rules
with `sees_belief` see the estimate.

An estimator is a frozen setting with `init` and `update`; its state is a dict of arrays with a row per worker, which
every engine checkpoints. docs/extending.md has an example.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

from lasg.core.arrays import Array, maximum, minimum, sq, zeros
from lasg.core.codecs import State
from lasg.core.rules import Probe, Record
from lasg.errors import LasgError


class Estimator(ABC):
    """Turns the gradients of a round into the contributions of that round."""

    probe: ClassVar[Probe | None] = None
    """Where, besides theta^k, it needs the gradient, as `now.probe`: at the model of the worker's last round."""

    @abstractmethod
    def init(self, workers: int, theta: Array) -> State:
        """Return the state of so many workers that have computed nothing yet."""

    @abstractmethod
    def update(self, now: Record, state: State) -> tuple[Array, State]:
        """Return the contributions `(n, p)` of the workers that computed in this round, and their new state."""

    def said(self, decoded: Array, state: State) -> State:  # noqa: ARG002
        """Return the state of workers that upload, after their message, which decodes to these rows."""
        return state


def _share(name: str, value: float) -> None:
    if not 0 <= value < 1:
        raise LasgError(f"{name} must be at least 0 and below 1, got {value!r}")


@dataclass(frozen=True)
class Momentum(Estimator):
    """v <- beta v + (1 - beta) g, from v = g on: EF21-SGDM's estimator (Fatkhullin et al. 2023), with beta = 1 - eta.

    Each worker averages its own noise away, and says the average.
    """

    beta: float = 0.9

    def __post_init__(self) -> None:
        _share("momentum's beta", self.beta)

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros, and that nobody has begun."""
        return {"v": zeros((workers, theta.shape[-1]), theta), "rounds": zeros((workers, 1), theta)}

    def update(self, now: Record, state: State) -> tuple[Array, State]:
        """Return the running means."""
        # Of the state's own precision: a number times flags is not.
        beta = self.beta * minimum(state["rounds"], 1.0)
        v = beta * state["v"] + (1 - beta) * now.grad
        return v, {"v": v, "rounds": state["rounds"] + 1}


@dataclass(frozen=True)
class MomentumCorrection(Estimator):
    """u <- beta u + g, said in full, not as a mean; entries that were said are cleared in u as well.

    Momentum at the worker, before the sparsifier (deep gradient compression, Lin et al. 2017, section 3.2): with
    residual belief e <- e + u is what momentum SGD would add up, entry by entry, at whatever time it is said. Clearing
    what was said (momentum factor masking) stops stale momentum from carrying on.
    """

    beta: float = 0.9
    mask: bool = True
    """Whether what was said is cleared in u."""

    def __post_init__(self) -> None:
        _share("momentum's beta", self.beta)

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros."""
        return {"u": zeros((workers, theta.shape[-1]), theta)}

    def update(self, now: Record, state: State) -> tuple[Array, State]:
        """Return the momentum."""
        u = self.beta * state["u"] + now.grad
        return u, {"u": u}

    def said(self, decoded: Array, state: State) -> State:
        """Clear what was said."""
        return {"u": state["u"] * (decoded == 0)} if self.mask else state


@dataclass(frozen=True)
class Storm(Estimator):
    """v <- g + (1 - a)(v - g'), g' on the same minibatch at the model before (STORM, Cutkosky and Orabona 2019).

    The weight a is adapted per worker: a = max(1 / (k + 1), clip(sqrt(d2 / s2), least, 1)), where s2 and d2 are running
    averages of ||g' - v||^2, the estimate's error with a minibatch's noise, and of ||g - g'||^2, what the model's move
    changes, each at rate max(rate, 1 / k). Where the model moves little, a is small, and v averages many minibatches.
    """

    rate: float = 0.05
    least: float = 0.003
    probe: ClassVar[Probe | None] = "previous"

    def __post_init__(self) -> None:
        for name, value in {"rate": self.rate, "least weight": self.least}.items():
            if not 0 < value <= 1:
                raise LasgError(f"storm's {name} must be above 0 and at most 1, got {value!r}")

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros: nobody has computed."""
        numbers = {name: zeros((workers,), theta) for name in ("s2", "d2", "a", "rounds")}
        return {"v": zeros((workers, theta.shape[-1]), theta), **numbers}

    def update(self, now: Record, state: State) -> tuple[Array, State]:
        """Return the estimates."""
        rounds, first = state["rounds"], state["rounds"] == 0
        if now.probe is None or first.all():
            begun = {**state, "v": now.grad * 1.0, "a": rounds * 0 + 1, "rounds": rounds + 1}
            return begun["v"], begun
        rate = maximum(1 / maximum(rounds, 1.0), self.rate)
        s2 = state["s2"] + rate * (sq(now.probe - state["v"]) - state["s2"])
        d2 = state["d2"] + rate * (sq(now.grad - now.probe) - state["d2"])
        ratio = (d2 / maximum(s2, 1e-30)) ** 0.5
        a = maximum(1 / (rounds + 1), minimum(maximum(ratio, self.least), 1.0))
        a, s2, d2 = (keep * ~first for keep in (a, s2, d2))
        a = a + first  # who computes for the first time has nothing to correct
        v = now.grad + (1 - a)[:, None] * (state["v"] - now.probe)
        return v, {"v": v, "s2": s2, "d2": d2, "a": a, "rounds": rounds + 1}
