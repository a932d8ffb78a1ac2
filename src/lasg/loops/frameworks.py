"""What the adapters for other libraries' loops share: known versions, DDP kept silent, figures, a file per rank."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from lasg.errors import LasgError, missing_extra
from lasg.loops.lazy_loop import LazyLoop, lazy

VERSIONS = {
    "accelerate": ("huggingface", "1.15", "2"),
    "transformers": ("huggingface", "5.17", "6"),
    "lightning": ("lightning", "2.6", "3"),
}
"""By package: the extra that brings it, the first version that the adapter knows, and the first that it does not."""


def require(package: str) -> None:
    """Refuse a package that is not installed, or one of a version that the adapter does not know."""
    extra, first, beyond = VERSIONS[package]
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        raise missing_extra(package, extra) from None
    if not _numbers(first) <= _numbers(found) < _numbers(beyond):
        raise LasgError(
            f"this adapter knows {package} {first} to below {beyond}, and {found} is installed: "
            f"pip install 'lasg[{extra}]'"
        )


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)[:2]]


def begin(model: nn.Module, optimizers: Sequence[Any], **settings: Any) -> LazyLoop:
    """Return a lazy loop whose steps the adapter counts, around what is inside a library's wrappers.

    A hook on the optimizer would not see a step that a GradScaler skipped. The ranks of such a library must stay
    together between rounds too, since it has collectives of its own.
    """
    inner = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]
    loop = lazy(unwrap(model), inner, **settings)
    loop.release()
    return loop


def unwrap(model: nn.Module) -> nn.Module:
    """Return the module inside DistributedDataParallel."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def silence_ddp(model: nn.Module) -> ExitStack:
    """Stop DistributedDataParallel from sending gradients, until the stack is closed."""
    stack = ExitStack()
    for part in model.modules():
        if isinstance(part, DistributedDataParallel):
            stack.enter_context(part.no_sync())
    return stack


def figures(loop: LazyLoop) -> dict[str, int]:
    """Return what loggers show: rounds, uploads of all ranks, and bytes that this rank sent."""
    return {
        "lasg_rounds": loop.rounds,
        "lasg_uploads": loop.ledger.uploads,
        "lasg_bytes_sent": int(loop.sent.sum()),
    }


def rank_file(place: str | Path, rank: int) -> Path:
    """Return where a rank keeps its own: in a checkpoint's folder, or beside its file."""
    return Path(place) / f"lasg_rank_{rank}.pt" if Path(place).is_dir() else Path(f"{place}.lasg_rank_{rank}.pt")


def save_rank(place: str | Path, loop: LazyLoop) -> None:
    """Write what this rank needs to go on: libraries save rank 0's model and optimizers only."""
    state = {
        "loop": loop.state_dict(),
        "model": loop.model.state_dict(),
        "optimizers": [optimizer.state_dict() for optimizer in loop.optimizers],
    }
    torch.save(state, rank_file(place, loop.rank))


def read_rank(place: str | Path, loop: LazyLoop) -> dict[str, Any]:
    """Read what this rank wrote."""
    path = rank_file(place, loop.rank)
    if not path.is_file():
        raise LasgError(
            f"the checkpoint has no {path.name}, which rank {loop.rank} needs to go on: every rank writes its own, so "
            "resume with as many ranks as before, each where it wrote"
        )
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def load_rank(place: str | Path, loop: LazyLoop) -> None:
    """Go on from what this rank wrote."""
    state = read_rank(place, loop)
    loop.model.load_state_dict(state["model"])
    for optimizer, saved in zip(loop.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    loop.load_state_dict(state["loop"])
