"""A binary range coder: bits and their probabilities become bytes, in integers only.

Martin 1979, in the form of LZMA's and CABAC's coders: an interval [low, low + width) that every bit narrows, written
out byte by byte from the top; a carry runs back into bytes already written. 48 bits make the rounding of probabilities
negligible, and cost Python no more than 32.
"""

from __future__ import annotations

from typing import Protocol

from lasg.errors import LasgError

CHANCE_BITS = 16
"""A probability is an integer over 2^16."""
_TOP_BITS = 48
_TOP = 1 << _TOP_BITS
_BOTTOM = 1 << (_TOP_BITS - 8)


class BitCoder(Protocol):
    """Writes what it is given and returns it, or ignores it and returns what it reads."""

    def code(self, bit: int, chance: int) -> int:
        """Code one bit that is 1 with probability chance / 2^16, 0 < chance < 2^16."""
        ...

    def code_even(self, number: int, bits: int) -> int:
        """Code a number below 2^bits, at most 2^32, all of which are equally likely."""
        ...


class BitWriter:
    """Turns bits and their probabilities into bytes."""

    def __init__(self) -> None:
        self._low, self._width = 0, _TOP
        self._written = bytearray()

    def code(self, bit: int, chance: int) -> int:
        """Write one bit."""
        width = self._width
        bound = (width >> 16) * chance
        if bit:
            self._width = width = bound
        else:
            self._low += bound
            self._width = width = width - bound
        if width < _BOTTOM:
            self._shift()
        return bit

    def code_even(self, number: int, bits: int) -> int:
        """Write a number of so many bits."""
        self._width >>= bits
        self._low += number * self._width
        if self._width < _BOTTOM:
            self._shift()
        return number

    def _shift(self) -> None:
        """Write the interval's highest bytes, which are settled but for a carry."""
        while self._width < _BOTTOM:
            if self._low >= _TOP:
                self._carry()
            self._written.append(self._low >> (_TOP_BITS - 8))
            self._low = (self._low << 8) & (_TOP - 1)
            self._width <<= 8

    def _carry(self) -> None:
        self._low -= _TOP
        i = len(self._written) - 1
        while self._written[i] == 255:
            self._written[i] = 0
            i -= 1
        self._written[i] += 1

    def finish(self) -> bytes:
        """Return the shortest bytes that say the interval: zeros at the end are implied, but one byte is there."""
        for zeros in range(_TOP_BITS, -1, -8):
            value = (self._low + (1 << zeros) - 1) >> zeros << zeros
            if value < self._low + self._width:
                break
        self._low = value
        if self._low >= _TOP:
            self._carry()
        return bytes(self._written + self._low.to_bytes(_TOP_BITS // 8, "big")).rstrip(b"\0") or b"\0"


class BitReader:
    """Turns bytes back into bits, given the same probabilities."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._next = _TOP_BITS // 8
        self._offset = int.from_bytes(data[: self._next].ljust(self._next, b"\0"), "big")
        self._width = _TOP

    def code(self, bit: int, chance: int) -> int:
        """Read one bit; the argument `bit` has no meaning here."""
        bound = (self._width >> 16) * chance
        if self._offset < bound:
            self._width = bound
            bit = 1
        else:
            self._offset -= bound
            self._width -= bound
            bit = 0
        if self._width < _BOTTOM:
            self._shift()
        return bit

    def code_even(self, number: int, bits: int) -> int:
        """Read a number of so many bits; the argument `number` has no meaning here."""
        self._width >>= bits
        number = self._offset // self._width
        if number >> bits:
            raise LasgError("the bytes of coded numbers are damaged: refused")
        self._offset -= number * self._width
        if self._width < _BOTTOM:
            self._shift()
        return number

    def _shift(self) -> None:
        while self._width < _BOTTOM:
            following = self._data[self._next] if self._next < len(self._data) else 0
            self._offset = self._offset << 8 | following
            self._width <<= 8
            self._next += 1

    def finish(self) -> None:
        """Refuse bytes that no writer would have written."""
        if not self._data or len(self._data) > self._next or (len(self._data) > 1 and not self._data[-1]):
            raise LasgError(f"{len(self._data)} bytes of coded symbols do not end where the symbols end: refused")
