"""How numbers lie in the bytes of a message: packed bits, and floats as integers; what is damaged is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.errors import LasgError


def pack_bits(values: npt.NDArray[np.integer[Any]], bits: int) -> bytes:
    """Pack the low `bits`, 64 at most, of every number, most significant bit first, padded to whole bytes."""
    size = 4 if bits <= 32 else 8
    spread = np.unpackbits(np.ascontiguousarray(values, f">u{size}").view(np.uint8).reshape(-1, size), axis=-1)
    return np.packbits(spread[:, 8 * size - bits :]).tobytes()


def unpack_bits(data: bytes, bits: int, count: int) -> npt.NDArray[np.int64]:
    """Undo `pack_bits` for so many numbers."""
    if len(data) != -(-bits * count // 8):
        raise LasgError(f"{count} numbers of {bits} bits were expected, {len(data)} bytes came: refused")
    size = 4 if bits <= 32 else 8
    spread = np.zeros((count, 8 * size), np.uint8)
    spread[:, -bits:] = np.unpackbits(np.frombuffer(data, np.uint8), count=bits * count).reshape(count, bits)
    return np.packbits(spread, axis=-1).view(f">u{size}")[:, 0].astype(np.int64)


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
