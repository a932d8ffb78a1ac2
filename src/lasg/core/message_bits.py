"""How numbers lie in the bytes of a message: packed bits, and the parts of floats; what is damaged is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.errors import LasgError


def pack_bits(values: npt.NDArray[np.integer[Any]], bits: int) -> bytes:
    """Pack the low `bits`, 32 at most, of every number, most significant bit first, padded to whole bytes."""
    spread = np.unpackbits(np.ascontiguousarray(values, ">u4").view(np.uint8).reshape(-1, 4), axis=-1)
    return np.packbits(spread[:, 32 - bits :]).tobytes()


def unpack_bits(data: bytes, bits: int, count: int) -> npt.NDArray[np.int64]:
    """Undo `pack_bits` for so many numbers."""
    if len(data) != -(-bits * count // 8):
        raise LasgError(f"{count} numbers of {bits} bits were expected, {len(data)} bytes came: refused")
    spread = np.zeros((count, 32), np.uint8)
    spread[:, 32 - bits :] = np.unpackbits(np.frombuffer(data, np.uint8), count=bits * count).reshape(count, bits)
    return np.packbits(spread, axis=-1).view(">u4")[:, 0].astype(np.int64)


def split_floats(values: npt.NDArray[Any]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
    """Return float32 numbers >= 0 as their exponents, `(n, q)`, and the bytes of their 23 digits, `(n, 3 q)`."""
    bits = np.ascontiguousarray(values, "<f4").view("<u4")
    digits = (bits & np.uint32(0x7FFFFF)).astype("<u4").view(np.uint8).reshape(*bits.shape, 4)[..., :3]
    return (bits >> np.uint32(23)).astype(np.int32), digits.reshape(len(bits), -1)


def join_floats(exponents: npt.NDArray[np.int32], digits: npt.NDArray[np.uint8]) -> npt.NDArray[np.float64]:
    """Undo `split_floats`; refuse what is no number."""
    wide = np.zeros((*exponents.shape, 4), np.uint8)
    wide[..., :3] = digits.reshape(*exponents.shape, 3)
    bits = wide.view("<u4")[..., 0]
    if ((exponents < 0) | (exponents >= 255)).any() or (bits >> np.uint32(23)).any():
        raise LasgError("a message has a scale that is no number: it is damaged")
    values: npt.NDArray[np.float64] = (bits | (exponents.astype(np.uint32) << np.uint32(23))).view("<f4").astype(float)
    return values
