"""Short arrays of small integers, sent again and again: an adaptive binary model in front of a binary range coder.

No table travels. Both sides learn from what was sent before, per worker, in integers only: every machine computes the
same. The format of a message is fixed by the vectors in `tests/core/entropy_vectors.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import IntArray
from lasg.core.bit_packing import check_integers
from lasg.errors import LasgError

INT32_LOWEST, INT32_HIGHEST = -(2**31), 2**31 - 1
# What is remembered of one worker: its row of every array of the state.
Row: TypeAlias = dict[str, npt.NDArray[Any]]

# -- the range coder -------------------------------------------------------------------------------------------------
#
# Martin 1979, in the form of LZMA's and CABAC's coders: an interval [low, low + width) that every bit narrows, written
# out byte by byte from the top; a carry runs back into bytes already written. 48 bits make the rounding of
# probabilities negligible, and cost Python no more than 32.

_TOP_BITS = 48
_TOP = 1 << _TOP_BITS
_BOTTOM = 1 << (_TOP_BITS - 8)
_CHANCE_BITS = 16
_EVEN = 1 << (_CHANCE_BITS - 1)


class _BitCoder(Protocol):
    """Writes a bit and returns it, or ignores the argument and returns the bit that it reads."""

    def code(self, bit: int, chance: int) -> int:
        """Code one bit that is 1 with probability chance / 2^16."""
        ...


class BitWriter:
    """Turns bits and their probabilities into bytes."""

    def __init__(self) -> None:
        self._low, self._width = 0, _TOP
        self._written = bytearray()

    def code(self, bit: int, chance: int) -> int:
        """Write one bit that is 1 with probability chance / 2^16, 0 < chance < 2^16."""
        bound = (self._width >> _CHANCE_BITS) * chance
        if bit:
            self._width = bound
        else:
            self._low += bound
            self._width -= bound
        while self._width < _BOTTOM:
            self._shift()
        return bit

    def _shift(self) -> None:
        """Write the interval's highest byte, which is settled but for a carry."""
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
        """Read one bit that is 1 with probability chance / 2^16; the argument `bit` has no meaning here."""
        bound = (self._width >> _CHANCE_BITS) * chance
        if self._offset < bound:
            self._width = bound
            bit = 1
        else:
            self._offset -= bound
            self._width -= bound
            bit = 0
        while self._width < _BOTTOM:
            following = self._data[self._next] if self._next < len(self._data) else 0
            self._offset = self._offset << 8 | following
            self._width <<= 8
            self._next += 1
        return bit

    def finish(self) -> None:
        """Refuse bytes that no writer would have written."""
        if not self._data or len(self._data) > self._next or (len(self._data) > 1 and not self._data[-1]):
            raise LasgError(f"{len(self._data)} bytes of coded symbols do not end where the symbols end: refused")


# -- the model -------------------------------------------------------------------------------------------------------
#
# An entry is said as: is it nonzero; its sign; the length of its magnitude in bits, in unary; the bits below the
# leading one. Every such question has a context, and every context counts the answers.

_HISTORY_BITS = 4  # the fraction of the running mean of an entry's magnitude
_HISTORY_CAP = (1 << 15) - 1  # magnitudes above it count as it
_LEVELS = 20  # bit lengths of that mean: 0 to 19
_LENGTHS = 16  # bit lengths of magnitudes that have contexts of their own
_ZERO = 0
_SIGN = _ZERO + 3 * _LEVELS
_LENGTH = _SIGN + 9
_BELOW = _LENGTH + _LEVELS * _LENGTHS
CONTEXTS = _BELOW + 4 * _LENGTHS
_COUNT_LIMIT = 255  # then counts are halved: what was long ago weighs less


