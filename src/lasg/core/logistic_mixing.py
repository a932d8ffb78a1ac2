"""Forecasts of a bit mixed into one: their log-odds are added with weights that both sides learn.

Logistic mixing (Mahoney 2005, PAQ7), in integers: probabilities in 2^16ths, log-odds in 2^8ths. A context has the
probability of a one in it, and how many bits taught it: the n-th moves it by 1 / (n + 1) of its error.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable
from typing import TypeAlias

from lasg.core.range_coding import CHANCE_BITS, BitCoder

_ODDS_BITS = 8  # of the fraction of log-odds
_STRETCH_BITS = 12
_FARTHEST = 2048  # log-odds beyond it, about 8, are as good as sure
_COUNT_LIMIT = 255  # counts are bytes
_SURE = 16  # no probability is nearer to 0 or 1 than this many 2^16ths


def stretched(index: int) -> float:
    """Return the log-odds, in 2^-8ths, of the probability (index + 1/2) / 2^12, before rounding."""
    return (1 << _ODDS_BITS) * math.log((index + 0.5) / ((1 << _STRETCH_BITS) - 0.5 - index))


def squashed(odds: int) -> float:
    """Return the probability of log-odds in 2^-8ths, in 2^16ths, before rounding."""
    return (1 << CHANCE_BITS) / (1 + math.exp(-odds / (1 << _ODDS_BITS)))


STRETCHED = [round(stretched(index)) for index in range(1 << _STRETCH_BITS)]
# From 0 on, then from -2048 to -1: so they are found by a Python index.
_SQUASHED = [
    min(max(round(squashed(odds)), _SURE), (1 << CHANCE_BITS) - _SURE)
    for odds in (*range(_FARTHEST), *range(-_FARTHEST, 0))
]
_RATES = [(1 << CHANCE_BITS) // (count + 1) for count in range(_COUNT_LIMIT + 1)]
Mixer: TypeAlias = Callable[[int, int, int, int, int], int]


def mixer(
    chances: array[int], counts: bytearray, weights: list[int], trusts: list[int], coder: BitCoder, quiet: int
) -> Mixer:
    """Return what codes a bit in two contexts with a pair of weights, and learns from it.

    A third forecast may come from elsewhere, as log-odds; `trusts` are its weights, one per pair.

    Where the contexts are 0 and `quiet` the first alone foretells it, which is quick: entries that are always zero.
    It runs once per bit, so its constants are written out. Weights move by error times log-odds at a rate of 1/64.
    """
    code_bit = coder.code
    stretch, squash, rates, farthest = STRETCHED, _SQUASHED, _RATES, _FARTHEST

    def code(first: int, second: int, pair: int, bit: int, third_odds: int = 0) -> int:
        chance, count = chances[first], counts[first]
        if not first and second == quiet:
            bit = code_bit(bit, chance if chance > 16 else 16)
            chances[0] = chance + ((65535 - chance if bit else -chance) * rates[count] >> 16)
            if count < 255:
                counts[0] = count + 1
            return bit
        other, times = chances[second], counts[second]
        if not times:
            other, times = chance, 2
        odds, other_odds = stretch[chance >> 4], stretch[other >> 4]
        weight, other_weight = weights[pair], weights[pair + 1]
        trust = trusts[pair >> 1]
        mixed = (weight * odds + other_weight * other_odds + trust * third_odds) >> 16
        mixed = squash[mixed if -farthest <= mixed < farthest else farthest - 1 if mixed > 0 else -farthest]
        bit = code_bit(bit, mixed)
        if bit:
            error = 65536 - mixed
            chances[first] = chance + ((65535 - chance) * rates[count] >> 16)
            chances[second] = other + ((65535 - other) * rates[times] >> 16)
        else:
            error = -mixed
            chances[first] = chance - (chance * rates[count] >> 16)
            chances[second] = other - (other * rates[times] >> 16)
        if error < -1024 or error > 1024:  # what was sure teaches the weights nothing
            weights[pair] = weight + (error * odds >> 14)
            weights[pair + 1] = other_weight + (error * other_odds >> 14)
            trusts[pair >> 1] = trust + (error * third_odds >> 14)
        if count < 255:
            counts[first] = count + 1
        if times < 255:
            counts[second] = times + 1
        return bit

    return code
