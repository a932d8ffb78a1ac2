"""The links between the ranks of a process group: messages from one to another, and the bytes of each."""

from __future__ import annotations

import copy
import hashlib
import itertools
import json
import os
import time
import uuid
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

import lasg
from lasg.core.arrays import IntArray
from lasg.errors import LasgError, LostRank, first_line

Tensors = Mapping[int, Tensor]
"""By the rank that sends or gets them."""
TIMEOUT = 300.0
"""Seconds that a rank is waited for."""
CHANNELS = 8
"""Channels that links may have: a message on one does not wait for those on others."""
_numbers: defaultdict[dist.ProcessGroup | None, Iterator[int]] = defaultdict(lambda: itertools.count(1))
"""Numbers for channels that have not been used, in each group: a rank may be in more groups than another."""
SLOWEST = 12_500.0
"""Bytes a second, 100 kbit/s: a message that comes slower is lost."""
PATIENT = 7 * 24 * 3600.0
"""Seconds that may pass while a rank does what takes long: fetches data, measures the loss over all samples."""
RUN_WORD = "LASG_SECRET"
"""The environment variable with a word that all ranks of a run know, and nobody else."""
READY_BYTES = 1 << 20
"""For messages up to so long there is room before they come."""


def join(timeout: float = TIMEOUT) -> Links:
    """Join the process group that torchrun described, or be alone without one; return the links to the others.

    After a restart, ranks of the new attempt must not find the addresses of the last one in the store that all
    attempts share: each attempt has a part of it to itself.
    """
    if dist.is_initialized() or "RANK" not in os.environ:
        return Links(timeout=timeout)
    _check_timeout(timeout)
    store, rank, ranks = next(iter(rendezvous("env://")))
    attempt = PrefixStore(_attempt(store, rank, ranks, timeout), store)
    limit = timedelta(seconds=timeout)
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, store=attempt, rank=rank, world_size=ranks, timeout=limit)
    return Links(timeout=timeout)


