"""Integers as bytes, without loss, in about as many bits as their entropy.

- `encode_symbols`: long arrays of small integers; a table of the symbols' counts, then a range coder (constriction).
- `AdaptiveCoder` (`adaptive_coding.py`): short arrays that the same worker sends again and again; no table.
- `encode_positions` (`position_coding.py`): sorted positions, as Golomb codes of the gaps between them.

There is no checksum and no version: a damaged message is refused or says other integers, never more of them and none
out of bounds. The formats are fixed by the vectors in `tests/core/entropy_vectors.json`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from lasg.core.adaptive_coding import INT32_HIGHEST, INT32_LOWEST, AdaptiveCoder
from lasg.core.arrays import IntArray
from lasg.core.bit_packing import (
    check_integers,
    class_of,
    damaged,
    encode_varint,
    gather_bits,
    lowest_of,
    middle_of,
    spread_bits,
    take_bytes,
    take_varint,
    width_of,
)
from lasg.core.position_coding import decode_positions, encode_positions, take_positions
from lasg.errors import LasgError, missing_extra

__all__ = [
    "AdaptiveCoder",
    "decode_positions",
    "decode_symbols",
    "encode_positions",
    "encode_symbols",
    "take_positions",
]

# -- symbols ---------------------------------------------------------------------------------------------------------
#
# A message: the size of the table, its length in bytes and itself; where the table has large symbols the length of
# their raw bits and these; the words of the range coder, none where there is one symbol only.

# Magnitudes below 2^(6+1) are coded as they are; of larger ones the leading one and 6 bits, the rest goes raw.
_OWN_BITS = 6
# Of every count the table has the leading one and 2 bits: within 12 %, which costs less than .1 % of the message.
_COUNT_BITS = 2
_STEPS = AdaptiveCoder(lowest=-255, highest=255)
_STEP_BYTES = 16  # more than one step of the table can take
# constriction's probabilities are multiples of 2^-24, at least one of them for every symbol.
_PRECISION = 24


def encode_symbols(symbols: IntArray) -> bytes:
    """Turn integers `(p,)` that fit into int32 into a message, with a static model of their frequencies."""
    check_integers(symbols)
    if not len(symbols):
        return b"\0\0"
    lowest, highest = int(symbols.min()), int(symbols.max())
    if lowest < INT32_LOWEST or highest > INT32_HIGHEST:
        raise LasgError(f"symbols must fit into int32, got {lowest} to {highest}")
    raw, tokens = b"", symbols
    large = max(-lowest, highest) >= 2 << _OWN_BITS
    if large:
        tokens, widths, below = _split_large(symbols.astype(np.int64))
        raw = np.packbits(spread_bits(below, widths)).tobytes()
        lowest, highest = int(tokens.min()), int(tokens.max())
    counts = np.bincount(np.subtract(tokens, lowest, dtype=np.int32), minlength=highest - lowest + 1)
    table, classes = _encode_table(counts, lowest)
    head = table + (encode_varint(len(raw)) + raw if large else b"")
    if np.count_nonzero(counts) == 1:
        return head
    index = (np.cumsum(counts > 0) - 1).astype(np.int32)
    compact = index[np.subtract(tokens, lowest, dtype=np.int32)]
    encoder = _constriction().stream.queue.RangeEncoder()
    encoder.encode(compact, _categorical(classes))
    words: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return head + words


def decode_symbols(
    data: bytes, count: int, lowest: int = INT32_LOWEST, highest: int = INT32_HIGHEST
) -> npt.NDArray[np.int32]:
    """Turn a message back into `count` integers; one that says any outside [lowest, highest] is refused."""
    most = int(class_of(max(-lowest, highest), _OWN_BITS))
    used, classes, rest = _decode_table(memoryview(data), count, most)
    if not len(used):
        if count or len(rest):
            raise damaged("symbols")
        return np.zeros(0, np.int32)
    raw: memoryview | None = None
    if max(-used.min(), used.max()) >= 2 << _OWN_BITS:
        length, rest = take_varint(rest, 4 * count + 1)
        raw, rest = take_bytes(rest, length)
    symbols: npt.NDArray[Any] = np.full(count, used[0], np.int32)
    if len(used) > 1:
        symbols = used.astype(np.int32)[_decode_words(rest, _categorical(classes), count)]
    elif len(rest):
        raise damaged("symbols")
    if raw is not None:
        symbols = _join_large(symbols, raw)
    if not lowest <= int(symbols.min()) <= int(symbols.max()) <= highest:
        raise LasgError(f"a message says symbols outside {lowest} to {highest}: refused")
    return symbols.astype(np.int32, copy=False)


def _constriction() -> Any:
    try:
        import constriction
    except ImportError:
        raise missing_extra("constriction", "coding") from None
    return constriction


def _categorical(classes: npt.NDArray[np.int64]) -> Any:
    """Return constriction's model of symbols whose counts have these classes.

    constriction gives every symbol one 2^24th and shares out the rest. Weights that are integers and sum to exactly
    that rest are used as they are, without rounding, so that every machine has the same model.
    """
    middle = middle_of(classes, _COUNT_BITS)
    rest = (1 << _PRECISION) - len(classes)
    weights = middle * rest // middle.sum()
    weights[np.argmax(weights)] += rest - weights.sum()
    return _constriction().stream.model.Categorical(weights.astype(np.float32), perfect=False)


def _decode_words(data: memoryview, model: Any, count: int) -> npt.NDArray[np.int32]:
    if len(data) % 4 or len(data) > count * _PRECISION // 8 + 8:
        raise damaged("symbols")
    words = np.frombuffer(data, "<u4").astype(np.uint32)
    decoder = _constriction().stream.queue.RangeDecoder(words)
    try:
        decoded: npt.NDArray[np.int32] = decoder.decode(model, count)
    except (AssertionError, ValueError):  # "invalid compressed data"
        raise damaged("symbols") from None
    if not decoder.maybe_exhausted():
        raise damaged("symbols")
    return decoded


def _encode_table(counts: npt.NDArray[np.int64], lowest: int) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the table of the counts of the tokens from `lowest` on, and the classes of those that are there.

    Tokens go 0, 1, -1, 2, -2, ...; each class is told as its difference to the one before, or, where that is less,
    to the one before that (no token is negative, say).
    """
    tokens = lowest + np.flatnonzero(counts)
    classes = class_of(counts[tokens - lowest], _COUNT_BITS)
    zigzag = np.where(tokens > 0, 2 * tokens - 1, -2 * tokens)
    table = np.zeros(int(zigzag.max()) + 1, np.int64)
    table[zigzag] = classes
    by_lag = [np.diff(table, prepend=0), table - np.concatenate([[0, 0], table])[: len(table)]]
    lag = int(np.abs(by_lag[1]).sum() < np.abs(by_lag[0]).sum())
    message, _ = _STEPS.encode(by_lag[lag], _STEPS.init_row(len(table)))
    return encode_varint(2 * len(table) + lag) + encode_varint(len(message)) + message, classes


