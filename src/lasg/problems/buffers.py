"""A module's buffers, one set per worker: what BatchNorm remembers of the minibatches that each worker has seen."""

from __future__ import annotations

import copy
import zlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from lasg.core.arrays import FloatArray
from lasg.errors import LasgError

ByteArray = npt.NDArray[np.uint8]

BatchNorms = (nn.modules.batchnorm._BatchNorm,)


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return copies of a module's parameters and buffers by the names of its state dict, as a file can hold them."""
    state = {name: value for name, value in module.state_dict().items() if isinstance(value, Tensor)}
    return {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in state.items()}


class Buffers:
    """The workers' own buffers, and one set for all made of them.

    They travel as bytes (`pack`, `unpack`): only those that training has changed, such as BatchNorm's; a mask or a
    positional encoding stays where it is.
    """

    def __init__(self, module: nn.Module, workers: int) -> None:
        self.module = module
        # By owner and name: a module may put a new tensor in a buffer's place.
        owned = [
            (part, name)
            for prefix, part in module.named_modules()
            for name, _ in part.named_buffers(prefix, recurse=False, remove_duplicate=False)
        ]
        self.names: list[str] = [name for _, name in owned]
        self.places = [(part, name.rpartition(".")[2]) for part, name in owned]
        self.start = [value.clone() for value in self.read()]
        self.own = [value.expand(workers, *value.shape).clone() for value in self.start]
        # An attention mask may hold -inf from the start, and may go on to.
        self._finite = [bool(torch.isfinite(value).all()) for value in self.start]

    def fresh(self) -> Buffers:
        """Return buffers as they were at the start, for another run on the same module."""
        other = copy.copy(self)
        other.own = [start.expand_as(own).clone() for start, own in zip(self.start, self.own, strict=True)]
        return other

    def reset(self) -> None:
        """Give every worker the buffers that the module came with."""
        for own, start in zip(self.own, self.start, strict=True):
            own.copy_(start.expand_as(own))

    def read(self) -> list[Tensor]:
        """Return the module's buffers as they are now."""
        return [cast("Tensor", part._buffers[name]) for part, name in self.places]

    def load(self, m: int) -> None:
        """Give the module a copy of worker m's buffers."""
        self._put([own[m].clone() for own in self.own])

    def _put(self, values: Sequence[Tensor]) -> None:
        for (part, name), value in zip(self.places, values, strict=True):
            part._buffers[name] = value

    def keep(self, m: int, values: Sequence[Tensor]) -> None:
        """Keep buffers as worker m's, unless they are not finite."""
        if self._not_finite(values) is None:
            for own, value in zip(self.own, values, strict=True):
                own[m].copy_(value)

    def _not_finite(self, values: Sequence[Tensor]) -> str | None:
        """Return the name of a buffer that was finite at the start and is not now, if there is one."""
        for name, value, finite in zip(self.names, values, self._finite, strict=True):
            if finite and not bool(torch.isfinite(value).all()):
                return name
        return None

    def load_pooled(self, weights: FloatArray) -> None:
        """Give the module one set for all: the mean, and of variances the one of all workers' samples together.

        Workers of weight 0 have no part in it; where all have, the buffers are those that the module came with.
        """
        who = np.flatnonzero(weights)
        if not len(who):
            self._put([start.clone() for start in self.start])
            return
        rows = self.own
        if len(who) < len(weights):
            rows, weights = [own[torch.as_tensor(who, device=own.device)] for own in rows], weights[who]
        self._put([_pooled(own, weights) for own in rows])
        index = {(id(part), name): own for (part, name), own in zip(self.places, rows, strict=True)}
        for part in {part for part, _ in self.places}:
            if isinstance(part, BatchNorms) and part.running_mean is not None and part.running_var is not None:
                apart = index[id(part), "running_mean"] - part.running_mean
                part.running_var = part.running_var + _mean(apart * apart, weights)

    # -- as they travel ---------------------------------------------------------------------------------------

    @property
    def layout(self) -> str:
        """What both ends must agree on: the buffers' names, dtypes and shapes, as a checksum."""
        kinds = [
            (name, str(start.dtype), tuple(start.shape)) for name, start in zip(self.names, self.start, strict=True)
        ]
        size = sum(start.nbytes for start in self.start)
        return f"{len(kinds)} of {size} bytes, {zlib.crc32(repr(kinds).encode()):08x}"

    def pack(self, m: int) -> tuple[list[int], ByteArray]:
        """Return worker m's buffers that are not as they were at the start: their numbers, and their bytes."""
        which = [i for i, start in enumerate(self.start) if not torch.equal(self.own[i][m], start)]
        parts = [self.own[i][m].reshape(-1).view(torch.uint8).cpu().numpy() for i in which]
        return which, np.concatenate([np.zeros(0, np.uint8), *parts])

    def unpack(self, which: Any, data: Any) -> list[Tensor]:
        """Undo `pack`, whoever sent it; what cannot be a worker's buffers is refused with the reason."""
        whole = isinstance(which, list) and all(type(i) is int and 0 <= i < len(self.start) for i in which)
        if not whole or which != sorted(set(which)):
            raise LasgError("its buffers are not named by their numbers")
        if not isinstance(data, np.ndarray) or data.dtype != np.uint8 or data.ndim != 1:
            raise LasgError("its buffers are not bytes")
        sizes = [self.start[i].nbytes for i in which]
        if len(data) != sum(sizes):
            raise LasgError(f"its buffers have {len(data)} bytes, not {sum(sizes)}")
        values = [start.clone() for start in self.start]
        for i, part in zip(which, np.split(data, np.cumsum(sizes)[:-1]), strict=True) if which else ():
            values[i] = _from_bytes(part, self.start[i], self.names[i])
        self._check(values)
        return values

    def _check(self, values: Sequence[Tensor]) -> None:
        """Refuse what no training leaves behind: numbers that are not finite, variances below 0."""
        name = self._not_finite(values)
        if name is not None:
            raise LasgError(f"its buffer {name} is not finite")
        for (part, own_name), name, value in zip(self.places, self.names, values, strict=True):
            if isinstance(part, BatchNorms) and own_name == "running_var" and bool((value < 0).any()):
                raise LasgError(f"its buffer {name}, a variance, is below 0")

    # -- what survives ----------------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {str(i): own for i, own in enumerate(self.own)}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        for i, own in enumerate(self.own):
            own.copy_(state[str(i)])


def _from_bytes(data: ByteArray, like: Tensor, name: str) -> Tensor:
    """Return bytes as a tensor of the dtype, shape and device of `like`."""
    if like.dtype == torch.bool and bool((data > 1).any()):
        raise LasgError(f"its buffer {name} is not of zeros and ones")
    return torch.from_numpy(data.copy()).view(like.dtype).reshape(like.shape).to(like.device)


def _pooled(own: Tensor, weights: FloatArray) -> Tensor:
    """Return one buffer for all: theirs where they agree, else the weighted mean; of counts the largest."""
    if bool((own == own[0]).all()):
        return own[0].clone()
    return _mean(own, weights) if own.is_floating_point() or own.is_complex() else own.amax(0)


def _mean(rows: Tensor, weights: FloatArray) -> Tensor:
    """Return the weighted mean over the first dimension."""
    mean: Tensor = torch.tensordot(torch.as_tensor(weights, dtype=rows.dtype, device=rows.device), rows, 1)
    return mean
