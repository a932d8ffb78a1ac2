"""What an upload looks like on the wire.

A codec has two methods. `encode` turns stacked rows `(n, p)` into one message per row; `decode` turns messages into
exactly the rows that the server uses. The bits of an upload are 8 x the length of its message. All else has defaults.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import Array, cast, check_decoded, float64, host, namespace, runs_of_buckets, zeros
from lasg.core.message_bits import DIGITS, floats_of, integers_of
from lasg.errors import Diverged, LasgError

# Gives uniform numbers in [0, 1), one per entry of the rows, drawn only if a codec asks for them.
Noise: TypeAlias = Callable[[], npt.NDArray[np.float64]]
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
    symbols: npt.NDArray[np.int32]
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
        norms, levels = map(host, self._quantise(rows, noise))
        codes = np.abs(levels).astype(np.uint16)
        codes |= (levels < 0).astype(np.uint16) << np.uint16(self.bits - 1)
        packed = _pack(codes, self.bits)
        heads = norms.astype("<f4").view(np.uint8).reshape(len(rows), -1)
        return [head.tobytes() + body.tobytes() for head, body in zip(heads, packed, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p, buckets = len(like), self._buckets(len(like))
        data = bytes_of(messages, self.length(p))
        norms = np.ascontiguousarray(data[:, : 4 * buckets]).view("<f4")
        check_decoded(norms)
        codes = _unpack(data[:, 4 * buckets :], self.bits, p)
        magnitude = np.arange(self.levels + 1, dtype=np.float64)
        meaning = np.concatenate([magnitude, -magnitude])  # of every code: its highest bit is the sign
        return cast(self._join(norms.astype(np.float64), codes, host(like[:0]), meaning), like)

    def transmit(self, rows: Array, noise: Noise) -> tuple[Array, int]:
        """Return what `decode(encode(rows))` would, and its bits, without packing."""
        norms, levels = self._quantise(rows, noise)
        return cast(self._join(float64(norms), levels, rows), rows), 8 * self.length(rows.shape[-1]) * len(rows)

    def quantise(self, rows: Array, noise: Noise) -> Integers:
        """Return the norms, and the signed levels."""
        norms, levels = map(host, self._quantise(rows, noise))
        return Integers(integers_of(norms), levels.astype(np.int32))

    def restore(self, said: Integers, like: Array) -> Array:
        """Return norm times level / s."""
        return cast(self._join(floats_of(said.scales), said.symbols, host(like[:0])), like)

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

    def _quantise(self, rows: Array, noise: Noise) -> tuple[Array, Array]:
        """Return the norms `(n, buckets)` in float32 and the signed levels `(n, p)`."""
        (n, p), parts = rows.shape, runs_of_buckets(rows.shape[-1], self.bucket)
        if len(parts) == 1:
            values = float64(rows).reshape(n, self._buckets(p), -1)
            norms = self._norms(values)
            return norms, self._levels(values, float64(norms), cast(noise(), values)).reshape(n, p)
        xp, like = namespace(rows), float64(rows[:0])
        draws, norms = cast(noise(), like), zeros((n, self._buckets(p)), like)
        levels = xp.empty((n, p), dtype=xp.int16, **({} if xp is np else {"device": like.device}))
        for entries, buckets in parts:
            values = float64(rows[:, entries]).reshape(n, buckets.stop - buckets.start, -1)
            norms[:, buckets] = self._norms(values)
            levels[:, entries] = self._levels(values, norms[:, buckets], draws[:, entries]).reshape(n, -1)
        return (norms.astype(np.float32) if xp is np else norms.float()), levels

    def _norms(self, values: Array) -> Array:
        """Return the norms of buckets `(n, buckets, entries)`, in float32; a short bucket counts as filled with 0."""
        xp = namespace(values)
        with np.errstate(over="ignore"):  # the check below says it better
            squares = values * values
            if self.bucket is not None and values.shape[-1] < self.bucket:
                filled = zeros((*values.shape[:-1], self.bucket), values)
                filled[..., : values.shape[-1]] = squares
                squares = filled
            norms = xp.sqrt(squares.sum(-1))
            norms = norms.astype(np.float32) if xp is np else norms.float()
        if not bool(xp.isfinite(norms).all()):
            raise Diverged("a gradient is not finite, so it cannot be quantised: the run diverged, take a smaller eta")
        return norms

    def _levels(self, values: Array, norms: Array, draws: Array) -> Array:
        """Return the signed levels of buckets `(n, buckets, entries)`, given their norms."""
        xp = namespace(values)
        safe = xp.where(norms > 0, norms, xp.ones_like(norms))
        levels = xp.abs(values)
        levels *= (self.levels / safe)[..., None]
        levels += draws.reshape(levels.shape)
        xp.floor(levels, out=levels)
        # The norm is rounded to float32, so an entry can exceed it by a hair.
        levels = levels.clip(0, self.levels)
        levels *= xp.sign(values)
        levels += 0.0  # no -0.0: a message has none
        return levels

    def _join(self, norms: Array, levels: Array, like: Array, meaning: Array = None) -> Array:
        """Return norm times level / s for levels `(n, p)`, or codes of that meaning, in the dtype of `like` if long."""
        scales, (n, p) = (norms / self.levels)[..., None], levels.shape
        parts = runs_of_buckets(p, self.bucket)
        rows = zeros((n, p), like) if len(parts) > 1 else None
        for entries, buckets in parts:
            part = levels[:, entries] if meaning is None else meaning.take(levels[:, entries])
            joined = (part.reshape(n, buckets.stop - buckets.start, -1) * scales[:, buckets]).reshape(n, -1)
            if rows is None:
                return joined
            rows[:, entries] = joined
        return rows


def bytes_of(messages: Sequence[bytes], length: int) -> npt.NDArray[np.uint8]:
    """Stack messages of one known length as `(n, length)` bytes."""
    for message in messages:
        if len(message) != length:
            raise LasgError(f"a message of {length} bytes was expected, {len(message)} came: refused")
    return np.frombuffer(b"".join(messages), np.uint8).reshape(len(messages), length)


def _pack(codes: npt.NDArray[np.uint16], bits: int) -> npt.NDArray[np.uint8]:
    """Pack the low `bits` of every code, most significant bit first, rows padded to whole bytes."""
    if bits == 16:
        return np.ascontiguousarray(codes.astype(">u2")).view(np.uint8)
    if 8 % bits == 0:  # so many codes fill a byte: shifts are quicker than single bits
        fit = 8 // bits
        padded = np.zeros((len(codes), -(-codes.shape[1] // fit) * fit), np.uint8)
        padded[:, : codes.shape[1]] = codes
        packed = padded[:, ::fit] << np.uint8(8 - bits)
        for i in range(1, fit):
            packed |= padded[:, i::fit] << np.uint8(8 - bits * (i + 1))
        return packed
    as_bytes = codes.astype(">u2").view(np.uint8).reshape(*codes.shape, 2)
    spread = np.unpackbits(as_bytes, axis=-1)[..., 16 - bits :]
    return np.packbits(spread.reshape(len(codes), -1), axis=-1)


def _unpack(packed: npt.NDArray[np.uint8], bits: int, p: int) -> npt.NDArray[np.uint16]:
    """Undo `_pack` for rows of `p` codes."""
    if bits == 16:
        return np.ascontiguousarray(packed).view(">u2").astype(np.uint16)
    if 8 % bits == 0:
        fit, mask = 8 // bits, np.uint8(2**bits - 1)
        codes = np.empty((len(packed), packed.shape[1] * fit), np.uint8)
        for i in range(fit):
            codes[:, i::fit] = (packed >> np.uint8(8 - bits * (i + 1))) & mask
        return codes[:, :p].astype(np.uint16)
    spread = np.unpackbits(packed, axis=-1, count=bits * p).reshape(len(packed), p, bits)
    padded = np.zeros((len(packed), p, 16), np.uint8)
    padded[..., 16 - bits :] = spread
    return np.packbits(padded, axis=-1).view(">u2")[..., 0].astype(np.uint16)
