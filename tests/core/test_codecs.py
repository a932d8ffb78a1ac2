"""What travels: exact lengths, exact decoding, an unbiased quantiser within its variance bound."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lasg import counter
from lasg.core.arrays import CACHED, code_type
from lasg.core.codec_names import parse
from lasg.core.codecs import QSGD, Dense, StatefulCodec
from lasg.core.grids import Grid, Sign, Uniform
from lasg.core.message_bits import pack_bits, unpack_bits
from lasg.core.own_codec import as_codec
from lasg.core.sparse import TopK, largest_of_long
from lasg.errors import LasgError
from tests.core.toy import KINDS, as_kind, numpy_of

each_kind = pytest.mark.parametrize("kind", KINDS)
quantisers = st.builds(
    lambda bits, bucket: QSGD(bits=bits, bucket=bucket), st.integers(2, 16), st.none() | st.integers(1, 9)
)
entries = st.floats(-(2.0**100), 2.0**100, width=32) | st.floats(-1, 1, width=32) | st.just(0.0)


@st.composite
def stacked(draw: st.DrawFn) -> npt.NDArray[np.float64]:
    n, p = draw(st.integers(1, 4)), draw(st.integers(1, 20))
    flat = draw(st.lists(entries, min_size=n * p, max_size=n * p))
    return np.array(flat).reshape(n, p)


def uniforms(shape: tuple[int, ...], seed: int = 0) -> npt.NDArray[np.float64]:
    return np.random.default_rng(seed).random(shape)


def no_noise() -> npt.NDArray[np.float64]:
    raise AssertionError("this codec needs no noise")


def bucket_norms(row: npt.NDArray[np.float64], bucket: int | None) -> npt.NDArray[np.float64]:
    """The 2-norm of the bucket that each entry belongs to."""
    width = bucket or len(row)
    parts = [row[i : i + width] for i in range(0, len(row), width)]
    return np.concatenate([np.full(len(part), np.linalg.norm(part)) for part in parts])


# -- QSGD ------------------------------------------------------------------------------------------------------


@settings(max_examples=150, deadline=None)
@given(quantisers, stacked(), st.sampled_from(KINDS), st.sampled_from(["float32", "float64"]), st.integers(0, 99))
def test_the_shortcut_gives_exactly_what_the_messages_decode_to(
    codec: QSGD, values: npt.NDArray[np.float64], kind: str, dtype: str, seed: int
) -> None:
    rows = as_kind(values, kind, dtype)
    noise = uniforms(values.shape, seed)
    messages = codec.encode(rows, lambda: noise)
    decoded = codec.decode(messages, rows[0])
    seen, bits = codec.transmit(rows, lambda: noise)
    assert decoded.dtype == seen.dtype == rows.dtype
    assert type(decoded) is type(seen) is type(rows)
    np.testing.assert_array_equal(numpy_of(decoded), numpy_of(seen))
    p = values.shape[1]
    buckets = 1 if codec.bucket is None else math.ceil(p / codec.bucket)
    padding = -codec.bits * p % 8
    assert all(8 * len(message) == codec.bits * p + 32 * buckets + padding for message in messages)
    assert bits == sum(8 * len(message) for message in messages)


@settings(max_examples=100, deadline=None)
@given(quantisers, stacked(), st.integers(0, 99))
def test_an_entry_becomes_one_of_the_two_levels_beside_it(
    codec: QSGD, rows: npt.NDArray[np.float64], seed: int
) -> None:
    noise = uniforms(rows.shape, seed)
    decoded, _ = codec.transmit(rows, lambda: noise)
    s = 2 ** (codec.bits - 1) - 1
    for row, found in zip(rows, decoded, strict=True):
        step = bucket_norms(row, codec.bucket) / s
        # Norms travel in float32, whose smallest number is 1.4e-45.
        assert (np.abs(found - row) <= step * (1 + 1e-6) + 1e-6 * np.abs(row) + 2e-45).all()
        assert (found * row >= 0).all()
        assert (found[row == 0] == 0).all()


@settings(max_examples=50, deadline=None)
@given(quantisers, stacked(), st.integers(0, 99))
def test_numpy_and_torch_write_the_same_messages(codec: QSGD, values: npt.NDArray[np.float64], seed: int) -> None:
    """With rows of few distinct sums, so that the order of summation cannot change a norm."""
    rows = np.sign(values)
    noise = uniforms(rows.shape, seed)
    assert codec.encode(rows, lambda: noise) == codec.encode(torch.tensor(rows), lambda: noise)


CASES = [(bits, bucket) for bits in (2, 3, 4, 8, 16) for bucket in (None, 5)]


@pytest.mark.parametrize(("bits", "bucket"), CASES)
@each_kind
def test_the_quantiser_is_unbiased(bits: int, bucket: int | None, kind: str) -> None:
    """The mean of 20,000 draws lies within 5 standard errors of every entry."""
    codec, draws, p = QSGD(bits=bits, bucket=bucket), 20_000, 12
    row = np.random.default_rng(1).normal(size=p) ** 3
    rows = as_kind(np.repeat(row[None], draws, axis=0), kind)
    seen = numpy_of(codec.transmit(rows, lambda: uniforms((draws, p), 2))[0])
    norms = bucket_norms(row, bucket)
    at = np.abs(row) / norms * codec.levels
    deviation = norms / codec.levels * np.sqrt((at % 1) * (1 - at % 1))
    assert (np.abs(seen.mean(0) - row) <= 5 * deviation / np.sqrt(draws) + 1e-6 * norms).all()


@pytest.mark.parametrize(("bits", "bucket"), CASES)
@pytest.mark.parametrize("p", [1, 5, 12, 60])
def test_the_error_is_within_the_variance_bound_of_qsgd(bits: int, bucket: int | None, p: int) -> None:
    """Alistarh et al. 2017, Lemma 3.1: E ||Q(v) - v||^2 <= min(n / s^2, sqrt(n) / s) ||v||^2, for every bucket."""
    codec, draws = QSGD(bits=bits, bucket=bucket), 4000
    width = bucket or p
    rng = np.random.default_rng(p)
    for row in (rng.normal(size=p), np.ones(p), rng.normal(size=p) ** 5, np.eye(p)[0]):
        rows = np.repeat(row[None], draws, axis=0)
        noise = uniforms((draws, p), 3)
        seen, _ = codec.transmit(rows, partial(np.copy, noise))
        for start in range(0, p, width):
            v = row[start : start + width]
            n, s = len(v), codec.levels
            error = ((seen[:, start : start + width] - v) ** 2).sum(-1)
            bound = min(n / s**2, math.sqrt(n) / s) * float(v @ v)
            slack = 5 * error.std() / np.sqrt(draws) + 1e-12 * float(v @ v)
            assert error.mean() <= bound + slack


def test_a_level_is_rounded_up_with_its_fraction_as_probability() -> None:
    """3-4-5: with 2 bits, 0.6 and 0.8 of the norm go to 1 where the draw is in the top 0.6 and 0.8."""
    rows = np.array([[3.0, -4.0]])
    for u, v, expected in ((0.39, 0.19, [0, 0]), (0.41, 0.19, [5, 0]), (0.39, 0.21, [0, -5])):
        seen, _ = QSGD(bits=2).transmit(rows, partial(np.array, [[u, v]]))
        np.testing.assert_array_equal(seen, [expected])


@pytest.mark.parametrize(("bits", "bucket"), CASES)
@each_kind
def test_zero_vectors_stay_zero(bits: int, bucket: int | None, kind: str) -> None:
    rows = as_kind(np.zeros((3, 7)), kind, "float32")
    noise = np.full((3, 7), 1 - 2.0**-53)
    codec = QSGD(bits=bits, bucket=bucket)
    assert not numpy_of(codec.transmit(rows, lambda: noise)[0]).any()
    assert not numpy_of(codec.decode(codec.encode(rows, lambda: noise), rows[0])).any()


@pytest.mark.parametrize("bits", [2, 4, 8, 16])
@pytest.mark.parametrize("value", [1.0, -3.5, 1e-30, -1e30, 0.1])
@pytest.mark.parametrize("u", [0.0, 0.5, 1 - 2.0**-53])
def test_a_single_entry_survives_but_for_float32(bits: int, value: float, u: float) -> None:
    """It is its own norm, so only the rounding of the norm may move it: by less than one level even then."""
    seen, _ = QSGD(bits=bits).transmit(np.array([[value]]), lambda: np.array([[u]]))
    s = 2 ** (bits - 1) - 1
    rounded_down = u == 0.0 and abs(np.float64(np.float32(value))) > abs(value)
    assert seen[0, 0] == pytest.approx(value, rel=1 / s + 1e-7 if rounded_down else 1e-7)


@each_kind
@pytest.mark.parametrize("scale", [1e-44, 1e-38, 1e-20, 1.0, 1e18, 1e37])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_huge_and_tiny_magnitudes_are_quantised_like_any_other(kind: str, scale: float, dtype: str) -> None:
    row = np.array([[0.5, -0.25, 0.125, 0.0]]) * scale
    noise = np.full(row.shape, 0.5)
    codec = QSGD(bits=16)
    seen = numpy_of(codec.transmit(as_kind(row, kind, dtype), lambda: noise)[0])
    decoded = numpy_of(codec.decode(codec.encode(as_kind(row, kind, dtype), lambda: noise), seen[0]))
    np.testing.assert_array_equal(seen, decoded)
    np.testing.assert_allclose(seen, row, rtol=1e-3, atol=2e-45)


@each_kind
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_a_gradient_that_is_not_finite_is_refused(kind: str, bad: float) -> None:
    rows = as_kind([[1.0, bad]], kind)
    with pytest.raises(LasgError, match="not finite"):
        QSGD(bits=4).transmit(rows, lambda: np.zeros((1, 2)))


def test_a_float64_norm_beyond_float32_is_refused_without_a_warning() -> None:
    with pytest.raises(LasgError):
        QSGD(bits=4).transmit(np.array([[1e39, 1.0]]), lambda: np.zeros((1, 2)))


def test_the_shortcut_agrees_with_the_messages_in_the_sign_of_zero() -> None:
    rows, codec = np.array([[-1e-9, 1.0]]), QSGD(bits=4)
    noise = np.full((1, 2), 0.5)
    seen, _ = codec.transmit(rows, lambda: noise)
    decoded = codec.decode(codec.encode(rows, lambda: noise), rows[0])
    assert seen.tobytes() == decoded.tobytes()


@pytest.mark.parametrize("bits", [1, 0, 17, 32, 4.0, "4", None])
def test_bits_outside_2_to_16_are_refused(bits: Any) -> None:
    with pytest.raises(LasgError, match="2 to 16 bits"):
        QSGD(bits=bits)


@pytest.mark.parametrize("bucket", [0, -1, 2.5, "512"])
def test_a_bucket_without_entries_is_refused(bucket: Any) -> None:
    with pytest.raises(LasgError, match="bucket"):
        QSGD(bits=4, bucket=bucket)


# -- any codec -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["dense", "qsgd2", "qsgd4", "qsgd16:3"])
@pytest.mark.parametrize("change", [-1, 1, -1000, 7])
def test_a_message_of_the_wrong_length_is_refused(name: str, change: int) -> None:
    codec, rows = parse(name), np.random.default_rng(0).normal(size=(2, 9))
    good, bad = codec.encode(rows, lambda: uniforms((2, 9)))
    bad = bad[:change] if change < 0 else bad + bytes(change)
    with pytest.raises(LasgError, match="refused"):
        codec.decode([good, bad], rows[0])


def test_names_of_codecs() -> None:
    assert parse("dense") == Dense()
    assert parse("qsgd4") == QSGD(bits=4)
    assert parse("qsgd8:512") == QSGD(bits=8, bucket=512)


@pytest.mark.parametrize(
    "name", ["", "qsgd", "qsgd:4", "qsgd4:x", "qsgd-4", "qsgd1", "qsgd17", "qsgd4:0", "topk2:x", "grid2", "dense+ec"]
)
def test_unknown_codecs_are_refused(name: str) -> None:
    with pytest.raises(LasgError):
        parse(name)


def test_a_codec_needs_only_encode_and_decode() -> None:
    """transmit packs and unpacks for codecs that know no shortcut."""

    @dataclass(frozen=True)
    class Sign:
        def encode(self, rows: Any, noise: Any) -> list[bytes]:
            return [np.packbits(row > 0).tobytes() for row in rows]

        def decode(self, messages: Sequence[bytes], like: Any) -> Any:
            bits = [np.unpackbits(np.frombuffer(m, np.uint8), count=len(like)) for m in messages]
            return np.where(np.array(bits) > 0, 1.0, -1.0).astype(like.dtype)

    seen, bits = as_codec(Sign()).transmit(np.array([[1.0, -2.0, 3.0], [-1.0, -1.0, 5.0]]), no_noise)
    np.testing.assert_array_equal(seen, [[1, -1, 1], [-1, -1, 1]])
    assert bits == 16


# -- dense -----------------------------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(stacked(), st.sampled_from(["float32", "float64"]))
def test_dense_round_trips_bit_for_bit(values: npt.NDArray[np.float64], dtype: str) -> None:
    rows = values.astype(dtype)
    rows[0, 0] = -0.0
    messages = Dense().encode(rows, no_noise)
    decoded = Dense().decode(messages, rows[0])
    seen, bits = Dense().transmit(rows, no_noise)
    assert decoded.dtype == seen.dtype == rows.dtype
    assert decoded.tobytes() == seen.tobytes() == rows.tobytes()
    assert bits == 8 * sum(map(len, messages)) == rows.size * (32 if dtype == "float32" else 64)


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")  # reported below, without torch
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_dense_round_trips_torch_tensors_bit_for_bit(dtype: str) -> None:
    rows = as_kind(np.random.default_rng(0).normal(size=(3, 8)), "torch", dtype)
    messages = Dense().encode(rows, no_noise)
    assert b"".join(messages) == rows.numpy().tobytes()
    decoded = Dense().decode(messages, rows[0])
    assert decoded.dtype == rows.dtype
    assert torch.equal(decoded, rows)


def test_rows_decoded_from_quantised_messages_may_be_written_to() -> None:
    """Whoever decodes keeps the rows as that worker's contribution."""
    rows, codec = np.ones((2, 3)), QSGD(bits=8)
    decoded = codec.decode(codec.encode(rows, lambda: uniforms((2, 3))), rows[0])
    assert decoded.flags.writeable


