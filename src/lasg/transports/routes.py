"""How uploads get from rank to rank: in which form, over which route, and what carries them.

The forms, one per run:

- summed: each uploading rank sends the sum of its workers' news in the run's dtype. What rounding takes away
  stays with the sender and goes along with its next upload, so nothing is lost over the rounds.
- totals: the same where everybody uploads in every round, with the contributions themselves: their sum is the
  aggregate. A rank whose gradient was not finite sends its last one again.
- packed: the encoded messages themselves, to everybody.
- relayed: encoded messages to the hub, which alone hears them, and the dense sum from there.
- requantised: where everybody uploads in every round, encoded pieces to the ranks that serve them, and the encoded
  sum of each piece from there (`quantised_sum.py`). It rounds the sum, too, so it is for who asks for it.

The routes, one per round: `direct`, from the uploader to everybody; `scatter`, in pieces to the ranks, each of which
sums (or collects) its piece and sends it on; and `hub`, the same with one rank that does it all.

Both are chosen by lengths, never by measured time. Sums are taken in the order of the ranks, in float64, by one rank or
by all alike: all ranks agree to the bit.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lasg.core.algorithms import Stages
from lasg.core.arrays import IntArray, host
from lasg.core.belief import BLOCK, Listener
from lasg.core.messages import Uploads
from lasg.errors import LasgError
from lasg.transports.links import Links, Pending

Form = Literal["summed", "totals", "packed", "relayed", "requantised"]
Route = Literal["direct", "scatter", "hub"]
ROUTES: dict[str, tuple[Route, ...]] = {
    "auto": ("direct", "scatter"),
    "collective": ("direct", "scatter"),
    "direct": ("direct",),
    "scatter": ("scatter",),
    "hub": ("hub",),
}
"""What a user may set, and what it allows."""
HOP = 128 * 1024
"""Bytes that a link could carry while a message is under way: 50 Mbit/s and 20 ms, or 10 Gbit/s and 0.1 ms."""
DIRECT, PIECES, ONWARDS = 3, 4, 5
"""Channels: messages of one kind keep their order."""


class Setup(NamedTuple):
    """What all carriers need to know."""

    links: Links
    setting: str
    """What the user set: a key of `ROUTES`."""
    hub_rank: int
    owners: IntArray
    """The rank of each worker."""
    form: Form
    p: int
    dtype: torch.dtype
    length: int | None
    """The bytes of a message, if they are known before."""

    @property
    def dense(self) -> int:
        """The bytes of a dense vector."""
        return self.p * self.dtype.itemsize


def assign_workers(workers: int, ranks: int) -> IntArray:
    """Return the rank that hosts each worker: consecutive ones, as evenly as can be."""
    if ranks > workers:
        raise LasgError(f"{ranks} ranks for {workers} workers: a rank without a worker has nothing to do, start fewer")
    return np.arange(workers) * ranks // workers


def choose_form(
    p: int, itemsize: int, owners: IntArray, stages: Stages, setting: str, *, requantise: bool = False
) -> Form:
    """Return the form of a run's uploads.

    Packed messages go to everybody, one per uploader: in the worst round M of them, which must not be more than
    DistributedDataParallel sends. It is one form for all rounds: who missed a message cannot use the next. Messages as
    long as the vector are never shorter than their sum. `owners` are the ranks of the workers. `requantise` allows to
    round the sum as well, which is shorter from three ranks on.
    """
    codec, dense = stages.codec, p * itemsize
    length = codec.length(p, itemsize)
    if stages.robust is not None:  # a bound looks at every upload: their sum says too little
        return "packed"
    sums: Form = "totals" if stages.rule.left is None and stages.belief != "difference" else "summed"
    if length is not None and length >= dense:
        return sums
    # The sum of others' messages would be another algorithm's, and so would that of what is said once or in parts.
    again = requantise and sums == "totals" and stages.belief == "replace"
    if again and length and codec.unbiased and len(np.unique(owners)) > 2 and setting != "direct":
        return "requantised"
    if length is None or len(owners) * length <= 2 * dense:
        return "packed"
    # A rank with many workers sends one sum with fewer bytes than their messages.
    shorter = int(np.bincount(owners).max()) * length <= dense
    return "relayed" if setting == "hub" and shorter else sums


def choose_route(setup: Setup, sizes: IntArray) -> Route:
    """Return the route of a round's uploads, of which each rank has so many bytes; 0: it uploads nothing.

    The one whose busiest link carries least, among those that send no more than an all-reduce, 2 (R - 1) vectors.
    """
    ranks, total, largest = len(sizes), int(sizes.sum()), int(sizes.max())
    others, onwards = ranks - 1, total if setup.form == "packed" else setup.dense
    # The bytes over all links, and those of the busiest one with what its hops are worth.
    costs: dict[Route, tuple[int, int]] = {
        "direct": (others * total, others * largest + HOP),
        "scatter": (
            total * others // ranks + others * onwards,
            largest * others // ranks + onwards * others // ranks + 2 * HOP,
        ),
        "hub": (total + others * onwards, others * onwards + 2 * HOP),
    }
    allowed = ROUTES[setup.setting]
    fitting = [route for route in allowed if costs[route][0] <= 2 * others * setup.dense]
    return min(fitting or allowed, key=lambda route: costs[route][1])


class Remainder:
    """What rounding to the run's dtype has taken away so far; it goes along with what is rounded next."""

    def __init__(self, setup: Setup) -> None:
        # What stands for itself in every round owes nothing to the next.
        exact = setup.dtype == torch.float64 or setup.form == "totals"
        self.owed = None if exact else torch.zeros(setup.p, dtype=torch.float64)
        self._rounded = torch.empty(0, dtype=setup.dtype)

    def round(self, values: Tensor, where: slice = slice(None)) -> Tensor:
        """Return values in the run's dtype, good until the next call; what that takes away is owed, and then paid."""
        if self.owed is None:
            return values.to(self._rounded.dtype)
        owed = self.owed[where]
        rounded = self._rounded.resize_(len(owed))
        blocks = (torch.split(vector, BLOCK) for vector in (owed, values, rounded))
        for wanted, value, short in zip(*blocks, strict=True):
            wanted += value
            wanted -= short.copy_(wanted)
        return rounded


