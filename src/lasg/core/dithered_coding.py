"""What is expected of entries that were rounded at random, where whoever decodes draws the same random numbers.

The level of an entry x, in units of a level, is floor(|x| + u) with its sign, u uniform: so QSGD rounds. Given u, a
level has less news: H(level | u) < H(level), the gain of entropy-coded dithered quantisation (Zamir and Feder 1992).

x is taken for normal, with tails, given all that both sides know: the second moments of the worker's messages
before, the entries of this message before it, u, and, where one scale is the norm of all, how much of it is left.

A forecast is computed in float64, by additions, products, quotients and roots alone, in an order that is written out:
all machines round these alike. Logarithms and normal tails are tables of integers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.core.logistic_mixing import STRETCHED

Floats: TypeAlias = npt.NDArray[np.float64]

# -- normal tails ------------------------------------------------------------------------------------------------------

_TAIL_BITS = 32
_STEPS = 64  # of the table, per standard deviation
_FARTHEST = 16 * _STEPS
_HEAVY = 0.05  # so many entries have three times the deviation


def tail(step: int) -> float:
    """Return the probability of more than so many 64ths of a standard deviation, in 2^32ths, before rounding."""
    z = step / _STEPS / math.sqrt(2)
    return (1 << _TAIL_BITS) * ((1 - _HEAVY) * math.erfc(z) + _HEAVY * math.erfc(z / 3)) / 2


_TAIL = [round(tail(step)) for step in range(_FARTHEST + 1)]


def _odds(part: int, whole: int) -> int:
    """Return the log-odds, in 2^-8ths, of part / whole."""
    return STRETCHED[min((part << 12) // whole, 4095)]


# -- what is remembered ------------------------------------------------------------------------------------------------

DENSE = 64
"""Of so many entries all second moments are known; of more, those of each alone."""
_MEMORY = 64  # messages that count
_ALIKE = 20  # messages' worth of belief that entries are not correlated
_NEIGHBOURS = 2  # messages' worth of belief that an entry is as large as those beside it
_FLOOR = 1e-4
_WIDE = 400.0  # variance of a scale's upper bits at first
_SHRINK = 0.7  # an entry whose level is 0 is taken for so much of what was expected
_SHARE = 0.7  # of what the norm says of an entry's square, so much is believed
_KURTOSIS = 2.2  # of an entry's square: its variance over the square of its mean


REMEMBERED = "squares", "drift", "moments"


def init(workers: int, p: int, wide: int) -> dict[str, npt.NDArray[Any]]:
    """Return what is remembered of workers that have sent nothing, of p entries, the last ones of them wide."""
    narrow = p - wide
    state = {"squares": np.zeros((workers, p)), "drift": np.zeros((workers, p))}
    return {**state, "moments": np.zeros((workers, narrow, narrow))} if 0 < narrow <= DENSE else state


def _variances(squares: Floats, messages: int, wide: int, first: float) -> Floats:
    """Return the mean square that is expected of every entry; `first`: before anything was sent."""
    narrow = len(squares) - wide
    if not messages:
        return np.concatenate([np.full(narrow, first), np.full(wide, _WIDE)])
    own, beside, count = squares[:narrow], np.zeros(narrow), np.zeros(narrow)
    for away in range(1, min(3, narrow)):
        beside[away:] += own[:-away]
        beside[:-away] += own[away:]
        count[away:] += 1
        count[:-away] += 1
    alike = np.concatenate([beside / np.maximum(count, 1), np.full(wide, _WIDE / 50)])
    expected: Floats = (_NEIGHBOURS * alike + messages * squares) / (messages + _NEIGHBOURS) + _FLOOR
    return expected


def _factor(moments: Floats, variances: Floats, messages: int) -> Floats:
    """Return the Cholesky factor of the second moments that are expected, column by column."""
    p = len(variances)
    left = messages * moments
    left[np.arange(p), np.arange(p)] = (messages + _ALIKE) * variances
    left *= (1 + 1 / (messages + 2)) / (messages + _ALIKE)
    factor = np.zeros((p, p))
    for i in range(p):
        # What the shrinkage leaves of a diagonal is positive; rounding may say otherwise.
        factor[i:, i] = left[i:, i] / math.sqrt(max(float(left[i, i]), _FLOOR))
        left[i:, i:] -= factor[i:, i, None] * factor[None, i:, i]
    return factor


# -- one message -------------------------------------------------------------------------------------------------------


class Forecast:
    """What is expected of the entries of one message, in their order."""

    def __init__(self, row: dict[str, npt.NDArray[Any]], noise: list[float], wide: int, norm: float | None) -> None:
        """Take what is remembered of a worker, and the noise of the narrow entries.

        `norm` is that of all narrow entries, in levels, where it is known.
        """
        messages = min(int(row["messages"]), _MEMORY)
        p = len(noise) + wide
        self._row, self._messages, self._wide, self._narrow = row, messages, wide, len(noise)
        self.noise = noise + [0.5] * wide
        first = (norm or 1.0) ** 2 / max(len(noise), 1)
        variances = _variances(row["squares"], messages, wide, first)
        means = row["drift"] * (messages / (messages + 2))
        spreads = np.sqrt(np.maximum(variances - means * means, variances / 4))
        self._factor: Floats | None = None
        if "moments" in row and messages:
            narrow = self._narrow
            self._factor = _factor(row["moments"], variances[:narrow], messages)
            means[:narrow] = 0
            self._means, self._open = np.zeros(narrow), (self._factor * self._factor).cumsum(1)[:, -1]
        self.means, self.spreads = means.tolist(), spreads.tolist()
        self.heard, self.squares = [0.0] * p, [0.0] * p
        self._left = None if norm is None else norm * norm
        self._blur = 0.0
        self._up = self._down = 0

    def expect(self, i: int) -> None:
        """Take what was said before entry i into account."""
        if self._factor is None or i >= self._narrow:
            return
        mean, spread = float(self._means[i]), float(self._factor[i, i])
        if self._left is not None:
            square = mean * mean + spread * spread
            others = (self._means[i + 1 :] * self._means[i + 1 :] + self._open[i + 1 :]).tolist()
            missing = self._left - square - math.fsum(others)
            own = _KURTOSIS * square * square
            all_others = _KURTOSIS * math.fsum([other * other for other in others]) + self._blur + 0.3
            expected = max(square + _SHARE * own / (own + all_others) * missing, 0.15 * square)
            scale = math.sqrt(expected / square)
            mean, spread = mean * scale, spread * scale
        self.means[i], self.spreads[i] = mean, spread

    def guess(self, i: int, magnitude: float) -> None:
        """Expect of entry i, of a worker that has sent nothing, what the entries before it were."""
        self.means[i], self.spreads[i] = 0.0, 1.25 * magnitude + 0.05

    def nonzero(self, i: int) -> int:
        """Return the log-odds of a level other than 0."""
        least = 1 - self.noise[i]
        self._up, self._down = self._beyond(i, least, 1), self._beyond(i, least, -1)
        return _odds(self._up + self._down, 1 << _TAIL_BITS)

    def positive(self) -> int:
        """Return the log-odds of a level > 0, of the entry whose level is not 0."""
        return _odds(self._up, self._up + self._down)

    def at_least(self, i: int, sign: int, low: int, middle: int, high: int | None) -> int:
        """Return the log-odds of a magnitude from `middle` on, given one in [low, high)."""
        noise = self.noise[i]
        beyond = 0 if high is None else self._beyond(i, high - noise, sign)
        part, whole = self._beyond(i, middle - noise, sign) - beyond, self._beyond(i, low - noise, sign) - beyond
        return _odds(part + 1, whole + 2)

    def _beyond(self, i: int, value: float, sign: int) -> int:
        """Return the probability that sign * x is above a value, in 2^32ths."""
        z = (value - sign * self.means[i]) / self.spreads[i] * _STEPS
        if z >= 0:
            return _TAIL[int(z) if z < _FARTHEST else _FARTHEST]
        return (1 << _TAIL_BITS) - _TAIL[int(-z) if -z < _FARTHEST else _FARTHEST]

    def said(self, i: int, level: int) -> None:
        """Learn the level of entry i: what it and its square are taken for."""
        least, spread = 1 - self.noise[i], self.spreads[i]
        if level:
            value = level + (least - 0.5 if level > 0 else 0.5 - least)
            square = value * value + 1 / 12
        else:
            value = max(min(self.means[i], least), -least) * _SHRINK
            flat, normal = least * least, spread * spread
            square = max(normal * flat / (3 * normal + flat + _FLOOR * _FLOOR), value * value)
        self.heard[i], self.squares[i] = value, square
        if self._factor is None or i >= self._narrow:
            return
        column = self._factor[:, i]
        self._means += column * ((value - float(self._means[i])) / float(column[i]))
        self._open -= column * column
        if self._left is not None:
            self._left -= square
            self._blur += square * (2 / 3)

    def learned(self) -> dict[str, npt.NDArray[Any]]:
        """Return what is remembered of the worker after the message."""
        row, rate = self._row, 1 / (self._messages + 1)
        heard, squares = np.array(self.heard), np.array(self.squares)
        if self._wide and not int(row["messages"]):  # the first scales are not beside any that were expected
            heard[self._narrow :], squares[self._narrow :] = 0, _WIDE / 50
        new = {"squares": squares, "drift": heard}
        if "moments" in row:
            own = heard[: self._narrow]
            new["moments"] = own[:, None] * own
        return {name: row[name] + (value - row[name]) * rate for name, value in new.items()}


def learn(state: dict[str, npt.NDArray[Any]], forecasts: Sequence[Forecast]) -> dict[str, npt.NDArray[Any]]:
    """Return what is remembered of all workers after a message of each."""
    rows = [forecast.learned() for forecast in forecasts]
    names = [name for name in REMEMBERED if name in state]
    return {name: np.stack([row[name] for row in rows]) if rows else state[name] for name in names}