def test_rows_decoded_from_dense_messages_may_be_written_to() -> None:
    rows = np.ones((2, 3))
    decoded = Dense().decode(Dense().encode(rows, no_noise), rows[0])
    assert decoded.flags.writeable


@pytest.mark.parametrize("bits", range(1, 19))
@pytest.mark.parametrize("p", [0, 1, 7, 8, 33, CACHED + 13])
def test_codes_are_packed_without_gaps_most_significant_bit_first(bits: int, p: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 2**bits, p).astype(code_type(bits))
    text = "".join(f"{code:0{bits}b}" for code in codes.tolist()).ljust(-(-bits * p // 8) * 8, "0")
    packed = pack_bits(codes, bits)
    assert packed == int(text or "0", 2).to_bytes(len(text) // 8, "big")
    unpacked = unpack_bits(packed, bits, p)
    assert unpacked.dtype == codes.dtype
    np.testing.assert_array_equal(unpacked, codes)


# -- long vectors, which are worked on in pieces --------------------------------------------------------------------

LONG = 2 * CACHED + 1234


def long_row() -> npt.NDArray[np.float32]:
    row = np.random.default_rng(5).standard_t(2, LONG).astype(np.float32)
    row[:700], row[CACHED - 3 : CACHED + 3] = 0, -0.0
    return row


def slow_qsgd(row: npt.NDArray[np.float32], u: npt.NDArray[np.float64], bits: int, bucket: int) -> list[float]:
    """The definition, number by number."""
    s, decoded = 2 ** (bits - 1) - 1, []
    for start in range(0, len(row), bucket):
        values = row[start : start + bucket].astype(float).tolist()
        norm = float(np.float32(math.sqrt(math.fsum(x * x for x in values))))
        for x, draw in zip(values, u[start : start + bucket].tolist(), strict=True):
            level = min(math.floor(abs(x) * (s / norm if norm else s) + draw), s)
            decoded.append(math.copysign(level * (norm / s), x) if level else 0.0)
    return decoded


@pytest.mark.parametrize(("bits", "bucket"), [(4, 512), (3, 1000), (8, LONG), (2, CACHED + 1), (12, 77)])
@pytest.mark.parametrize("kind", ["numpy", "torch"])
def test_a_long_vector_is_quantised_as_by_the_definition(bits: int, bucket: int, kind: str) -> None:
    row, draws = long_row(), counter.Draws(3, 7, [1], LONG)
    codec = QSGD(bits=bits, bucket=None if bucket == LONG else bucket)
    rows = as_kind(row[None], kind, "float32")
    message = codec.encode(rows, draws)
    decoded = numpy_of(codec.decode(message, rows[0]))
    np.testing.assert_array_equal(decoded[0], np.array(slow_qsgd(row, draws()[0], bits, bucket), np.float32))
    np.testing.assert_array_equal(numpy_of(codec.transmit(rows, draws)[0]), decoded)
    assert codec.encode(rows, partial(np.copy, draws())) == message
    said = codec.quantise(rows, draws)
    np.testing.assert_array_equal(numpy_of(codec.restore(said, rows[0])), decoded)


@pytest.mark.parametrize(("bits", "bucket"), [(4, 512), (3, 1000), (8, CACHED + 1), (12, 77)])
def test_the_longest_vectors_are_rounded_in_single_precision(bits: int, bucket: int) -> None:
    """By numbers of version 2, which any part of such a vector has."""
    row, draws = long_row(), counter.Draws(3, 7, [1], counter.LONG + LONG).cut(slice(99, 99 + LONG))
    codec, s = QSGD(bits=bits, bucket=bucket), 2 ** (bits - 1) - 1
    norms = bucket_norms(row.astype(np.float64), bucket).astype(np.float32)
    scales = np.where(norms > 0, s / np.where(norms > 0, norms, 1).astype(np.float64), 0).astype(np.float32)
    levels = np.minimum(np.floor(np.abs(row) * scales + draws()[0]), np.float32(s))
    expected = np.sign(row) * levels.astype(np.float64) * (norms.astype(np.float64) / s)
    decoded = codec.decode(codec.encode(row[None], draws), row)[0]
    np.testing.assert_array_equal(decoded, expected.astype(np.float32))
    np.testing.assert_array_equal(codec.transmit(row[None], draws)[0][0], decoded)
    coded = parse(f"qsgd{bits}:{bucket}+ec")
    assert isinstance(coded, StatefulCodec)
    messages, state = coded.update(row[None], draws, coded.init(1, row))
    np.testing.assert_array_equal(coded.decode_with(messages, row, draws, state)[0][0], decoded)


@pytest.mark.parametrize("name", ["uniform3", "grid0.25", "sign:512", "sign:40000", "topk0.001:float", "dense"])
def test_the_pieces_of_a_long_vector_fit(name: str) -> None:
    """What the codecs make of a long vector, by their definitions in whole arrays."""
    row, codec = long_row(), parse(name)
    expected = row.astype(np.float64)
    if isinstance(codec, Uniform):
        radius = float(np.nextafter(np.abs(row).max(), np.float32(np.inf)))
        expected = (2 / 7 * np.floor((expected + radius) / (2 * radius) * 7 + 0.5) - 1) * radius
    elif isinstance(codec, Sign):
        ends = np.arange(0, LONG, codec.bucket)
        sizes = np.add.reduceat(np.abs(expected), ends) / np.diff([*ends, LONG])
        expected = np.where(row < 0, -1, 1) * np.repeat(np.float32(sizes), np.diff([*ends, LONG]))
    elif isinstance(codec, Grid):
        for exponent in range(100, -100, -1):
            t = 2.0 ** (exponent / 4)
            expected = np.sign(row) * np.floor(np.abs(row.astype(np.float64)) / t + 0.4) * t
            if ((row - expected) ** 2).sum() <= codec.beta * (row.astype(np.float64) ** 2).sum():
                break
    elif isinstance(codec, TopK):
        expected[np.argsort(-np.abs(expected), kind="stable")[round(0.001 * LONG) :]] = 0
    decoded = codec.decode(codec.encode(row[None], no_noise), row)
    np.testing.assert_array_equal(decoded[0], np.float32(expected))


@pytest.mark.parametrize("p", [2**17 + 5, 2**18])
@pytest.mark.parametrize("kind", ["normal", "cauchy", "few", "equal", "falling"])
def test_the_largest_entries_of_a_long_vector_are_the_largest(kind: str, p: int) -> None:
    """By the bound from a sample, and where the sample says little."""
    rng = np.random.default_rng(p)
    rows = {
        "normal": rng.standard_normal(p),
        "cauchy": rng.standard_cauchy(p),
        "few": np.where(rng.random(p) < 0.0005, rng.standard_normal(p), 0.0),
        "equal": np.sign(rng.standard_normal(p)),
        "falling": np.where(np.arange(p) % (p // 2**14), 1e6, 1.0) - np.arange(p),
    }
    row = rows[kind].astype(np.float32)
    for k in (1, 100, p // 100, p // 3):
        expected = np.sort(np.argsort(-np.abs(row), kind="stable")[:k])
        np.testing.assert_array_equal(largest_of_long(row, k), expected)


@pytest.mark.parametrize("n", [1, 3])
def test_a_part_of_the_draws_is_what_all_of_them_have_there(n: int) -> None:
    p = 2 * counter.PIECE + 5
    draws = counter.Draws(-4, np.arange(n), np.arange(n), p)
    every = draws()
    assert every.shape == (n, p)
    for start, end in ((0, 1), (0, p), (counter.PIECE - 1, counter.PIECE + 1), (7, p - 1)):
        found = draws.part(slice(n - 1, n), slice(start, end), np.empty((1, end - start)))
        np.testing.assert_array_equal(found, every[n - 1 :, start:end])
        np.testing.assert_array_equal(draws.cut(slice(start, end))(), every[:, start:end])