class Carrier:
    """What carries a run's uploads, in one of the forms."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.links = setup, setup.links
        self.in_every_round = setup.form in ("totals", "requantised")
        """Whether all ranks send in every round, whoever uploads."""
        allowed = ROUTES[setup.setting]
        self.route: Route | None = allowed[0] if len(allowed) == 1 else None
        """The route, where it does not depend on who uploads: then uploads leave together with the flags."""
        self.listener: Listener | None = None
        """Who hears messages for all ranks, where one does."""
        self.remainders: dict[str, Remainder] = {}
        """What rounding has taken away, by the name under which it is checkpointed."""

    def open(self, longest: list[int], onwards: int | None = None) -> None:
        """Get ready for uploads of up to `longest` bytes per rank, and for what is sent `onwards`: by default, all."""
        links = self.links
        # A piece is rounded up, in entries or bytes.
        pieces = {rank: -(-size // links.ranks) + 8 for rank, size in enumerate(longest)}
        serves = set(range(links.ranks))
        if self.setup.setting == "hub":
            pieces, serves = dict(enumerate(longest)), {self.setup.hub_rank}
        if "direct" in ROUTES[self.setup.setting]:
            links.open(DIRECT, dict(enumerate(longest)))
        if links.rank in serves:
            links.open(PIECES, pieces)
        links.open(ONWARDS, dict.fromkeys(serves, sum(pieces.values()) if onwards is None else onwards))

    def pieces(self, count: int, route: Route) -> dict[int, slice]:
        """Return which part of so many entries or bytes each rank serves that serves any."""
        if route == "hub":
            return {self.setup.hub_rank: slice(0, count)}
        ranks = self.links.ranks
        return {rank: slice(count * rank // ranks, count * (rank + 1) // ranks) for rank in range(ranks)}

    def of_others(self, by_rank: dict[int, Tensor]) -> dict[int, Tensor]:
        """Return what is not of this rank, or for it."""
        return {rank: tensor for rank, tensor in by_rank.items() if rank != self.links.rank}

    def size(self, own: Uploads) -> IntArray | int:
        """Return the bytes of each of this rank's uploads."""
        return own.bits // 8 // own.uploads

    def lengths(self, sizes: IntArray) -> IntArray:
        """Return the bytes that each rank uploads, given those of each worker."""
        return np.bincount(self.setup.owners, np.maximum(sizes, 0), self.links.ranks).astype(np.int64)

    def choose(self, sizes: IntArray) -> Route:
        """Return the route of a round, given the bytes of each worker's upload."""
        return choose_route(self.setup, self.lengths(sizes))

    def outgoing(self, k: int, own: Uploads) -> Any:
        """Return what this rank uploads in round k, as it travels."""
        raise NotImplementedError

    def send(self, own: Any, route: Route) -> list[Pending]:
        """Begin to send what this rank uploads: to everybody, or in pieces to those that serve them."""
        if route == "direct":
            return self.links.start(dict.fromkeys(self.links.others, own), "uploads", DIRECT)
        pieces = {rank: own[piece] for rank, piece in self.pieces(len(own), route).items()}
        return self.links.start(self.of_others(pieces), "uploads", PIECES)

    def finish(self, own: Any, sizes: IntArray, route: Route) -> Any:
        """Return the sum of what all ranks sent, or the messages in the order of the workers.

        `own` is None where this rank sent nothing; `sizes` are the bytes of each worker's upload.
        """
        raise NotImplementedError