def describe_code() -> str:
    """Return the version of lasg, with a short checksum of the code that all ranks must share."""
    folder = Path(lasg.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(path for part in ("core", "transports", "loops") for path in folder.glob(f"{part}/*.py")):
        digest.update(path.read_bytes())
    return f"{lasg.__version__} ({digest.hexdigest()[:8]})"


def leave() -> None:
    """Leave the process group, if there is one."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _place() -> str:
    """Return the name below which lasg writes to the store: whoever reaches it and knows no secret cannot guess it.

    Without a secret it is torchrun's --rdzv-id, which `--standalone` draws at random.
    """
    words = [os.environ.get(name, "") for name in (RUN_WORD, "TORCHELASTIC_RUN_ID")]
    return f"lasg/{hashlib.sha256(' '.join(words).encode()).hexdigest()[:32]}"


def _attempt(store: Store, rank: int, ranks: int, timeout: float) -> str:
    """Return a name that all ranks of this attempt share, and no other attempt has.

    Counts of restarts would not do: each host has its own. Rank 0 makes a name up; the others say that they have read
    it, and go on when rank 0 has seen them: whoever read the name of an earlier attempt reads again.
    """
    deadline = time.monotonic() + timeout
    own, place = uuid.uuid4().hex, _place()
    if rank == 0:
        store.set(f"{place}/attempt", own)
        for other in range(1, ranks):
            _until(lambda other=other: store.check([f"{place}/{own}/{other}"]), deadline, f"rank {other}")  # type: ignore[misc]
            store.set(f"{place}/{own}/seen/{store.get(f'{place}/{own}/{other}').decode()}", "yes")
        return f"{place}/{own}"
    found = ""

    def seen() -> bool:
        nonlocal found
        if not store.check([f"{place}/attempt"]):
            return False
        found = store.get(f"{place}/attempt").decode()
        store.set(f"{place}/{found}/{rank}", own)
        return store.check([f"{place}/{found}/seen/{own}"])

    _until(seen, deadline, "rank 0")
    return f"{place}/{found}"


def _until(done: Callable[[], bool], deadline: float, who: str) -> None:
    """Wait until something is done."""
    while not done():
        if time.monotonic() > deadline:
            raise LasgError(f"{who} did not come: is it running, and does it reach the rendezvous?")
        time.sleep(0.05)


class Links:
    """What this rank sends to the others and receives from them. Without a process group it is alone."""

    def __init__(self, group: dist.ProcessGroup | None = None, timeout: float = TIMEOUT) -> None:
        _check_timeout(timeout)
        there = dist.is_available() and dist.is_initialized()
        self.group = group
        self.rank, self.ranks = (dist.get_rank(group), dist.get_world_size(group)) if there else (0, 1)
        self.others = [rank for rank in range(self.ranks) if rank != self.rank]
        if there and dist.get_backend(group) == "nccl":
            # Messages between chosen ranks, some of them at any time, are what gloo can do and nccl cannot.
            members = dist.get_process_group_ranks(group) if group is not None else None
            self.group = dist.new_group(members, backend="gloo", timeout=timedelta(seconds=timeout))
        self.timeout = timeout
        self.sent: IntArray = np.zeros(self.ranks, np.int64)
        """Bytes that this rank sent, by who got them."""
        self.base = 0
        self._preposted: dict[tuple[int, int], tuple[Tensor, dist.Work]] = {}
        """Room for the next message of a rank on a channel, which is waited for before anybody asks for it."""

    def with_own_tags(self) -> Links:
        """Return the same links with channels of their own; all ranks must do so in the same order."""
        other = copy.copy(self)
        other._preposted, other.base, other.sent = {}, CHANNELS * next(_numbers[self.group]), np.zeros_like(self.sent)
        return other

    def open(self, channel: int, rooms: Mapping[int, int]) -> None:
        """Be ready, from now on, for messages of up to so many bytes from each of some ranks on a channel.

        A message for which the receiver is ready leaves at once; otherwise gloo asks first, which takes as long again
        as the message needs to arrive. Long messages gain little, and are not waited for.
        """
        for rank, room in rooms.items():
            if rank != self.rank and 0 < room <= READY_BYTES and (rank, channel) not in self._preposted:
                self._prepost(rank, channel, torch.empty(room, dtype=torch.uint8))

    def _prepost(self, rank: int, channel: int, room: Tensor) -> None:
        work = dist.irecv(room, group=self.group, tag=self.base + channel, group_src=rank)
        assert work is not None
        self._preposted[rank, channel] = room, work

    def exchange(self, sends: Tensors, receives: Tensors, what: str, channel: int = 0, extra: float = 0.0) -> None:
        """Send a tensor to each of some ranks, receive one from each of some, all at once; wait for all of it.

        A received tensor is written into the one that is given. What is empty, or this rank's own, does not travel.
        `extra` are seconds that the others may take besides.
        """
        started = self.start(sends, what, channel, extra)
        self.receive(receives, what, channel, extra)
        self.wait(started, what)

    def start(self, sends: Tensors, what: str, channel: int = 0, extra: float = 0.0) -> list[Pending]:
        """Begin to send; `wait` waits for the end of it."""
        sends = {rank: tensor for rank, tensor in sends.items() if rank != self.rank}
        for rank, tensor in sends.items():
            self.sent[rank] += tensor.nbytes
        return self._post(dist.isend, sends, what, channel, extra)

    def receive(self, receives: Tensors, what: str, channel: int = 0, extra: float = 0.0) -> None:
        """Receive a tensor from each of some ranks into the one that is given."""
        ready = {rank: tensor for rank, tensor in receives.items() if (rank, channel) in self._preposted}
        rest = {rank: tensor for rank, tensor in receives.items() if rank not in ready and rank != self.rank}
        posted = self._post(dist.irecv, rest, what, channel, extra)
        for rank, tensor in ready.items():
            if tensor.numel():
                room, work = self._preposted[rank, channel]
                with self._name_lost_rank(rank, what):
                    work.wait(self._limit(ready, extra))
                    tensor.copy_(room[: tensor.nbytes].view(tensor.dtype))
                    self._prepost(rank, channel, room)
        self.wait(posted, what)

    def wait(self, pending: list[Pending], what: str) -> None:
        """Wait for messages that are under way."""
        for one in pending:
            with self._name_lost_rank(one.rank, what):
                one.work.wait(one.limit)

    def _limit(self, tensors: Tensors, extra: float) -> timedelta:
        """Return how long messages may take: the timeout is for silence, and long ones need their time."""
        size = sum(tensor.nbytes for tensor in tensors.values())
        return timedelta(seconds=self.timeout + extra + size / SLOWEST)

    def _post(self, op: Any, tensors: Tensors, what: str, channel: int, extra: float) -> list[Pending]:
        """Begin to send to some ranks, or to receive from them."""
        peer, limit, pending = "group_dst" if op is dist.isend else "group_src", self._limit(tensors, extra), []
        for rank, tensor in tensors.items():
            if tensor.numel():
                with self._name_lost_rank(rank, what):
                    work = op(tensor, group=self.group, tag=self.base + channel, **{peer: rank})
                    pending.append(Pending(rank, work, limit))
        return pending

    @contextmanager
    def _name_lost_rank(self, rank: int, what: str) -> Iterator[None]:
        """Say in one line who was lost."""
        try:
            yield
        except RuntimeError as error:
            why = first_line(error).rpartition("] ")[2] or first_line(error)  # without where in gloo's source it was
            raise LostRank(f"rank {self.rank} lost rank {rank} while {what} were exchanged: {why}", rank) from None

    def gather(self, data: bytes, what: str, extra: float = 0.0) -> list[bytes]:
        """Return what each rank said here, of whatever length, in their order."""
        own = self.wire(np.frombuffer(data, np.uint8).copy())
        lengths = {rank: torch.empty(1, dtype=torch.int64) for rank in self.others}
        self.exchange(dict.fromkeys(self.others, torch.tensor([len(data)])), lengths, what, extra=extra)
        received = {rank: torch.empty(int(number), dtype=torch.uint8) for rank, number in lengths.items()}
        self.exchange(dict.fromkeys(self.others, own), received, what)
        received[self.rank] = own
        return [received[rank].cpu().numpy().tobytes() for rank in range(self.ranks)]

    def broadcast(self, data: bytes, what: str, extra: float = 0.0) -> bytes:
        """Return what rank 0 said here, of whatever length; the others' `data` is not looked at."""
        length = int(self.copy_from(0, torch.tensor([len(data)]), what, extra))
        said = np.frombuffer(data, np.uint8).copy() if self.rank == 0 else np.empty(length, np.uint8)
        return self.copy_from(0, torch.from_numpy(said), what).numpy().tobytes()

    def copy_from(self, source: int, tensor: Tensor, what: str, extra: float = 0.0) -> Tensor:
        """Return one rank's tensor, on every rank."""
        if self.rank == source:
            self.exchange(dict.fromkeys(self.others, self.wire(tensor)), {}, what)
            return tensor
        received = torch.empty(tensor.shape, dtype=tensor.dtype)
        self.exchange({}, {source: received}, what, extra=extra)
        return received.to(tensor.device)

    def agree(
        self,
        settings: Mapping[str, Any],
        what: str = "was started otherwise than rank 0",
        todo: str = "Start all ranks with the same code and settings",
    ) -> None:
        """Refuse to go on with ranks that say something else here; say what differs."""
        texts = [json.loads(data) for data in self.gather(json.dumps(dict(settings)).encode(), "settings")]
        for rank, other in enumerate(texts):
            for name, value in texts[0].items():
                if other.get(name) != value:
                    raise LasgError(f"rank {rank} {what}: its {name} is {other.get(name)!r}, not {value!r}. {todo}")

    def wire(self, values: Any) -> Tensor:
        """Return an array or a tensor as one that this group can carry."""
        tensor = values if isinstance(values, Tensor) else torch.from_numpy(values)
        return tensor.detach().cpu().contiguous()


class Pending(NamedTuple):
    """A message under way, to or from a rank."""

    rank: int
    work: dist.Work
    limit: timedelta


def _check_timeout(timeout: float) -> None:
    if isinstance(timeout, bool) or not isinstance(timeout, int | float) or not 0 < timeout < float("inf"):
        raise LasgError(f"timeout must be a number of seconds above 0, got {timeout!r}")
