"""The sum of all ranks' vectors in two quantised hops: an all-reduce that carries messages of a codec.

Every rank encodes its vector in pieces and sends each piece to the rank that serves it. That rank decodes the pieces,
adds them in the order of the ranks, encodes the sum, and sends it to everybody, itself included: all ranks decode the
same messages, so they agree to the bit. A rank sends 2 (R - 1) / R messages, however many ranks there are; the messages
themselves to everybody would be R - 1. The price is a second rounding, of the sum, unbiased as the first.
"""

from __future__ import annotations

import torch
from torch import Tensor

from lasg import counter
from lasg.core.arrays import IntArray, add_to
from lasg.core.codecs import Codec
from lasg.core.messages import Uploads
from lasg.transports.routes import ONWARDS, PIECES, Route, Setup


class QuantisedSum:
    """Adds up one vector per rank, in every round."""

    def __init__(self, setup: Setup, codec: Codec, seed: int) -> None:
        self.setup, self.links, self.codec, self.seed, self.k = setup, setup.links, codec, seed, 0
        self.listener, self.owed, self.at_once = None, dict[str, Tensor](), 0
        self.route: Route = "hub" if setup.setting == "hub" else "scatter"
        links, pieces = setup.links, setup.pieces(setup.p, self.route)
        self.served = {rank: piece for rank, piece in pieces.items() if piece.stop > piece.start}
        """The piece that each serving rank adds up."""
        row = torch.empty(setup.p, dtype=setup.dtype)
        self._like = {rank: row[piece] for rank, piece in self.served.items()}
        lengths = {rank: self._length(len(like)) for rank, like in self._like.items()}
        self._room = {rank: torch.empty(length, dtype=torch.uint8) for rank, length in lengths.items()}
        if links.rank in lengths:
            links.open(PIECES, dict.fromkeys(links.others, lengths[links.rank]))
        links.open(ONWARDS, lengths)

    def size(self, own: Uploads) -> int:  # noqa: ARG002
        """Return the bytes of a message of the whole vector."""
        return self._length(self.setup.p)

    def choose(self, sizes: IntArray) -> Route:  # noqa: ARG002
        """Return the only route."""
        return self.route

    def _length(self, p: int) -> int:
        return self.codec.length(p) or 0  # it is known: otherwise the form would be another

    def outgoing(self, k: int, own: Uploads) -> dict[int, Tensor]:
        """Encode this rank's vector of round k, for each of those that serve a piece."""
        assert own.news is not None
        self.k = k
        row = self.links.wire(own.news.vector).to(self.setup.dtype)
        draws = self._draws(counter.QUANTISER, self.setup.p)
        return {rank: self._encode(row[piece], draws.cut(piece)) for rank, piece in self.served.items()}

    def finish(self, k: int, own: dict[int, Tensor], sizes: IntArray, route: Route) -> Tensor:  # noqa: ARG002
        """Return the sum of all ranks' vectors, in double precision."""
        links, messages = self.links, dict(self._room)
        sends = {}
        if links.rank in self.served:
            messages[links.rank] = self._sum_of_own_piece(own[links.rank])
            sends = dict.fromkeys(links.others, messages[links.rank])
        links.exchange(sends, messages, "sums", ONWARDS)
        total = torch.empty(self.setup.p, dtype=torch.float64)
        for rank, message in messages.items():
            total[self.served[rank]] = self._decode(message, rank)
        return total

    def _sum_of_own_piece(self, own: Tensor) -> Tensor:
        """Add up what all ranks say of the piece that this rank serves; return the message of the sum."""
        mine, parts = self.links.rank, {rank: torch.empty_like(own) for rank in self.links.others}
        self.links.receive(parts, "uploads", PIECES)
        parts[mine] = own
        total = torch.zeros(len(self._like[mine]), dtype=torch.float64)
        for rank in range(self.links.ranks):
            add_to(total, self._decode(parts[rank], mine))
        return self._encode(total.to(self.setup.dtype), self._draws(counter.SUM, len(total)))

    def _draws(self, purpose: int, count: int) -> counter.Draws:
        """Return uniform numbers, a function of (seed, purpose, rank, round)."""
        return counter.Draws(self.seed, self.k, [self.links.rank], count, purpose)

    def _encode(self, row: Tensor, draws: counter.Draws) -> Tensor:
        return torch.frombuffer(bytearray(self.codec.encode(row[None], draws)[0]), dtype=torch.uint8)

    def _decode(self, message: Tensor, rank: int) -> Tensor:
        """Return a message of the piece that a rank serves as a vector."""
        row: Tensor = self.codec.decode([message.numpy().tobytes()], self._like[rank])[0]
        return row
