"""What the adaptive coder tells entries apart by, and what it expects of each kind before anything was coded."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from lasg.core.range_coding import CHANCE_BITS

# -- levels: what is expected of an entry's magnitude, two classes per octave ------------------------------------------

FRACTION = 8  # bits of the fraction of a mean
CAP = (1 << 15) - 1  # magnitudes above it count as it
NEAR_ZERO = 8  # added to a mean: all that is far below 1/32 is one level
_LEVELS = 42
UNKNOWN = -1
# Mean magnitudes that are expected of a first entry, and of a first wide one: 0.3 and 16.
FIRST_GUESS, FIRST_WIDE_GUESS = 77, 16 << FRACTION


def _level_bounds() -> list[int]:
    """Return the least mean, with `NEAR_ZERO`, of every level but the first: 8 times 2^(1/4), 2^(3/4), ..."""
    return [math.isqrt(math.isqrt(NEAR_ZERO**4 << (2 * level + 1))) + 1 for level in range(_LEVELS - 1)]


BOUNDS = _level_bounds()
BOUNDS_ARRAY = np.array(BOUNDS)

# -- contexts ----------------------------------------------------------------------------------------------------------

LENGTHS = 8  # bit lengths of magnitudes that have contexts of their own
OWN = 64  # entries that have lengths of their own: further ones share them
ZERO = 0, 3 * _LEVELS
SIGN = ZERO[1] + 9 * (_LEVELS // 2 + 1), ZERO[1] + 9 * (_LEVELS // 2 + 1) + 9
LENGTH = SIGN[1] + 9, SIGN[1] + 9 + _LEVELS * LENGTHS
BELOW = LENGTH[1] + OWN * LENGTHS, LENGTH[1] + OWN * LENGTHS + 4 * LENGTHS
CONTEXTS = BELOW[1] + 4 * _LEVELS
PAIRS = 3 + LENGTHS
"""Weights: of the zeros, the signs, the bits below, and every length."""
WEIGHT = 36000  # of each of the two at first, in 2^16ths: 0.55
# Of the three, where there is a forecast from the noise: 0.15, 0.15 and 0.8.
WEIGHT_BESIDE, TRUST = 9830, 52429
HEAVIEST = 1 << 20


def _first_chances() -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
    """Return the probabilities of a one before anything was coded, in 2^16ths, and as how many bits they count.

    By the mean magnitude a of a level: nonzero 1 - 1 / (1 + 1.5 a + 0.3 a^2), longer than b bits
    (a / (a + 1.2))^2^(b-1).
    A context that counts as none takes over the probability of the other context where it is first met.
    """
    chances, counts = np.full(CONTEXTS, 1 << (CHANCE_BITS - 1)), np.zeros(CONTEXTS)
    for level in range(_LEVELS):
        bound = BOUNDS[level - 1] if level else NEAR_ZERO
        a = (bound * 1.19 - NEAR_ZERO) / (1 << FRACTION)
        chances[ZERO[0] + 3 * level : ZERO[0] + 3 * level + 3] = _chance(1 - 1 / (1 + 1.5 * a + 0.3 * a * a))
        longer = a / (a + 1.2)
        for length in range(LENGTHS):
            chances[LENGTH[0] + level * LENGTHS + length] = max(_chance(longer), 3000)  # outliers must stay cheap
            longer *= longer
    # By the mean of an entry over its mean magnitude, in quarters from -1 to 1.
    chances[SIGN[0] : SIGN[1]] = [8000, 11500, 17000, 24000, 32768, 41500, 48500, 54000, 57500]
    chances[BELOW[0] : BELOW[1]] = 27500
    counts[ZERO[0] : ZERO[1]] = counts[SIGN[0] : LENGTH[1]] = counts[BELOW[0] : BELOW[1]] = 2
    return chances.astype(np.uint16), counts.astype(np.uint8)


def _chance(share: float) -> int:
    return min(max(int(share * (1 << CHANCE_BITS)), 130), (1 << CHANCE_BITS) - 1300)


FIRST_CHANCES, FIRST_COUNTS = _first_chances()