def _decode_table(
    data: memoryview, count: int, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], memoryview]:
    """Return the tokens that occur, in order, the classes of their counts, and what follows the table."""
    size, data = take_varint(data, 4 * most + 3)
    size, lag = divmod(size, 2)
    length, data = take_varint(data, _STEP_BYTES * size)
    message, data = take_bytes(data, length)
    if not size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), data
    steps, _ = _STEPS.decode(bytes(message), size, _STEPS.init_row(size))
    table = steps.astype(np.int64)
    for start in range(1 + lag):
        table[start :: 1 + lag] = np.cumsum(table[start :: 1 + lag])
    if table.min() < 0 or table.max() > class_of(count, _COUNT_BITS) or not table[-1]:
        raise damaged("symbols")
    zigzag = np.flatnonzero(table)
    tokens = np.where(zigzag % 2, (zigzag + 1) // 2, -(zigzag // 2))
    order = np.argsort(tokens)
    return tokens[order], table[zigzag][order], data


def _split_large(
    symbols: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the signed class of every symbol, and for those that leave bits open how many, and which."""
    magnitude = np.abs(symbols)
    classes = class_of(magnitude, _OWN_BITS)
    widths = width_of(classes, _OWN_BITS)
    is_open = widths > 0
    below = (magnitude - lowest_of(classes, _OWN_BITS))[is_open]
    return np.sign(symbols) * classes, widths[is_open], below


def _join_large(tokens: npt.NDArray[np.int32], raw: memoryview) -> npt.NDArray[np.int64]:
    """Undo `_split_large`."""
    classes = np.abs(tokens).astype(np.int64)
    widths = width_of(classes, _OWN_BITS)
    is_open = widths > 0
    needed = int(widths.sum())
    if len(raw) != -(-needed // 8):
        raise damaged("symbols")
    magnitude = lowest_of(classes, _OWN_BITS)
    magnitude[is_open] += gather_bits(np.unpackbits(np.frombuffer(raw, np.uint8), count=needed), widths[is_open])
    return np.where(tokens < 0, -magnitude, magnitude)
