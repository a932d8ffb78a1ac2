"""Messages that leave out blocks: a bit per block, then a message of the inner codec for each block that is said."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lasg.core.arrays import Array, IntArray, Mask, cast, copy, pick, put, zeros
from lasg.core.bit_packing import encode_varint, take_varint
from lasg.core.blocks import Blocks, join, part
from lasg.core.codecs import Codec, Noise, Shapes, State, StatefulCodec
from lasg.core.lowrank import LowRank
from lasg.errors import LasgError

LONGEST = (1 << 35) - 1
"""Bytes that the message of a block may say it has."""


@dataclass(frozen=True)
class BlockCodec(StatefulCodec):
    """A codec for every block by itself; a block of zeros is left out, and is decoded as zeros.

    The codec's scales, shares and states are then a block's own, and what a message says of one block does not depend
    on which others it says. A block's message has its length in front, in groups of 7 bits, unless the codec knows it
    or it is the last.
    """

    codec: Codec
    blocks: Blocks = Blocks()  # noqa: RUF009 (it is frozen)

    def __post_init__(self) -> None:
        if isinstance(self.codec, LowRank) and self.blocks.size is not None:
            raise LasgError(f"blocks{self.blocks.size} cuts matrices, which lowrank needs whole: take blocks alone")

    def for_shapes(self, shapes: Shapes) -> Codec:
        """Return the same for these tensors."""
        return replace(self, blocks=self.blocks.for_shapes(shapes))

    def init(self, workers: int, like: Array) -> State:
        """Return what the codec remembers of every block."""
        return join(codec.init(workers, like[where]) for where, codec in self._parts(len(like)))

    def init_decoder(self, workers: int, like: Array) -> State:
        """Return what the codec's decoder remembers of every block."""
        return join(codec.init_decoder(workers, like[where]) for where, codec in self._parts(len(like)))

    def _parts(self, p: int) -> tuple[tuple[slice, Codec], ...]:
        return _parts(self, p)

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        """Turn rows into messages; blocks that are left out keep their state."""
        said, after, draws = self.blocks.nonzero(rows), _copies(state), functools.cache(noise)
        bodies: list[dict[int, bytes]] = [{} for _ in said]
        for b, (where, codec) in enumerate(self._parts(rows.shape[-1])):
            who = np.flatnonzero(said[:, b])
            if not len(who):
                continue
            chosen = _chosen(who, len(said))
            mine, own = rows[chosen, where], functools.partial(_columns, draws, chosen, where)
            if isinstance(codec, StatefulCodec):
                messages, changed = codec.update(mine, own, pick(part(state, b), chosen))
                _put_part(after, b, chosen, changed)
            else:
                messages = codec.encode(mine, own)
            for i, message in zip(who.tolist(), messages, strict=True):
                bodies[i][b] = message
        return [self._pack(*it, rows) for it in zip(said, bodies, strict=True)], after

    def _pack(self, said: Mask, bodies: dict[int, bytes], like: Array) -> bytes:
        message = [np.packbits(said).tobytes()]
        for b, body in bodies.items():
            message += [encode_varint(len(body)) if self._says_length(b, said, like) else b"", body]
        return b"".join(message)

    def _says_length(self, b: int, said: Mask, like: Array) -> bool:
        """Tell whether the length of a block's message stands in front of it."""
        where, codec = self._parts(like.shape[-1])[b]
        known = codec.length(where.stop - where.start, int(like.itemsize))
        return known is None and bool(said[b + 1 :].any())

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows, as if they were the first."""
        return self.update_decoder(messages, like, self.init_decoder(len(messages), like))[0]

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        """Turn messages into rows, where that needs no noise."""
        return self._decode(messages, like, None, state)

    def decode_with(self, messages: Sequence[bytes], like: Array, noise: Noise, state: State) -> tuple[Array, State]:
        """Turn messages into rows."""
        return self._decode(messages, like, functools.cache(noise), state)

    def _decode(self, messages: Sequence[bytes], like: Array, draws: Noise | None, state: State) -> tuple[Array, State]:
        said, after = self.said(messages, len(like)), _copies(state)
        bodies = [self._split(*it, like) for it in zip(messages, said, strict=True)]
        rows = zeros((len(messages), len(like)), like)
        for b, (where, codec) in enumerate(self._parts(len(like))):
            who = np.flatnonzero(said[:, b])
            if not len(who):
                continue
            chosen, own = _chosen(who, len(said)), [bodies[i][b] for i in who.tolist()]
            if not isinstance(codec, StatefulCodec):
                rows[chosen, where] = cast(codec.decode(own, like[where]), rows)
                continue
            known = pick(part(state, b), chosen)
            if draws is None:
                decoded, changed = codec.update_decoder(own, like[where], known)
            else:
                noise = functools.partial(_columns, draws, chosen, where)
                decoded, changed = codec.decode_with(own, like[where], noise, known)
            _put_part(after, b, chosen, changed)
            rows[chosen, where] = cast(decoded, rows)
        return rows, after

    def said(self, messages: Sequence[bytes], p: int) -> Mask:
        """Return which blocks messages have, `(n, B)`; refuse what cannot be a message."""
        count = len(self._parts(p))
        head = -(-count // 8)
        if any(len(message) < head for message in messages):
            raise LasgError(f"a message of {count} blocks has {head} bytes at least, fewer came: refused")
        flags = np.frombuffer(b"".join(message[:head] for message in messages), np.uint8).reshape(len(messages), head)
        bits = np.unpackbits(flags, axis=-1).astype(np.bool_)
        if bits[:, count:].any():
            raise LasgError(f"a message has more blocks than the model, {count}: it is damaged")
        return bits[:, :count]

    def _split(self, message: bytes, said: Mask, like: Array) -> dict[int, bytes]:
        """Return the message of every block that a message has."""
        at, found = -(-len(said) // 8), {}
        for b in np.flatnonzero(said).tolist():
            where, codec = self._parts(len(like))[b]
            length = codec.length(where.stop - where.start, int(like.itemsize))
            if self._says_length(b, said, like):
                length, rest = take_varint(memoryview(message)[at:], LONGEST)
                at = len(message) - len(rest)
            end = len(message) if length is None else at + length
            if end > len(message):
                raise LasgError(f"the message of a block has {length} bytes, {len(message) - at} came: refused")
            found[b], at = message[at:end], end
        if at != len(message):
            raise LasgError(f"a message has {len(message) - at} bytes behind its last block: refused")
        return found

    def transmit_with(
        self, rows: Array, noise: Noise, encoder: State, decoder: State
    ) -> tuple[Array, int, State, State]:
        """Return the rows as decoded, by the way that the codec takes."""
        said, draws, p = self.blocks.nonzero(rows), functools.cache(noise), rows.shape[-1]
        after, heard = _copies(encoder), _copies(decoder)
        decoded, bits = zeros(rows.shape, rows), 8 * -(-len(self._parts(p)) // 8) * len(rows)
        for b, (where, codec) in enumerate(self._parts(p)):
            who = np.flatnonzero(said[:, b])
            length = codec.length(where.stop - where.start, int(rows.itemsize))
            # Where lengths are said, each row's is needed.
            for some in [] if not len(who) else [who] if length is not None else np.split(who, len(who)):
                chosen = _chosen(some, len(said))
                mine, own = rows[chosen, where], functools.partial(_columns, draws, chosen, where)
                if isinstance(codec, StatefulCodec):
                    states = pick(part(encoder, b), chosen), pick(part(decoder, b), chosen)
                    out, size, *changed = codec.transmit_with(mine, own, *states)
                    _put_part(after, b, chosen, changed[0])
                    _put_part(heard, b, chosen, changed[1])
                elif codec.exact and length is not None:
                    out, size = mine, 8 * length * len(some)
                else:
                    out, size = codec.transmit(mine, own)
                decoded[chosen, where] = cast(out, rows)
                bits += size
                if length is None and self._says_length(b, said[some[0]], rows):
                    bits += 8 * len(encode_varint(size // 8))
        return decoded, bits, after, heard

    @property
    def name(self) -> str:
        """The inner codec's, and that it is for blocks."""
        return f"{self.codec.name}+blocks{self.blocks.size or ''}"


@functools.lru_cache(maxsize=64)
def _parts(codec: BlockCodec, p: int) -> tuple[tuple[slice, Codec], ...]:
    """Return every block's place, and its codec."""
    inner = [codec.codec.for_shapes((shape,)) for shape in codec.blocks.tensors(p)]
    return tuple(zip(codec.blocks.slices(p), inner, strict=True))


def _chosen(who: IntArray, count: int) -> Any:
    """Return a slice where all rows are meant: a list of them would be copied."""
    return slice(None) if len(who) == count else who


def _columns(draws: Noise, chosen: Any, where: slice) -> Any:
    """Return the random numbers of a block: an entry has the same ones whichever blocks are said."""
    return draws()[chosen, where]


def _copies(state: State) -> State:
    return {name: copy(value) for name, value in state.items()}


def _put_part(state: State, b: int, who: Any, changed: State) -> None:
    put(state, who, {f"{b}.{name}": value for name, value in changed.items()})