class _Counts:
    """Codes bits with the probabilities that the counts of their contexts give, and counts them."""

    def __init__(self, counts: npt.NDArray[Any], coder: _BitCoder) -> None:
        self.zeros: list[int] = counts[:, 0].tolist()
        self.ones: list[int] = counts[:, 1].tolist()
        self.code_bit = coder.code

    def code(self, context: int, bit: int) -> int:
        """Code one bit by the estimate of Krichevsky and Trofimov: (ones + 1/2) / (all + 1)."""
        zeros, ones = self.zeros[context], self.ones[context]
        bit = self.code_bit(bit, ((2 * ones + 1) << (_CHANCE_BITS - 1)) // (zeros + ones + 1))
        if zeros + ones >= _COUNT_LIMIT:
            zeros = self.zeros[context] = zeros >> 1
            ones = self.ones[context] = ones >> 1
        if bit:
            self.ones[context] = ones + 1
        else:
            self.zeros[context] = zeros + 1
        return bit

    def code_magnitude(self, magnitude: int, level: int, longest: int) -> int:
        """Code a magnitude >= 1 of at most `longest` bits."""
        length = magnitude.bit_length()
        below = 0
        while below < longest - 1:
            if not self.code(_LENGTH + level * _LENGTHS + min(below, _LENGTHS - 1), below < length - 1):
                break
            below += 1
        coded = 1
        for position in range(below - 1, -1, -1):
            bit = (magnitude >> position) & 1
            if coded < 4:  # the two bits below the leading one are not evenly spread
                coded = coded << 1 | self.code(_BELOW + 4 * min(below, _LENGTHS - 1) + coded, bit)
            else:
                coded = coded << 1 | self.code_bit(bit, _EVEN)
        return coded


def _code(symbols: Sequence[int], row: Row, coder: _BitCoder, lowest: int, highest: int) -> tuple[list[int], Row]:
    """Code all entries, writing or reading; return them and the row of the state afterwards."""
    counts = _Counts(row["counts"], coder)
    history: list[int] = row["history"].tolist()
    last: list[int] = row["last_sign"].tolist()
    longest = max(-lowest, highest).bit_length()
    coded = []
    neighbour = neighbour_sign = 0  # of the entry just coded: its magnitude up to 2, its sign + 1
    for i, symbol in enumerate(symbols):
        level = history[i].bit_length()
        magnitude = sign = 0
        if longest and counts.code(_ZERO + 3 * level + neighbour, symbol != 0):
            if lowest < 0 < highest:
                positive = counts.code(_SIGN + 3 * (last[i] + 1) + neighbour_sign, symbol > 0)
            else:
                positive = int(highest > 0)
            magnitude = counts.code_magnitude(abs(symbol), level, longest)
            sign = 1 if positive else -1
        coded.append(sign * magnitude)
        last[i] = sign
        history[i] += ((min(magnitude, _HISTORY_CAP) << _HISTORY_BITS) - history[i]) >> 2
        neighbour, neighbour_sign = min(magnitude, 2), sign + 1
    after = {
        "counts": np.array([counts.zeros, counts.ones], row["counts"].dtype).T.copy(),
        "history": np.array(history, row["history"].dtype),
        "last_sign": np.array(last, row["last_sign"].dtype),
    }
    return coded, after


@dataclass(frozen=True, kw_only=True)
class AdaptiveCoder:
    """Codes arrays of p integers in [lowest, highest], each with what the arrays of this worker before it taught.

        coder = AdaptiveCoder(lowest=-7, highest=7)
        sender = receiver = coder.init(workers, p)
        messages, sender = coder.encode_rows(symbols, sender)         # (workers, p)
        symbols, receiver = coder.decode_rows(messages, p, receiver)

    Nothing is changed in place: a message that was lost is undone by keeping the row before it.
    """

    lowest: int = INT32_LOWEST
    highest: int = INT32_HIGHEST

    def __post_init__(self) -> None:
        if not INT32_LOWEST <= self.lowest <= self.highest <= INT32_HIGHEST:
            raise LasgError(f"lowest and highest must be int32, in this order, got {self.lowest} and {self.highest}")

    def init(self, workers: int, p: int) -> Row:
        """Return the state of workers that have sent nothing: integer arrays with a row per worker."""
        return {
            "counts": np.zeros((workers, CONTEXTS, 2), np.uint8),
            "history": np.zeros((workers, p), np.int32),
            "last_sign": np.zeros((workers, p), np.int8),
        }

    def init_row(self, p: int) -> Row:
        """Return the row of one worker that has sent nothing."""
        return {name: array[0] for name, array in self.init(1, p).items()}

    def encode(self, symbols: IntArray, row: Row) -> tuple[bytes, Row]:
        """Turn symbols `(p,)` into a message of at least one byte; return it, and the worker's new row."""
        check_integers(symbols)
        if len(symbols) and not self.lowest <= int(symbols.min()) <= int(symbols.max()) <= self.highest:
            raise LasgError(
                f"symbols from {self.lowest} to {self.highest} can be coded, got {symbols.min()} to {symbols.max()}"
            )
        _check_row(row, len(symbols))
        writer = BitWriter()
        _, after = _code(symbols.tolist(), row, writer, self.lowest, self.highest)
        return writer.finish(), after

    def decode(self, data: bytes, p: int, row: Row) -> tuple[npt.NDArray[np.int32], Row]:
        """Turn a message back into symbols `(p,)`; return them, and the worker's new row."""
        _check_row(row, p)
        reader = BitReader(data)
        coded, after = _code([0] * p, row, reader, self.lowest, self.highest)
        reader.finish()
        if coded and not self.lowest <= min(coded) <= max(coded) <= self.highest:
            raise LasgError(f"a message says symbols outside {self.lowest} to {self.highest}: refused")
        return np.array(coded, np.int32), after

    def encode_rows(self, symbols: IntArray, state: Row) -> tuple[list[bytes], Row]:
        """Turn symbols `(n, p)` of n workers into messages; return them, and the new state of these workers."""
        coded = [self.encode(line, row) for line, row in zip(symbols, _rows(state), strict=True)]
        return [message for message, _ in coded], _stack([row for _, row in coded], state)

    def decode_rows(self, messages: Sequence[bytes], p: int, state: Row) -> tuple[npt.NDArray[np.int32], Row]:
        """Turn messages of n workers back into symbols `(n, p)`; return them, and the new state of these workers."""
        coded = [self.decode(message, p, row) for message, row in zip(messages, _rows(state), strict=True)]
        symbols = np.array([line for line, _ in coded], np.int32).reshape(len(coded), p)
        return symbols, _stack([row for _, row in coded], state)


def _rows(state: Row) -> list[Row]:
    return [{name: array[i] for name, array in state.items()} for i in range(len(state["counts"]))]


def _stack(rows: list[Row], like: Row) -> Row:
    return {name: np.stack([row[name] for row in rows]) if rows else array.copy() for name, array in like.items()}


def _check_row(row: Row, p: int) -> None:
    for name, shape in {"counts": (CONTEXTS, 2), "history": (p,), "last_sign": (p,)}.items():
        if row[name].shape != shape:
            raise LasgError(f"{name} of a coder's state must have shape {shape} for {p} entries, got {row[name].shape}")
