"""Local steps that go on from a worker's own model, round after round, until all workers upload.

For rules that decide for all at once (`further_rules.fda`): in a round without uploads nobody's model changes but by
its own steps, and the server's stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lasg.core.arrays import Array, FloatArray, cast, namespace, norms, zeros
from lasg.core.codecs import State
from lasg.core.work import Gradients, OptimizerSteps, Work

_OWN = ("local", "sync", "xi", "models", "goes_on")
"""Names in the state that are not the inner steps'."""
SMALLEST = float(np.finfo(np.float32).tiny)


@dataclass(frozen=True)
class LocalModels(Work):
    """Local steps from where the worker's last ones ended; the contribution is all of (n_m / N) (theta - theta_m).

    A worker begins from the server's model after a round in which it uploaded or failed, and whenever the server's
    model has changed: so does one that missed a round, or forgot. Its state is `local`, the model where its steps
    ended; `sync`, the server's; `xi`, the unit direction of the server's last move, good from the second of its
    `models` on; and whether the worker `goes_on`.
    """

    by: OptimizerSteps

    def steps_of(self, k: int) -> range:
        """Return the numbers of round k's local steps."""
        return self.by.steps_of(k)

    def init(self, workers: int, theta: Array) -> State:
        """Return a state that knows of no model yet."""
        vectors = {name: zeros((workers, theta.shape[-1]), theta) for name in ("local", "sync", "xi")}
        return {
            **self.by.init(workers, theta),
            **vectors,
            **{name: zeros((workers,), theta) for name in ("models", "goes_on")},
        }

    def update(
        self, k: int, eta: float, gradients: Gradients, points: Sequence[Array], weights: FloatArray, state: State
    ) -> tuple[list[Array], State]:
        """Let every worker go on, or begin; return how far it is from the server's model, weighted."""
        theta, shares = points[0], cast(weights[:, None], points[0])
        start, known = _begin(theta, state)
        inner = {name: rows for name, rows in state.items() if name not in _OWN}
        [moved], inner = self.by.update(k, eta, gradients, [start], weights, inner)
        local = start - moved / shares
        return [shares * (theta - local)], {**inner, **known, "local": local}

    def begin_again(self, state: State) -> State:
        """Let workers begin from the server's model in their next round."""
        return {"goes_on": zeros((len(state["goes_on"]),), state["local"])}


def _begin(theta: Array, state: State) -> tuple[Array, State]:
    """Return where workers begin a round, and what they know of the server's models."""
    where = namespace(theta).where
    moved = theta - state["sync"]
    new = (moved != 0).any(-1) | (state["models"] == 0)
    start = where((new | (state["goes_on"] == 0))[:, None], theta, state["local"])
    known = {"sync": state["sync"], "xi": state["xi"], "models": state["models"]}
    if new.any():
        length = cast(np.maximum(norms(moved), SMALLEST)[:, None], theta)
        known = {
            "sync": zeros(moved.shape, theta) + theta,
            "xi": where(new[:, None], moved / length, state["xi"]),
            "models": state["models"] + (state["models"] < 2) * new,
        }
    return start, {**known, "goes_on": state["goes_on"] * 0 + 1}