class Sums(Carrier):
    """Vectors of the run's dtype that are added up: of those that upload, or in every round of everybody."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        dense, ranks = setup.dense, self.links.ranks
        self.open([dense] * ranks, dense if setup.setting == "hub" else -(-dense // ranks) + 8)
        one, all_ranks = (choose_route(setup, np.where(np.arange(ranks) < n, dense, 0)) for n in (1, ranks))
        if self.in_every_round or one == all_ranks:
            self.route = all_ranks
        # Of this rank's uploads, and of the sums of the piece that it serves.
        self.remainders = {"owed": Remainder(setup), "owed_sum": Remainder(setup)}
        # Vectors as long as the model are made once: new ones in every round would cost more than the sums.
        self._received: dict[int, Tensor] = {}
        self._total = torch.empty(0, dtype=torch.float64)

    def lengths(self, sizes: IntArray) -> IntArray:
        """Return the bytes that each rank uploads: a vector, whoever of its workers does."""
        return np.where((super().lengths(sizes) > 0) | self.in_every_round, self.setup.dense, 0)

    def outgoing(self, k: int, own: Uploads) -> Tensor:  # noqa: ARG002
        """Return the sum of this rank's news as it travels."""
        assert own.news is not None
        return self.remainders["owed"].round(self.links.wire(own.news.vector))

    def finish(self, own: Tensor | None, sizes: IntArray, route: Route) -> Tensor:
        """Return the sum of what all uploading ranks sent."""
        uploading = np.flatnonzero(self.lengths(sizes)).tolist()
        if route == "direct":
            return self._sum(own, uploading, slice(0, self.setup.p), DIRECT)
        links = self.links
        pieces = self.pieces(self.setup.p, route)
        result = torch.empty(self.setup.p, dtype=self.setup.dtype)
        sends = {}
        if links.rank in pieces:
            mine = pieces[links.rank]
            result[mine] = self.remainders["owed_sum"].round(self._sum(own, uploading, mine, PIECES), mine)
            sends = dict.fromkeys(links.others, result[mine])
        theirs = {rank: result[piece] for rank, piece in pieces.items()}
        links.exchange(sends, self.of_others(theirs), "sums", ONWARDS)
        return result

    def _sum(self, own: Tensor | None, uploading: list[int], where: slice, channel: int) -> Tensor:
        """Receive a piece of what ranks upload; return its sum, good until the next call."""
        length = where.stop - where.start
        for rank in uploading:
            if rank not in self._received or len(self._received[rank]) != length:
                self._received[rank] = torch.empty(length, dtype=self.setup.dtype)
        parts = {rank: self._received[rank] for rank in uploading}
        self.links.receive(self.of_others(parts), "uploads", channel)
        if own is not None:
            parts[self.links.rank] = own[where]
        if len(parts) == 1 and not self.in_every_round:
            return parts[uploading[0]]
        blocks = (torch.split(vector, BLOCK) for vector in (self._total.resize_(length), *parts.values()))
        for total, first, *others in zip(*blocks, strict=True):
            total.copy_(first)
            for part in others:
                total += part
        return self._total


