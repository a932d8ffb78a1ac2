"""Short arrays of small integers, sent again and again: an adaptive binary model in front of a binary range coder.

No table travels. Both sides learn from what was sent before, per worker, in integers only: every machine computes the
same. The format of a message is fixed by the vectors in `tests/core/entropy_vectors.json`.

An entry is said as bits: is it nonzero; its sign; the length of its magnitude in bits, in unary; the bits below the
leading one. Every bit is foreseen twice, in two contexts, and the two probabilities are mixed: their log-odds are added
with weights that both sides learn (logistic mixing, Mahoney 2005, as in PAQ).
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.arrays import IntArray
from lasg.core.bit_packing import check_integers
from lasg.core.logistic_mixing import Mixer, mixer
from lasg.core.range_coding import CHANCE_BITS, BitCoder, BitReader, BitWriter
from lasg.errors import LasgError

INT32_LOWEST, INT32_HIGHEST = -(2**31), 2**31 - 1
# What is remembered of workers, in arrays with a row per worker; or of one, without that axis.
Row: TypeAlias = dict[str, npt.NDArray[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]

# -- levels: what is expected of an entry's magnitude, two classes per octave ------------------------------------------

_FRACTION = 8  # bits of the fraction of a mean
_CAP = (1 << 15) - 1  # magnitudes above it count as it
_NEAR_ZERO = 8  # added to a mean: all that is far below 1/32 is one level
_LEVELS = 42
_UNKNOWN = -1
# Mean magnitudes that are expected of a first entry, and of a first wide one: 0.3 and 16.
_FIRST_GUESS, _FIRST_WIDE_GUESS = 77, 16 << _FRACTION


def _level_bounds() -> list[int]:
    """Return the least mean, with `_NEAR_ZERO`, of every level but the first: 8 times 2^(1/4), 2^(3/4), ..."""
    return [math.isqrt(math.isqrt(_NEAR_ZERO**4 << (2 * level + 1))) + 1 for level in range(_LEVELS - 1)]


_BOUNDS = _level_bounds()
_BOUNDS_ARRAY = np.array(_BOUNDS)

# -- contexts ----------------------------------------------------------------------------------------------------------

_LENGTHS = 8  # bit lengths of magnitudes that have contexts of their own
_OWN = 64  # entries that have lengths of their own: further ones share them
_ZERO = 0, 3 * _LEVELS
_SIGN = _ZERO[1] + 9 * (_LEVELS // 2 + 1), _ZERO[1] + 9 * (_LEVELS // 2 + 1) + 9
_LENGTH = _SIGN[1] + 9, _SIGN[1] + 9 + _LEVELS * _LENGTHS
_BELOW = _LENGTH[1] + _OWN * _LENGTHS, _LENGTH[1] + _OWN * _LENGTHS + 4 * _LENGTHS
CONTEXTS = _BELOW[1] + 4 * _LEVELS
PAIRS = 3 + _LENGTHS
"""Weights: of the zeros, the signs, the bits below, and every length."""
_WEIGHT = 36000  # of each of the two at first, in 2^16ths: 0.55
_HEAVIEST = 1 << 20


def _first_chances() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Return the probabilities of a one before anything was coded, in 2^16ths, and as how many bits they count.

    By the mean magnitude a of a level: nonzero 1 - 1 / (1 + 1.5 a + 0.3 a^2), longer than b bits
    (a / (a + 1.2))^2^(b-1).
    A context that counts as none takes over the probability of the other context where it is first met.
    """
    chances, counts = np.full(CONTEXTS, 1 << (CHANCE_BITS - 1)), np.zeros(CONTEXTS)
    for level in range(_LEVELS):
        bound = _BOUNDS[level - 1] if level else _NEAR_ZERO
        a = (bound * 1.19 - _NEAR_ZERO) / (1 << _FRACTION)
        chances[_ZERO[0] + 3 * level : _ZERO[0] + 3 * level + 3] = _chance(1 - 1 / (1 + 1.5 * a + 0.3 * a * a))
        longer = a / (a + 1.2)
        for length in range(_LENGTHS):
            chances[_LENGTH[0] + level * _LENGTHS + length] = max(_chance(longer), 3000)  # outliers must stay cheap
            longer *= longer
    # By the mean of an entry over its mean magnitude, in quarters from -1 to 1.
    chances[_SIGN[0] : _SIGN[1]] = [8000, 11500, 17000, 24000, 32768, 41500, 48500, 54000, 57500]
    chances[_BELOW[0] : _BELOW[1]] = 27500
    counts[_ZERO[0] : _ZERO[1]] = counts[_SIGN[0] : _LENGTH[1]] = counts[_BELOW[0] : _BELOW[1]] = 2
    return chances.astype(np.uint16), counts.astype(np.uint8)


