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
    simulation = lasg.simulation(lasg.task("digits").spec("sgd"), rule=rule)
    while simulation.ledger.rounds < 300:
        simulation.step()
    print(f"{simulation.ledger.uploads} uploads, SGD sends 3000; loss {simulation.loss():.4f}")
