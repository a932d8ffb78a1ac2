"""How uploads get from rank to rank: vectors that are added up, or messages that everybody gets.

Sums are taken in the order of the ranks, in float64, by one rank or by all alike: all ranks agree to the bit.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from lasg.core.arrays import IntArray, host
from lasg.transports.links import Links, Pending
from lasg.transports.routes import ROUTES, Form, Route, split

DIRECT, PIECES, ONWARDS = 3, 4, 5
"""Channels: messages of one kind keep their order."""


class Carrier:
    """What both kinds of uploads share: the route, and the pieces that ranks serve."""

    def __init__(self, links: Links, setting: str, hub_rank: int, longest: list[int], onwards: int | None) -> None:
        """Get ready for uploads of up to `longest` bytes per rank (0: any), and for what is sent `onwards`."""
        self.links, self.setting, self.hub_rank = links, setting, hub_rank
        if not all(longest):
            return
        # A piece is rounded up, in entries or bytes.
        pieces = {rank: -(-size // links.ranks) + 8 for rank, size in enumerate(longest)}
        serves = set(range(links.ranks))
        if setting == "hub":
            pieces, serves = dict(enumerate(longest)), {hub_rank}
        if "direct" in ROUTES[setting]:
            links.open(DIRECT, dict(enumerate(longest)))
        if links.rank in serves:
            links.open(PIECES, pieces)
        links.open(ONWARDS, dict.fromkeys(serves, sum(pieces.values()) if onwards is None else onwards))

    def begin(self, own: Tensor | None, route: Route) -> list[Pending]:
        """Begin to send what this rank uploads: to everybody, or in pieces to those that serve them."""
        if own is None:
            return []
        if route == "direct":
            return self.links.start(dict.fromkeys(self.links.others, own), "uploads", DIRECT)
        pieces = {rank: own[piece] for rank, piece in self.pieces(len(own), route).items() if rank != self.links.rank}
        return self.links.start(pieces, "uploads", PIECES)

    def pieces(self, count: int, route: Route) -> dict[int, slice]:
        """Return which part of so many entries or bytes each rank serves that serves any."""
        return split(count, self.links.ranks, route, self.hub_rank)


class Remainder:
    """What rounding to the run's dtype has taken away so far; it goes along with what is rounded next."""

    def __init__(self, p: int, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.owed = None if dtype == torch.float64 else torch.zeros(p, dtype=torch.float64)
        self._rounded, self._wide = torch.empty(0, dtype=dtype), torch.empty(0, dtype=torch.float64)

    def round(self, values: Tensor, where: slice = slice(None)) -> Tensor:
        """Return values in the run's dtype, good until the next call; what that takes away is owed, and then paid."""
        if self.owed is None:
            return values.to(self.dtype)
        wanted = self.owed[where]
        wanted += values
        self._rounded, self._wide = self._rounded.resize_(len(wanted)), self._wide.resize_(len(wanted))
        rounded = self._rounded.copy_(wanted)
        wanted -= self._wide.copy_(rounded)
        return rounded


class Sums(Carrier):
    """Vectors of the run's dtype that are added up: of those that upload, or in every round of everybody."""

    def __init__(self, links: Links, setting: str, hub_rank: int, p: int, dtype: torch.dtype, form: Form) -> None:
        dense = p * dtype.itemsize
        whole = dense if setting == "hub" else -(-dense // links.ranks) + 8
        super().__init__(links, setting, hub_rank, [dense] * links.ranks, whole)
        self.p, self.dtype, self.form = p, dtype, form
        # Vectors as long as the model are made once: new ones in every round would cost more than the sums. Of totals
        # there are two, since the server has the last one while the next is made.
        self._received: dict[int, Tensor] = {}
        self._wide, *self._totals = (torch.empty(0, dtype=torch.float64) for _ in range(3))
        # Of this rank's uploads, and of the sums of the piece that it serves.
        self.own = Remainder(p, dtype) if form == "summed" else None
        self.served = Remainder(p, dtype) if form == "summed" else None

    def outgoing(self, vector: Tensor) -> Tensor:
        """Return a vector as it travels."""
        return vector.to(self.dtype) if self.own is None else self.own.round(vector)

    def finish(self, own: Tensor | None, lengths: IntArray, route: Route) -> Tensor:
        """Return the sum of what all uploading ranks sent."""
        uploading = np.flatnonzero(lengths).tolist()
        return self._direct(own, uploading) if route == "direct" else self._served(own, uploading, route)

    def _direct(self, own: Tensor | None, uploading: list[int]) -> Tensor:
        """Every uploader to everybody, who all add in the same order."""
        links = self.links
        received = self._room(uploading, self.p)
        links.receive(received, "uploads", DIRECT)
        if own is not None:
            received[links.rank] = own
        return self._sum([received[rank] for rank in uploading])

    def _served(self, own: Tensor | None, uploading: list[int], route: Route) -> Tensor:
        """Pieces to the ranks that serve them, their sums to everybody."""
        links = self.links
        pieces = self.pieces(self.p, route)
        mine = pieces.get(links.rank)
        result = links.empty(self.p, self.dtype)
        if mine is not None:
            length = mine.stop - mine.start
            received = self._room(uploading, length)
            links.receive(received, "uploads", PIECES)
            if own is not None:
                received[links.rank] = own[mine]
            total = self._sum([received[rank] for rank in uploading])
            result[mine] = total.to(self.dtype) if self.served is None else self.served.round(total, mine)
        sends = {} if mine is None else dict.fromkeys(links.others, result[mine])
        theirs = {rank: result[piece] for rank, piece in pieces.items() if rank != links.rank}
        links.exchange(sends, theirs, "sums", ONWARDS)
        return result if self.form == "totals" else result.double()

    def _room(self, uploading: list[int], length: int) -> dict[int, Tensor]:
        """Return room for what the other uploading ranks send."""
        for rank in uploading:
            if rank != self.links.rank and (rank not in self._received or len(self._received[rank]) != length):
                self._received[rank] = self.links.empty(length, self.dtype)
        return {rank: self._received[rank] for rank in uploading if rank != self.links.rank}

    def _sum(self, parts: list[Tensor]) -> Tensor:
        """Return the sum in double precision, in the given order; it is good until the call after the next."""
        total = self._totals.pop(0)
        self._totals.append(total)
        total.resize_(len(parts[0])).copy_(parts[0])
        for part in parts[1:]:
            # To add it as it is would take three times as long.
            total += self._wide.resize_(len(part)).copy_(part)
        return total


class Messages(Carrier):
    """Encoded messages, from whoever uploads to everybody, or to the hub alone."""

    def finish(self, own: Tensor | None, lengths: IntArray, route: Route) -> dict[int, Tensor]:
        """Return the messages of all uploading ranks, the bytes of each one after another."""
        payloads = self._room(own, lengths)
        if route == "direct":
            self.links.receive(self._of_others(payloads), "uploads", DIRECT)
        else:
            self._served(payloads, route)
        return payloads

    def at_hub(self, own: Tensor | None, lengths: IntArray) -> dict[int, Tensor]:
        """Return, at the hub, the messages of all uploading ranks."""
        payloads = self._room(own, lengths)
        self.links.receive(self._of_others(payloads), "uploads", PIECES)
        return payloads

    def _of_others(self, payloads: dict[int, Tensor]) -> dict[int, Tensor]:
        return {rank: payload for rank, payload in payloads.items() if rank != self.links.rank}

    def _room(self, own: Tensor | None, lengths: IntArray) -> dict[int, Tensor]:
        """Return this rank's messages, and room for the others'."""
        room = {rank: self.links.empty(int(lengths[rank])) for rank in np.flatnonzero(lengths).tolist()}
        return room if own is None else {**room, self.links.rank: own}

    def _served(self, payloads: dict[int, Tensor], route: Route) -> None:
        """Fill in the other ranks' messages: pieces to the ranks that serve them, which send on all they have."""
        links = self.links
        pieces = {rank: self.pieces(len(payload), route) for rank, payload in payloads.items()}
        serving = [rank for rank in range(links.ranks) if route == "scatter" or rank == self.hub_rank]

        def parts(server: int, to: int) -> list[Tensor]:
            """What a serving rank sends on: its piece of every upload but that of who gets it."""
            return [payloads[rank][pieces[rank][server]] for rank in sorted(payloads) if rank != to]

        sends = {}
        if links.rank in serving:
            others = self._of_others(payloads)
            links.receive(
                {rank: payload[pieces[rank][links.rank]] for rank, payload in others.items()}, "uploads", PIECES
            )
            sends = {to: torch.cat(parts(links.rank, to)) for to in links.others if parts(links.rank, to)}
        incoming = {server: parts(server, links.rank) for server in serving if server != links.rank}
        onwards = {server: links.empty(sum(map(len, some))) for server, some in incoming.items()}
        links.exchange(sends, onwards, "uploads", ONWARDS)
        for server, some in incoming.items():
            for part, data in zip(some, torch.split(onwards[server], [len(part) for part in some]), strict=True):
                part.copy_(data)


def cut_messages(payloads: dict[int, Tensor], sizes: IntArray, owners: IntArray) -> tuple[bytes, ...]:
    """Return the messages of the uploading workers, in their order; `sizes` are the bytes of each worker's."""
    who = np.flatnonzero(sizes > 0)
    messages = []
    for rank in sorted(payloads):
        data, start = host(payloads[rank]).tobytes(), 0
        for m in who[owners[who] == rank].tolist():
            messages.append(data[start : start + int(sizes[m])])
            start += int(sizes[m])
    return tuple(messages)
