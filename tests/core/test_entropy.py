"""Entropy coding: nothing is lost, little more than the entropy is sent, and damage is refused or stays in bounds."""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import sys
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg.core import adaptive_coding, dithered_coding, entropy, logistic_mixing
from lasg.core.bit_packing import pack_widths, unpack_widths
from lasg.core.codecs import QSGD
from lasg.core.entropy import (
    AdaptiveCoder,
    decode_positions,
    decode_symbols,
    encode_positions,
    encode_symbols,
    take_positions,
)
from lasg.core.range_coding import BitReader, BitWriter
from lasg.errors import LasgError

VECTORS = json.loads((Path(__file__).parent / "entropy_vectors.json").read_text(encoding="utf-8"))
INT32 = st.integers(-(2**31), 2**31 - 1)
integers = st.lists(st.integers(-2, 2) | st.integers(-300, 300) | INT32, max_size=60)
Symbols = npt.NDArray[np.int32]


def symbols_of(values: list[int]) -> Symbols:
    return np.array(values, np.int32)


def entropy_of(symbols: npt.NDArray[Any]) -> float:
    """Order-0 entropy in bits per entry."""
    share = np.unique(symbols, return_counts=True)[1] / len(symbols)
    return float(-(share * np.log2(share)).sum())


def qsgd(bits: int, p: int, bucket: int | None = 512, *, heavy: bool = False) -> Symbols:
    """The levels that QSGD makes of normal entries, or of heavy-tailed ones."""
    rng = np.random.default_rng(bits)
    rows = rng.standard_t(3, (1, p)) if heavy else rng.standard_normal((1, p))
    codec = QSGD(bits=bits, bucket=bucket)
    levels = codec.quantise(rows, lambda: rng.random(rows.shape)).symbols
    flat: Symbols = levels.reshape(-1)[:p].astype(np.int32)
    return flat


# -- long arrays -----------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(integers, st.integers(1, 3))
def test_any_int32_comes_back_from_a_message_of_symbols(values: list[int], times: int) -> None:
    symbols = symbols_of(values * times)
    decoded = decode_symbols(encode_symbols(symbols), len(symbols))
    assert decoded.dtype == np.int32
    np.testing.assert_array_equal(decoded, symbols)


@pytest.mark.parametrize("dtype", ["int8", "int16", "int64", "uint8", "uint32"])
def test_symbols_may_be_of_any_integer_type_and_not_contiguous(dtype: str) -> None:
    symbols = (np.arange(1000) % 7).astype(dtype)[::3]
    np.testing.assert_array_equal(decode_symbols(encode_symbols(symbols), len(symbols)), symbols)


def grid(p: int) -> Symbols:
    """Heavy-tailed entries on a uniform grid."""
    return np.round(np.random.default_rng(0).standard_t(2, p) / 8).clip(-127, 127).astype(np.int32)


LONG: dict[str, Callable[[int], Symbols]] = {
    "qsgd2:512": lambda p: qsgd(2, p),
    "qsgd4:512": lambda p: qsgd(4, p),
    "qsgd8:512": lambda p: qsgd(8, p),
    "qsgd16:512": lambda p: qsgd(16, p),
    "qsgd8:512, heavy": lambda p: qsgd(8, p, heavy=True),
    "qsgd8, one norm, heavy": lambda p: qsgd(8, p, None, heavy=True),
    "grid, heavy": grid,
    "not negative": lambda p: np.abs(grid(p)),
}


@pytest.mark.parametrize("name", LONG)
def test_long_arrays_cost_at_most_3_percent_more_than_their_entropy(name: str) -> None:
    symbols = LONG[name](100_000)
    message = encode_symbols(symbols)
    np.testing.assert_array_equal(decode_symbols(message, len(symbols)), symbols)
    assert 8 * len(message) <= 1.03 * entropy_of(symbols) * len(symbols)


