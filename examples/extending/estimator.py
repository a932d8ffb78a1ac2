"""An estimator: what a worker contributes is a running mean of its gradients, so that an upload has less noise."""

from dataclasses import dataclass
from typing import Any

import lasg
from lasg.core.algorithms import Stages
from lasg.core.arrays import zeros
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.rules import WK2, Record


@dataclass(frozen=True)
class RunningMean(lasg.Estimator):
    """m^k = beta m^{k-1} + (1 - beta) grad^k, per worker; m^0 = grad^0."""

    beta: float = 0.8

    def init(self, workers: int, theta: Any) -> dict[str, Any]:
        return {"mean": zeros((workers, theta.shape[-1]), theta), "rounds": zeros((workers, 1), theta)}

    def update(self, now: Record, state: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # A row per worker that computed: one may begin late in a run, so rounds are counted.
        beta = self.beta * (state["rounds"] > 0)
        mean = beta * state["mean"] + (1 - beta) * now.grad
        return mean, {"mean": mean, "rounds": state["rounds"] + 1}


def train(estimator: lasg.Estimator | None, rounds: int = 300) -> lasg.Training:
    """Train WK2 on digits with an estimator."""
    spec = lasg.task("digits").spec("lasg-wk2")
    problem = lasg.problem(spec)
    stages = Stages(rule=WK2, estimator=estimator)
    training = lasg.Training(problem, ClosedFormSGD(problem.start(), Constant(spec.eta)), stages, spec.laziness)
    for _ in range(rounds):
        training.step()
    return training


if __name__ == "__main__":
    for estimator in (None, RunningMean()):
        training = train(estimator)
        print(f"{estimator}: {training.ledger.uploads} uploads, loss {training.loss():.4f}")
