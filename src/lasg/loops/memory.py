"""Whether the memory of a host is enough for what its ranks will need, said before the first step."""

from __future__ import annotations

import json
import math
import socket
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from lasg.core.algorithms import choose_stages
from lasg.core.arrays import LONG
from lasg.core.optimizers import momentum_of
from lasg.core.rules import RULES
from lasg.core.stages import Stages
from lasg.errors import LasgError
from lasg.transports.links import Links
from lasg.transports.routes import assign_workers, choose_form


def check_memory(
    links: Links, stages: Stages, theta: Tensor, exchange: str = "auto", *, optimizer: float, move: bool = False
) -> None:
    """Refuse what does not fit into the memory that the host of any rank has free; all ranks refuse alike.

    `optimizer` are the vectors that the optimizer will keep. With `move` ranks say how far they moved, not gradients.
    Models that are not large, and those on other devices, are not looked at.
    """
    p = theta.shape[-1]
    if p <= LONG or theta.device.type != "cpu":
        return

    def need(stages: Stages) -> float:
        vectors = MOVE if move else vectors_of(stages, p, theta.itemsize, links.ranks, exchange)
        return (vectors + optimizer) * p * theta.itemsize

    own = json.dumps([socket.gethostname(), free_bytes()]).encode()
    said = [json.loads(data) for data in links.gather(own, "free memory")]
    for host in sorted({name for name, _ in said}):
        found = [free for name, free in said if name == host]
        least = min(math.inf if free is None else free for free in found)
        if need(stages) * len(found) > least:
            fewer = f", or start fewer than {len(found)} ranks there" if len(found) > 1 else ""
            raise LasgError(
                f"{p:,} parameters need about {_gigabytes(need(stages) * len(found))} of memory on {host} besides the "
                f"model, and {_gigabytes(least)} are free: {_advice(stages, need, len(found), move)}{fewer}"
            )


MOVE = 5
"""Vectors that a rank needs which says how far it moved: the model at the round's start, the residual and the sum; and
gradients, in whose place the move is later; and one while messages are made."""


def vectors_of(stages: Stages, p: int, itemsize: int, ranks: int, exchange: str) -> int:
    """Return how many vectors of a large model a rank needs at most besides its model and its optimizer's state."""
    gradients = 2  # autograd's own, and the worker's
    form = choose_form(p, itemsize, assign_workers(ranks, ranks), stages, exchange, requantise=True)
    room, aggregate = 1, 1
    models = {"last": 1, "previous": 1, "snapshot": 1, None: 0}[stages.probe]
    exact = stages.codec.exact and form == "summed"
    shared = exact and tuple(stages.rule.remembers) == ("grad",)
    remembered = 0 if shared else len(stages.rule.remembers)
    believed = ranks if form == "packed" and (stages.belief == "replace" or stages.robust) else 1
    if form == "packed" and stages.belief == "difference":
        believed += 1  # what a round's messages come to
    filtered = 0 if stages.estimator is None else 2
    return gradients + room + aggregate + models + remembered + believed + filtered


def vectors_kept(optimizer: torch.optim.Optimizer | None) -> int:
    """Return how many vectors an optimizer of torch keeps: a momentum, or two moments."""
    if optimizer is None:
        return 0
    if any("betas" in group for group in optimizer.param_groups):
        return 2
    return 1 if momentum_of(optimizer) or type(optimizer) is not torch.optim.SGD else 0


def free_bytes() -> int | None:
    """Return how many bytes of memory this host, or what it lets this process have, has free; None: nobody knows."""
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines())
        free = 1024 * int(lines["MemAvailable"].split()[0])
    except (OSError, KeyError, ValueError):
        return None
    try:
        most = int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii"))
        used = int(Path("/sys/fs/cgroup/memory.current").read_text(encoding="ascii"))
    except (OSError, ValueError):  # no group, or one without a limit
        return free
    return min(free, max(0, most - used))


def _advice(stages: Stages, need: Callable[[Stages], float], ranks: int, move: bool) -> str:
    """Return which setting needs less, and how much."""
    if not move:
        codec = "dense" if stages.codec.exact else "qsgd8:512"
        named = (f"{stages.rule.name}+{codec}+difference", "lag+dense+difference", "always+dense")
        known = [name for name in named if name.partition("+")[0] in RULES]  # not a rule of the user's own
        needs = {name: need(choose_stages(name, None, None, one_gradient=True)) for name in known}
        name = min(needs, key=lambda each: needs[each])
        if needs[name] < need(stages):
            return f"algorithm={name!r} needs {_gigabytes(needs[name] * ranks)}"
    return "an optimizer without momentum needs less"


def _gigabytes(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