def test_a_table_of_255_symbols_is_short() -> None:
    rng = np.random.default_rng(0)
    symbols = np.concatenate([np.arange(-127, 128), np.round(40 * rng.standard_normal(20_000)).clip(-127, 127)])
    message = encode_symbols(symbols.astype(np.int32))
    assert len(message) - entropy_of(symbols) * len(symbols) / 8 <= 160


def test_an_array_of_one_symbol_takes_a_few_bytes() -> None:
    assert len(encode_symbols(np.zeros(1_000_000, np.int32))) <= 6
    assert len(encode_symbols(np.full(1_000_000, -3, np.int32))) <= 9


def test_the_model_is_exact_in_float32_so_that_every_machine_has_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[npt.NDArray[Any]] = []

    class Recorder:
        class stream:  # noqa: N801
            class model:  # noqa: N801
                @staticmethod
                def Categorical(weights: npt.NDArray[Any], perfect: bool) -> None:  # noqa: N802
                    seen.append(weights)

    monkeypatch.setattr(entropy, "_constriction", lambda: Recorder)
    rng = np.random.default_rng(0)
    for size in (2, 3, 255, 6000):
        entropy._categorical(rng.integers(1, 100, size))
        weights = seen.pop().astype(np.float64)
        assert weights.sum() == 2**24 - size
        np.testing.assert_array_equal(weights, np.round(weights))


def test_without_constriction_the_install_line_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "constriction", None)
    with pytest.raises(LasgError, match=r"pip install 'lasg\[coding\]'"):
        encode_symbols(symbols_of([0, 1]))
    assert decode_symbols(encode_symbols(symbols_of([5, 5])), 2).tolist() == [5, 5]  # one symbol needs no coder


def test_symbols_that_cannot_be_coded_are_refused() -> None:
    with pytest.raises(LasgError, match="int32"):
        encode_symbols(np.array([2**31]))
    with pytest.raises(LasgError, match="integers"):
        encode_symbols(np.zeros(3))  # type: ignore[arg-type]
    with pytest.raises(LasgError, match="integers"):
        encode_symbols(np.zeros((3, 1), int))
    with pytest.raises(LasgError, match="from -1 to 1"):
        AdaptiveCoder(lowest=-1, highest=1).encode(symbols_of([2]), AdaptiveCoder().init_row(1))
    with pytest.raises(LasgError, match="shape"):
        AdaptiveCoder().encode(symbols_of([2]), AdaptiveCoder().init_row(2))
    with pytest.raises(LasgError, match="in this order"):
        AdaptiveCoder(lowest=1, highest=0)


def test_symbols_out_of_bounds_are_refused() -> None:
    message = encode_symbols(symbols_of([0, 3, -3]))
    assert decode_symbols(message, 3, -3, 3).tolist() == [0, 3, -3]
    with pytest.raises(LasgError, match="refused"):
        decode_symbols(message, 3, -3, 2)
    with pytest.raises(LasgError, match="refused"):
        decode_symbols(message, 3, -1, 1)
    message, _ = AdaptiveCoder(lowest=-3, highest=3).encode(symbols_of([-3]), AdaptiveCoder().init_row(1))
    with pytest.raises(LasgError, match="outside"):
        AdaptiveCoder(lowest=-2, highest=2).decode(message, 1, AdaptiveCoder().init_row(1))


# -- short arrays, again and again -----------------------------------------------------------------------------------


@st.composite
def sequences(draw: st.DrawFn) -> tuple[int, int, list[Symbols]]:
    lowest, highest = draw(st.sampled_from([(-(2**31), 2**31 - 1), (-1, 1), (-7, 7), (0, 5), (-4, 0), (0, 0), (2, 3)]))
    entry = st.integers(lowest, highest) | st.integers(max(lowest, -2), max(min(highest, 2), lowest, -2))
    p, n = draw(st.integers(0, 30)), draw(st.integers(1, 4))
    return lowest, highest, [symbols_of(draw(st.lists(entry, min_size=p, max_size=p))) for _ in range(n)]


