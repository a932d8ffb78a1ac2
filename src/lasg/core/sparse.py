"""The few entries that have news: positions, and values of one or two bits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
import numpy.typing as npt

from lasg.core import entropy
from lasg.core.arrays import CACHED, Array, cast, check_decoded, check_entries, host, tiles
from lasg.core.codecs import Codec, Noise, Shapes, State, StatefulCodec, tensor_ends
from lasg.core.message_bits import pack_bits, unpack_bits
from lasg.errors import LasgError

SAMPLE = 1 << 14
"""So many entries of a long vector, evenly spaced, tell how large the largest are."""
Positions = npt.NDArray[np.int64]
Values = npt.NDArray[np.float32]
WARM_SHARE = 0.25
"""The share of the first message, where it falls to the usual one over the first messages."""
BITS = {"sign": 1, "2bit": 2, "float": 32}
"""Bits per value: the sign alone; the sign, and whether it is a large one; the value itself."""


@dataclass(frozen=True, kw_only=True)
class TopK(StatefulCodec):
    """The entries of largest magnitude, the others left for later: say it with `residual`, or `difference`.

    Values are signs, times their mean magnitude per tensor; or signs and one more bit, times the mean magnitude of the
    small and of the large ones per tensor (2 bits, as SparseLoCo has it); or themselves. Positions are numbers of fixed
    width, or, coded, gaps in Golomb's code, which is within 1 % of their entropy where entries are chosen at random.
    """

    share: float = 0.01
    """Of all entries, or of every chunk."""
    values: Literal["sign", "2bit", "float"] = "sign"
    chunk: int | None = None
    """Choose among so many entries of a tensor at a time (SparseLoCo: 4096); None: among all of all tensors."""
    warm: int = 0
    """The share falls from 25 %, by the same factor each time, over so many messages of a worker."""
    coded: bool = False
    shapes: Shapes = field(default=(), repr=False)
    """The tensors of a vector, each with a magnitude of its own; empty: it is one."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise LasgError(f"topk takes a share of the entries above 0, 1 at most, got {self.share!r}")
        if self.values not in BITS:
            raise LasgError(f"topk's values are sign, 2bit or float, got {self.values!r}")
        if self.chunk is not None and (not isinstance(self.chunk, int) or self.chunk < 1):
            raise LasgError(f"topk's chunk must be a number of entries >= 1, got {self.chunk!r}")
        if not isinstance(self.warm, int) or self.warm < 0:
            raise LasgError(f"topk's warm-up must be a number of messages >= 0, got {self.warm!r}")

    def for_shapes(self, shapes: Shapes) -> Codec:
        """Return the codec with a magnitude per tensor."""
        return replace(self, shapes=shapes)

    def init(self, workers: int, like: Array) -> State:  # noqa: ARG002
        """Return how many messages every worker has sent, where the share depends on it."""
        return {"sent": np.zeros(workers, np.int64)} if self.warm else {}

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:  # noqa: ARG002
        """Turn rows into messages."""
        messages, after = [], dict(state)
        for row, share in zip(host(rows), self._shares(len(rows), state), strict=True):
            positions, values = self._choose(row, share)
            messages.append(self._pack(positions, self._scales(positions, values, len(row)), values, len(row)))
        if self.warm:
            after = {"sent": state["sent"] + 1}
        return messages, after

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        rows = np.zeros((len(messages), len(like)), np.float32)
        for row, message in zip(rows, messages, strict=True):
            positions, values = self._unpack(message, len(like))
            row[positions] = values
        return cast(rows, like)

    def _shares(self, count: int, state: State) -> npt.NDArray[np.float64]:
        """Return the share of each worker's next message."""
        if not self.warm:
            return np.full(count, self.share)
        done = np.minimum(state["sent"] / self.warm, 1.0)
        start = max(WARM_SHARE, self.share)
        return np.asarray(start * (self.share / start) ** done)

    def _choose(self, row: npt.NDArray[np.floating], share: float) -> tuple[Positions, Values]:
        """Return the positions of the largest entries, in their order, and their values."""
        check_entries(row, "it has no largest entries")
        if self.chunk is None:
            chosen = largest_of_long(row, max(1, round(share * len(row))))
        else:
            chosen = self._choose_in_chunks(np.abs(row), self.chunk, max(1, round(share * self.chunk)))
        values = row[chosen].astype(np.float32)
        return chosen[values != 0], values[values != 0]

    def _choose_in_chunks(self, magnitudes: npt.NDArray[np.floating], chunk: int, k: int) -> Positions:
        """Return the positions of the k largest of every chunk; a tensor's last one may be shorter."""
        chosen, begin = [], 0
        for end in tensor_ends(self.shapes, len(magnitudes)).tolist():
            padded = np.zeros(-(-(end - begin) // chunk) * chunk, magnitudes.dtype)
            padded[: end - begin] = magnitudes[begin:end]
            found = largest(padded.reshape(-1, chunk), k)
            chosen.append(begin + found[found < end - begin])
            begin = end
        return np.concatenate(chosen)

    # -- values -----------------------------------------------------------------------------------------------

    def _scales(self, positions: Positions, values: Values, p: int) -> npt.NDArray[np.uint16]:
        """Return the magnitudes per tensor as bfloat16: of all its values, or of its small and its large ones."""
        ends = tensor_ends(self.shapes, p)
        if self.values == "float":
            return np.zeros(0, np.uint16)
        tensor, sizes = np.searchsorted(ends, positions, "right"), np.abs(values).astype(np.float64)
        means = _means(tensor, sizes, len(ends))
        if self.values == "2bit":
            large = sizes > means[tensor]
            small_mean = _means(tensor[~large], sizes[~large], len(ends))
            means = np.stack([small_mean, _means(tensor[large], sizes[large], len(ends))], -1).reshape(-1)
        return to_bfloat16(means)

    def _codes(self, positions: Positions, values: Values, p: int) -> npt.NDArray[np.int64]:
        """Return the value of every entry as a small number."""
        negative = (values < 0).astype(np.int64)
        if self.values == "sign":
            return negative
        tensor, sizes = (
            np.searchsorted(tensor_ends(self.shapes, p), positions, "right"),
            np.abs(values).astype(np.float64),
        )
        means = _means(tensor, sizes, len(tensor_ends(self.shapes, p)))
        return 2 * negative + (sizes > means[tensor])

    # -- messages ---------------------------------------------------------------------------------------------

    def _pack(self, positions: Positions, scales: npt.NDArray[np.uint16], values: Values, p: int) -> bytes:
        """Return a message: the magnitudes, the positions, the values."""
        if self.values == "float":
            said = values.astype("<f4").tobytes()
        else:
            said = pack_bits(self._codes(positions, values, p), BITS[self.values])
        return scales.astype("<u2").tobytes() + self._pack_positions(positions, p) + said

    def _pack_positions(self, positions: Positions, p: int) -> bytes:
        """Return positions so that their end is known: coded, or how many there are and then each."""
        if self.coded:
            return entropy.encode_positions(positions, p)
        if self.chunk is not None:
            return self._pack_chunks(positions, p)
        return len(positions).to_bytes(_count_bytes(p), "little") + pack_bits(positions, _width(p))

    def _pack_chunks(self, positions: Positions, p: int) -> bytes:
        """Return how many entries each chunk has, and where in it they are."""
        assert self.chunk is not None
        starts = self._chunk_starts(p)
        chunk = np.searchsorted(starts, positions, "right") - 1
        counts = np.bincount(chunk, minlength=len(starts))
        return pack_bits(counts, _width(self.chunk + 1)) + pack_bits(positions - starts[chunk], _width(self.chunk))

    def _chunk_starts(self, p: int) -> Positions:
        """Return where chunks begin: every tensor has its own."""
        ends = tensor_ends(self.shapes, p).tolist()
        return np.concatenate([np.arange(*part, self.chunk) for part in zip([0, *ends], ends, strict=False)])

    def _unpack(self, message: bytes, p: int) -> tuple[Positions, Values]:
        """Undo `_pack`; refuse what is none."""
        ends = tensor_ends(self.shapes, p)
        scales = len(ends) * {"sign": 2, "2bit": 4, "float": 0}[self.values]
        if len(message) < scales:
            raise LasgError(f"a sparse message has {scales} bytes of magnitudes at least, {len(message)} came: refused")
        positions, said = self._take_positions(message[scales:], p)
        if self.values == "float":
            if len(said) != 4 * len(positions):
                raise LasgError(f"a sparse message has {len(positions)} values, {len(said)} bytes came: refused")
            values = np.frombuffer(said, "<f4").astype(np.float32)
            check_decoded(values)
            return positions, values
        magnitudes = from_bfloat16(np.frombuffer(message[:scales], "<u2"))
        codes = unpack_bits(said, BITS[self.values], len(positions)).astype(np.int64)
        tensor = np.searchsorted(ends, positions, "right")
        if self.values == "sign":
            return positions, (magnitudes[tensor] * (1 - 2 * codes)).astype(np.float32)
        return positions, (magnitudes[2 * tensor + (codes & 1)] * (1 - (codes & 2))).astype(np.float32)

    def _take_positions(self, data: bytes, p: int) -> tuple[Positions, bytes]:
        """Undo `_pack_positions`; return the rest of the message, too."""
        if self.coded:
            return entropy.take_positions(data, p)
        if self.chunk is None:
            head, width = _count_bytes(p), _width(p)
            count = int.from_bytes(data[:head], "little")
            base: Positions = np.zeros(min(count, p), np.int64)
        else:
            starts, wide, width = self._chunk_starts(p), _width(self.chunk + 1), _width(self.chunk)
            head = -(-len(starts) * wide // 8)
            counts = unpack_bits(data[:head], wide, len(starts))
            count = int(counts.sum(dtype=np.int64))
            base = np.repeat(starts, counts) if count <= p else np.zeros(p, np.int64)
        end = head + -(-count * width // 8)
        if count > p or len(data) < end:
            raise LasgError(f"a sparse message does not have the {count} entries that it says: it is damaged")
        positions = base + unpack_bits(data[head:end], width, count)
        if count and (positions[-1] >= p or (np.diff(positions) <= 0).any()):
            raise LasgError("the positions of a sparse message are not increasing: it is damaged")
        return positions, data[end:]


def largest(magnitudes: npt.NDArray[np.floating], k: int) -> Positions:
    """Return the flat positions of the k largest of every row, in their order; of equal ones the first."""
    rows, width = magnitudes.shape
    if k >= width:
        return np.arange(rows * width)
    bound = np.partition(magnitudes, width - k, axis=-1)[:, width - k, None]
    chosen = magnitudes > bound
    missing = k - np.count_nonzero(chosen, axis=-1)
    equal = magnitudes == bound
    # Nearly always one entry equals the bound, and is the one that is missing.
    chosen |= equal & (np.cumsum(equal, -1) <= missing[:, None])
    return np.flatnonzero(chosen)


def largest_of_long(row: npt.NDArray[np.floating], k: int) -> Positions:
    """Return what `largest` does of the magnitudes of a vector: of a long one it orders few entries only.

    At least k entries are as large as a bound from a sample, or else all are ordered.
    """
    p = len(row)
    in_sample = k * SAMPLE / p
    rank = math.ceil(in_sample + 6 * math.sqrt(in_sample) + 8)  # six standard deviations
    if p < 8 * SAMPLE or rank >= SAMPLE // 4:
        return largest(np.abs(row)[None], k)
    some = np.abs(row[:: p // SAMPLE])
    bound = np.partition(some, len(some) - rank)[len(some) - rank]
    room, found = np.empty(CACHED, row.dtype), []
    for (_, part), _ in tiles((1, p)):
        magnitudes = np.abs(row[part], out=room[: part.stop - part.start])
        found.append(part.start + np.flatnonzero(magnitudes >= bound))
    candidates = np.concatenate(found)
    if len(candidates) < k:
        return largest(np.abs(row)[None], k)
    return candidates[largest(np.abs(row[candidates])[None], k)]


def to_bfloat16(values: npt.ArrayLike) -> npt.NDArray[np.uint16]:
    """Return numbers as the upper half of a float32, rounded to nearest."""
    with np.errstate(over="ignore"):
        bits = np.asarray(values, np.float32).view(np.uint32)
    return ((bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)).astype(np.uint16)


def from_bfloat16(halves: npt.NDArray[np.uint16]) -> npt.NDArray[np.float32]:
    """Undo `to_bfloat16`; refuse what is no number."""
    values = (halves.astype(np.uint32) << np.uint32(16)).view(np.float32)
    if not np.isfinite(values).all():
        raise LasgError("a sparse message has a magnitude that is no number: it is damaged")
    return values


def _means(which: Positions, values: npt.NDArray[np.float64], count: int) -> npt.NDArray[np.float64]:
    """Return the mean of the values of each kind; 0 where there is none."""
    totals = np.bincount(which, values, count)
    return totals / np.maximum(np.bincount(which, minlength=count), 1)


def _width(count: int) -> int:
    """Bits of a number below `count`."""
    return max(1, (count - 1).bit_length())


def _count_bytes(p: int) -> int:
    """Bytes of a number up to p."""
    return (p.bit_length() + 7) // 8
