"""The links between the ranks of a process group: messages from one to another, and the bytes of each."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from lasg.core.arrays import IntArray
from lasg.errors import LasgError

TIMEOUT = 300.0
"""Seconds that a rank is waited for."""


def join(timeout: float = TIMEOUT) -> Links:
    """Join the process group that torchrun described, or be alone without one; return the links to the others.

    After a restart, ranks of the new attempt must not find the addresses of the last one in the store that all
    attempts share: each attempt has a part of it to itself.
    """
    if dist.is_initialized() or "RANK" not in os.environ:
        return Links(timeout=timeout)
    if not 0 < timeout < float("inf"):
        raise LasgError(f"timeout must be a number of seconds, got {timeout!r}")
    store, rank, ranks = next(iter(rendezvous("env://")))
    attempt = PrefixStore(f"lasg/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    limit = timedelta(seconds=timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=ranks, timeout=limit)
    return Links(timeout=timeout)


class Links:
    """What this rank sends to the others and receives from them. Without a process group it is alone."""

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = TIMEOUT) -> None:
        there = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank, self.ranks = (dist.get_rank(group), dist.get_world_size(group)) if there else (0, 1)
        self.device = torch.device("cpu")
        if there and dist.get_backend(group) == "nccl":
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.timeout = timedelta(seconds=timeout)
        self.sent: IntArray = np.zeros(self.ranks, np.int64)
        """Bytes that this rank sent, by who got them."""

    @property
    def others(self) -> list[int]:
        """The other ranks."""
        return [rank for rank in range(self.ranks) if rank != self.rank]

    def exchange(self, sends: Mapping[int, Tensor], receives: Mapping[int, Tensor], what: str) -> None:
        """Send a tensor to each of some ranks, receive one from each of some, all at once; wait for all of it.

        A received tensor is written into the one that is given. What is empty does not travel.
        """
        operations = [
            dist.P2POp(op, tensor, group=self.group, group_peer=rank)
            for op, tensors in ((dist.irecv, receives), (dist.isend, sends))
            for rank, tensor in tensors.items()
            if tensor.numel()
        ]
        if not operations:
            return
        for rank, tensor in sends.items():
            self.sent[rank] += tensor.numel() * tensor.element_size()
        try:
            works = dist.batch_isend_irecv(operations)
        except RuntimeError as error:
            raise LasgError(f"the link to the other ranks broke while {what} were sent: {_why(error)}") from None
        for operation, work in zip(operations, works, strict=False):
            try:
                work.wait(self.timeout)
            except RuntimeError as error:
                peer = operation.group_peer
                raise LasgError(
                    f"rank {self.rank} lost rank {peer} while {what} were exchanged: {_why(error)}"
                ) from None

    def gather(self, data: bytes, what: str) -> list[bytes]:
        """Return what each rank said here, of whatever length, in their order."""
        own = self.wire(np.frombuffer(data, np.uint8).copy())
        lengths = {rank: self.empty(1, torch.int64) for rank in self.others}
        length = self.wire(np.array([len(data)], np.int64))
        self.exchange(dict.fromkeys(self.others, length), lengths, what)
        received = {rank: self.empty(int(number)) for rank, number in lengths.items()}
        self.exchange(dict.fromkeys(self.others, own), received, what)
        received[self.rank] = own
        return [received[rank].cpu().numpy().tobytes() for rank in range(self.ranks)]

    def say(self, data: bytes, what: str) -> bytes:
        """Return what rank 0 said here, of whatever length; the others' `data` is not looked at."""
        length = int(self.copy_from(0, torch.tensor([len(data)], dtype=torch.int64), what))
        said = np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.empty(length, np.uint8)
        return self.copy_from(0, torch.from_numpy(said), what).numpy().tobytes()

    def copy_from(self, source: int, tensor: Tensor, what: str) -> Tensor:
        """Return one rank's tensor, on every rank."""
        if self.rank == source:
            self.exchange(dict.fromkeys(self.others, self.wire(tensor)), {}, what)
            return tensor
        received = self.empty(tensor.numel(), tensor.dtype)
        self.exchange({}, {source: received}, what)
        return received.reshape(tensor.shape).to(tensor.device)

    def agree(self, settings: Mapping[str, Any]) -> None:
        """Refuse to go on with ranks that were started otherwise; say what differs."""
        texts = [json.loads(data) for data in self.gather(json.dumps(dict(settings)).encode(), "settings")]
        for rank, other in enumerate(texts):
            for name, value in texts[0].items():
                if other.get(name) != value:
                    raise LasgError(
                        f"rank {rank} was started otherwise than rank 0: its {name} is {other.get(name)!r}, "
                        f"not {value!r}. Start all ranks with the same code and settings"
                    )

    def wire(self, values: Any) -> Tensor:
        """Return an array or a tensor as one that this group can carry."""
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return tensor.detach().to(self.device).contiguous()

    def empty(self, count: int, dtype: torch.dtype = torch.uint8) -> Tensor:
        """Return a tensor to receive into."""
        return torch.empty(count, dtype=dtype, device=self.device)


def _why(error: RuntimeError) -> str:
    """Return the sentence of a gloo error, without where in its source it was."""
    text = str(error).splitlines()[0]
    return text.rpartition("] ")[2] or text
