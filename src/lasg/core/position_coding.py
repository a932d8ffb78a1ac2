"""Sorted positions in a long vector as bytes: Golomb codes (Golomb 1966) of the gaps between them, all by NumPy.

The positions of the largest entries of a network's update are dense in one layer and sparse in the next. So every 64
positions have a Golomb parameter of their own, the spacing: a gap is q * spacing + r.

A message: how many positions; where they are more than 64 the classes of the spacings, coded, and their length; then,
bit by bit, all r in truncated binary (all bits but the last, then the last of those that have it), and all q in unary.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.adaptive_coding import AdaptiveCoder
from lasg.core.arrays import IntArray
from lasg.core.bit_packing import (
    check_integers,
    class_of,
    damaged,
    encode_varint,
    gather_bits,
    lowest_of,
    spread_bits,
    take_bytes,
    take_varint,
)
from lasg.errors import LasgError

Integers: TypeAlias = npt.NDArray[np.int64]
_GROUP = 64
_CLASS_BITS = 2  # spacings of a group are 1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, ...
_LN2 = 45426  # in 2^16ths: the best spacing of gaps that are spread at random is ln 2 times their mean
_STEP_COST = 2  # bits that a class unlike the one before costs, about
_STEPS = AdaptiveCoder(lowest=-255, highest=255)


def encode_positions(positions: IntArray, p: int) -> bytes:
    """Turn sorted positions in [0, p), each at most once, into a message."""
    check_integers(positions)
    count = len(positions)
    if not count:
        return encode_varint(0)
    gaps: Integers = np.diff(positions.astype(np.int64), prepend=-1) - 1  # type: ignore[assignment]
    if gaps.min() < 0 or positions[-1] >= p:
        raise LasgError(f"positions must be sorted, different and in [0, {p}), which these are not")
    head = encode_varint(count)
    spacings = np.array([_even_spacing(count, p)])
    if count > _GROUP:
        classes = _choose_classes(gaps)
        steps = np.diff(classes, prepend=class_of(spacings, _CLASS_BITS))
        coded, _ = _STEPS.encode(steps, _STEPS.init_row(len(steps)))
        head += encode_varint(len(coded)) + coded
        spacings = lowest_of(classes, _CLASS_BITS)
    spacing, short, cutoff = _per_position(spacings, count)
    quotients, remainders = np.divmod(gaps, spacing)
    is_long = remainders >= cutoff
    remainders[is_long] += cutoff[is_long]
    front = spread_bits(np.where(is_long, remainders >> 1, remainders), short)
    last = (remainders[is_long] & 1).astype(np.uint8)
    ends = np.cumsum(quotients + 1) - 1
    unary = np.zeros(int(ends[-1]) + 1, np.uint8)
    unary[ends] = 1
    return head + np.packbits(np.concatenate([front, last, unary])).tobytes()


def decode_positions(data: bytes, p: int) -> Integers:
    """Turn a message back into positions."""
    positions, rest = take_positions(data, p)
    if rest:
        raise LasgError(f"{len(rest)} bytes follow the coded positions: refused")
    return positions


def take_positions(data: bytes, p: int) -> tuple[Integers, bytes]:
    """Return the positions in front of a message, and the bytes that follow them."""
    count, rest = take_varint(memoryview(data), p)
    if not count:
        return np.zeros(0, np.int64), bytes(rest)
    if count > 8 * len(rest):  # every position has a bit at least
        raise damaged("positions")
    spacings = np.array([_even_spacing(count, p)])
    if count > _GROUP:
        spacings, rest = _take_spacings(rest, count, p)
    spacing, short, cutoff = _per_position(spacings, count)
    most = int(short.sum()) + 2 * count + p // int(spacings.min())
    bits = np.unpackbits(np.frombuffer(rest, np.uint8, count=min(len(rest), -(-most // 8))))
    at = int(short.sum())
    if at > len(bits):
        raise damaged("positions")
    remainders = gather_bits(bits, short)
    is_long = np.flatnonzero(remainders >= cutoff)
    last = bits[at : at + len(is_long)]
    at += len(is_long)
    ends = np.flatnonzero(bits[at:])[:count]
    if len(ends) < count:
        raise damaged("positions")
    remainders[is_long] = 2 * remainders[is_long] + last - cutoff[is_long]
    steps = (np.diff(ends, prepend=-1) - 1) * spacing + remainders + 1
    used = at + int(ends[-1]) + 1
    # Summed in float64, which does not overflow.
    if steps.sum(dtype=np.float64) > p or bits[used : -(-used // 8) * 8].any():
        raise damaged("positions")
    return np.cumsum(steps) - 1, bytes(rest[-(-used // 8) :])


def _even_spacing(count: int, p: int) -> int:
    """Return the spacing for `count` positions anywhere in [0, p)."""
    return max(1, (_LN2 * p + 32768 * count) // (65536 * count))


def _choose_classes(gaps: Integers) -> Integers:
    """Return the class of the spacing of every group: of that for its mean gap, or of a lower one that saves bits.

    Gaps are more uneven than chance would have them where a group has the end of a layer in it.
    """
    starts = np.arange(0, len(gaps), _GROUP)
    sizes = np.diff(starts, append=len(gaps))
    sums = np.add.reduceat(gaps, starts)
    best: Integers = class_of(
        np.maximum(1, (_LN2 * (2 * sums + sizes) + 65536 * sizes) // (131072 * sizes)), _CLASS_BITS
    )
    cost = _cost(gaps, best, starts)
    for lower in (1, 2):
        classes = np.maximum(best - lower, 1)
        other = _cost(gaps, classes, starts)
        saves = other < cost - _STEP_COST
        best, cost = np.where(saves, classes, best), np.where(saves, other, cost)
    return best


def _cost(gaps: Integers, classes: Integers, starts: Integers) -> Integers:
    """Return the bits of every group's gaps but for what is the same with every spacing."""
    spacing, short, cutoff = _per_position(lowest_of(classes, _CLASS_BITS), len(gaps))
    quotients, remainders = np.divmod(gaps, spacing)
    cost: Integers = np.add.reduceat(quotients + short + (remainders >= cutoff), starts)
    return cost


def _take_spacings(data: memoryview, count: int, p: int) -> tuple[Integers, memoryview]:
    groups = -(-count // _GROUP)
    length, data = take_varint(data, 16 * groups)  # more than they can take
    coded, data = take_bytes(data, length)
    steps, _ = _STEPS.decode(bytes(coded), groups, _STEPS.init_row(groups))
    classes = class_of(_even_spacing(count, p), _CLASS_BITS) + np.cumsum(steps, dtype=np.int64)
    if classes.min() < 1 or classes.max() > class_of(p, _CLASS_BITS):
        raise damaged("positions")
    return lowest_of(classes, _CLASS_BITS), data


def _per_position(spacings: Integers, count: int) -> tuple[Integers, Integers, Integers]:
    """Return for every position its group's spacing, how many bits all remainders have, and from which on one more."""
    short = (np.frexp(spacings.astype(np.float64))[1] - 1).astype(np.int64)
    cutoff = (2 << short) - spacings
    groups = len(spacings)
    sizes = [_GROUP] * (groups - 1) + [count - _GROUP * (groups - 1)]
    return np.repeat(spacings, sizes), np.repeat(short, sizes), np.repeat(cutoff, sizes)
