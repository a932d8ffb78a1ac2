"""What every loop of a user's own needs: the ranks' shares, pooled buffers, states that torch saves."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from lasg.core.algorithms import Stages
from lasg.core.arrays import FloatArray, checksum
from lasg.core.training import Round, Training
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.problems.buffers import Buffers
from lasg.transports.links import Links
from lasg.transports.ranks import Ranks


class Listener(Protocol):
    """What is told of every round of a loop."""

    def heard(self, finished: Round, loss: Tensor | None) -> None:
        """Take note of a round, and of this rank's loss where the loop knows it."""
        ...

    def close(self) -> None:
        """The loop has ended."""
        ...


def share_of_ranks(weight: float | None, links: Links) -> FloatArray:
    """Return every rank's share of the objective."""
    own = 1 / links.ranks if weight is None else float(weight)
    gathered = b"".join(links.gather(np.float64(own).tobytes(), "weights"))
    shares = np.frombuffer(bytearray(gathered))  # torch warns of arrays that cannot be written to
    if not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        given = ", ".join(f"{share:g}" for share in shares)
        raise LasgError(f"the ranks' weights must sum to 1, as n_m / N do: they are {given}")
    return shares


def with_bound(stages: Stages, robust: str | None) -> Stages:
    """Return the stages with another bound on what one rank adds; without one, with the algorithm's own."""
    return stages if robust is None else dataclasses.replace(stages, robust=robust)  # type: ignore[arg-type]


def pool_buffers(links: Links, module: nn.Module, shares: FloatArray) -> None:
    """Give the module's buffers one value on all ranks, such as BatchNorm's statistics: those of all samples."""
    buffers = Buffers(module, links.ranks)
    own = pack({str(i): value for i, value in enumerate(buffers.read())})
    for rank, data in enumerate(links.gather(own, "buffers")):
        values = unpack(data, f"rank {rank}'s buffers")
        buffers.keep(rank, [values[str(i)] for i in range(len(values))])
    buffers.load_pooled(shares)


def warn_of_threads(links: Links) -> None:
    """Warn where the ranks of this host have more threads than it has cores: that is many times slower than fewer."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", links.ranks))
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if here > 1 and threads > 1 and here * threads > cores and os.environ.get("LOCAL_RANK", str(links.rank)) == "0":
        warnings.warn(
            f"{here} ranks of {threads} threads on {cores} cores will be slow: call torch.set_num_threads("
            f"{max(1, cores // here)}) on every rank, or start them with torchrun, which sets OMP_NUM_THREADS=1",
            stacklevel=3,
        )


def agree_on_model(training: Training, ranks: Ranks) -> None:
    """Let all ranks have one model: those whose model is not rank 0's take its, with a warning."""
    said = ranks.links.gather(str(checksum(training.theta)).encode(), "checksums")
    if differing := [rank for rank, other in enumerate(said) if other != said[0]]:
        training.synchronise(training.server.k, tuple(differing))


def as_tensors(node: Any) -> Any:
    """Return nested dicts with tensors for arrays, which torch.load(weights_only=True) takes."""
    if isinstance(node, dict):
        return {key: as_tensors(value) for key, value in node.items()}
    return torch.from_numpy(node) if isinstance(node, np.ndarray) else node


_CONTROL = {"tau", "smoothness", "streak", "slot", "sent"}
"""The small arrays that the core keeps in NumPy, where a state of lasg 0.1 has another place for them."""


def as_arrays(node: Any, live: Any, name: str = "") -> Any:
    """Undo `as_tensors`: what is NumPy in the live state, at the same place, becomes so again."""
    if isinstance(node, Mapping):
        there = live if isinstance(live, Mapping) else {}
        return {key: as_arrays(value, there.get(key), str(key)) for key, value in node.items()}
    was_numpy = isinstance(live, np.ndarray) or (live is None and name in _CONTROL)
    return node.cpu().numpy() if was_numpy and isinstance(node, Tensor) else node