@settings(max_examples=200, deadline=None)
@given(sequences())
def test_adaptive_messages_come_back_and_both_sides_know_the_same(case: tuple[int, int, list[Symbols]]) -> None:
    lowest, highest, messages = case
    coder, p = AdaptiveCoder(lowest=lowest, highest=highest), len(messages[0])
    sender = receiver = coder.init_row(p)
    for symbols in messages:
        before = {name: array.copy() for name, array in sender.items()}
        message, after = coder.encode(symbols, sender)
        decoded, receiver = coder.decode(message, p, receiver)
        assert len(message) >= 1
        np.testing.assert_array_equal(decoded, symbols)
        for name, array in sender.items():
            np.testing.assert_array_equal(array, before[name])  # nothing in place
            np.testing.assert_array_equal(after[name], receiver[name])
            assert after[name].dtype == array.dtype
        sender = after


def test_rows_of_several_workers_are_coded_each_with_its_own_state() -> None:
    coder, rng = AdaptiveCoder(lowest=-7, highest=7), np.random.default_rng(0)
    sender = receiver = coder.init(3, 40)
    alone = [coder.init_row(40) for _ in range(3)]
    for _ in range(4):
        symbols = np.round(rng.standard_normal((3, 40))).astype(np.int32)
        messages, sender = coder.encode_rows(symbols, sender)
        decoded, receiver = coder.decode_rows(messages, 40, receiver)
        np.testing.assert_array_equal(decoded, symbols)
        for i in range(3):
            message, alone[i] = coder.encode(symbols[i], alone[i])
            assert message == messages[i]
    for name, array in sender.items():
        assert array.dtype.kind in "iu"
        assert len(array) == 3
        np.testing.assert_array_equal(array, receiver[name])


class IdealWriter(BitWriter):
    """Also counts -log2 of the probabilities."""

    total = 0.0

    def code(self, bit: int, chance: int) -> int:
        IdealWriter.total -= math.log2((chance if bit else 65536 - chance) / 65536)
        return super().code(bit, chance)

    def code_even(self, number: int, bits: int) -> int:
        IdealWriter.total += bits
        return super().code_even(number, bits)


def gradients(p: int, messages: int, scale: float) -> list[Symbols]:
    """Entries with scales of their own, which stay from message to message."""
    rng = np.random.default_rng(0)
    own = scale * rng.lognormal(0, 1, p)
    return [np.round(own * rng.standard_normal(p)).astype(np.int32) for _ in range(messages)]


@pytest.mark.parametrize(("p", "scale"), [(22, 0.5), (22, 3.0), (22, 0.1), (784, 0.2), (784, 5.0)])
def test_a_message_ends_within_3_bits_of_the_ideal_on_average(
    p: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_coding, "BitWriter", IdealWriter)
    monkeypatch.setattr(IdealWriter, "total", 0.0)
    coder, arrays = AdaptiveCoder(lowest=-127, highest=127), gradients(p, 200 if p < 100 else 20, scale)
    row, bits = coder.init_row(p), 0
    for symbols in arrays:
        message, row = coder.encode(symbols.clip(-127, 127), row)
        bits += 8 * len(message)
    # A message has at least one byte, and whole bytes.
    assert bits <= 1.001 * IdealWriter.total + 3 * len(arrays) + (8 * len(arrays) if scale < 0.2 else 0)


