"""What every rule really needs: uploads, downloads and gradients a round, and memory, beside the paper's table.

    python benchmarks/requirements.py [--task digits] [--rounds 300] [--data-dir DIR]

Counts come from the ledger. Memory is what stays between rounds, in vectors of length p, counted in the arrays that are
there after the last round: of one worker alone, as in a process of its own, and of a server that gets messages.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np

from lasg.core.algorithms import algorithm
from lasg.core.belief import Listener
from lasg.core.rules import RULES
from lasg.core.training import Hosted, Training
from lasg.core.workers import Workers
from lasg.problems.regression import Regression
from lasg.runs import factories
from lasg.runs.tasks import task
from lasg.theory.curvature import smoothness_from_below

NAMES = {"always": "sgd", "lag": "lag-wk", **{rule: f"lasg-{rule}" for rule in ("wk1", "wk2", "ps", "pse")}}


def vectors(node: Any, p: int, seen: set[int]) -> int:
    """Return how many vectors of length p are in nested state; an array that is there twice counts once."""
    if isinstance(node, dict):
        return sum(vectors(value, p, seen) for value in node.values())
    if isinstance(node, list | tuple):
        return sum(vectors(value, p, seen) for value in node)
    shape = getattr(node, "shape", ())
    if not shape or shape[-1] != p or id(node) in seen:
        return 0
    seen.add(id(node))
    return int(np.prod(shape[:-1], initial=1))


def lone_worker(simulation: Training) -> Workers:
    """Return worker 0 as a process of its own has it: it sends messages, and the server keeps its contribution."""
    whole, ids = simulation.workers, np.array([0])
    assert whole is not None
    oracle = Hosted(simulation.measurable, ids)
    return Workers(oracle, simulation.stages, theta=simulation.theta, ids=ids, seed=whole.seed, D=whole.D)


def row(name: str, rounds: int, where: str, data_dir: Path | None) -> list[str]:
    """Run one algorithm, with worker 0 also alone beside it, and return a row of the table."""
    spec = task(where).spec(name)
    simulation = factories.training(spec, factories.problem(spec, data_dir))
    alone, p = lone_worker(simulation), simulation.theta.shape[-1]
    listener = Listener(simulation.stages.belief, simulation.stages.codec, spec.workers, simulation.theta)
    for _ in range(rounds):
        request = simulation.server.open()
        computes, must = request.computes[alone.ids], request.must_upload[alone.ids]
        alone.answer(request._replace(computes=computes, must_upload=must))
        simulation.step()
    ledger, possible = simulation.ledger, rounds * spec.workers
    # Only WK1 has a snapshot: for the others it is a name for theta^0 that nobody reads.
    kept = alone.state()
    if not alone.rule.periodic:
        del kept["rule"]["snapshot"]
    worker = vectors(kept, p, set())
    server = vectors([simulation.server.state(), listener.state()], p, set())
    counts = [f"{count / possible:.2f}" for count in (ledger.uploads, ledger.downloads, ledger.gradients)]
    return [name, *counts, str(worker), f"{server} (M = {spec.workers})", f"{simulation.loss():.4f}"]


def main() -> None:
    """Print the table as Markdown."""
    parser = argparse.ArgumentParser(description="What every rule needs, measured.")
    parser.add_argument("--task", default="digits")
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--data-dir", type=Path)
    given = parser.parse_args()
    assert {algorithm(name).rule.name for name in NAMES.values()} == set(RULES)
    heads = ["algorithm", "uploads", "downloads", "gradients", "worker holds", "server holds", "loss"]
    print(
        f"{given.task}, {given.rounds} rounds; uploads, downloads and gradients a worker and round; memory in "
        "vectors of length p"
    )
    print("| " + " | ".join(heads) + " |\n|" + " --- |" * len(heads))
    for name in NAMES.values():
        print("| " + " | ".join(row(name, given.rounds, given.task, given.data_dir)) + " |", flush=True)

    problem = factories.problem(task(given.task).spec("sgd"), given.data_dir)
    if isinstance(problem, Regression):
        began = time.perf_counter()
        found = smoothness_from_below(problem)
        print(f"The L that runs are judged by, {found:.4g}, took {time.perf_counter() - began:.2f} s")


if __name__ == "__main__":
    main()
