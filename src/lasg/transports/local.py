"""All workers stacked in one process, for research and tables: the transport that carries nothing."""

from __future__ import annotations

from typing import Any

from lasg.core.algorithms import Stages
from lasg.core.belief import Belief
from lasg.core.codecs import Dense
from lasg.core.estimators import Estimator
from lasg.core.optimizers import Optimizer
from lasg.core.own_codec import CodecLike, as_codec
from lasg.core.rules import Rule
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.transport import Local, Problem

__all__ = ["Local", "simulate"]


def simulate(
    problem: Problem,
    optimizer: Optimizer,
    *,
    rule: Rule,
    laziness: Laziness,
    codec: CodecLike | None = None,
    local_steps: int = 1,
    belief: Belief = "replace",
    estimator: Estimator | None = None,
    **options: Any,
) -> Training:
    """Return a simulated training; `options` are those of `Training`."""
    coder = as_codec(codec or Dense())
    stages = Stages(rule=rule, codec=coder, local_steps=local_steps, belief=belief, estimator=estimator)
    return Training(problem, optimizer, stages, laziness, Local(), **options)