@pytest.mark.parametrize(("p", "scale"), [(22, 0.5), (22, 3.0), (54, 0.3), (784, 0.2), (784, 5.0)])
def test_short_messages_cost_at_most_10_percent_more_than_the_ideal_adaptive_count(
    p: int, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(adaptive_coding, "BitWriter", IdealWriter)
    monkeypatch.setattr(IdealWriter, "total", 0.0)
    coder, arrays = AdaptiveCoder(lowest=-127, highest=127), gradients(p, 200 if p < 100 else 20, scale)
    row, bits = coder.init_row(p), 0
    for symbols in arrays:
        message, row = coder.encode(symbols.clip(-127, 127), row)
        bits += 8 * len(message)
    assert IdealWriter.total < bits <= 1.1 * IdealWriter.total


def test_wide_entries_come_back_and_their_digits_cost_what_they_have() -> None:
    coder, rng = AdaptiveCoder(lowest=-7, highest=7, wide=2, digits=20), np.random.default_rng(0)
    sender = receiver = coder.init(1, 24)
    lengths = []
    for _ in range(60):
        levels = np.round(rng.standard_normal((1, 22))).astype(np.int32)
        wide = rng.integers(-(2**22), 2**22, (1, 2)).astype(np.int32)  # 20 digits, and -4 to 3 above them
        symbols = np.concatenate([levels, wide], 1)
        messages, sender = coder.encode_rows(symbols, sender)
        decoded, receiver = coder.decode_rows(messages, 24, receiver)
        np.testing.assert_array_equal(decoded, symbols)
        lengths.append(8 * len(messages[0]))
    entropy = 22 * 2.1 + 2 * (20 + 3)
    assert np.mean(lengths[10:]) <= entropy + 8
    extremes = np.zeros((1, 24), np.int32)
    extremes[0, 22:] = -(2**31), 2**31 - 1
    messages, _ = coder.encode_rows(extremes, sender)
    np.testing.assert_array_equal(coder.decode_rows(messages, 24, receiver)[0], extremes)


def test_the_tables_of_log_odds_are_far_from_ties_so_that_every_machine_has_the_same() -> None:
    values = [logistic_mixing.stretched(index) for index in range(4096)]
    values += [logistic_mixing.squashed(odds) for odds in range(-2048, 2048) if odds]  # of 0 it is 2^15, exactly
    assert logistic_mixing.squashed(0) == 2**15
    assert min(abs(value - math.floor(value) - 0.5) for value in values) > 1e-6


def test_a_state_of_another_format_is_refused_in_one_line() -> None:
    coder = AdaptiveCoder(lowest=-7, highest=7)
    former: dict[str, npt.NDArray[Any]] = {"counts": np.zeros((391, 2), np.uint8), "history": np.zeros(4, np.int32)}
    with pytest.raises(LasgError, match="another version of lasg") as caught:
        coder.decode(b"\x01", 4, former)
    assert "\n" not in str(caught.value)


def test_what_was_learnt_makes_later_messages_shorter_than_the_entropy() -> None:
    arrays = gradients(784, 30, 0.3)
    coder, lengths = AdaptiveCoder(), []
    row = coder.init_row(784)
    for symbols in arrays:
        message, row = coder.encode(symbols, row)
        lengths.append(8 * len(message))
    ideal = [784 * entropy_of(symbols) for symbols in arrays]
    assert sum(lengths[10:]) < 0.85 * sum(ideal[10:])
    assert sum(lengths) < 0.9 * sum(ideal)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 32).flatmap(lambda w: st.tuples(st.just(w), st.integers(0, 2**w - 1))), max_size=200))
def test_numbers_of_any_widths_come_back_from_packed_bits(pairs: list[tuple[int, int]]) -> None:
    widths, numbers = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    packed = pack_widths(numbers, widths)
    assert len(packed) == -(-int(widths.sum()) // 8)
    unpacked, rest = unpack_widths(memoryview(packed + b"more"), widths)
    np.testing.assert_array_equal(unpacked, numbers)
    assert bytes(rest) == b"more"


def test_even_numbers_come_back() -> None:
    writer = BitWriter()
    writer.code(1, 21845)  # a third: 2^32 even numbers do not fill it
    writer.code_even(2**32 - 1, 32)
    reader = BitReader(writer.finish())
    assert reader.code(0, 21845) == 1
    assert reader.code_even(0, 32) == 2**32 - 1


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.sampled_from([1, 2, 100, 32768, 65000, 65535])), max_size=300))
def test_the_range_coder_gives_back_any_bits_under_any_probabilities(pairs: list[tuple[int, int]]) -> None:
    writer = BitWriter()
    for bit, chance in pairs:
        writer.code(bit, chance)
    reader = BitReader(writer.finish())
    assert [reader.code(0, chance) for _, chance in pairs] == [bit for bit, _ in pairs]
    reader.finish()