class Messages(Carrier):
    """Encoded messages, from whoever uploads to everybody."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        longest = (np.bincount(setup.owners, minlength=self.links.ranks) * (setup.length or 0)).tolist()
        if setup.length:
            self.open(longest, setup.dense if setup.form == "relayed" else None)
        if self.route is None and 0 < max(longest) * (self.links.ranks - 1) <= HOP:
            self.route = "direct"  # what `choose_route` would say, whoever uploads

    def outgoing(self, k: int, own: Uploads) -> Tensor:  # noqa: ARG002
        """Return this rank's messages, one after another."""
        return torch.frombuffer(bytearray(b"".join(own.messages)), dtype=torch.uint8)

    def size(self, own: Uploads) -> IntArray:
        """Return the bytes of each message."""
        return np.array([len(message) for message in own.messages])

    def finish(self, own: Tensor | None, sizes: IntArray, route: Route) -> Any:
        """Return all messages, in the order of the workers."""
        payloads = self._room(own, sizes)
        if route == "direct":
            self.links.receive(self.of_others(payloads), "uploads", DIRECT)
        else:
            self._served(payloads, route)
        return self._messages(payloads, sizes)

    def _room(self, own: Tensor | None, sizes: IntArray) -> dict[int, Tensor]:
        """Return this rank's messages, and room for the others'."""
        lengths = self.lengths(sizes)
        room = {rank: torch.empty(lengths[rank], dtype=torch.uint8) for rank in np.flatnonzero(lengths).tolist()}
        return room if own is None else {**room, self.links.rank: own}

    def _served(self, payloads: dict[int, Tensor], route: Route) -> None:
        """Fill in the other ranks' messages: pieces to the ranks that serve them, which send on all they have."""
        links = self.links
        pieces = {rank: self.pieces(len(payload), route) for rank, payload in payloads.items()}
        serving = self.pieces(0, route)

        def parts(server: int, to: int) -> list[Tensor]:
            """What a serving rank sends on: its piece of every upload but that of who gets it."""
            return [payloads[rank][pieces[rank][server]] for rank in sorted(payloads) if rank != to]

        sends = {}
        if links.rank in serving:
            incoming = {rank: payload[pieces[rank][links.rank]] for rank, payload in payloads.items()}
            links.receive(self.of_others(incoming), "uploads", PIECES)
            sends = {to: torch.cat(parts(links.rank, to)) for to in links.others if parts(links.rank, to)}
        missing = {server: parts(server, links.rank) for server in serving if server != links.rank}
        onwards = {server: torch.empty(sum(map(len, some)), dtype=torch.uint8) for server, some in missing.items()}
        links.exchange(sends, onwards, "uploads", ONWARDS)
        for server, some in missing.items():
            for part, data in zip(some, torch.split(onwards[server], [len(part) for part in some]), strict=True):
                part.copy_(data)

    def _messages(self, payloads: dict[int, Tensor], sizes: IntArray) -> tuple[bytes, ...]:
        """Cut what the ranks sent into the messages of their workers."""
        data = b"".join(host(payloads[rank]).tobytes() for rank in sorted(payloads))
        ends = np.cumsum(sizes[sizes > 0]).tolist()
        return tuple(data[start:end] for start, end in zip([0, *ends], ends, strict=False))


class Relayed(Messages):
    """Encoded messages to the hub, which alone hears them, and the sum of what they say from there."""

    def __init__(self, setup: Setup, listener: Listener | None) -> None:
        """Take, at the hub, who listens there."""
        super().__init__(setup)
        self.listener, self.remainders = listener, {"owed_sum": Remainder(setup)}

    def finish(self, own: Tensor | None, sizes: IntArray, route: Route) -> Tensor:  # noqa: ARG002
        """Return the sum of all news, which the hub hears and tells."""
        links = self.links
        if self.listener is None:
            total = torch.empty(self.setup.p, dtype=self.setup.dtype)
            links.receive({self.setup.hub_rank: total}, "sums", ONWARDS)
            return total
        payloads = self._room(own, sizes)
        links.receive(self.of_others(payloads), "uploads", PIECES)
        news = self.listener.take(self._messages(payloads, sizes), np.flatnonzero(sizes > 0))
        assert news is not None
        total = self.remainders["owed_sum"].round(links.wire(news.vector))
        links.exchange(dict.fromkeys(links.others, total), {}, "sums", ONWARDS)
        return total
