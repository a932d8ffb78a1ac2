"""What an upload looks like on the wire.

A codec has two methods. `encode` turns stacked rows `(n, p)` into one message per row; `decode` turns messages into
exactly the rows that the server uses. The bits of an upload are 8 x the length of its message. All else has defaults.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core.arrays import CACHED, Array, Codes, FloatArray, IntArray, cast, check_decoded, code_type, host, tiles
from lasg.core.message_bits import DIGITS, floats_of, integers_of, pack_bits, unpack_bits
from lasg.errors import Diverged, LasgError

# Gives uniform numbers in [0, 1), one per entry of the rows, drawn only if a codec asks for them. lasg's own
# (`counter.Draws`) also gives those of a part of the rows. Of long vectors they are in single precision.
Noise: TypeAlias = Callable[[], FloatArray]
# What a stage remembers: arrays by name, each with a row per worker.
State: TypeAlias = dict[str, Array]
# The shapes of the tensors that lie one after the other in a vector.
Shapes: TypeAlias = tuple[tuple[int, ...], ...]


def tensor_ends(shapes: Shapes, p: int) -> npt.NDArray[np.int64]:
    """Return where the tensors of a vector of p entries end; without shapes it is one tensor."""
    sizes = [math.prod(shape) for shape in shapes] or [p]
    if sum(sizes) != p:
        raise LasgError(f"tensors of {sum(sizes)} entries in all, and a vector of {p}: they do not fit")
    return np.cumsum(sizes)


class Codec(ABC):
    """How rows become messages and messages rows."""

    unbiased: ClassVar[bool] = False
    """Whether what is decoded is on average what was encoded: then sums of messages may be encoded again."""
    exact: ClassVar[bool] = False
    """Whether what is decoded is what was encoded, to the bit: then nobody encodes it where nothing travels."""

    @abstractmethod
    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows `(n, p)` into `n` messages."""

    @abstractmethod
    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn `n` messages into rows `(n, p)` of the kind of `like`, a vector `(p,)`."""

    def length(self, p: int, itemsize: int = 4) -> int | None:  # noqa: ARG002
        """Bytes of the message of a vector of p entries of so many bytes each; None where that is not known before."""
        return None

    def init(self, workers: int, like: Array) -> State:  # noqa: ARG002
        """Return what the encoder remembers of so many workers that have said nothing: nothing, for most codecs."""
        return {}

    def init_decoder(self, workers: int, like: Array) -> State:  # noqa: ARG002
        """Return what the decoder remembers of them."""
        return {}

    def for_shapes(self, shapes: Shapes) -> Codec:  # noqa: ARG002
        """Return the codec for vectors that are so many tensors, one after the other: itself, for most."""
        return self

    def transmit(self, rows: Array, noise: Noise) -> tuple[Array, int]:
        """Return the rows as the server sees them, and the bits that travelled for all of them.

        A codec that knows a shorter way to the same numbers than packing and unpacking takes it.
        """
        messages = self.encode(rows, noise)
        decoded = cast(self.decode(messages, rows[0]), rows)
        if decoded.shape != rows.shape:
            given, came = tuple(rows.shape), tuple(decoded.shape)
            raise LasgError(f"{self.name}.decode must give back rows {given}, one per message, got {came}")
        return decoded, 8 * sum(map(len, messages))

    @property
    def name(self) -> str:
        """What messages to the user call it."""
        return type(self).__name__


class StatefulCodec(Codec):
    """A codec that remembers: what it makes of a message depends on those before it, per worker.

    A state is a dict of arrays with a row per worker. Both sides keep one: it is part of belief, so it is in every
    checkpoint, and a lost upload changes neither.
    """

    @abstractmethod
    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        """Turn rows into messages; return them, and the new state of these workers, as new arrays."""

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        """Turn messages into rows; return them, and the decoder's new state of these workers, as new arrays."""
        return self.decode(messages, like), state

    def decode_with(
        self,
        messages: Sequence[bytes],
        like: Array,
        noise: Noise,  # noqa: ARG002
        state: State,
    ) -> tuple[Array, State]:
        """Do what `update_decoder` does, given the noise with which the messages were made."""
        return self.update_decoder(messages, like, state)

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages as if they were the first."""
        return self.update(rows, noise, self.init(len(rows), rows[0]))[0]

    def transmit_with(
        self, rows: Array, noise: Noise, encoder: State, decoder: State
    ) -> tuple[Array, int, State, State]:
        """Return the rows as the server sees them, their bits, and the new states of both sides.

        A codec that knows what it said without decoding it takes that way.
        """
        messages, encoder = self.update(rows, noise, encoder)
        decoded, decoder = self.decode_with(messages, rows[0], noise, decoder)
        return decoded, 8 * sum(map(len, messages)), encoder, decoder


class Integers(NamedTuple):
    """What an `IntegerCodec` says of n vectors."""

    scales: npt.NDArray[np.int32]
    """Integers `(n, q)` that change little from message to message: exponents, or float32 numbers as integers."""
    symbols: IntArray
    """An integer per entry, `(n, p)`."""


class IntegerCodec(Codec):
    """A codec that says an integer per entry, and a few numbers of a scale: `+ec` codes the integers (coded.py)."""

    dithered: ClassVar[bool] = False
    """Whether an entry's integer is floor(|x| + u) with the sign of x, u the noise: then `+ec` codes it given u."""

    @abstractmethod
    def quantise(self, rows: Array, noise: Noise) -> Integers:
        """Return what is said of rows `(n, p)`."""

    @abstractmethod
    def restore(self, said: Integers, like: Array) -> Array:
        """Return the rows `(n, p)` that it means."""

    @abstractmethod
    def scales(self, p: int) -> int:
        """Return q: how many scales a vector of p entries has."""

    @property
    def digits(self) -> int:
        """How many of the lowest bits of a scale nobody can foresee."""
        return DIGITS

    @property
    @abstractmethod
    def limit(self) -> int:
        """The largest magnitude of an entry's integer."""

    def norm(self, p: int) -> float | None:  # noqa: ARG002
        """Return the norm of p entries before they are rounded, in units of their integers, if it is always one."""
        return None