def test_a_carry_runs_back_through_bytes_of_255() -> None:
    writer = BitWriter()
    pairs = [(0, 1)] * 3000 + [(1, 65535), (0, 65535)] * 200  # the top of the interval, where carries happen
    for bit, chance in pairs:
        writer.code(bit, chance)
    reader = BitReader(writer.finish())
    assert [reader.code(0, chance) for _, chance in pairs] == [bit for bit, _ in pairs]


# -- positions -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from([1, 2, 22, 500, 10**9]).flatmap(
        lambda p: st.tuples(st.just(p), st.sets(st.integers(0, p - 1), max_size=200))
    ),
    st.binary(max_size=9),
)
def test_any_positions_come_back(case: tuple[int, set[int]], rest: bytes) -> None:
    p, chosen = case
    positions = np.array(sorted(chosen), np.int64)
    message = encode_positions(positions, p)
    decoded = decode_positions(message, p)
    assert decoded.dtype == np.int64
    np.testing.assert_array_equal(decoded, positions)
    taken, left = take_positions(message + rest, p)
    np.testing.assert_array_equal(taken, positions)
    assert left == rest


def test_64_of_4096_positions_take_at_most_7_and_a_half_bits_each() -> None:
    rng = np.random.default_rng(0)
    blocks = [4096 * i + np.sort(rng.choice(4096, 64, replace=False)) for i in range(64)]
    positions = np.concatenate(blocks)
    assert 8 * len(encode_positions(positions, 64 * 4096)) <= 7.5 * len(positions)


def test_positions_in_clusters_take_fewer_bits_than_at_random() -> None:
    rng = np.random.default_rng(0)
    dense = np.flatnonzero(rng.random(20_000) < 0.1)
    sparse = 20_000 + np.flatnonzero(rng.random(400_000) < 0.004)
    positions, p = np.concatenate([dense, sparse]), 420_000
    share = len(positions) / p
    random = -(math.log2(share) + (1 - share) / share * math.log2(1 - share))
    assert 8 * len(encode_positions(positions, p)) <= 0.9 * random * len(positions)


