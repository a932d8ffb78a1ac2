"""The members of an elastic run: torchft's quorum says who they are, and its process group carries what they say.

A round of torchft's Manager: a quorum, messages, a commit. Who failed to commit while another did is behind, and gets
the state from it; so does who is new. torchft moves that state as pickles; `Fetching` leaves it to `elastic_state`.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from lasg.errors import LasgError, first_line, missing_extra

LENGTHS, CONTENTS = 1, 2
"""Tags: how long a message is, and the message."""
SLOWEST = 12_500.0
"""Bytes a second: a message that comes slower is lost."""
HEARTBEAT = 0.2
"""Seconds between two signs of life to the lighthouse."""
QUORUM_SECONDS = 15.0
"""How long a quorum is waited for before it is asked for again."""


class Unreachable(Exception):  # noqa: N818
    """There is no quorum, or not all of its members could be heard: ask for another one."""


def require_torchft() -> None:
    """Load torchft, without its log of every round; say what to install where it is missing."""
    os.environ.setdefault("RUST_LOG", "error")
    try:
        import torchft.manager  # noqa: F401
    except ImportError:
        raise missing_extra("torchft", "elastic") from None
    logging.getLogger("torchft.manager").setLevel(logging.CRITICAL)  # what goes wrong is said once, by `Unreachable`


def own_address(lighthouse: str) -> str:
    """Return the address of this machine that the lighthouse, and so the others, can reach."""
    place = urlsplit(lighthouse)
    try:
        family, _, _, _, address = socket.getaddrinfo(place.hostname, place.port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as error:
        raise LasgError(f"cannot find the lighthouse {lighthouse}: {error.strerror or error}") from None


def _plain(error: Exception) -> str:
    """Return what gloo says, without where in its source it was."""
    line = first_line(error)
    return (line.rpartition("] ")[2] or line).partition(". This is")[0]


class Group:
    """One member of the group. Only one thread uses it."""

    def __init__(self, lighthouse: str, replica: str, address: str, state_at: str, timeout: float) -> None:
        """Take the lighthouse's address, this member's name and address, where its state is, and the timeout."""
        self.lighthouse, self.replica, self.address, self.state_at = lighthouse, replica, address, state_at
        self.timeout = timeout
        self.behind: tuple[str, int] | None = None
        """Where to fetch the state of which round: set by a quorum that found this member behind."""
        self.step = 0
        self.generation = 0
        """How often the members have changed."""
        self._manager: Any = None
        self._applied: dict[str, Any] | None = None

    def _open(self) -> None:
        """Make a manager: its name is new to the lighthouse each time."""
        from torch.distributed import TCPStore  # type: ignore[attr-defined]
        from torchft import Manager

        limit = timedelta(seconds=self.timeout)
        self._store = TCPStore(self.address, 0, is_master=True, wait_for_workers=False)
        self._pg = _process_group(self.address, limit)
        try:
            self._manager = Manager(
                pg=self._pg,
                load_state_dict=lambda _: None,
                state_dict=dict,
                min_replica_size=1,
                timeout=limit,
                quorum_timeout=timedelta(seconds=QUORUM_SECONDS),
                connect_timeout=limit,
                rank=0,
                world_size=1,
                store_addr=self.address,
                store_port=self._store.port,
                lighthouse_addr=self.lighthouse,
                replica_id=self.replica,
                hostname=self.address,
                heartbeat_interval=timedelta(seconds=HEARTBEAT),
                checkpoint_transport=_transport(self.state_at, self._found_behind),
            )
        except (RuntimeError, TimeoutError) as error:
            raise Unreachable(f"the lighthouse {self.lighthouse} does not answer: {first_line(error)}") from None
        self._manager.load_state_dict({"step": self.step, "batches_committed": 0})

    def _found_behind(self, state_at: str, step: int) -> None:
        self.behind, self.step = (state_at, step), step

    def quorum(self) -> None:
        """Agree with the others on who is there; after it, `rank` and `size` say who this member is among how many."""
        if self._manager is None:
            self._open()
        self.behind = None
        try:
            self._manager.start_quorum()
            self._manager.wait_quorum()
        except Exception as error:  # torchft raises whatever its parts do; the next quorum begins from nothing
            self.close()
            raise Unreachable(f"no quorum: {first_line(error)}") from None
        self.generation = self._pg.generation
        failed = self._manager.errored()
        if failed is not None:
            self.fail(f"the members could not be connected: {_plain(failed.original_exception)}")

    @property
    def rank(self) -> int:
        """This member's place among the members, in the order of their names."""
        return int(self._pg.place)

    @property
    def size(self) -> int:
        """How many members there are."""
        return int(self._pg.members)

    def gather(self, data: bytes, wait: float) -> list[bytes]:
        """Return what every member said, in their order; wait so long for the slowest to begin."""
        n, me = self.size, self.rank
        others = [rank for rank in range(n) if rank != me]
        lengths = {rank: torch.zeros(1, dtype=torch.int64) for rank in others}
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        try:
            self._swap(torch.tensor([len(data)]), lengths, LENGTHS, self.timeout + wait)
            rooms = {rank: torch.empty(int(length), dtype=torch.uint8) for rank, length in lengths.items()}
            size = max([len(data), *map(len, rooms.values())])
            self._swap(own, rooms, CONTENTS, self.timeout + n * size / SLOWEST)
        except RuntimeError as error:
            self.fail(f"a member was lost: {_plain(error)}")
        rooms[me] = own
        return [rooms[rank].numpy().tobytes() for rank in range(n)]

    def _swap(self, own: Tensor, rooms: dict[int, Tensor], tag: int, seconds: float) -> None:
        """Send a tensor to all others, and receive theirs."""
        end = time.monotonic() + seconds
        works = [self._pg.recv([room], rank, tag) for rank, room in rooms.items() if room.numel()]
        works += [self._pg.send([own], rank, tag) for rank in rooms]
        for work in works:
            work.wait(timedelta(seconds=max(0.01, end - time.monotonic())))

    def commit(self) -> None:
        """End a round in which all was heard: this member is a round further."""
        if not self._manager.should_commit():
            raise Unreachable("the round could not be ended")
        self.step = self._manager.current_step()

    def fail(self, why: str) -> None:
        """End a round in which not all was heard: the next quorum connects the members again."""
        self._manager.report_error(RuntimeError(why))
        try:
            self._manager.should_commit()
        except RuntimeError:
            self.close()
        raise Unreachable(why)

    def go_to(self, step: int) -> None:
        """Begin, or go on, as a member that has the state of a round; 0: as one that has none."""
        self.step = step
        if self._manager is not None:
            self._manager.load_state_dict({"step": step, "batches_committed": 0})

    def close(self, linger: float = 0.0) -> None:
        """Leave: the lighthouse hears no more of this member; for so long the others may still read what it said."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.shutdown(wait=False)
            time.sleep(linger)
            self._pg.abort(errored=False)


def _process_group(address: str, timeout: timedelta) -> Any:
    """Return torchft's process group over gloo, at an address of this machine that the others can reach."""
    import torch.distributed as dist
    from torchft.process_group import ProcessGroupGloo

    class Gloo(ProcessGroupGloo):  # type: ignore[misc]
        """Knows its place, and which address it has: gloo's own guess is what the host's name resolves to."""

        generation, place, members = 0, 0, 0

        def configure(self, store_addr: str, replica_id: str, rank: int, world_size: int, *more: Any) -> None:
            super().configure(store_addr, replica_id, rank, world_size, *more)
            self.place, self.members = rank, world_size
            self.generation += 1

        def _create_pg(self, store: Any, rank: int, world_size: int) -> Any:
            made = dist.ProcessGroup(store, rank, world_size)
            kind: Any = dist.ProcessGroupGloo
            options = kind._Options()
            options._timeout, options._threads = self._timeout, 2
            options._devices = [kind.create_device(hostname=address)]
            backend = kind(store, rank, world_size, options)
            made._set_default_backend(dist.ProcessGroup.BackendType.GLOO)
            backend._set_sequence_number_for_group()
            made._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, backend)
            return made

    return Gloo(timeout=timeout)


def _transport(state_at: str, found_behind: Callable[[str, int], None]) -> Any:
    """Return what a manager takes for its transport of checkpoints: it tells where the state is, and moves none."""
    from torchft.checkpointing import CheckpointTransport

    class Fetching(CheckpointTransport[Any]):  # type: ignore[misc]
        """A manager waits for its transport, and everybody for the manager: so the state is fetched beside it."""

        def metadata(self) -> str:
            return state_at

        def send_checkpoint(self, dst_ranks: list[int], step: int, state_dict: Any, timeout: timedelta) -> None:
            """Do nothing: who is behind asks."""

        def recv_checkpoint(self, src_rank: int, metadata: str, step: int, timeout: timedelta) -> Any:  # noqa: ARG002
            found_behind(metadata, step)
            return {"user": {"default": {}}, "torchft": {"step": step, "batches_committed": 0}}

        def shutdown(self, wait: bool = True) -> None:
            """Do nothing: the state's server is the member's."""

    return Fetching()
