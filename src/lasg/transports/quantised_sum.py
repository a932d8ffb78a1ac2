"""The sum of all ranks' vectors in two quantised hops: an all-reduce that carries messages of a codec.

Every rank encodes its vector in pieces and sends each piece to the rank that serves it. That rank decodes the pieces,
adds them in the order of the ranks, encodes the sum, and sends it to everybody, itself included: all ranks decode the
same messages, so they agree to the bit. A rank sends 2 (R - 1) / R messages, however many ranks there are; the messages
themselves to everybody would be R - 1. The price is a second rounding, of the sum, unbiased as the first.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from lasg import counter
from lasg.core.arrays import Array
from lasg.core.codecs import Codec
from lasg.transports.links import Links, Pending


class QuantisedSum:
    """Adds up one vector per rank; `serving` are the ranks that add up a piece each."""

    def __init__(
        self,
        links: Links,
        codec: Codec,
        like: Tensor,
        *,
        serving: Sequence[int],
        seed: int,
        channels: tuple[int, int],
    ) -> None:
        self.links, self.codec, self.seed = links, codec, seed
        self.like, self.p = like.detach().cpu(), like.shape[-1]
        self._up, self._down = channels
        bounds = [self.p * i // len(serving) for i in range(len(serving) + 1)]
        pieces = zip(serving, bounds[:-1], bounds[1:], strict=True)
        self.pieces = {rank: slice(start, stop) for rank, start, stop in pieces if stop > start}
        if links.rank in self.pieces:
            links.open(self._up, dict.fromkeys(links.others, self._length(links.rank)))
        links.open(self._down, {rank: self._length(rank) for rank in self.pieces})
        self._own: dict[int, bytes] = {}

    def _length(self, rank: int) -> int:
        """Bytes of a message for the piece that a rank serves."""
        piece = self.pieces[rank]
        return self.message_length(piece.stop - piece.start)

    def message_length(self, p: int) -> int:
        """Bytes of a message of p entries: a codec whose sums are encoded again knows."""
        length = self.codec.length(p)
        assert length is not None
        return length

    def begin(self, k: int, vector: Array) -> list[Pending]:
        """Encode this rank's vector of round k, and begin to send its pieces to those that serve them."""
        links, row = self.links, self.links.wire(vector).to(self.like.dtype)
        draws = self._uniforms(counter.QUANTISER, k, self.p)
        self._own = {rank: self._encode(row[piece], draws[piece]) for rank, piece in self.pieces.items()}
        sends = {rank: _as_tensor(self._own[rank]) for rank in self.pieces if rank != links.rank}
        return links.start(sends, "uploads", self._up)

    def finish(self, k: int) -> Tensor:
        """Return the sum of all ranks' vectors of round k, in double precision."""
        links = self.links
        messages = {rank: links.empty(self._length(rank)) for rank in self.pieces}
        sends = {}
        if links.rank in self.pieces:
            messages[links.rank] = _as_tensor(self._sum_of_own_piece(k))
            sends = dict.fromkeys(links.others, messages[links.rank])
        theirs = {rank: message for rank, message in messages.items() if rank != links.rank}
        links.exchange(sends, theirs, "sums", self._down)
        total = torch.empty(self.p, dtype=torch.float64)
        for rank, piece in self.pieces.items():
            total[piece] = self._decode(messages[rank].numpy().tobytes(), self.like[piece])
        return total

    def _sum_of_own_piece(self, k: int) -> bytes:
        """Add up what all ranks say of the piece that this rank serves; return the message of the sum."""
        links, like = self.links, self.like[self.pieces[self.links.rank]]
        received = {rank: links.empty(self._length(links.rank)) for rank in links.others}
        links.receive(received, "uploads", self._up)
        total = torch.zeros(len(like), dtype=torch.float64)
        for rank in range(links.ranks):
            message = self._own[rank] if rank == links.rank else received[rank].numpy().tobytes()
            total += self._decode(message, like)
        return self._encode(total.to(like.dtype), self._uniforms(counter.SUM, k, len(like)))

    def _uniforms(self, purpose: int, k: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
        """Return uniform numbers, a function of (seed, purpose, rank, round)."""
        return counter.uniforms(counter.keys(self.seed, purpose, [self.links.rank], k)[0, 0], count)

    def _encode(self, row: Tensor, draws: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> bytes:
        return self.codec.encode(row[None], lambda: draws[None])[0]

    def _decode(self, message: bytes, like: Tensor) -> Tensor:
        row: Tensor = self.codec.decode([message], like)[0]
        return row


def _as_tensor(message: bytes) -> Tensor:
    return torch.frombuffer(bytearray(message), dtype=torch.uint8)
