"""Integers as bytes, without loss, in about as many bits as their entropy.

- `encode_symbols`: long arrays of small integers; a table of the symbols' counts, then a range coder (constriction).
  Where they were rounded at random, and both sides know the noise u, a table per part of [0, 1) that u is in: given u
  they have less news (Zamir and Feder 1992).
- `AdaptiveCoder` (`adaptive_coding.py`): short arrays that the same worker sends again and again; no table.
- `encode_positions` (`position_coding.py`): sorted positions, as Golomb codes of the gaps between them.

There is no checksum and no version in a message: a damaged one is refused or says other integers, never more of them
and none out of bounds. The two sides agree on `FORMAT` before the first message. The formats are fixed by the vectors
in `tests/core/entropy_vectors.json`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core.adaptive_coding import INT32_HIGHEST, INT32_LOWEST, AdaptiveCoder, Ints
from lasg.core.arrays import FloatArray, IntArray
from lasg.core.bit_packing import (
    check_integers,
    class_of,
    damaged,
    encode_varint,
    lowest_of,
    middle_of,
    pack_widths,
    take_bytes,
    take_varint,
    unpack_widths,
    width_of,
)
from lasg.core.position_coding import decode_positions, encode_positions, take_positions
from lasg.errors import LasgError, missing_extra

__all__ = [
    "FORMAT",
    "AdaptiveCoder",
    "decode_positions",
    "decode_symbols",
    "encode_positions",
    "encode_symbols",
    "format_for",
    "take_positions",
]

FORMAT = 3
"""Changes whenever a message or a state would mean something else."""


def format_for(p: int) -> int | str:
    """Return the format of messages of p entries; those of long vectors are coded given numbers of a version."""
    return FORMAT if p <= counter.LONG else f"{FORMAT}, rounded by version {counter.ROUNDING}"


# -- symbols ---------------------------------------------------------------------------------------------------------
#
# A message: the size of the table, its length in bytes and itself; where symbols are large the length of their raw bits
# and these; the words of the range coder, none where there is one symbol only. With noise a byte goes before, how many
# bits of the noise tell tables apart; where it is not 0, a table for each of their values, then the words of all.

# Magnitudes below 128 are tokens as they are. Where there are larger ones, tokens are classes: 8 per octave, and the
# bits that a class leaves open go raw. So there are few tokens, which is quick; that the numbers of a class are not
# quite equally frequent costs less than 1 % of the message.
_LARGE = 128
_CLASS_BITS = 3
# So many of these at a time, which fits into a cache; the raw bits of each block are padded to whole bytes.
_BLOCK = 1 << 15
# Of every count the table has the leading one and 2 bits: within 12 %, which costs less than .1 % of the message.
_COUNT_BITS = 2
_STEPS = AdaptiveCoder(lowest=-255, highest=255)
_STEP_BYTES = 16  # more than one step of the table can take
_FEW = 15  # the noise tells little of larger magnitudes
_NOISE_BITS = (4, 2)  # tables by so many bits of the noise are tried
_TABLE_COST = 24, 5  # bits of a table and of each of its symbols, about
# constriction's probabilities are multiples of 2^-24, at least one of them for every symbol.
_PRECISION = 24


def encode_symbols(symbols: IntArray, noise: FloatArray | None = None) -> bytes:
    """Turn integers `(p,)` that fit into int32 into a message, with a static model of their frequencies.

    `noise` are the numbers in [0, 1) by which they were rounded, if the other side has them, too.
    """
    check_integers(symbols)
    if noise is not None and noise.shape != symbols.shape:
        raise LasgError(f"symbols {symbols.shape} need as much noise, got {noise.shape}")
    lowest, highest = (int(symbols.min()), int(symbols.max())) if len(symbols) else (0, 0)
    if lowest < INT32_LOWEST or highest > INT32_HIGHEST:
        raise LasgError(f"symbols must fit into int32, got {lowest} to {highest}")
    if noise is None:
        return _encode_plainly(symbols, lowest, highest)
    if max(-lowest, highest) <= _FEW:
        grouped = _encode_by_noise(symbols, lowest, highest, noise)
        if grouped:
            return grouped
    return b"\0" + _encode_plainly(symbols, lowest, highest)


def _encode_plainly(symbols: IntArray, lowest: int, highest: int) -> bytes:
    """Turn integers into a message with one table."""
    if not len(symbols):
        return b"\0"
    raw, tokens = b"", symbols
    large = max(-lowest, highest) >= _LARGE
    if large:
        tokens, packed = _split_large(symbols)
        raw = encode_varint(len(packed)) + packed
        lowest, highest = int(tokens.min()), int(tokens.max())
    shifted = np.subtract(tokens, lowest, dtype=np.int32)
    counts = np.bincount(shifted, minlength=highest - lowest + 1)
    table, classes = _encode_table(counts, lowest, large=large)
    if np.count_nonzero(counts) == 1:
        return table + raw
    index = (np.cumsum(counts > 0) - 1).astype(np.int32)
    encoder = _constriction().stream.queue.RangeEncoder()
    encoder.encode(index[shifted], _categorical(classes))
    words: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return table + raw + words


def _encode_by_noise(symbols: IntArray, lowest: int, highest: int, noise: FloatArray) -> bytes:
    """Turn small integers into a message with tables by the noise; nothing where one table is shorter."""
    shifted, size = np.subtract(symbols, lowest, dtype=np.int32), highest - lowest + 1
    groups = _groups_of(noise, _NOISE_BITS[0])
    counts = np.bincount(groups * np.int32(size) + shifted, minlength=size << _NOISE_BITS[0])
    counts = counts.reshape(-1, size)
    tried = {bits: counts.reshape(1 << bits, -1, size).sum(1) for bits in (*_NOISE_BITS, 0)}
    bits = min(tried, key=lambda bits: _cost(tried[bits]))
    if not bits:
        return b""
    order = np.argsort(groups >> np.uint8(_NOISE_BITS[0] - bits), kind="stable")
    sorted_symbols, start = shifted[order], 0
    encoder, tables = _constriction().stream.queue.RangeEncoder(), [bytes([bits])]
    for group in tried[bits]:
        end = start + int(group.sum())
        if end == start:
            tables.append(b"\0")
            continue
        table, classes = _encode_table(group, lowest, large=False)
        tables.append(table)
        if len(classes) > 1:
            index = (np.cumsum(group > 0) - 1).astype(np.int32)
            encoder.encode(index[sorted_symbols[start:end]], _categorical(classes))
        start = end
    words: bytes = encoder.get_compressed().astype("<u4").tobytes()
    return b"".join(tables) + words


def _groups_of(noise: FloatArray, bits: int) -> npt.NDArray[np.uint8]:
    """Return the leading bits of the noise."""
    return (noise * (1 << bits)).astype(np.uint8)


def _cost(counts: npt.NDArray[np.int64]) -> float:
    """Return about how many bits a message with a table per row of counts takes; it need not be the same everywhere."""
    rows, some = counts.sum(1, keepdims=True), counts > 0
    shares = np.divide(counts, rows, where=some, out=np.ones(counts.shape))
    return float(-(counts * np.log2(shares)).sum()) + _TABLE_COST[0] * len(counts) + _TABLE_COST[1] * int(some.sum())


def decode_symbols(
    data: bytes,
    count: int,
    lowest: int = INT32_LOWEST,
    highest: int = INT32_HIGHEST,
    noise: FloatArray | None = None,
) -> npt.NDArray[np.int32]:
    """Turn a message back into `count` integers; one that says any outside [lowest, highest] is refused."""
    if noise is not None:
        bits = data[0] if data else 1
        if bits in _NOISE_BITS:
            symbols = _decode_by_noise(memoryview(data)[1:], _groups_of(noise, bits), 1 << bits, max(-lowest, highest))
            return _within(symbols, lowest, highest)
        if bits:
            raise damaged("symbols")
        data = data[1:]
    used, classes, large, rest = _decode_table(memoryview(data), count, max(-lowest, highest))
    if not len(used):
        if count or len(rest):
            raise damaged("symbols")
        return np.zeros(0, np.int32)
    raw: memoryview | None = None
    if large:
        length, rest = take_varint(rest, 4 * count + 1)
        raw, rest = take_bytes(rest, length)
    index = np.zeros(count, np.int32)
    if len(used) > 1:
        (index,) = _decode_words(rest, [(_categorical(classes), count)])
    elif len(rest):
        raise damaged("symbols")
    return _within(used[index] if raw is None else _join_large(used, index, raw), lowest, highest)


def _within(symbols: IntArray, lowest: int, highest: int) -> npt.NDArray[np.int32]:
    if len(symbols) and not lowest <= int(symbols.min()) <= int(symbols.max()) <= highest:
        raise LasgError(f"a message says symbols outside {lowest} to {highest}: refused")
    return symbols.astype(np.int32, copy=False)


def _decode_by_noise(data: memoryview, groups: npt.NDArray[np.uint8], number: int, most: int) -> npt.NDArray[np.int32]:
    """Undo `_encode_by_noise`."""
    counts, tables = np.bincount(groups, minlength=number).tolist(), []
    for count in counts:
        used, classes, large, data = _decode_table(data, count, min(most, _FEW))
        if large or bool(len(used)) != bool(count):
            raise damaged("symbols")
        tables.append((used, classes))
    several = [(_categorical(classes), n) for n, (_, classes) in zip(counts, tables, strict=True) if len(classes) > 1]
    indices = iter(_decode_words(data, several))
    parts: list[Ints] = []
    for n, (used, classes) in zip(counts, tables, strict=True):
        parts.append(used[next(indices)] if len(classes) > 1 else np.repeat(used, n))
    symbols = np.empty(len(groups), np.int32)
    symbols[np.argsort(groups, kind="stable")] = np.concatenate(parts)
    return symbols


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


def _decode_words(data: memoryview, parts: Sequence[tuple[Any, int]]) -> list[npt.NDArray[np.int32]]:
    """Return the indices of every part, of so many symbols each, by its model; without parts there are no words."""
    if len(data) % 4 or len(data) > sum(count for _, count in parts) * _PRECISION // 8 + 8 * bool(parts):
        raise damaged("symbols")
    if not parts:
        return []
    words = np.frombuffer(data, "<u4").astype(np.uint32)
    decoder = _constriction().stream.queue.RangeDecoder(words)
    try:
        decoded: list[npt.NDArray[np.int32]] = [decoder.decode(model, count) for model, count in parts]
    except (AssertionError, ValueError):  # "invalid compressed data"
        raise damaged("symbols") from None
    if not decoder.maybe_exhausted():
        raise damaged("symbols")
    return decoded


def _encode_table(counts: npt.NDArray[np.int64], lowest: int, *, large: bool) -> tuple[bytes, npt.NDArray[np.int64]]:
    """Return the table of the counts of the tokens from `lowest` on, and the classes of those that are there.

    Tokens go 0, 1, -1, 2, -2, ...; the first class is told as it is, each other as its difference to the one before,
    or, where that is less, to the one before that (no token is negative, say).
    """
    tokens = lowest + np.flatnonzero(counts)
    classes = class_of(counts[tokens - lowest], _COUNT_BITS)
    zigzag = np.where(tokens > 0, 2 * tokens - 1, -2 * tokens)
    table = np.zeros(int(zigzag.max()) + 1, np.int64)
    table[zigzag] = classes
    by_lag = [np.diff(table), (table - np.concatenate([table[:1], table[:1], table])[: len(table)])[1:]]
    lag = int(np.abs(by_lag[1]).sum() < np.abs(by_lag[0]).sum())
    message, _ = _STEPS.encode(by_lag[lag], _STEPS.init_row(len(table) - 1))
    head = (4 * len(table) + 2 * large + lag, int(table[0]), len(message))
    return b"".join(map(encode_varint, head)) + message, classes


def _decode_table(
    data: memoryview, count: int, most: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], bool, memoryview]:
    """Return the tokens that occur, in order, the classes of their counts, if they are large, and what follows.

    `most` is the largest magnitude of a symbol.
    """
    size, data = take_varint(data, 8 * max(_LARGE, int(class_of(most, _CLASS_BITS))) + 7)
    size, kind = divmod(size, 4)
    large, lag = divmod(kind, 2)
    highest_token = class_of(most, _CLASS_BITS) if large else min(most, _LARGE - 1)
    if size > 2 * highest_token + 1:
        raise damaged("symbols")
    if not size:
        return np.zeros(0, np.int64), np.zeros(0, np.int64), bool(large), data
    first, data = take_varint(data, int(class_of(count, _COUNT_BITS)))
    length, data = take_varint(data, _STEP_BYTES * size)
    message, data = take_bytes(data, length)
    steps, _ = _STEPS.decode(bytes(message), size - 1, _STEPS.init_row(size - 1))
    table = np.concatenate([[first], steps.astype(np.int64)])
    if lag:
        table[1:2] += first
    for start in range(1 + lag):
        table[start :: 1 + lag] = np.cumsum(table[start :: 1 + lag])
    if table.min() < 0 or table.max() > class_of(count, _COUNT_BITS) or not table[-1]:
        raise damaged("symbols")
    zigzag = np.flatnonzero(table)
    tokens = np.where(zigzag % 2, (zigzag + 1) // 2, -(zigzag // 2))
    order = np.argsort(tokens)
    return tokens[order], table[zigzag][order], bool(large), data


def _split_large(symbols: IntArray) -> tuple[npt.NDArray[np.int32], bytes]:
    """Return the signed class of every symbol, and the bits that the classes leave open, block by block."""
    tokens, raw = np.empty(len(symbols), np.int32), []
    highest = max(-int(symbols.min()), int(symbols.max()))
    widths = width_of(np.arange(int(class_of(highest, _CLASS_BITS)) + 1), _CLASS_BITS)
    open_bits = (1 << widths) - 1
    for start in range(0, len(symbols), _BLOCK):
        block = symbols[start : start + _BLOCK].astype(np.int64)
        magnitudes = np.abs(block)
        classes = class_of(magnitudes, _CLASS_BITS)
        tokens[start : start + _BLOCK] = np.where(block < 0, -classes, classes)
        raw.append(pack_widths(magnitudes & open_bits[classes], widths[classes]))
    return tokens, b"".join(raw)


def _join_large(used: Ints, index: npt.NDArray[np.int32], raw: memoryview) -> Ints:
    """Undo `_split_large`: `index` says which of the tokens in use each is."""
    symbols = np.empty(len(index), np.int64)
    widths, signs = width_of(np.abs(used), _CLASS_BITS), np.sign(used)
    lowest = signs * lowest_of(np.abs(used), _CLASS_BITS)
    for start in range(0, len(index), _BLOCK):
        block = index[start : start + _BLOCK]
        below, raw = unpack_widths(raw, widths[block])
        symbols[start : start + _BLOCK] = lowest[block] + signs[block] * below
    if len(raw):
        raise damaged("symbols")
    return symbols
