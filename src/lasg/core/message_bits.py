"""How numbers lie in the bytes of a message: packed bits, and floats as integers; what is damaged is refused."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import CACHED, Codes, code_type
from lasg.errors import LasgError


def pack_bits(values: npt.NDArray[np.integer[Any]], bits: int) -> bytes:
    """Pack the low `bits`, 64 at most, of every number, most significant bit first, padded to whole bytes."""
    packed = np.empty(-(-bits * len(values) // 8), np.uint8)
    for start in range(0, len(values), CACHED):
        block = values[start : start + CACHED]
        at = bits * start // 8
        packed[at : at + bits * CACHED // 8] = _pack(block, bits)[: -(-bits * len(block) // 8)]
    return packed.tobytes()


def unpack_bits(data: bytes | npt.NDArray[np.uint8], bits: int, count: int) -> Codes:
    """Undo `pack_bits` for so many numbers; return them as the smallest integers of `code_type`."""
    if len(data) != -(-bits * count // 8):
        raise LasgError(f"{count} numbers of {bits} bits were expected, {len(data)} bytes came: refused")
    packed, values = np.frombuffer(data, np.uint8), np.empty(count, code_type(bits))
    for start in range(0, count, CACHED):
        at, end = bits * start // 8, min(start + CACHED, count)
        values[start:end] = _unpack(packed[at : at + bits * CACHED // 8], bits, end - start)[: end - start]
    return values


# Eight numbers at a time. First each has a lane of 8 or 16 bits in a 64-bit word, the first one the lowest lane. Then
# neighbours are joined in lanes twice as wide, the first one in the higher bits.


def _pack(values: Codes, bits: int) -> npt.NDArray[np.uint8]:
    """Pack some numbers; bytes of zeros may follow."""
    kind = code_type(bits)
    if bits > 16:
        size = 4 if bits <= 32 else 8
        spread = np.unpackbits(np.ascontiguousarray(values, f">u{size}").view(np.uint8).reshape(-1, size), axis=-1)
        return np.packbits(spread[:, 8 * size - bits :])
    lanes = np.zeros(-(-len(values) // 8) * 8, kind)
    np.copyto(lanes[: len(values)], values, casting="unsafe")
    width = used = 8 * lanes.itemsize
    if bits == used:
        return lanes.astype(f">u{lanes.itemsize}", copy=False).view(np.uint8)
    lanes &= kind((1 << bits) - 1)
    words, used = lanes.view("<u8"), bits
    while width < 64 and used != 8:
        words = _every_other(words, width) << np.uint64(used) | _every_other(words >> np.uint64(width), width)
        width, used = 2 * width, 2 * used
    if used == 8:
        return words.view(f"<u{width // 8}").astype(np.uint8)
    if bits < 8:
        return _slots(words.astype(">u8"), 8, bits, 8 - bits).copy().view(np.uint8)
    first, second = words[::2], words[1::2]
    pairs = np.empty((len(first), 2), ">u8")
    pairs[:, 0] = first << np.uint64(64 - used) | second >> np.uint64(2 * used - 64)
    pairs[:, 1] = second << np.uint64(128 - 2 * used)
    return _slots(pairs, 16, bits, 0).copy().view(np.uint8)


def _unpack(packed: npt.NDArray[np.uint8], bits: int, count: int) -> Codes:
    """Undo `_pack` for so many numbers; others may follow."""
    kind, groups = code_type(bits), -(-count // 8)
    if bits > 16:
        size = 4 if bits <= 32 else 8
        spread = np.zeros((count, 8 * size), np.uint8)
        spread[:, -bits:] = np.unpackbits(packed, count=bits * count).reshape(count, bits)
        return np.packbits(spread, axis=-1).view(f">u{size}")[:, 0].astype(kind)
    lanes = 8 * np.dtype(kind).itemsize
    if bits == lanes:
        return packed.view(f">u{lanes // 8}").astype(kind, copy=False)
    if len(packed) < bits * groups:
        packed = np.concatenate([packed, np.zeros(bits * groups - len(packed), np.uint8)])
    if 8 % bits == 0:
        width, used = 8 * (8 // bits), 8
        words = packed.astype(f"<u{width // 8}").view("<u8")
    elif bits < 8:
        width, used, wide = 64, 8 * bits, np.zeros(groups, ">u8")
        _slots(wide, 8, bits, 8 - bits)[...] = packed.view(f"V{bits}")
        words = wide.astype("<u8")
    else:
        width, used, pairs = 64, 4 * bits, np.zeros((groups, 2), ">u8")
        _slots(pairs, 16, bits, 0)[...] = packed.view(f"V{bits}")
        first, second = pairs[:, 0].astype("<u8"), pairs[:, 1].astype("<u8")
        words = np.empty(2 * groups, "<u8")
        words[::2] = first >> np.uint64(64 - used)
        words[1::2] = (first << np.uint64(2 * used - 64) | second >> np.uint64(128 - 2 * used)) & _ones(used, 64)
    while width > lanes:
        width, used = width // 2, used // 2
        words = words >> np.uint64(used) & _ones(used, 2 * width) | (words & _ones(used, 2 * width)) << np.uint64(width)
    return words.view(f"<u{lanes // 8}").astype(kind, copy=False)


@functools.cache
def _ones(used: int, width: int) -> np.uint64:
    """Return a word whose lanes of so many bits have as many ones, the lowest."""
    return np.uint64(sum(((1 << used) - 1) << at for at in range(0, 64, width)))


def _every_other(words: npt.NDArray[np.uint64], width: int) -> npt.NDArray[np.uint64]:
    """Return the words with every other lane of so many bits, from the lowest on."""
    return words & _ones(width, 2 * width)


def _slots(words: npt.NDArray[np.uint64], stride: int, size: int, offset: int) -> npt.NDArray[Any]:
    """Return so many bytes of every word, or pair of them, as one item each: NumPy copies such items quickly."""
    return np.ndarray((words.nbytes // stride,), f"V{size}", words, offset, (stride,))


ONE = 127 << 23
"""The bits of 1.0 in float32."""
DIGITS = 20
"""So many of the lowest bits of a float32 cannot be foreseen from the one before: above them are eighths of octaves."""


def integers_of(values: npt.NDArray[Any]) -> npt.NDArray[np.int32]:
    """Return float32 numbers >= 0 as integers in the same order, which grow with their logarithms: 1.0 is 0."""
    return np.ascontiguousarray(values, np.float32).view(np.int32) - np.int32(ONE)


def floats_of(integers: npt.NDArray[np.int32]) -> npt.NDArray[np.float64]:
    """Undo `integers_of`; refuse what is no number."""
    if ((integers < -ONE) | (integers >= (255 << 23) - ONE)).any():
        raise LasgError("a message has a scale that is no number: it is damaged")
    values: npt.NDArray[np.float64] = (integers + np.int32(ONE)).view(np.float32).astype(float)
    return values
