"""A device that refuses to meet the CPU: tensors that hold CPU memory, and say that they are elsewhere.

As on a GPU, an operation on tensors of both kinds is an error, but for single numbers and for index tensors; `.cpu()`
and `.to()` bring a tensor over. torch's own `meta` device holds no numbers, by which rules and codecs decide; this one
does.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

AWAY = torch.device("meta")
"""The device's name: one that needs no driver. Whether a tensor of ours is on it, its class says."""
TAKES_INDICES = {"aten.index.Tensor", "aten.index_put_.default", "aten.index_put.default"}


class Away(torch.Tensor):
    """A tensor on the other device."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Away:
        kind: Any = torch.Tensor._make_wrapper_subclass
        options = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        return kind(cls, held.size(), **options, device=AWAY, requires_grad=held.requires_grad)  # type: ignore[no-any-return]

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Away({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override]
        return call(func, args, kwargs or {})


def call(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Compute an operation on the memory that is held; refuse one that mixes devices."""
    tensors = [value for value in tree_flatten((args, kwargs))[0] if isinstance(value, torch.Tensor)]
    away = [value for value in tensors if isinstance(value, Away)]
    name = str(func)
    # Indices may be on the CPU; what they choose from, and what is written there, may not.
    meeting = [args[0], *args[2:]] if name in TAKES_INDICES and isinstance(args[0], Away) else tensors
    here = [
        value for value in meeting if isinstance(value, torch.Tensor) and not isinstance(value, Away) and value.dim()
    ]
    target = kwargs.pop("device", None) if "device" in kwargs else None
    moves = name in {"aten._to_copy.default", "aten.copy_.default", "aten.copy.default"}
    if away and here and not moves:
        raise AssertionError(f"{name} meets tensors of two devices, of shapes {[tuple(one.shape) for one in tensors]}")
    args, kwargs = tree_map(lambda value: value.held if isinstance(value, Away) else value, (args, kwargs))
    result = func(*args, **kwargs)
    if name == "aten.copy_.default" or (name.endswith(("_.default", "_.Tensor", "_.Scalar")) and tensors):
        return tensors[0]
    is_away = target == AWAY if target is not None else bool(away)
    return tree_map(lambda value: Away(value) if is_away and isinstance(value, torch.Tensor) else value, result)


class Elsewhere(TorchDispatchMode):
    """Sees tensors that are made: `torch.zeros(3)` stays on the CPU, `x.new_zeros(3)` is where x is."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return call(func, args, dict(kwargs or {}))


@contextmanager
def elsewhere() -> Iterator[None]:
    """Let the other device be there."""
    with Elsewhere():
        yield


def away(x: Any) -> torch.Tensor:
    """Bring numbers to the other device."""
    return Away(torch.as_tensor(x).clone())
