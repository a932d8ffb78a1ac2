"""Encoded messages between ranks, from whoever uploads: to everybody, or to a hub that tells their sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from lasg.core.arrays import IntArray, Remainder, host
from lasg.core.belief import Listener
from lasg.core.messages import Uploads
from lasg.transports.routes import AT_ONCE, DIRECT, HOP, ONWARDS, PIECES, ROUTES, Route, Setup, choose_route


class Messages:
    """Encoded messages, from whoever uploads to everybody."""

    def __init__(self, setup: Setup) -> None:
        self.setup, self.links = setup, setup.links
        self.listener: Listener | None = None
        self.owed: dict[str, Tensor] = {}
        allowed = ROUTES[setup.setting]
        self.route = allowed[0] if len(allowed) == 1 else None
        longest = (np.bincount(setup.owners, minlength=self.links.ranks) * (setup.length or 0)).tolist()
        if setup.length:
            setup.open(longest, setup.dense if setup.form == "relayed" else None)
        if self.route is None and 0 < max(longest) * (self.links.ranks - 1) <= HOP:
            self.route = "direct"  # what `choose_route` would say, whoever uploads
        self.at_once = 0
        """Messages of up to so many bytes leave for everybody before it is known what the others send: the same."""
        if self.route is None and not setup.length and self.links.ranks > 1:
            self.at_once = min(HOP // (self.links.ranks - 1), 2 * setup.dense // self.links.ranks)
            self.links.open(AT_ONCE, dict.fromkeys(self.links.others, self.at_once))

    def _lengths(self, sizes: IntArray) -> IntArray:
        """Return the bytes that each rank uploads, given those of each worker."""
        return np.bincount(self.setup.owners, np.maximum(sizes, 0), self.links.ranks).astype(np.int64)

    def choose(self, sizes: IntArray) -> Route:
        """Return the route of what has not left at once, by what each rank has to send."""
        lengths = self._lengths(sizes)
        return choose_route(self.setup, np.where(lengths > self.at_once, lengths, 0))

    def outgoing(self, k: int, own: Uploads) -> Tensor:  # noqa: ARG002
        """Return this rank's messages, one after another."""
        return torch.frombuffer(bytearray(b"".join(own.messages)), dtype=torch.uint8)

    def size(self, own: Uploads) -> IntArray:
        """Return the bytes of each message."""
        return np.array([len(message) for message in own.messages])

    def finish(self, k: int, own: Tensor | None, sizes: IntArray, route: Route) -> Any:  # noqa: ARG002
        """Return all messages, in the order of the workers."""
        payloads = self._room(own, sizes)
        short = {rank: payload for rank, payload in payloads.items() if len(payload) <= self.at_once}
        self.links.receive(short, "uploads", AT_ONCE)
        long = {rank: payload for rank, payload in payloads.items() if rank not in short}
        if route == "direct":
            self.links.receive(long, "uploads", DIRECT)
        elif long:
            self._served(long, route)
        return self._messages(payloads, sizes)

    def _room(self, own: Tensor | None, sizes: IntArray) -> dict[int, Tensor]:
        """Return this rank's messages, and room for the others'."""
        lengths = self._lengths(sizes)
        room = {rank: torch.empty(lengths[rank], dtype=torch.uint8) for rank in np.flatnonzero(lengths).tolist()}
        return room if own is None else {**room, self.links.rank: own}

    def _served(self, payloads: dict[int, Tensor], route: Route) -> None:
        """Fill in the other ranks' messages: pieces to the ranks that serve them, which send on all they have."""
        links = self.links
        pieces = {rank: self.setup.pieces(len(payload), route) for rank, payload in payloads.items()}
        serving = self.setup.pieces(0, route)

        def parts(server: int, to: int) -> list[Tensor]:
            """What a serving rank sends on: its piece of every upload but that of who gets it."""
            return [payloads[rank][pieces[rank][server]] for rank in sorted(payloads) if rank != to]

        sends = {}
        if links.rank in serving:
            incoming = {rank: payload[pieces[rank][links.rank]] for rank, payload in payloads.items()}
            links.receive(incoming, "uploads", PIECES)
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

    def __init__(self, setup: Setup, listener: Listener | None, remainder: Remainder) -> None:
        """Take, at the hub, who listens there, and what rounds the sum."""
        super().__init__(setup)
        self.listener, self.remainder = listener, remainder
        self.owed = {} if remainder.owed is None else {"owed_sum": remainder.owed}

    def finish(self, k: int, own: Tensor | None, sizes: IntArray, route: Route) -> Tensor:  # noqa: ARG002
        """Return the sum of all news, which the hub hears and tells."""
        links = self.links
        if self.listener is None:
            heard = torch.empty(self.setup.p, dtype=self.setup.dtype)
            links.receive({self.setup.hub_rank: heard}, "sums", ONWARDS)
            return heard
        payloads = self._room(own, sizes)
        links.receive(payloads, "uploads", PIECES)
        news = self.listener.take(self._messages(payloads, sizes), np.flatnonzero(sizes > 0), k=k)
        assert news is not None
        total: Tensor = self.remainder.round(links.wire(news.vector))
        links.exchange(dict.fromkeys(links.others, total), {}, "sums", ONWARDS)
        return total
