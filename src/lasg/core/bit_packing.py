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
    numbers = np.asarray(numbers, np.int64)
    # The exponent of a float64, and `bits` bits below its leading one, are next to each other in it.
    octaves = (numbers.astype(np.float64).view(np.int64) >> (52 - bits)) - ((1022 + bits) << bits)
    return np.where(numbers >> bits, octaves, numbers)


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


def pack_widths(numbers: npt.NDArray[np.int64], widths: npt.NDArray[np.int64]) -> bytes:
    """Return the numbers, each below 2^width, one after the other, the lowest bits first, padded to whole bytes."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    words = np.zeros(total // 64 + 2, np.uint64)
    if not total:
        return b""
    starts = ends - widths
    at, shifts, values = starts >> 6, starts & 63, numbers.view(np.uint64)
    # Those that begin in one word are next to each other; the last of them may go on in the next word.
    lasts = np.append(np.flatnonzero(at[1:] != at[:-1]), len(at) - 1)
    firsts = np.append(0, lasts[:-1] + 1)
    words[at[firsts]] = np.bitwise_or.reduceat(values << shifts.view(np.uint64), firsts)
    over = lasts[shifts[lasts] + widths[lasts] > 64]
    words[at[over] + 1] |= values[over] >> (64 - shifts[over]).view(np.uint64)
    return words.astype("<u8").tobytes()[: -(-total // 8)]


def unpack_widths(data: memoryview, widths: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], memoryview]:
    """Return numbers, of up to 32 bits, from the front of the data, as `pack_widths` wrote them, and what follows."""
    ends = np.cumsum(widths)
    total = int(ends[-1]) if len(ends) else 0
    packed, rest = take_bytes(data, -(-total // 8))
    words = np.zeros(total // 64 + 2, "<u8")
    words.view(np.uint8)[: len(packed)] = np.frombuffer(packed, np.uint8)
    starts = ends - widths
    at, shifts = starts >> 6, starts & 63
    values = words[at] >> shifts.view(np.uint64)
    over = np.flatnonzero(shifts + widths > 64)
    values[over] |= words[at[over] + 1] << (64 - shifts[over]).view(np.uint64)
    masks = (1 << np.arange(33)) - 1
    return values.view(np.int64) & masks[widths], rest


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
