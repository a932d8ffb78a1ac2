"""Short arrays of small integers, sent again and again: an adaptive binary model in front of a binary range coder.

No table travels. Both sides learn from what was sent before, per worker, in integers only: every machine computes the
same. The format of a message is fixed by the vectors in `tests/core/entropy_vectors.json`.

An entry is said as bits: is it nonzero; its sign; the length of its magnitude in bits, in unary; the bits below the
leading one. Every bit is foreseen twice, in two contexts, and the two probabilities are mixed: their log-odds are added
with weights that both sides learn (logistic mixing, Mahoney 2005, as in PAQ). Where entries were rounded at random, and
both sides know the noise, a third forecast is mixed in (`dithered_coding.py`).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core import dithered_coding
from lasg.core.arrays import FloatArray, IntArray
from lasg.core.bit_packing import check_integers
from lasg.core.coding_contexts import (
    BELOW,
    BOUNDS,
    BOUNDS_ARRAY,
    CAP,
    CONTEXTS,
    FIRST_CHANCES,
    FIRST_COUNTS,
    FIRST_GUESS,
    FIRST_WIDE_GUESS,
    FRACTION,
    HEAVIEST,
    LENGTH,
    LENGTHS,
    NEAR_ZERO,
    OWN,
    PAIRS,
    SIGN,
    TRUST,
    UNKNOWN,
    WEIGHT,
    WEIGHT_BESIDE,
    ZERO,
)
from lasg.core.dithered_coding import Forecast
from lasg.core.logistic_mixing import Mixer, mixer
from lasg.core.range_coding import BitCoder, BitReader, BitWriter
from lasg.errors import LasgError

INT32_LOWEST, INT32_HIGHEST = -(2**31), 2**31 - 1
# What is remembered of workers, in arrays with a row per worker; or of one, without that axis.
Row: TypeAlias = dict[str, npt.NDArray[Any]]
Ints: TypeAlias = npt.NDArray[np.int64]
# Log-odds of a magnitude from the second number on, given one from the first on, below the third.
Likely: TypeAlias = Callable[[int, int, int | None], int]

# -- one message -------------------------------------------------------------------------------------------------------


class _Foreseen(NamedTuple):
    """What is expected of the entries of one message, from those before it: contexts, one of each kind per entry."""

    levels: list[int]
    """By an entry's mean magnitude over many messages, and its neighbours'; `UNKNOWN` where nothing was sent yet."""
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
    levels = np.searchsorted(BOUNDS_ARRAY, (2 * around + sent * slow) // (sent + 2) + NEAR_ZERO, "right")
    recent = (np.searchsorted(BOUNDS_ARRAY, state["fast"] + NEAR_ZERO, "right") + 1) // 2
    seconds = ZERO[1] + 9 * recent + 3 * state["last"]
    spread = 2 * slow + 76
    leanings = SIGN[0] + 4 + np.clip((8 * state["mean"].astype(np.int64) + spread // 2) // spread, -4, 4)
    levels[sent[:, 0] == 0] = UNKNOWN
    return [_Foreseen(*row) for row in zip(levels.tolist(), seconds.tolist(), leanings.tolist(), strict=True)]


def _learn(state: Row, symbols: Ints) -> Row:
    """Return what is remembered of every entry after the messages that said `symbols`."""
    sent = state["messages"][:, None].astype(np.int64)
    magnitudes = np.minimum(np.abs(symbols), CAP)
    after = {"messages": np.minimum(state["messages"] + 1, CAP), "last": np.minimum(magnitudes, 2)}
    # Means over all messages while these are few, then over about the last 32, or 4.
    for name, values, most in (
        ("slow", magnitudes, 64),
        ("fast", magnitudes, 8),
        ("mean", np.sign(symbols) * magnitudes, 64),
    ):
        before = state[name].astype(np.int64)
        after[name] = before + 2 * ((values << FRACTION) - before) // np.minimum(2 * sent + 3, most)
    return {name: value.astype(state[name].dtype) for name, value in after.items()}


class _Bounds(NamedTuple):
    """What entries may be."""

    lowest: int
    highest: int
    guess: int
    """The mean magnitude that is expected of the very first entry, in 2^-8ths."""


def _code_entries(
    symbols: list[int],
    at: int,
    foreseen: _Foreseen,
    bounds: _Bounds,
    code: Mixer,
    coder: BitCoder,
    forecast: Forecast | None,
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
        if level == UNKNOWN:  # as large as the entries before it, on average
            level = bisect_right(BOUNDS, total // (i - at + 1) + NEAR_ZERO)
            second = ZERO[1] + 9 * ((level + 1) // 2)
            if forecast is not None:
                forecast.guess(i, total / ((i - at + 1) << FRACTION))
        first, second, odds = 3 * level + near, second + further, 0
        if forecast is not None:
            forecast.expect(i)
            if first or second != ZERO[1]:
                odds = forecast.nonzero(i)
        if not code(first, second, 0, symbol != 0, odds):
            coded.append(0)
            if forecast is not None:
                forecast.said(i, 0)
            further, near = near, 0
            sign_before, sign = sign, 1
            continue
        if both_signs:
            odds = forecast.positive() if odds and forecast is not None else 0
            positive = code(foreseen.leanings[i], SIGN[1] + 3 * sign + sign_before, 2, symbol > 0, odds)
        likely = None if forecast is None else partial(forecast.at_least, i, 1 if positive else -1)
        magnitude = _code_magnitude(abs(symbol), level, i % OWN, longest, code, coder, likely)
        coded.append(magnitude if positive else -magnitude)
        if forecast is not None:
            forecast.said(i, coded[-1])
        total += magnitude << FRACTION
        further, near = near, 2 if magnitude > 1 else 1
        sign_before, sign = sign, 2 if positive else 0
    return coded


def _code_magnitude(
    magnitude: int, level: int, own: int, longest: int, code: Mixer, coder: BitCoder, likely: Likely | None
) -> int:
    """Code a magnitude >= 1 of at most `longest` bits."""
    more = magnitude.bit_length() - 1
    first, second = LENGTH[0] + level * LENGTHS, LENGTH[1] + own * LENGTHS
    below = slot = odds = 0
    while below < longest - 1:
        if likely is not None:
            odds = likely(1 << below, 2 << below, None)
        if not code(first + slot, second + slot, 6 + 2 * slot, below < more, odds):
            break
        below += 1
        slot = min(below, LENGTHS - 1)
    coded = 1
    while below and coded < 4:  # the two bits below the leading one are not evenly spread
        below -= 1
        first, second = BELOW[0] + 4 * slot + coded, BELOW[1] + 4 * level + coded
        if likely is not None:
            low = coded << (below + 1)
            odds = likely(low, low + (1 << below), low + (2 << below))
        coded = coded << 1 | code(first, second, 4, (magnitude >> below) & 1, odds)
    return coded << below | coder.code_even(magnitude & ((1 << below) - 1), below) if below else coded


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
    dithered: bool = False
    """Whether the other entries were rounded at random, by noise that both sides know."""
    norm: float | None = None
    """That of all dithered entries before they were rounded, where it is known."""

    def __post_init__(self) -> None:
        if not INT32_LOWEST <= self.lowest <= self.highest <= INT32_HIGHEST:
            raise LasgError(f"lowest and highest must be int32, in this order, got {self.lowest} and {self.highest}")

    def init(self, workers: int, p: int) -> Row:
        """Return the state of workers that have sent nothing: integer arrays with a row per worker."""
        known = dithered_coding.init(workers, p, self.wide) if self.dithered else {}
        weight = WEIGHT_BESIDE if self.dithered else WEIGHT
        if self.dithered:
            known["trusts"] = np.full((workers, PAIRS), TRUST, np.int32)
        return {
            "chances": np.tile(FIRST_CHANCES, (workers, 1)),
            "counts": np.tile(FIRST_COUNTS, (workers, 1)),
            "weights": np.full((workers, 2 * PAIRS), weight, np.int32),
            "messages": np.zeros(workers, np.int16),
            "slow": np.zeros((workers, p), np.int32),
            "fast": np.zeros((workers, p), np.int32),
            "mean": np.zeros((workers, p), np.int32),
            "last": np.zeros((workers, p), np.int8),
            **known,
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

    def encode_rows(self, symbols: IntArray, state: Row, noise: FloatArray | None = None) -> tuple[list[bytes], Row]:
        """Turn symbols `(n, p)` of n workers into messages; return them, and the new state of these workers.

        `noise` are the uniform numbers of the dithered entries, which the decoder must have, too.
        """
        narrow = symbols[:, : symbols.shape[1] - self.wide]
        if narrow.size and not self.lowest <= int(narrow.min()) <= int(narrow.max()) <= self.highest:
            raise LasgError(
                f"symbols from {self.lowest} to {self.highest} can be coded, got {narrow.min()} to {narrow.max()}"
            )
        writers = [BitWriter() for _ in symbols]
        _, after = self._code_rows(symbols.tolist(), writers, state, noise)
        return [writer.finish() for writer in writers], after

    def decode_rows(
        self, messages: Sequence[bytes], p: int, state: Row, noise: FloatArray | None = None
    ) -> tuple[npt.NDArray[np.int32], Row]:
        """Turn messages of n workers back into symbols `(n, p)`; return them, and the new state of these workers."""
        readers = [BitReader(message) for message in messages]
        coded, after = self._code_rows([[0] * p for _ in messages], readers, state, noise)
        for reader in readers:
            reader.finish()
        narrow = coded[:, : p - self.wide]
        if narrow.size and not self.lowest <= int(narrow.min()) <= int(narrow.max()) <= self.highest:
            raise LasgError(f"a message says symbols outside {self.lowest} to {self.highest}: refused")
        if coded.size and not INT32_LOWEST <= int(coded.min()) <= int(coded.max()) <= INT32_HIGHEST:
            raise LasgError("a message says a number beyond int32: refused")
        return coded.astype(np.int32), after

    def _code_rows(
        self, symbols: list[list[int]], coders: Sequence[BitCoder], state: Row, noise: FloatArray | None
    ) -> tuple[Ints, Row]:
        """Code the rows, writing or reading; return them, and the state afterwards."""
        p = len(symbols[0]) if symbols else 0
        self._check_state(state, len(symbols), p)
        # Arrays of the standard library: their items are plain integers, and NumPy reads them as they are.
        chances = [array("H", row.tobytes()) for row in state["chances"]]
        counts = [bytearray(row) for row in state["counts"]]
        weights = state["weights"].tolist()
        trusts = state["trusts"].tolist() if self.dithered else [[0] * PAIRS for _ in symbols]
        forecasts = self._forecasts(state, len(symbols), p, noise)
        said = []
        for i, foreseen in enumerate(_foresee(state)):
            code = mixer(chances[i], counts[i], weights[i], trusts[i], coders[i], ZERO[1])
            said.append(self._code_row(symbols[i], foreseen, code, coders[i], forecasts[i] if forecasts else None))
        coded = np.array(said, np.int64).reshape(len(said), p)
        counted = coded.copy()
        counted[:, p - self.wide :] >>= self.digits
        after = {
            "chances": np.frombuffer(b"".join(chances), np.uint16).reshape(-1, CONTEXTS).copy(),
            "counts": np.frombuffer(b"".join(counts), np.uint8).reshape(-1, CONTEXTS).copy(),
            "weights": np.clip(weights, -HEAVIEST, HEAVIEST).astype(np.int32).reshape(-1, 2 * PAIRS),
            **_learn(state, counted),
        }
        if self.dithered:
            after["trusts"] = np.clip(trusts, -HEAVIEST, HEAVIEST).astype(np.int32).reshape(-1, PAIRS)
            after |= dithered_coding.learn(state, forecasts)
        return coded, after

    def _forecasts(self, state: Row, n: int, p: int, noise: FloatArray | None) -> list[Forecast]:
        """Return what is expected of dithered rows; none of others."""
        if not self.dithered:
            return []
        if noise is None or noise.shape != (n, p - self.wide):
            came = "none" if noise is None else f"noise of shape {noise.shape}"
            raise LasgError(f"dithered entries need noise of shape {(n, p - self.wide)} on both sides, got {came}")
        rows = [{name: array[i] for name, array in state.items()} for i in range(n)]
        return [Forecast(row, own, self.wide, self.norm) for row, own in zip(rows, noise.tolist(), strict=True)]

    def _code_row(
        self, symbols: list[int], foreseen: _Foreseen, code: Mixer, coder: BitCoder, forecast: Forecast | None
    ) -> list[int]:
        narrow = len(symbols) - self.wide
        bounds = _Bounds(self.lowest, self.highest, FIRST_GUESS)
        coded = _code_entries(symbols[:narrow], 0, foreseen, bounds, code, coder, forecast)
        if not self.wide:
            return coded
        most = 1 << (32 - self.digits)
        high = [number >> self.digits for number in symbols[narrow:]]
        bounds = _Bounds(-most, most, FIRST_WIDE_GUESS)
        high = _code_entries(high, narrow, foreseen, bounds, code, coder, forecast)
        if self.digits:
            mask = (1 << self.digits) - 1
            low = [coder.code_even(number & mask, self.digits) for number in symbols[narrow:]]
            high = [each << self.digits | digits for each, digits in zip(high, low, strict=True)]
        return coded + high

    def _check_state(self, state: Row, workers: int, p: int) -> None:
        wanted = {name: (workers, *array.shape[1:]) for name, array in self.init(0, p).items()}
        if set(state) != set(wanted):
            must, came = ", ".join(wanted), ", ".join(state)
            raise LasgError(f"a coder's state must have {must}, got {came}: it is of another version of lasg")
        for name, shape in wanted.items():
            if state[name].shape != shape:
                raise LasgError(
                    f"{name} of a coder's state must have shape {shape} for {p} entries, got {state[name].shape}"
                )


def _as_state(row: Row) -> Row:
    return {name: np.asarray(array)[None] for name, array in row.items()}


def _as_row(state: Row) -> Row:
    return {name: array[0] for name, array in state.items()}
