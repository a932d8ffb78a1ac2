"""Codecs that round every entry: a uniform grid with a dead zone, and signs with a size per bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import Array, cast, check_decoded, check_entries, float64, host
from lasg.core.codecs import IntegerCodec, Integers, Noise, bytes_of
from lasg.core.message_bits import floats_of, integers_of, pack_bits, unpack_bits
from lasg.errors import Diverged, LasgError

QUARTERS = 4
"""Steps of a grid are powers of 2^(1/4)."""
FINEST = 60
"""No grid is finer than the largest entry by 2^(FINEST / 4) / 0.6 or so: integers stay below 2^16."""
SMALLEST, LARGEST = -596, 512
"""Steps from 2^-149, float32's smallest number, to 2^128, beyond its largest."""


@dataclass(frozen=True)
class Grid(IntegerCodec):
    """n_i = floor(|d_i| / t + 0.4), signed, t = 2^(j/4): the coarsest grid with an error of at most beta ||d||^2.

    Rounding down below 0.6 t is a dead zone: most entries become 0, which coding makes nearly free. What is not said is
    part of the next message, with `difference` or `residual`. LAQ's grid (Sun et al. 2019) is the uniform one without a
    dead zone; here its step follows from the error that is allowed, not from a number of bits.
    """

    beta: float = 0.25
    """The largest squared error, as a share of ||d||^2."""

    def __post_init__(self) -> None:
        if not 0 < self.beta < 1:
            raise LasgError(f"grid takes the share of ||d||^2 that may be lost, above 0 and below 1, got {self.beta!r}")

    def quantise(self, rows: Array, noise: Noise) -> Integers:  # noqa: ARG002
        """Return the exponents j, and the integers."""
        values = host(float64(rows))
        check_entries(values, "it cannot be said on a grid")
        steps = np.array([[self._exponent(row)] for row in values], np.int32)
        symbols = np.floor(np.abs(values) / 2.0 ** (steps / QUARTERS) + 0.4) * np.sign(values)
        return Integers(steps, symbols.astype(np.int32))

    def _exponent(self, row: npt.NDArray[np.float64]) -> int:
        """Return the largest j whose grid loses at most beta ||d||^2."""
        magnitudes = np.abs(row)
        size = float(row @ row)
        if size == 0:
            return 0
        exponent = math.ceil(QUARTERS * math.log2(float(magnitudes.max()) / 0.6))  # any coarser rounds all to 0
        finest = exponent - FINEST
        error = np.empty_like(magnitudes)
        # One after the other: a finer grid may lose more, so bisection could miss the coarsest that is good enough.
        while exponent > finest:
            t = 2.0 ** (exponent / QUARTERS)
            np.divide(magnitudes, t, out=error)  # in place: vectors are long
            error += 0.4
            np.floor(error, out=error)
            error *= -t
            error += magnitudes
            if float(error @ error) <= self.beta * size:
                break
            exponent -= 1
        return min(max(exponent, SMALLEST), LARGEST)

    def restore(self, said: Integers, like: Array) -> Array:
        """Return integer times step."""
        if np.abs(said.scales).max(initial=0) > -SMALLEST:
            raise LasgError("a message has a step that no grid has: it is damaged")
        rows = said.symbols * 2.0 ** (said.scales / QUARTERS)
        check_decoded(rows)
        return cast(rows, like)

    def scales(self, p: int) -> int:  # noqa: ARG002
        """One exponent."""
        return 1

    @property
    def digits(self) -> int:
        """An exponent is foreseen as a whole."""
        return 0

    @property
    def limit(self) -> int:
        """The largest integer: the largest entry on the finest grid."""
        return 1 << 16

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages: the exponent, the bits per entry, the integers with so many bits."""
        said = self.quantise(rows, noise)
        folded = np.where(said.symbols < 0, -2 * said.symbols - 1, 2 * said.symbols)
        messages = []
        for step, row in zip(said.scales[:, 0], folded, strict=True):
            bits = max(1, int(row.max(initial=0)).bit_length())
            messages.append(step.astype("<i2").tobytes() + bytes([bits]) + pack_bits(row, bits))
        return messages

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        folded, steps = np.empty((len(messages), p), np.int64), np.empty((len(messages), 1), np.int32)
        for i, message in enumerate(messages):
            bits = message[2] if len(message) > 2 else 0
            if not 1 <= bits <= 18:
                raise LasgError(f"a message on a grid has 1 to 18 bits per entry, this one {bits}: it is damaged")
            steps[i] = np.frombuffer(message, "<i2", 1)
            folded[i] = unpack_bits(message[3:], bits, p)
        symbols = np.where(folded & 1, -(folded + 1) // 2, folded // 2).astype(np.int32)
        return self.restore(Integers(steps, symbols), like)


@dataclass(frozen=True)
class Uniform(IntegerCodec):
    """LAQ's quantiser (Sun et al. 2019, eq. 5): `bits` per entry on a grid from -R to R, R the largest magnitude.

    q_i = floor((d_i + R) / (2 tau R) + 1/2) with tau = 1 / (2^bits - 1), decoded to 2 tau R q_i - R: to the nearest, so
    biased, and for `difference`. A message has 32 + bits p bits.
    """

    bits: int = 4

    def __post_init__(self) -> None:
        if not isinstance(self.bits, int) or not 1 <= self.bits <= 16:
            raise LasgError(f"uniform takes 1 to 16 bits per entry, got {self.bits!r}")

    def quantise(self, rows: Array, noise: Noise) -> Integers:  # noqa: ARG002
        """Return R, and the integers."""
        values = host(float64(rows))
        with np.errstate(over="ignore"):
            radius = np.nextafter(np.abs(values).max(-1, keepdims=True).astype(np.float32), np.float32(np.inf))
        if not np.isfinite(radius).all():
            raise Diverged("a gradient is not finite, so it cannot be quantised: the run diverged, take a smaller eta")
        wide = radius.astype(np.float64)
        symbols = np.floor((values + wide) / (2 * wide) * self.limit + 0.5)
        return Integers(integers_of(radius), symbols.astype(np.int32))

    def restore(self, said: Integers, like: Array) -> Array:
        """Return 2 tau R q - R."""
        if ((said.symbols < 0) | (said.symbols > self.limit)).any():
            raise LasgError("a message has an integer that its grid does not have: it is damaged")
        radius = floats_of(said.scales)
        return cast((2 / self.limit * said.symbols - 1) * radius, like)

    def scales(self, p: int) -> int:  # noqa: ARG002
        """R."""
        return 1

    @property
    def limit(self) -> int:
        """1 / tau."""
        return int(2**self.bits) - 1

    def length(self, p: int, itemsize: int = 4) -> int:  # noqa: ARG002
        """Bytes of a message."""
        return 4 + -(-self.bits * p // 8)

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages."""
        said = self.quantise(rows, noise)
        radius = floats_of(said.scales).astype("<f4")
        return [r.tobytes() + pack_bits(row, self.bits) for r, row in zip(radius, said.symbols, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        data = bytes_of(messages, self.length(len(like)))
        symbols = np.stack([unpack_bits(row[4:].tobytes(), self.bits, len(like)) for row in data]).astype(np.int32)
        radius = np.ascontiguousarray(data[:, :4]).view("<f4")
        return self.restore(Integers(integers_of(radius), symbols), like)


@dataclass(frozen=True)
class Sign(IntegerCodec):
    """The sign of every entry, and the mean magnitude of every bucket: signSGD with error feedback needs no more.

    Karimireddy et al. 2019: sign(d) ||d||_1 / p, per bucket. Biased: say it with `difference` or `residual`.
    """

    bucket: int = 512

    def __post_init__(self) -> None:
        if not isinstance(self.bucket, int) or self.bucket < 1:
            raise LasgError(f"bucket must be a number of entries >= 1, got {self.bucket!r}")

    def _starts(self, p: int) -> npt.NDArray[np.int64]:
        return np.arange(0, p, self.bucket)

    def quantise(self, rows: Array, noise: Noise) -> Integers:  # noqa: ARG002
        """Return the mean magnitudes, and 1 for entries that are not negative, -1 for the others."""
        values = host(float64(rows))
        starts = self._starts(values.shape[-1])
        counts = np.diff([*starts, values.shape[-1]])
        with np.errstate(over="ignore"):
            sizes = (np.add.reduceat(np.abs(values), starts, -1) / counts).astype(np.float32)
        if not np.isfinite(sizes).all():
            raise Diverged("a gradient is not finite, so it has no signs: the run diverged, take a smaller eta")
        return Integers(integers_of(sizes), np.where(values < 0, -1, 1).astype(np.int32))

    def restore(self, said: Integers, like: Array) -> Array:
        """Return sign times size."""
        sizes = floats_of(said.scales)
        counts = np.diff([*self._starts(len(like)), len(like)])
        return cast(said.symbols * np.repeat(sizes, counts, -1), like)

    def scales(self, p: int) -> int:
        """A size per bucket."""
        return -(-p // self.bucket)

    @property
    def limit(self) -> int:
        """A sign is 1 or -1."""
        return 1

    def length(self, p: int, itemsize: int = 4) -> int:  # noqa: ARG002
        """Bytes of a message: a float32 per bucket, a bit per entry."""
        return 4 * -(-p // self.bucket) + -(-p // 8)

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:
        """Turn rows into messages."""
        said = self.quantise(rows, noise)
        sizes = floats_of(said.scales).astype("<f4")
        return [size.tobytes() + np.packbits(row > 0).tobytes() for size, row in zip(sizes, said.symbols, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        data = bytes_of(messages, self.length(p))
        head = 4 * -(-p // self.bucket)
        positive = np.unpackbits(data[:, head:], axis=-1, count=p).astype(np.int32)
        sizes = np.ascontiguousarray(data[:, :head]).view("<f4")
        return self.restore(Integers(integers_of(sizes), 2 * positive - 1), like)
