"""A rule of your own is one function: here, silence while the gradient's entries changed little in sum."""

from typing import Any

import lasg
from lasg.core.rules import Record, Rule


def total_change(now: Record, last: Record) -> Any:
    """The squared sum of all entries' changes, on the same sample: at least WK2's sum of their squares."""
    return abs(now.grad - now.probe).sum(-1) ** 2


# probe="last": also give the gradient at the model of the last upload, on the same minibatch.
rule = Rule(name="total-change", left=total_change, probe="last")

if __name__ == "__main__":
    spec = lasg.task("digits").spec("sgd", iterations=300)
    lasg.train(spec, folder="runs/sgd")  # to compare with: lasg report runs --task digits
    run = lasg.train(spec, rule=rule, folder="runs/own-rule")
    print(f"{run.trace['uploads'][-1]} uploads, SGD sends 3000; loss {run.trace['loss'][-1]:.4f}")
