"""What the entropy coders share: classes of numbers, bits of different widths, reading bytes that may be damaged."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.errors import LasgError


def check_integers(numbers: npt.NDArray[Any]) -> None:
    """Refuse what is not a vector of integers."""
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise LasgError(f"a vector of integers is needed, got {numbers.dtype} of shape {numbers.shape}")


# -- classes of integers: exact while small, then a floating-point number with few bits ------------------------------


def class_of(numbers: Any, bits: int) -> Any:
    """Return the class of numbers >= 0: the number itself below 2^(bits+1), then 2^bits classes per octave."""
    shift = np.maximum(np.frexp(np.asarray(numbers, np.float64))[1] - (bits + 1), 0).astype(np.int64)
    return (shift << bits) + (np.asarray(numbers, np.int64) >> shift)


def width_of(classes: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return how many bits a class leaves open."""
    width: npt.NDArray[np.int64] = np.maximum((classes >> bits) - 1, 0)
    return width


def lowest_of(classes: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return the lowest number of a class."""
    width = width_of(classes, bits)
    return (classes - (width << bits)) << width


def middle_of(classes: npt.NDArray[np.int64], bits: int) -> npt.NDArray[np.int64]:
    """Return the number in the middle of a class."""
    return lowest_of(classes, bits) + ((1 << width_of(classes, bits)) >> 1)


# -- bits ------------------------------------------------------------------------------------------------------------


def spread_bits(numbers: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> npt.NDArray[np.uint8]:
    """Return the lowest `widths` bits of every number: first the lowest bit of all, then the next."""
    planes = range(int(widths.max(initial=0)))
    bits = [((numbers[widths > plane] >> plane) & 1).astype(np.uint8) for plane in planes]
    return np.concatenate(bits) if bits else np.zeros(0, np.uint8)


def gather_bits(bits: npt.NDArray[np.uint8], widths: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Undo `spread_bits`."""
    numbers = np.zeros(len(widths), np.int64)
    start = 0
    for plane in range(int(widths.max(initial=0))):
        has = widths > plane
        stop = start + int(np.count_nonzero(has))
        numbers[has] |= bits[start:stop].astype(np.int64) << plane
        start = stop
    return numbers


def encode_varint(number: int) -> bytes:
    """Return a number >= 0 as LEB128: seven bits per byte, the lowest first."""
    out = bytearray()
    while number >= 128:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def take_varint(data: memoryview, highest: int) -> tuple[int, memoryview]:
    """Return the number of at most `highest` in front of the data, and what follows."""
    number = 0
    for i, byte in enumerate(data[:10]):
        number |= (byte & 127) << (7 * i)
        if byte < 128:
            if number > highest:
                raise LasgError(f"a coded message says a number of {number}, at most {highest} can be: refused")
            return number, data[i + 1 :]
    raise damaged("numbers")


def take_bytes(data: memoryview, length: int) -> tuple[memoryview, memoryview]:
    """Return so many bytes in front of the data, and what follows."""
    if len(data) < length:
        raise LasgError(f"a coded message ends too early: {length} more bytes were expected, {len(data)} came")
    return data[:length], data[length:]


def damaged(what: str) -> LasgError:
    """Build the error for bytes that no encoder wrote."""
    return LasgError(f"the bytes of coded {what} are damaged: refused")