def _chance(share: float) -> int:
    return min(max(int(share * (1 << CHANCE_BITS)), 130), (1 << CHANCE_BITS) - 1300)


_FIRST_CHANCES, _FIRST_COUNTS = _first_chances()


# -- one message -------------------------------------------------------------------------------------------------------


class _Foreseen(NamedTuple):
    """What is expected of the entries of one message, from those before it: contexts, one of each kind per entry."""

    levels: list[int]
    """By an entry's mean magnitude over many messages, and its neighbours'; `_UNKNOWN` where nothing was sent yet."""
    seconds: list[int]
    """The second context of a zero, but for the neighbours: by the mean of a few messages, and by the last one."""
    leanings: list[int]
    """By an entry's mean over its mean magnitude."""


def _foresee(state: Row) -> list[_Foreseen]:
    """Return it for every row of the state."""
    slow, sent = state["slow"].astype(np.int64), np.minimum(state["messages"], 1000)[:, None].astype(np.int64)
    around, size = np.zeros_like(slow), slow.shape[-1]
    for away in range(1, min(3, size)):
        around[:, away:] += slow[:, :-away]
        around[:, :-away] += slow[:, away:]
    at = np.arange(size)
    around //= np.maximum(np.minimum(at, 2) + np.minimum(size - 1 - at, 2), 1)
    levels = np.searchsorted(_BOUNDS_ARRAY, (2 * around + sent * slow) // (sent + 2) + _NEAR_ZERO, "right")
    recent = (np.searchsorted(_BOUNDS_ARRAY, state["fast"] + _NEAR_ZERO, "right") + 1) // 2
    seconds = _ZERO[1] + 9 * recent + 3 * state["last"]
    spread = 2 * slow + 76
    leanings = _SIGN[0] + 4 + np.clip((8 * state["mean"].astype(np.int64) + spread // 2) // spread, -4, 4)
    levels[sent[:, 0] == 0] = _UNKNOWN
    return [_Foreseen(*row) for row in zip(levels.tolist(), seconds.tolist(), leanings.tolist(), strict=True)]


def _learn(state: Row, symbols: Ints) -> Row:
    """Return what is remembered of every entry after the messages that said `symbols`."""
    sent = state["messages"][:, None].astype(np.int64)
    magnitudes = np.minimum(np.abs(symbols), _CAP)
    after = {"messages": np.minimum(state["messages"] + 1, _CAP), "last": np.minimum(magnitudes, 2)}
    # Means over all messages while these are few, then over about the last 32, or 4.
    for name, values, most in (
        ("slow", magnitudes, 64),
        ("fast", magnitudes, 8),
        ("mean", np.sign(symbols) * magnitudes, 64),
    ):
        before = state[name].astype(np.int64)
        after[name] = before + 2 * ((values << _FRACTION) - before) // np.minimum(2 * sent + 3, most)
    return {name: value.astype(state[name].dtype) for name, value in after.items()}


class _Bounds(NamedTuple):
    """What entries may be."""

    lowest: int
    highest: int
    guess: int
    """The mean magnitude that is expected of the very first entry, in 2^-8ths."""


def _code_entries(
    symbols: list[int], at: int, foreseen: _Foreseen, bounds: _Bounds, code: Mixer, coder: BitCoder
) -> list[int]:
    """Code entries that follow one another from `at` on, writing or reading; return them."""
    lowest, highest, total = bounds
    longest, both_signs, positive = max(-lowest, highest).bit_length(), lowest < 0 < highest, int(highest > 0)
    if not longest:
        return [0] * len(symbols)
    coded = []
    near = further = 0  # magnitudes, up to 2, of the entry just coded and of that before it
    sign = sign_before = 1  # their signs + 1
    end = at + len(symbols)
    for i, symbol, level, second in zip(
        range(at, end), symbols, foreseen.levels[at:end], foreseen.seconds[at:end], strict=True
    ):
        if level == _UNKNOWN:  # as large as the entries before it, on average
            level = bisect_right(_BOUNDS, total // (i - at + 1) + _NEAR_ZERO)
            second = _ZERO[1] + 9 * ((level + 1) // 2)
        if not code(3 * level + near, second + further, 0, symbol != 0):
            coded.append(0)
            further, near = near, 0
            sign_before, sign = sign, 1
            continue
        if both_signs:
            positive = code(foreseen.leanings[i], _SIGN[1] + 3 * sign + sign_before, 2, symbol > 0)
        magnitude = _code_magnitude(abs(symbol), level, i % _OWN, longest, code, coder)
        coded.append(magnitude if positive else -magnitude)
        total += magnitude << _FRACTION
        further, near = near, 2 if magnitude > 1 else 1
        sign_before, sign = sign, 2 if positive else 0
    return coded


def _code_magnitude(magnitude: int, level: int, own: int, longest: int, code: Mixer, coder: BitCoder) -> int:
    """Code a magnitude >= 1 of at most `longest` bits."""
    more = magnitude.bit_length() - 1
    first, second = _LENGTH[0] + level * _LENGTHS, _LENGTH[1] + own * _LENGTHS
    below = slot = 0
    while below < longest - 1 and code(first + slot, second + slot, 6 + 2 * slot, below < more):
        below += 1
        slot = min(below, _LENGTHS - 1)
    coded = 1
    while below and coded < 4:  # the two bits below the leading one are not evenly spread
        below -= 1
        first, second = _BELOW[0] + 4 * slot + coded, _BELOW[1] + 4 * level + coded
        coded = coded << 1 | code(first, second, 4, (magnitude >> below) & 1)
    return coded << below | coder.code_even(magnitude & ((1 << below) - 1), below) if below else coded


# Arrays of the state, and how long their rows are; 0: as long as there are entries; None: one number.
_SIZES = {"chances": CONTEXTS, "counts": CONTEXTS, "weights": 2 * PAIRS, "messages": None}
_SIZES |= {"slow": 0, "fast": 0, "mean": 0, "last": 0}


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
    wide: int = 0
    """So many of the entries, the last ones, may be any int32."""
    digits: int = 0
    """So many of the lowest bits of these cannot be foreseen, and are said as they are."""

    def __post_init__(self) -> None:
        if not INT32_LOWEST <= self.lowest <= self.highest <= INT32_HIGHEST:
            raise LasgError(f"lowest and highest must be int32, in this order, got {self.lowest} and {self.highest}")

    def init(self, workers: int, p: int) -> Row:
        """Return the state of workers that have sent nothing: integer arrays with a row per worker."""
        return {
            "chances": np.tile(_FIRST_CHANCES, (workers, 1)),
            "counts": np.tile(_FIRST_COUNTS, (workers, 1)),
            "weights": np.full((workers, 2 * PAIRS), _WEIGHT, np.int32),
            "messages": np.zeros(workers, np.int16),
            "slow": np.zeros((workers, p), np.int32),
            "fast": np.zeros((workers, p), np.int32),
            "mean": np.zeros((workers, p), np.int32),
            "last": np.zeros((workers, p), np.int8),
        }

    def init_row(self, p: int) -> Row:
        """Return the row of one worker that has sent nothing."""
        return {name: array[0] for name, array in self.init(1, p).items()}

    def encode(self, symbols: IntArray, row: Row) -> tuple[bytes, Row]:
        """Turn symbols `(p,)` into a message of at least one byte; return it, and the worker's new row."""
        check_integers(symbols)
        messages, after = self.encode_rows(symbols[None], _as_state(row))
        return messages[0], _as_row(after)

    def decode(self, data: bytes, p: int, row: Row) -> tuple[npt.NDArray[np.int32], Row]:
        """Turn a message back into symbols `(p,)`; return them, and the worker's new row."""
        symbols, after = self.decode_rows([data], p, _as_state(row))
        return symbols[0], _as_row(after)

    def encode_rows(self, symbols: IntArray, state: Row) -> tuple[list[bytes], Row]:
        """Turn symbols `(n, p)` of n workers into messages; return them, and the new state of these workers."""
        narrow = symbols[:, : symbols.shape[1] - self.wide]
        if narrow.size and not self.lowest <= int(narrow.min()) <= int(narrow.max()) <= self.highest:
            raise LasgError(
                f"symbols from {self.lowest} to {self.highest} can be coded, got {narrow.min()} to {narrow.max()}"
            )
        writers = [BitWriter() for _ in symbols]
        _, after = self._code_rows(symbols.tolist(), writers, state)
        return [writer.finish() for writer in writers], after

    def decode_rows(self, messages: Sequence[bytes], p: int, state: Row) -> tuple[npt.NDArray[np.int32], Row]:
        """Turn messages of n workers back into symbols `(n, p)`; return them, and the new state of these workers."""
        readers = [BitReader(message) for message in messages]
        coded, after = self._code_rows([[0] * p for _ in messages], readers, state)
        for reader in readers:
            reader.finish()
        narrow = coded[:, : p - self.wide]
        if narrow.size and not self.lowest <= int(narrow.min()) <= int(narrow.max()) <= self.highest:
            raise LasgError(f"a message says symbols outside {self.lowest} to {self.highest}: refused")
        if coded.size and not INT32_LOWEST <= int(coded.min()) <= int(coded.max()) <= INT32_HIGHEST:
            raise LasgError("a message says a number beyond int32: refused")
        return coded.astype(np.int32), after

    def _code_rows(self, symbols: list[list[int]], coders: Sequence[BitCoder], state: Row) -> tuple[Ints, Row]:
        """Code the rows, writing or reading; return them, and the state afterwards."""
        p = len(symbols[0]) if symbols else 0
        _check_state(state, len(symbols), p)
        # Arrays of the standard library: their items are plain integers, and NumPy reads them as they are.
        chances = [array("H", row.tobytes()) for row in state["chances"]]
        counts = [bytearray(row) for row in state["counts"]]
        weights = state["weights"].tolist()
        said = []
        for i, foreseen in enumerate(_foresee(state)):
            code = mixer(chances[i], counts[i], weights[i], coders[i], _ZERO[1])
            said.append(self._code_row(symbols[i], foreseen, code, coders[i]))
        coded = np.array(said, np.int64).reshape(len(said), p)
        counted = coded.copy()
        counted[:, p - self.wide :] >>= self.digits
        after = {
            "chances": np.frombuffer(b"".join(chances), np.uint16).reshape(-1, CONTEXTS).copy(),
            "counts": np.frombuffer(b"".join(counts), np.uint8).reshape(-1, CONTEXTS).copy(),
            "weights": np.clip(weights, -_HEAVIEST, _HEAVIEST).astype(np.int32).reshape(-1, 2 * PAIRS),
            **_learn(state, counted),
        }
        return coded, after

    def _code_row(self, symbols: list[int], foreseen: _Foreseen, code: Mixer, coder: BitCoder) -> list[int]:
        narrow = len(symbols) - self.wide
        bounds = _Bounds(self.lowest, self.highest, _FIRST_GUESS)
        coded = _code_entries(symbols[:narrow], 0, foreseen, bounds, code, coder)
        if not self.wide:
            return coded
        most = 1 << (32 - self.digits)
        high = [number >> self.digits for number in symbols[narrow:]]
        high = _code_entries(high, narrow, foreseen, _Bounds(-most, most, _FIRST_WIDE_GUESS), code, coder)
        if self.digits:
            mask = (1 << self.digits) - 1
            low = [coder.code_even(number & mask, self.digits) for number in symbols[narrow:]]
            high = [each << self.digits | digits for each, digits in zip(high, low, strict=True)]
        return coded + high


def _as_state(row: Row) -> Row:
    return {name: np.asarray(array)[None] for name, array in row.items()}


def _as_row(state: Row) -> Row:
    return {name: array[0] for name, array in state.items()}


def _check_state(state: Row, workers: int, p: int) -> None:
    if set(state) != set(_SIZES):
        raise LasgError(
            f"a coder's state must have {', '.join(_SIZES)}, got {', '.join(state)}: it is of another version of lasg"
        )
    for name, size in _SIZES.items():
        shape = (workers,) if size is None else (workers, size or p)
        if state[name].shape != shape:
            raise LasgError(
                f"{name} of a coder's state must have shape {shape} for {p} entries, got {state[name].shape}"
            )
