"""Codecs that round every entry: a uniform grid with a dead zone, and signs with a size per bucket."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import (
    CACHED,
    Array,
    FloatArray,
    IntArray,
    cast,
    check_decoded,
    check_entries,
    code_type,
    host,
    largest_magnitude,
    tiles,
)
from lasg.core.codecs import IntegerCodec, Integers, Noise, bytes_of
from lasg.core.message_bits import floats_of, integers_of, pack_bits, unpack_bits
from lasg.errors import Diverged, LasgError

QUARTERS = 4
"""Steps of a grid are powers of 2^(1/4)."""
FINEST = 60
"""No grid is finer than the largest entry by 2^(FINEST / 4) / 0.6 or so: integers stay below 2^16."""
SMALLEST, LARGEST = -596, 512
"""Steps from 2^-149, float32's smallest number, to 2^128, beyond its largest."""
SAMPLE = 1 << 14
"""So many entries of a long vector, evenly spaced, tell which steps are worth trying on all of them."""


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
        values = host(rows)
        check_entries(values, "it cannot be said on a grid")
        steps = np.array([[self._exponent(row)] for row in values], np.int32)
        widths, symbols = 2.0 ** (steps / QUARTERS), np.empty(values.shape, np.int32)
        room = np.empty(min(values.size, CACHED))
        for part, _ in tiles(values.shape):
            levels = room[: symbols[part].size].reshape(symbols[part].shape)
            np.abs(values[part], out=levels)
            levels /= widths[part[0]]
            levels += 0.4
            symbol = symbols[part]
            np.copyto(symbol, levels, casting="unsafe")  # rounded down
            negative = np.less(values[part], 0).astype(np.int32)
            symbol ^= -negative  # and the next line: times -1 where it is 1
            symbol += negative
        return Integers(steps, symbols)

    def _exponent(self, row: FloatArray) -> int:
        """Return the largest j whose grid loses at most beta ||d||^2."""
        largest = float(largest_magnitude(row))
        if largest == 0:
            return 0
        coarsest = math.ceil(QUARTERS * math.log2(largest / 0.6))  # any coarser rounds all to 0
        finest = coarsest - FINEST
        start = coarsest if len(row) <= SAMPLE else self._start(row, coarsest)
        # One after the other: a finer grid may lose more, so bisection could miss the coarsest that is good enough.
        for exponent in range(start, finest, -1):
            lost, size = _lost(row, 2.0 ** (exponent / QUARTERS))
            if not size:  # too small to be squared
                return 0
            if lost <= self.beta * size:
                return min(max(exponent, SMALLEST), LARGEST)
        return min(max(finest, SMALLEST), LARGEST)

    def _start(self, row: FloatArray, coarsest: int) -> int:
        """Return a step of which it is known that any coarser one loses too much.

        What lies in the dead zone is lost, and a coarser grid has a larger one. So one look at the whole vector is
        enough; a sample says at which step to look.
        """
        some = np.abs(row[:: len(row) // SAMPLE].astype(np.float64))
        some.sort()
        below = np.concatenate([[0.0], np.cumsum(some * some)])
        exponents = np.arange(coarsest, coarsest - FINEST, -1)
        lost = below[np.searchsorted(some, 0.6 * 2.0 ** (exponents / QUARTERS))]
        too_coarse = exponents[lost > 1.05 * self.beta * below[-1]]
        for exponent in too_coarse[:: -2 * QUARTERS].tolist():  # two octaves coarser where the sample was wrong
            dead, size = _below(row, 0.6 * 2.0 ** (exponent / QUARTERS))
            if dead > self.beta * size:
                return int(exponent) - 1
        return coarsest

    def restore(self, said: Integers, like: Array) -> Array:
        """Return integer times step."""
        if np.abs(said.scales).max(initial=0) > -SMALLEST:
            raise LasgError("a message has a step that no grid has: it is damaged")
        widths = 2.0 ** (said.scales / QUARTERS)
        check_decoded(said.symbols.max(-1, keepdims=True, initial=0) * widths)
        check_decoded(said.symbols.min(-1, keepdims=True, initial=0) * widths)
        rows = np.empty(said.symbols.shape, host(like[:0]).dtype)
        for part, _ in tiles(rows.shape):
            rows[part] = said.symbols[part] * widths[part[0]]
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
        said, messages = self.quantise(rows, noise), []
        for step, row in zip(said.scales[:, 0], said.symbols, strict=True):
            highest = max(2 * int(row.max(initial=0)), -2 * int(row.min(initial=0)) - 1)
            bits = max(1, highest.bit_length())
            folded = np.empty(row.shape, code_type(bits))  # 0, -1, 1, -2, ... are 0, 1, 2, 3, ...
            for (_, part), _ in tiles((1, len(row))):
                np.copyto(folded[part], row[part] << 1 ^ row[part] >> 31, casting="unsafe")
            messages.append(step.astype("<i2").tobytes() + bytes([bits]) + pack_bits(folded, bits))
        return messages

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        symbols, steps = np.empty((len(messages), p), np.int32), np.empty((len(messages), 1), np.int32)
        for i, message in enumerate(messages):
            bits = message[2] if len(message) > 2 else 0
            if not 1 <= bits <= 18:
                raise LasgError(f"a message on a grid has 1 to 18 bits per entry, this one {bits}: it is damaged")
            steps[i] = np.frombuffer(message, "<i2", 1)
            folded = unpack_bits(message[3:], bits, p)
            for (_, part), _ in tiles((1, p)):
                wide = folded[part].astype(np.int32)
                symbols[i, part] = wide >> 1 ^ -(wide & 1)
        return self.restore(Integers(steps, symbols), like)


def _lost(row: FloatArray, t: float) -> tuple[float, float]:
    """Return the squared error of a vector on the grid of step t, and its squared norm."""
    lost = size = 0.0
    room = np.empty((2, min(len(row), CACHED)))
    for (_, part), _ in tiles((1, len(row))):
        magnitudes, error = (place[: len(row[part])] for place in room)
        np.abs(row[part], out=magnitudes)
        size += float(magnitudes @ magnitudes)
        np.divide(magnitudes, t, out=error)
        error += 0.4
        np.floor(error, out=error)
        error *= -t
        error += magnitudes
        lost += float(error @ error)
    return lost, size


def _below(row: FloatArray, bound: float) -> tuple[float, float]:
    """Return the squared norm of the entries below a bound, and of all."""
    below = size = 0.0
    room = np.empty(min(len(row), CACHED))
    for (_, part), _ in tiles((1, len(row))):
        magnitudes = np.abs(row[part], out=room[: len(row[part])])
        size += float(magnitudes @ magnitudes)
        magnitudes *= magnitudes < bound
        below += float(magnitudes @ magnitudes)
    return below, size


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
        radius, codes = self._codes(host(rows))
        return Integers(integers_of(radius), codes.astype(np.int32))

    def _codes(self, values: FloatArray) -> tuple[npt.NDArray[np.float32], IntArray]:
        """Return R, and the integers in as few bytes as hold them."""
        with np.errstate(over="ignore"):
            radius = np.nextafter(largest_magnitude(values, -1)[:, None].astype(np.float32), np.float32(np.inf))
        if not np.isfinite(radius).all():
            raise Diverged("a gradient is not finite, so it cannot be quantised: the run diverged, take a smaller eta")
        wide, codes = radius.astype(np.float64), np.empty(values.shape, code_type(self.bits))
        room = np.empty(min(values.size, CACHED))
        for part, _ in tiles(values.shape):
            levels = room[: codes[part].size].reshape(codes[part].shape)
            np.add(values[part], wide[part[0]], out=levels)
            levels /= 2 * wide[part[0]]
            levels *= self.limit
            levels += 0.5
            np.copyto(codes[part], levels, casting="unsafe")  # rounded down
        return radius, codes

    def restore(self, said: Integers, like: Array) -> Array:
        """Return 2 tau R q - R."""
        if said.symbols.min(initial=0) < 0 or said.symbols.max(initial=0) > self.limit:
            raise LasgError("a message has an integer that its grid does not have: it is damaged")
        radius, rows = floats_of(said.scales), np.empty(said.symbols.shape, host(like[:0]).dtype)
        meanings = 2 / self.limit * np.arange(self.limit + 1) - 1
        room = np.empty(min(rows.size, CACHED))
        for part, _ in tiles(rows.shape):
            values = room[: rows[part].size].reshape(rows[part].shape)
            meanings.take(said.symbols[part], out=values, mode="clip")
            values *= radius[part[0]]
            rows[part] = values
        return cast(rows, like)

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

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:  # noqa: ARG002
        """Turn rows into messages."""
        radius, codes = self._codes(host(rows))
        return [r.astype("<f4").tobytes() + pack_bits(row, self.bits) for r, row in zip(radius, codes, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        data = bytes_of(messages, self.length(len(like)))
        symbols = np.stack([unpack_bits(row[4:], self.bits, len(like)) for row in data])
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

    def quantise(self, rows: Array, noise: Noise) -> Integers:  # noqa: ARG002
        """Return the mean magnitudes, and 1 for entries that are not negative, -1 for the others."""
        values = host(rows)
        return Integers(integers_of(self._sizes(values)), np.where(values < 0, np.int32(-1), np.int32(1)))

    def _sizes(self, values: FloatArray) -> npt.NDArray[np.float32]:
        """Return the mean magnitude of every bucket."""
        p = values.shape[-1]
        sums, room = np.zeros((len(values), self.scales(p))), np.empty(min(values.size, CACHED))
        with np.errstate(over="ignore"):
            for part, buckets in tiles(values.shape, self.bucket):
                magnitudes = room[: values[part].size].reshape(values[part].shape)
                np.abs(values[part], out=magnitudes)
                starts = np.arange(0, part[1].stop - part[1].start, self.bucket)
                sums[part[0], buckets] += np.add.reduceat(magnitudes, starts, -1)
            sizes: npt.NDArray[np.float32] = (
                sums / np.minimum(self.bucket, p - self.bucket * np.arange(self.scales(p)))
            ).astype(np.float32)
        if not np.isfinite(sizes).all():
            raise Diverged("a gradient is not finite, so it has no signs: the run diverged, take a smaller eta")
        return sizes

    def restore(self, said: Integers, like: Array) -> Array:
        """Return sign times size."""
        sizes, rows = floats_of(said.scales), np.empty(said.symbols.shape, host(like[:0]).dtype)
        for part, buckets in tiles(rows.shape, self.bucket):
            signs = said.symbols[part]
            by_bucket = signs.reshape(len(signs), buckets.stop - buckets.start, -1)
            rows[part] = (by_bucket * sizes[part[0], buckets, None]).reshape(signs.shape)
        return cast(rows, like)

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

    def encode(self, rows: Array, noise: Noise) -> list[bytes]:  # noqa: ARG002
        """Turn rows into messages."""
        values = host(rows)
        sizes = self._sizes(values).astype("<f4")
        return [size.tobytes() + np.packbits(row >= 0).tobytes() for size, row in zip(sizes, values, strict=True)]

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        data = bytes_of(messages, self.length(p))
        head = 4 * self.scales(p)
        signs = np.unpackbits(data[:, head:], axis=-1, count=p).view(np.int8)
        signs *= 2
        signs -= 1
        sizes = np.ascontiguousarray(data[:, :head]).view("<f4")
        return self.restore(Integers(integers_of(sizes), signs), like)