def test_positions_far_apart_do_not_overflow() -> None:
    p = 10**9
    positions = np.array([0, p // 2, p - 1])
    np.testing.assert_array_equal(decode_positions(encode_positions(positions, p), p), positions)
    positions = np.concatenate([np.arange(100), p - 100 + np.arange(100)])
    np.testing.assert_array_equal(decode_positions(encode_positions(positions, p), p), positions)


def test_all_positions_and_none() -> None:
    assert decode_positions(encode_positions(np.zeros(0, np.int64), 10), 10).tolist() == []
    message = encode_positions(np.arange(10_000), 10_000)
    assert len(message) <= 1400
    np.testing.assert_array_equal(decode_positions(message, 10_000), np.arange(10_000))


@pytest.mark.parametrize("positions", [[3, 3], [4, 3], [-1, 2], [5, 10]])
def test_positions_that_are_none_are_refused(positions: list[int]) -> None:
    with pytest.raises(LasgError, match="sorted, different"):
        encode_positions(np.array(positions), 10)


# -- dithered entries ------------------------------------------------------------------------------------------------


def rounded(x: npt.NDArray[np.float64], noise: npt.NDArray[np.float64], bound: int) -> Symbols:
    """The levels of entries that are rounded by this noise."""
    return (np.sign(x) * np.floor(np.abs(x) + noise)).clip(-bound, bound).astype(np.int32)


def coded_length(coder: AdaptiveCoder, rows: list[Symbols], noise: list[npt.NDArray[np.float64]]) -> int:
    """Code rows one after the other, both ways; return the bits of the messages."""
    p = len(rows[0])
    sender = receiver = coder.init(1, p)
    bits = 0
    for row, draws in zip(rows, noise, strict=True):
        [message], sender = coder.encode_rows(row[None], sender, draws[None])
        decoded, receiver = coder.decode_rows([message], p, receiver, draws[None])
        np.testing.assert_array_equal(decoded[0], row)
        bits += 8 * len(message)
    return bits


@pytest.mark.parametrize(("p", "scale", "share"), [(22, 1.2, 0.97), (200, 0.3, 0.85), (400, 0.1, 0.75)])
def test_noise_that_both_sides_know_shortens_messages(p: int, scale: float, share: float) -> None:
    rng = np.random.default_rng(p)
    own = scale * rng.lognormal(0, 0.5, p)
    noise = [rng.random(p) for _ in range(40)]
    rows = [rounded(own * rng.standard_normal(p), draws, 7) for draws in noise]
    plain = coded_length(AdaptiveCoder(lowest=-7, highest=7), rows, noise)
    assert coded_length(AdaptiveCoder(lowest=-7, highest=7, dithered=True), rows, noise) <= share * plain


def test_entries_that_go_together_are_foreseen_from_those_before_them() -> None:
    rng, p = np.random.default_rng(0), 30
    noise = [rng.random(p) for _ in range(60)]
    own = rng.choice([-1.0, 1.0], p)
    together = [rounded(2 * (own * rng.standard_normal() + 0.3 * rng.standard_normal(p)), draws, 7) for draws in noise]
    apart = [rounded(2 * (own * rng.standard_normal(p) + 0.3 * rng.standard_normal(p)), draws, 7) for draws in noise]
    coder = AdaptiveCoder(lowest=-7, highest=7, dithered=True)
    assert coded_length(coder, together, noise) <= 0.7 * coded_length(coder, apart, noise)


def test_a_known_norm_shortens_messages() -> None:
    rng, p = np.random.default_rng(0), 22
    noise, rows = [rng.random(p) for _ in range(200)], []
    for draws in noise:
        x = rng.standard_t(3, p)
        rows.append(rounded(7 * x / np.linalg.norm(x), draws, 7))
    known, unknown = (AdaptiveCoder(lowest=-7, highest=7, dithered=True, norm=norm) for norm in (7.0, None))
    assert coded_length(known, rows, noise) <= coded_length(unknown, rows, noise) - len(rows) / 2


@pytest.mark.parametrize(("scale", "share"), [(0.05, 0.6), (0.25, 0.75)])
def test_a_long_array_costs_less_than_its_entropy_where_both_sides_know_the_noise(scale: float, share: float) -> None:
    rng, p = np.random.default_rng(0), 100_000
    noise = rng.random(p)
    symbols = rounded(scale * rng.standard_normal(p), noise, 7)
    message = encode_symbols(symbols, noise)
    assert message[0] == 4  # 16 tables
    np.testing.assert_array_equal(decode_symbols(message, p, -7, 7, noise), symbols)
    assert 8 * len(message) <= share * entropy_of(symbols) * p


@settings(max_examples=100, deadline=None)
@given(integers, st.integers(1, 20))
def test_any_int32_comes_back_where_there_is_noise(values: list[int], times: int) -> None:
    symbols = symbols_of(values * times)
    noise = np.random.default_rng(len(symbols)).random(len(symbols))
    message = encode_symbols(symbols, noise)
    np.testing.assert_array_equal(decode_symbols(message, len(symbols), noise=noise), symbols)


def test_extreme_levels_and_noise_come_back() -> None:
    coder = AdaptiveCoder(lowest=-7, highest=7, wide=1, digits=20, dithered=True, norm=7.0)
    sender = receiver = coder.init(1, 7)
    for noise in (0.0, 1 - 2**-53, 0.5):
        draws = np.full((1, 6), noise)
        for levels in ([0] * 6, [7] * 6, [-7, 7, 0, 0, -1, 1], [0] * 6):
            for wide in (0, -(2**31), 2**31 - 1):
                symbols = symbols_of([*levels, wide])[None]
                messages, sender = coder.encode_rows(symbols, sender, draws)
                decoded, receiver = coder.decode_rows(messages, 7, receiver, draws)
                np.testing.assert_array_equal(decoded, symbols)
    assert all(np.isfinite(array).all() for array in sender.values())


def test_dithered_entries_without_noise_are_refused() -> None:
    coder = AdaptiveCoder(lowest=-7, highest=7, dithered=True)
    with pytest.raises(LasgError, match="need noise of shape"):
        coder.encode_rows(symbols_of([1, 2])[None], coder.init(1, 2))
    with pytest.raises(LasgError, match="as much noise"):
        encode_symbols(symbols_of([1, 2]), np.zeros(3))


def test_the_table_of_normal_tails_is_far_from_ties_so_that_every_machine_has_the_same() -> None:
    values = [dithered_coding.tail(step) for step in range(16 * 64 + 1) if step]  # of 0 it is 2^31, exactly
    assert min(abs(value % 1 - 0.5) for value in values) > 1e-5


# -- damage ----------------------------------------------------------------------------------------------------------


def mutate(message: bytes, rng: np.random.Generator) -> bytes:
    """Cut, extend, change or replace a message."""
    kind = rng.integers(6)
    data = bytearray(message)
    if kind == 0:
        return message[: rng.integers(len(message) + 1)]
    if kind == 1:
        return message + rng.bytes(int(rng.integers(1, 9)))
    if kind == 2:
        return rng.bytes(int(rng.integers(0, 2 * len(message) + 1)))
    if kind == 3:
        start = int(rng.integers(len(message)))
        return bytes(data[:start] + data[start + int(rng.integers(1, 5)) :])
    for _ in range(int(rng.integers(1, 4))):
        i = int(rng.integers(min(len(data), 8) if kind == 4 else len(data)))
        data[i] = int(rng.integers(256))
    return bytes(data)


def check_damage(messages: list[bytes], decode: Callable[[bytes], npt.NDArray[Any] | None], times: int) -> None:
    rng = np.random.default_rng(0)
    reasons = []
    for i in range(times):
        try:
            decode(mutate(messages[i % len(messages)], rng))
        except LasgError as error:
            reasons.append(str(error))
    assert len(reasons) > times / 20
    assert all(len(reason.splitlines()) == 1 for reason in reasons)


def test_damaged_symbols_are_refused_or_stay_in_bounds() -> None:
    rng = np.random.default_rng(1)
    scales = (0.3, 2, 40, 1000, 1e7)
    messages = [encode_symbols(np.round(scale * rng.standard_normal(40)).astype(np.int32)) for scale in scales]
    messages += [encode_symbols(np.zeros(40, np.int32)), encode_symbols(np.full(40, 1000, np.int32))]

    bounds = itertools.cycle((2**31 - 1, 7, 127))

    def decode(data: bytes) -> None:
        bound = next(bounds)
        symbols = decode_symbols(data, 40, -bound, bound)
        assert len(symbols) == 40
        assert np.abs(symbols.astype(np.int64)).max() <= bound

    check_damage(messages, decode, 10_000)


def test_damaged_adaptive_messages_are_refused_or_stay_in_bounds() -> None:
    cases = []
    for bound, scale in ((1, 0.5), (127, 20.0), (2**31 - 1, 1e8)):
        coder = AdaptiveCoder(lowest=-bound, highest=bound)
        first, second = (symbols.clip(-bound, bound) for symbols in gradients(12, 2, scale))
        _, row = coder.encode(first, coder.init_row(12))
        cases.append((coder, row, coder.encode(second, row)[0], bound))
    for coder, row, message, bound in cases:

        def decode(data: bytes, coder: AdaptiveCoder = coder, row: Any = row, bound: int = bound) -> None:
            symbols, _ = coder.decode(data, 12, row)
            assert len(symbols) == 12
            assert np.abs(symbols.astype(np.int64)).max() <= bound

        check_damage([message], decode, 3_400)


def test_damaged_positions_are_refused_or_stay_in_bounds() -> None:
    rng = np.random.default_rng(2)
    for p, count in ((300, 20), (3000, 200), (10**9, 100)):
        message = encode_positions(np.unique(rng.integers(0, p, count)), p)

        def decode(data: bytes, p: int = p) -> None:
            positions = decode_positions(data, p)
            assert np.all(np.diff(positions) > 0)
            assert not len(positions) or (positions[0] >= 0 and positions[-1] < p)

        check_damage([message], decode, 3_400)


def test_a_message_cannot_ask_for_more_memory_than_its_entries_need() -> None:
    rng = np.random.default_rng(0)
    huge = [b"\xff\xff\xff\xff\x07" + rng.bytes(200), rng.bytes(200), b"\x7f" * 200, b"\xff\x01" * 100]
    messages = [bytes([first]) + rest for first in (0, 1, 100, 255) for rest in huge]
    tracemalloc.start()
    try:
        for message in messages + huge:
            for decode in (lambda data: decode_symbols(data, 100), lambda data: decode_positions(data, 10**9)):
                with contextlib.suppress(LasgError):
                    decode(message)
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()


# -- the format is fixed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("vector", VECTORS["symbols"], ids=lambda vector: vector["name"])
def test_committed_messages_of_symbols_are_read(vector: dict[str, Any]) -> None:
    decoded = decode_symbols(bytes.fromhex(vector["message"]), len(vector["symbols"]))
    assert decoded.tolist() == vector["symbols"]


@pytest.mark.parametrize("vector", VECTORS["adaptive"], ids=lambda vector: vector["name"])
def test_committed_adaptive_messages_are_read_and_written(vector: dict[str, Any]) -> None:
    coder, p = AdaptiveCoder(lowest=vector["lowest"], highest=vector["highest"]), len(vector["symbols"][0])
    sender = receiver = coder.init_row(p)
    for symbols, message in zip(vector["symbols"], vector["messages"], strict=True):
        decoded, receiver = coder.decode(bytes.fromhex(message), p, receiver)
        assert decoded.tolist() == symbols
        written, sender = coder.encode(symbols_of(symbols), sender)
        assert written.hex() == message


@pytest.mark.parametrize("vector", VECTORS["dithered"], ids=lambda vector: vector["name"])
def test_committed_dithered_messages_are_read_and_written(vector: dict[str, Any]) -> None:
    bound, p = vector["bound"], len(vector["noise"][0])
    coder = AdaptiveCoder(lowest=-bound, highest=bound, wide=1, digits=4, dithered=True, norm=vector["norm"])
    sender = receiver = coder.init(1, p + 1)
    for symbols, noise, message in zip(vector["symbols"], vector["noise"], vector["messages"], strict=True):
        draws = np.array(noise)[None] / (1 << 20)
        decoded, receiver = coder.decode_rows([bytes.fromhex(message)], p + 1, receiver, draws)
        assert decoded[0].tolist() == symbols
        written, sender = coder.encode_rows(symbols_of(symbols)[None], sender, draws)
        assert written[0].hex() == message
        for name, array in sender.items():
            np.testing.assert_array_equal(array, receiver[name])


@pytest.mark.parametrize("vector", VECTORS["symbols by noise"], ids=lambda vector: vector["name"])
def test_committed_messages_of_symbols_by_noise_are_read(vector: dict[str, Any]) -> None:
    noise, message = np.array(vector["noise"]) / 32, bytes.fromhex(vector["message"])
    assert 1 << message[0] == int(vector["name"].split()[0])
    assert decode_symbols(message, len(noise), 0, 15, noise).tolist() == vector["symbols"]


@pytest.mark.parametrize("vector", VECTORS["positions"], ids=lambda vector: vector["name"])
def test_committed_messages_of_positions_are_read(vector: dict[str, Any]) -> None:
    assert decode_positions(bytes.fromhex(vector["message"]), vector["p"]).tolist() == vector["positions"]