@dataclass(frozen=True)
class Dense(Codec):
    """The entries as they are, little-endian, in the run's dtype: 32 p bits in float32."""

    exact: ClassVar[bool] = True

    def encode(self, rows: Array, noise: Noise | None = None) -> list[bytes]:  # noqa: ARG002
        """Turn rows into messages."""
        little_endian = host(rows[:0]).dtype.newbyteorder("<")
        return [row.tobytes() for row in host(rows).astype(little_endian, copy=False)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        dtype = host(like).dtype.newbyteorder("<")
        return cast(bytes_of(messages, dtype.itemsize * len(like)).view(dtype).copy(), like)

    def length(self, p: int, itemsize: int = 4) -> int:
        """Bytes of a message."""
        return p * itemsize


@dataclass(frozen=True, kw_only=True)
class QSGD(IntegerCodec):
    """Stochastic quantisation of Alistarh et al. 2017: `bits` per entry, sign included, one float32 norm per bucket.

    With s = 2^(bits-1) - 1 levels an entry v_i becomes norm * sign(v_i) * l_i / s, where l_i is |v_i| s / norm
    rounded up with its fractional part as probability: unbiased. `bucket=None` is one norm per vector, as in the
    paper: bits * p + 32 bits. Large models need buckets: the error grows with sqrt(bucket) / s.
    """

    bits: int = 4
    bucket: int | None = None
    unbiased: ClassVar[bool] = True
    dithered: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 2 <= self.bits <= 16:
            raise LasgError(f"QSGD takes 2 to 16 bits per entry (sign included), got {self.bits!r}")
        if self.bucket is not None and (not isinstance(self.bucket, int) or self.bucket < 1):
            raise LasgError(f"bucket must be a number of entries >= 1, or absent for one norm, got {self.bucket!r}")

    @property
    def levels(self) -> int:
        """s, the number of steps between 0 and the norm."""
        return int(2 ** (self.bits - 1)) - 1

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages: the norms, then sign and level of every entry, packed, padded to bytes."""
        norms, codes = self._codes(host(rows), noise)
        heads = norms.astype("<f4")
        return [head.tobytes() + pack_bits(row, self.bits) for head, row in zip(heads, codes, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p, head = len(like), 4 * self._buckets(len(like))
        data = bytes_of(messages, self.length(p))
        norms = np.ascontiguousarray(data[:, :head]).view("<f4")
        check_decoded(norms)
        rows = np.empty((len(messages), p), host(like[:0]).dtype)
        for i, message in enumerate(data):
            codes = unpack_bits(message[head:], self.bits, p)
            self._join(norms[i : i + 1], codes[None], rows[i : i + 1])
        return cast(rows, like)

    def transmit(self, rows: Array, noise: Noise) -> tuple[Array, int]:
        """Return what `decode(encode(rows))` would, and its bits, without packing."""
        values = host(rows)
        norms, codes = self._codes(values, noise)
        decoded = self._join(norms, codes, np.empty(values.shape, values.dtype))
        return cast(decoded, rows), 8 * self.length(rows.shape[-1]) * len(rows)

    def quantise(self, rows: Array, noise: Noise) -> Integers:
        """Return the norms, and the signed levels."""
        norms, codes = self._codes(host(rows), noise)
        symbols = np.empty(codes.shape, np.int32)
        meanings = _meanings(self.bits).astype(np.int32)
        for part, _ in tiles(codes.shape):
            meanings.take(codes[part], out=symbols[part], mode="clip")
        return Integers(integers_of(norms), symbols)

    def restore(self, said: Integers, like: Array) -> Array:
        """Return norm times level / s."""
        rows = np.empty(said.symbols.shape, host(like[:0]).dtype)
        return cast(self._join(floats_of(said.scales), said.symbols, rows, signed=True), like)

    def scales(self, p: int) -> int:
        """A norm per bucket."""
        return self._buckets(p)

    @property
    def limit(self) -> int:
        """The highest level."""
        return self.levels

    def norm(self, p: int) -> float | None:
        """The highest level, where there is one norm."""
        return float(self.levels) if self._buckets(p) == 1 else None

    def _buckets(self, p: int) -> int:
        return 1 if self.bucket is None else -(-p // self.bucket)

    def length(self, p: int, itemsize: int = 4) -> int:  # noqa: ARG002
        """Bytes of a message: a float32 norm per bucket, then the packed entries."""
        return 4 * self._buckets(p) + -(-self.bits * p // 8)

    def _codes(self, rows: FloatArray, noise: Noise) -> tuple[npt.NDArray[np.float32], Codes]:
        """Return the norms `(n, buckets)`, and sign and level of every entry, the sign in the highest bit."""
        norms, (draw, precision) = self._norms(rows), part_of(noise)
        scales = (self.levels / np.where(norms > 0, norms, 1).astype(np.float64))[..., None].astype(precision)
        codes = np.empty(rows.shape, code_type(self.bits))
        room = np.empty((2, min(rows.size, CACHED)), precision)
        for (some, entries), buckets in tiles(rows.shape, self.bucket):
            values, rounded = rows[some, entries], codes[some, entries]
            levels, draws = (place[: values.size].reshape(values.shape) for place in room)
            np.abs(values, out=levels, casting="same_kind")
            by_bucket = levels.reshape(len(values), buckets.stop - buckets.start, -1)
            by_bucket *= scales[some, buckets]
            levels += draw(some, entries, draws)
            np.copyto(rounded, levels, casting="unsafe")  # rounds down
            if rounded.max(initial=0) > self.levels:  # the norm is rounded to float32: an entry can exceed it by a hair
                np.minimum(rounded, self.levels, out=rounded)
            signs = np.signbit(values)
            signs &= rounded != 0
            rounded |= signs.view(np.uint8) * codes.dtype.type(1 << (self.bits - 1))
        return norms, codes

    def _norms(self, rows: FloatArray) -> npt.NDArray[np.float32]:
        """Return the norm of every bucket, `(n, buckets)`."""
        sums, room = np.zeros((len(rows), self._buckets(rows.shape[-1]))), np.empty(min(rows.size, CACHED))
        with np.errstate(over="ignore"):  # the check below says it better
            for (some, entries), buckets in tiles(rows.shape, self.bucket):
                values = rows[some, entries]
                squares = room[: values.size].reshape(len(values), buckets.stop - buckets.start, -1)
                np.copyto(squares, values.reshape(squares.shape))
                squares *= squares
                sums[some, buckets] += squares.sum(-1)
            norms = np.sqrt(sums).astype(np.float32)
        if not np.isfinite(norms).all():
            raise Diverged("a gradient is not finite, so it cannot be quantised: the run diverged, take a smaller eta")
        return norms

    def _join(self, norms: FloatArray, codes: Codes, rows: FloatArray, *, signed: bool = False) -> FloatArray:
        """Fill rows with norm times level / s, given codes, or signed levels; return them."""
        scales, meanings = (norms.astype(np.float64) / self.levels)[..., None], _meanings(self.bits)
        room = np.empty(min(rows.size, CACHED))
        for (some, entries), buckets in tiles(rows.shape, self.bucket):
            part = codes[some, entries]
            values = room[: part.size].reshape(part.shape)
            if signed:
                np.copyto(values, part)
            else:
                meanings.take(part, out=values, mode="clip")
            by_bucket = values.reshape(len(part), buckets.stop - buckets.start, -1)
            by_bucket *= scales[some, buckets]
            rows[some, entries] = values
        return rows


@functools.cache
def _meanings(bits: int) -> npt.NDArray[np.float64]:
    """Return the level that every code means: its highest bit is the sign."""
    magnitudes = np.arange(1 << (bits - 1), dtype=np.float64)
    return np.concatenate([magnitudes, -magnitudes])


def part_of(noise: Noise) -> tuple[Callable[[slice, slice, FloatArray], FloatArray], np.dtype[Any]]:
    """Return what gives the noise of some rows and entries, and its precision; it may use the room that it gets."""
    if isinstance(noise, counter.Draws):
        return noise.part, noise.dtype
    drawn = noise()
    return lambda rows, entries, room: drawn[rows, entries], drawn.dtype  # noqa: ARG005


def bytes_of(messages: Sequence[bytes], length: int) -> npt.NDArray[np.uint8]:
    """Stack messages of one known length as `(n, length)` bytes."""
    for message in messages:
        if len(message) != length:
            raise LasgError(f"a message of {length} bytes was expected, {len(message)} came: refused")
    together = messages[0] if len(messages) == 1 else b"".join(messages)  # one is not copied
    return np.frombuffer(together, np.uint8).reshape(len(messages), length)
