"""A rule that knows its noise: LAG with one gradient per round, less what gradients change by from round to round."""

from dataclasses import dataclass
from typing import Any

import lasg
from lasg.core.arrays import sq, zeros
from lasg.core.rules import Record


@dataclass(frozen=True)
class Noise:
    """Keeps, of every round, the last gradient and a running mean of its squared change: nearly all of it is noise."""

    memory: float = 0.9

    def init(self, workers: int, theta: Any) -> dict[str, Any]:
        return {"grad": zeros((workers, theta.shape[-1]), theta), "floor": zeros((workers,), theta)}

    def update(self, now: Record, state: dict[str, Any]) -> dict[str, Any]:
        floor = self.memory * state["floor"] + (1 - self.memory) * sq(now.grad - state["grad"])
        return {"grad": now.grad, "floor": floor}


def quiet(now: Record, last: Record) -> Any:
    """||grad^k - grad^{k-tau}||^2 less the floor: one number per worker, a reduction over the last dimension."""
    assert now.state is not None
    return sq(now.grad - last.grad) - now.state["floor"]


# remembers: the gradient of the last upload, as `last.grad`. watch: what the rule keeps of every round, as `now.state`.
RULE = lasg.Rule(name="quiet", left=quiet, remembers=("grad",), watch=Noise())

if __name__ == "__main__":
    spec = lasg.task("digits").spec("lag-wk", iterations=300)
    for rule in ("lag", RULE):
        run = lasg.train(spec, rule=rule, codec="dense", folder=f"runs/{getattr(rule, 'name', rule)}")
        print(f"{run.spec.algorithm}: {run.trace['uploads'][-1]} uploads, loss {run.trace['loss'][-1]:.4f}")
