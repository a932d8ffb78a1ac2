"""A rule of your own is one function: here, silence while no single entry of the gradient changed much."""

from typing import Any

import lasg


def largest_change(now: lasg.Record, last: lasg.Record) -> Any:
    """p times the largest squared change of an entry, on the same sample: at least WK2's sum of all of them."""
    change = now.grad - now.probe
    return change.shape[-1] * (change * change).max(-1)


# probe="last": also give the gradient at the model of the last upload, on the same minibatch.
rule = lasg.Rule(name="largest-change", left=largest_change, probe="last")

if __name__ == "__main__":
    spec = lasg.task("digits").spec("sgd", iterations=300)
    lasg.train(spec, folder="runs/sgd")  # to compare with: lasg report runs --task digits
    run = lasg.train(spec, rule=rule, folder="runs/own-rule")
    print(f"{run.trace['uploads'][-1]} uploads, SGD sends 3000; loss {run.trace['loss'][-1]:.4f}")
