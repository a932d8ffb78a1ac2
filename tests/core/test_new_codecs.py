"""Grids, signs, the largest entries and low ranks: what is decoded, its length, and the bounds that they promise."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lasg.core import coded
from lasg.core.codec_names import KNOWN, name_of, parse
from lasg.core.codecs import Codec, StatefulCodec
from lasg.core.coded import Coded
from lasg.core.feedback import Feedback
from lasg.core.grids import Grid, Sign, Uniform
from lasg.core.lowrank import LowRank, orthonormal
from lasg.core.message_bits import pack_bits, unpack_bits
from lasg.core.sparse import TopK, from_bfloat16, largest, to_bfloat16
from lasg.errors import Diverged, LasgError
from tests.core.test_codecs import no_noise
from tests.core.toy import KINDS, as_kind, numpy_of

Rows = npt.NDArray[np.float64]
NAMES = (
    "grid0.25",
    "grid0.01+ec",
    "uniform1",
    "uniform4",
    "uniform16",
    "uniform3+ec",
    "sign:3",
    "sign:4+ec",
    "qsgd4+ec",
    "qsgd3:4+ec",
    "topk0.3",
    "topk0.3:2bit",
    "topk0.3:float",
    "topk0.2:2bit:chunk4",
    "topk0.5:chunk3+ec",
    "topk0.2:warm3+ec",
    "topk0.3:2bit+ec",
    "topk0.3:float+ec",
    "lowrank1",
    "lowrank2",
    "lowrank2:rounded",
    "uniform4+ef",
    "topk0.2:warm3+ef",
    "grid0.25+ec+ef",
    "lowrank1+ef",
)
EXACT_LENGTH = ("uniform1", "uniform4", "uniform16", "sign:3", "lowrank1", "lowrank2")
each_name = pytest.mark.parametrize("name", NAMES)
each_kind = pytest.mark.parametrize("kind", KINDS)
each_dtype = pytest.mark.parametrize("dtype", ["float32", "float64"])
# What float32 has at its ends: zeros of both signs, its smallest numbers, and numbers that a sum of squares still has.
entries = (
    st.floats(-1, 1, width=32)
    | st.sampled_from([0.0, -0.0, 2.0**-149, -(2.0**-149), 3e-45, 1e-40, -1e-38])
    | st.floats(-(2.0**100), 2.0**100, width=32)
    | st.sampled_from([1e37, -1e37])
)
SHAPES = (((1,),), ((2, 3), (4,)), ((5, 5),), ((2, 3, 2), (), (0, 3), (7,)))
VECTORS: list[list[float]] = [
    [0.0],
    [-0.0],
    [2.0**-149],
    [-8e37],
    [0.0] * 25,
    [-0.0] * 25,
    [8e37] + [1e-3] * 24,
    [2.0**-149] * 25,
    [1.0, -1.0] * 12 + [0.5],
]


@st.composite
def vectors(draw: st.DrawFn) -> tuple[Any, Rows]:
    """Return the shapes of tensors and a few rows for them."""
    shapes = draw(st.sampled_from(SHAPES))
    p = sum(math.prod(shape) for shape in shapes)
    n = draw(st.integers(1, 3))
    return shapes, np.array(draw(st.lists(entries, min_size=n * p, max_size=n * p))).reshape(n, p)


def shaped(name: str, shapes: Any) -> Codec:
    return parse(name).for_shapes(shapes)


def draws_of(rows: Any, seed: int) -> Any:
    return np.random.default_rng(seed).random(tuple(rows.shape)).copy


def decode_first(codec: Codec, messages: list[bytes], rows: Any) -> Any:
    """Decode messages that are the first of their workers."""
    if not isinstance(codec, StatefulCodec):
        return codec.decode(messages, rows[0])
    return codec.decode_with(messages, rows[0], draws_of(rows, 0), codec.init_decoder(len(rows), rows[0]))[0]


def check_round_trip(codec: Codec, rows: Any, rounds: int = 3) -> None:
    """Say rows again and again: messages decode to what the shortcut gives, and cost what it says."""
    like, n = rows[0], len(rows)
    if isinstance(codec, Feedback):
        rows = rows / 16  # what is left out adds up, and may not be beyond float32's end
    if not isinstance(codec, StatefulCodec):
        messages = codec.encode(rows, draws_of(rows, 0))
        check_same(codec, messages, codec.decode(messages, like), codec.transmit(rows, draws_of(rows, 0)), rows)
        return
    encoder, decoder = codec.init(n, like), codec.init_decoder(n, like)
    short_encoder, short_decoder = codec.init(n, like), codec.init_decoder(n, like)
    for k in range(rounds):
        messages, encoder = codec.update(rows, draws_of(rows, k), encoder)
        decoded, decoder = codec.decode_with(messages, like, draws_of(rows, k), decoder)
        seen, bits, short_encoder, short_decoder = codec.transmit_with(
            rows, draws_of(rows, k), short_encoder, short_decoder
        )
        check_same(codec, messages, decoded, (seen, bits), rows)
        for one, other in ((encoder, short_encoder), (decoder, short_decoder)):
            assert one.keys() == other.keys()
            for part, value in one.items():
                assert numpy_of(value).tobytes() == numpy_of(other[part]).tobytes(), part


def check_same(codec: Codec, messages: list[bytes], decoded: Any, seen: tuple[Any, int], rows: Any) -> None:
    assert decoded.dtype == seen[0].dtype == rows.dtype
    assert type(decoded) is type(seen[0]) is type(rows)
    assert decoded.shape == seen[0].shape == rows.shape
    assert np.isfinite(numpy_of(decoded)).all()
    assert numpy_of(decoded).tobytes() == numpy_of(seen[0]).tobytes()
    assert seen[1] == 8 * sum(map(len, messages))
    assert all(messages)
    length = codec.length(rows.shape[-1], rows.dtype.itemsize)
    assert length is None or {len(message) for message in messages} == {length}


# -- every codec ---------------------------------------------------------------------------------------------------


@each_name
@settings(max_examples=40, deadline=None)
@given(drawn=vectors(), kind=st.sampled_from(KINDS), dtype=st.sampled_from(["float32", "float64"]))
def test_messages_decode_to_exactly_what_the_shortcut_gives_for_any_vector(
    name: str, drawn: tuple[Any, Rows], kind: str, dtype: str
) -> None:
    check_round_trip(shaped(name, drawn[0]), as_kind(drawn[1], kind, dtype))


@each_name
@each_kind
@each_dtype
def test_vectors_at_the_ends_of_what_numbers_can_be_are_said_like_any_other(name: str, kind: str, dtype: str) -> None:
    for values in VECTORS:
        check_round_trip(shaped(name, ((len(values),),)), as_kind([values], kind, dtype))
        if len(values) == 25:
            check_round_trip(shaped(name, ((5, 5),)), as_kind([values, values[::-1]], kind, dtype))


@each_name
@each_dtype
def test_numpy_and_torch_say_the_same_bytes(name: str, dtype: str) -> None:
    rows = np.sign(np.random.default_rng(0).normal(size=(2, 25))) * np.arange(1, 26)  # no sum depends on its order
    one, other = (shaped(name, ((5, 5),)).encode(as_kind(rows, kind, dtype), draws_of(rows, 0)) for kind in KINDS)
    assert one == other


@each_name
@each_kind
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -1e60, 1e200])
def test_what_is_not_finite_or_beyond_float32_is_refused_and_not_said(name: str, kind: str, bad: float) -> None:
    """Scales and values travel in float32, whatever the run's precision."""
    rows = as_kind([[1.0, bad, 0.0, -2.0]], kind)
    with pytest.raises(Diverged, match=r"^a gradient .*diverged"):
        shaped(name, ((2, 2),)).encode(rows, draws_of(rows, 0))


@each_name
@each_dtype
@pytest.mark.parametrize("size", [2.2e38, 2.9e38, 3.3e38, 3.4028235e38])
def test_the_largest_numbers_of_float32_are_said_or_refused_but_never_decoded_to_infinity(
    name: str, dtype: str, size: float
) -> None:
    for values in ([size], [size, -size, size, 0.0], [-size, 1e-3, 1.0, size / 2]):
        rows, codec = np.array([values], dtype), shaped(name, ((2, 2),) if len(values) == 4 else ((1,),))
        try:
            messages = codec.encode(rows, draws_of(rows, 0))
        except Diverged:
            continue
        assert np.isfinite(decode_first(codec, messages, rows)).all()


@each_name
def test_decoded_rows_may_be_written_to(name: str) -> None:
    rows, codec = np.random.default_rng(0).normal(size=(2, 25)), shaped(name, ((5, 5),))
    decoded = decode_first(codec, codec.encode(rows, draws_of(rows, 0)), rows)
    assert decoded.flags.writeable


@pytest.mark.parametrize("name", EXACT_LENGTH)
@pytest.mark.parametrize("p", [1, 7, 8, 25])
def test_a_known_length_is_the_length(name: str, p: int) -> None:
    rows = np.random.default_rng(0).normal(size=(2, p))
    codec = parse(name)
    assert {len(message) for message in codec.encode(rows, no_noise)} == {codec.length(p)}


# -- grid ----------------------------------------------------------------------------------------------------------

BETAS = (0.9, 0.25, 0.1, 0.01)
ordinary = st.lists(st.floats(-1e6, 1e6, width=32) | st.floats(-1, 1, width=32), min_size=1, max_size=30)


@settings(max_examples=200, deadline=None)
@given(ordinary, st.sampled_from(BETAS), st.sampled_from(["float32", "float64"]))
@example([1.0] + [1e-3] * 29, 0.25, "float32")
def test_a_grid_loses_at_most_its_share_and_the_next_coarser_one_would_lose_more(
    values: list[float], beta: float, dtype: str
) -> None:
    row = np.array(values, dtype).astype(np.float64)
    size = float(row @ row)
    if size == 0 or np.abs(row).max() < 1e-30:
        return
    codec = Grid(beta)
    said = codec.quantise(row[None].astype(dtype), no_noise)
    j = int(said.scales[0, 0])
    decoded = codec.transmit(row[None].astype(dtype), no_noise)[0][0].astype(np.float64)
    error = row - decoded
    assert error @ error <= beta * size * (1 + 1e-5)

    def lost(step: float) -> float:
        n = np.floor(np.abs(row) / step + 0.4)
        return float(((np.abs(row) - n * step) ** 2).sum())

    assert lost(2 ** ((j + 1) / 4)) > beta * size * (1 - 1e-9)
    np.testing.assert_array_equal(np.abs(said.symbols[0]), np.floor(np.abs(row) / 2 ** (j / 4) + 0.4))
    assert (said.symbols[0] * row >= 0).all()
    assert np.abs(said.symbols).max() <= codec.limit


def test_a_grid_is_coarse_where_much_may_be_lost_and_says_little() -> None:
    row = np.random.default_rng(0).normal(size=(1, 1000))
    lengths = [len(Grid(beta).encode(row, no_noise)[0]) for beta in BETAS]
    assert lengths == sorted(lengths)
    zeros = [np.mean(Grid(beta).quantise(row, no_noise).symbols == 0) for beta in BETAS]
    assert zeros == sorted(zeros, reverse=True)
    assert zeros[1] > 0.5


# -- uniform -------------------------------------------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.lists(entries, min_size=1, max_size=20), st.integers(1, 16))
def test_a_uniform_grids_error_is_at_most_tau_r_in_every_entry(values: list[float], bits: int) -> None:
    row = np.array([values])
    decoded, total = Uniform(bits).transmit(row, no_noise)
    R, tau = np.abs(row).max(), 1 / (2**bits - 1)
    assert (np.abs(decoded - row) <= tau * R * (1 + 1e-6) + R * 1e-6 + 2.0**-148).all()
    assert total == 32 + 8 * math.ceil(bits * len(values) / 8)


def test_a_uniform_grid_has_both_ends_and_no_zero() -> None:
    row = np.array([[-1.0, -0.4, 0.0, 0.4, 1.0]])
    decoded = Uniform(2).transmit(row, no_noise)[0][0]
    np.testing.assert_allclose(decoded, [-1, -1 / 3, 1 / 3, 1 / 3, 1], rtol=1e-6)


# -- sign ----------------------------------------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(ordinary, st.integers(1, 12))
def test_a_sign_has_the_mean_magnitude_of_its_bucket(values: list[float], bucket: int) -> None:
    row = np.array(values)
    decoded = Sign(bucket).transmit(row[None], no_noise)[0][0]
    for start in range(0, len(row), bucket):
        part = row[start : start + bucket]
        expected = np.where(part < 0, -1, 1) * np.abs(part).mean()
        np.testing.assert_allclose(decoded[start : start + bucket], expected, rtol=1e-6, atol=2e-45)


# -- the largest entries -------------------------------------------------------------------------------------------


def top(row: npt.NDArray[Any], k: int) -> list[int]:
    """The k largest; of equal ones the first."""
    return sorted(sorted(range(len(row)), key=lambda i: (-abs(row[i]), i))[:k])


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([-2.0, -1.0, 0.0, 1.0, 2.0, 3.0]) | entries, min_size=1, max_size=40),
    st.floats(0.01, 1),
    st.sampled_from([None, 1, 3, 8, 100]),
    st.booleans(),
)
def test_the_largest_entries_are_kept_and_of_equal_ones_the_first(
    values: list[float], share: float, chunk: int | None, is_coded: bool
) -> None:
    row = np.array(values, np.float32)
    decoded = TopK(share=share, values="float", chunk=chunk, coded=is_coded).transmit(row[None], no_noise)[0][0]
    width = chunk or len(row)
    k = max(1, round(share * width))
    kept = [start + i for start in range(0, len(row), width) for i in top(row[start : start + width], k)]
    expected = np.zeros_like(row)
    expected[kept] = row[kept]
    np.testing.assert_array_equal(decoded, expected)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 30))
def test_ties_go_to_the_first(values: list[int], k: int) -> None:
    row = np.array(values, float)
    assert largest(row[None], k).tolist() == top(row, k)


@pytest.mark.parametrize("is_coded", [False, True])
def test_values_are_mean_magnitudes_per_tensor(is_coded: bool) -> None:
    row = np.array([[8.0, -4.0, 0.5, 0.25, 0.25, -0.125]])
    signs = TopK(share=1.0, coded=is_coded).for_shapes(((2,), (2, 2)))
    np.testing.assert_array_equal(
        signs.transmit(row, no_noise)[0], to_float([[6.0, -6.0, 0.28125, 0.28125, 0.28125, -0.28125]])
    )
    two = TopK(share=1.0, values="2bit", coded=is_coded).for_shapes(((2,), (2, 2)))
    small = (0.25 + 0.25 + 0.125) / 3
    np.testing.assert_array_equal(two.transmit(row, no_noise)[0], to_float([[8.0, -4.0, 0.5, small, small, -small]]))


def to_float(values: Any) -> npt.NDArray[np.float32]:
    return from_bfloat16(to_bfloat16(np.array(values)))


@settings(max_examples=200, deadline=None)
@given(st.floats(-(2.0**120), 2.0**120, width=32))
def test_half_of_a_float32_is_within_a_256th(value: float) -> None:
    [found] = from_bfloat16(to_bfloat16([value]))
    assert abs(found - value) <= abs(value) / 256 + 2.0**-134


def test_the_share_falls_over_the_first_messages_of_each_worker() -> None:
    codec, p = TopK(share=0.01, warm=10), 10_000
    rows = np.random.default_rng(0).normal(size=(2, p))
    state = codec.init(2, rows[0])
    state["sent"][1] = 5
    counts = []
    for _ in range(12):
        messages, state = codec.update(rows, no_noise, state)
        counts.append([np.count_nonzero(row) for row in codec.decode(messages, rows[0])])
    first, second = np.array(counts).T
    assert first[0] == 2500
    np.testing.assert_array_equal(second[:7], first[5:])
    np.testing.assert_allclose(first[1:11] / first[:10], 0.04**0.1, rtol=0.02)
    assert (first[10:] == 100).all()


@pytest.mark.parametrize(("p", "bits"), [(100_000, 7.56), (300_000, 7.52), (1_000_000, 7.5)])
@pytest.mark.parametrize("values", ["sign", "2bit", "float"])
def test_one_entry_of_64_costs_seven_and_a_half_bits_and_its_value(p: int, bits: float, values: Any) -> None:
    """Chosen at random, heads included: the entropy of their positions is 7.43 bits per entry, and 1 % more is 7.51."""
    row = np.random.default_rng(p).normal(size=(1, p))
    codec = TopK(share=0.015625, values=values, coded=True)
    [message] = codec.encode(row, no_noise)
    kept = round(p / 64)
    assert np.count_nonzero(codec.decode([message], row[0])) == kept
    value_bits = {"sign": 1, "2bit": 2, "float": 32}[values]
    assert 8 * len(message) <= (bits + value_bits) * kept


# -- low rank ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("rank", "shape"), [(1, (6, 5)), (2, (8, 9)), (3, (20, 10)), (2, (6, 2, 5))])
@each_dtype
def test_a_matrix_of_that_rank_is_exact_after_a_few_messages(rank: int, shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(rank)
    m, n = shape[0], math.prod(shape[1:])
    row = (rng.normal(size=(m, rank)) @ rng.normal(size=(rank, n))).reshape(1, -1).astype(dtype)
    codec = LowRank(rank).for_shapes((shape,))
    assert isinstance(codec, LowRank)
    encoder, decoder = codec.init(1, row[0]), codec.init_decoder(1, row[0])
    for _ in range(3):
        decoded, bits, encoder, decoder = codec.transmit_with(row, no_noise, encoder, decoder)
    np.testing.assert_allclose(decoded, row, rtol=0, atol=2e-6 * np.abs(row).max())
    assert bits == 32 * rank * (m + n)


def test_messages_of_one_matrix_come_nearer_to_its_best_approximation() -> None:
    rng = np.random.default_rng(0)
    U, V = np.linalg.qr(rng.normal(size=(12, 12)))[0], np.linalg.qr(rng.normal(size=(10, 10)))[0]
    spectrum = 0.7 ** np.arange(10)
    G = (U[:, :10] * spectrum) @ V.T
    codec = LowRank(2).for_shapes(((12, 10),))
    assert isinstance(codec, LowRank)
    state, errors = codec.init(1, G.reshape(-1)), []
    for _ in range(12):
        messages, state = codec.update(G.reshape(1, -1), no_noise, state)
        errors.append(np.linalg.norm(codec.decode(messages, G.reshape(-1)) - G.reshape(-1)))
    best = np.linalg.norm(spectrum[2:])
    assert errors[0] >= best * (1 - 1e-6)
    assert errors[-1] == pytest.approx(best, rel=0.01)
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(errors))


def test_what_would_not_get_shorter_is_sent_as_it_is() -> None:
    row = np.random.default_rng(0).normal(size=(1, 4 + 5 + 1 + 0)).astype(np.float32)
    codec = LowRank(2).for_shapes(((2, 2), (5,), (), (0, 3)))
    decoded, bits = codec.transmit(row, no_noise)
    np.testing.assert_array_equal(decoded, row)
    assert bits == 32 * 10


def test_a_matrix_of_zeros_costs_no_worker_its_direction() -> None:
    codec = LowRank(1).for_shapes(((4, 4),))
    assert isinstance(codec, LowRank)
    G = np.outer([1.0, 2, 3, 4], [1, -1, 1, -1]).reshape(1, -1)
    state = codec.init(1, G[0])
    _, before = codec.update(G, no_noise, state)
    _, after = codec.update(0 * G, no_noise, before)
    np.testing.assert_array_equal(after["q"], before["q"])


def test_rounded_factors_lose_little_and_take_a_tenth_of_the_bits_of_float32() -> None:
    rng = np.random.default_rng(3)
    row = np.concatenate([(rng.normal(size=(300, 2)) @ rng.normal(size=(2, 400))).reshape(-1), rng.normal(size=300)])
    shapes = ((300, 400), (300,))
    exact, rounded = (LowRank(2, rounded=rounded).for_shapes(shapes) for rounded in (False, True))
    whole, most = exact.transmit(row[None], no_noise)
    decoded, bits = rounded.transmit(row[None], no_noise)
    assert float(((whole - row) ** 2).sum()) <= 1e-9 * float(row @ row)
    assert 0.005 * float(row @ row) < float(((decoded - row) ** 2).sum()) < 0.06 * float(row @ row)
    assert bits < 0.11 * most


def test_pieces_of_a_rounded_message_have_a_scale_each() -> None:
    rng = np.random.default_rng(4)
    small, large = 1e-6 * rng.normal(size=500), 1e6 * rng.normal(size=500)
    codec = LowRank(1, rounded=True).for_shapes(((500,), (500,)))
    decoded, _ = codec.transmit(np.concatenate([small, large])[None], no_noise)
    for piece, row in ((small, decoded[0, :500]), (large, decoded[0, 500:])):
        assert float(((row - piece) ** 2).sum()) < 0.03 * float(piece @ piece)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 6), st.integers(1, 4), st.integers(0, 99), st.booleans())
def test_a_basis_is_orthonormal_or_has_zeros_for_what_depends_on_others(m: int, r: int, seed: int, twice: bool) -> None:
    matrix = np.random.default_rng(seed).integers(-2, 3, (m, r)).astype(np.float64)
    if twice:
        matrix[:, -1] = matrix[:, 0]
    P = orthonormal(matrix)
    gram = P.T @ P
    np.testing.assert_allclose(gram, np.diag(np.round(np.diag(gram))), atol=1e-10)
    np.testing.assert_allclose(P @ (P.T @ matrix), matrix, atol=1e-9)


@pytest.mark.parametrize("name", ["topk0.1", "lowrank1"])
def test_tensors_that_do_not_fit_the_vector_are_refused(name: str) -> None:
    with pytest.raises(LasgError, match=r"^tensors of 6 entries in all, and a vector of 5: they do not fit$"):
        shaped(name, ((2, 3),)).encode(np.ones((1, 5)), no_noise)


# -- coded ---------------------------------------------------------------------------------------------------------

INTEGERS = ("qsgd4", "qsgd8:5", "grid0.25", "grid0.01", "uniform4", "sign:7")


@pytest.mark.parametrize("short", [True, False])
@pytest.mark.parametrize("name", INTEGERS)
def test_coding_changes_no_number(name: str, short: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coded, "SHORT", 4096 if short else 0)
    plain, codec = parse(name), parse(f"{name}+ec")
    assert isinstance(codec, Coded)
    like = np.zeros(60)
    encoder, decoder = codec.init(3, like), codec.init_decoder(3, like)
    assert bool(encoder) == short
    for k in range(5):
        rows = np.random.default_rng(k).normal(size=(3, 60)) ** 3
        messages, encoder = codec.update(rows, draws_of(rows, k), encoder)
        decoded, decoder = codec.decode_with(messages, like, draws_of(rows, k), decoder)
        expected = plain.decode(plain.encode(rows, draws_of(rows, k)), like)
        np.testing.assert_array_equal(decoded, expected)
        check_round_trip(codec, rows)


def test_a_coded_grid_is_shorter_than_a_packed_one() -> None:
    for p in (300, 8192):
        rows = np.random.default_rng(0).normal(size=(1, p)) ** 3
        plain, codec = parse("grid0.25"), parse("grid0.25+ec")
        assert len(codec.encode(rows, no_noise)[0]) < 0.8 * len(plain.encode(rows, no_noise)[0])


@pytest.mark.parametrize("bits", [1, 7, 18, 32])
@pytest.mark.parametrize("count", [0, 1, 9])
def test_bits_that_are_packed_are_unpacked(bits: int, count: int) -> None:
    numbers = np.random.default_rng(bits).integers(0, 2**bits, count)
    data = pack_bits(numbers, bits)
    assert len(data) == -(-bits * count // 8)
    np.testing.assert_array_equal(unpack_bits(data, bits, count), numbers)


# -- names ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("grid", Grid()),
        ("grid.5", Grid(0.5)),
        ("uniform8", Uniform(8)),
        ("sign", Sign()),
        ("sign:7", Sign(7)),
        ("topk", TopK()),
        ("topk1", TopK(share=1.0)),
        ("topk0.00001", TopK(share=1e-5)),
        ("grid0.00001", Grid(1e-5)),
        ("topk0.0156250001:float", TopK(share=0.0156250001, values="float")),
        ("topk0.02:2bit:chunk64:warm9+ec", TopK(share=0.02, values="2bit", chunk=64, warm=9, coded=True)),
        ("lowrank", LowRank()),
        ("lowrank7", LowRank(7)),
        ("lowrank4:rounded", LowRank(4, rounded=True)),
        ("uniform4+ec+ef", Feedback(Coded(Uniform(4)))),
        ("topk0.1+ef", Feedback(TopK(share=0.1))),
    ],
)
def test_a_codec_has_a_name_that_means_it(name: str, codec: Codec) -> None:
    assert parse(name) == codec
    own = name_of(codec)
    assert own is not None
    assert parse(own) == codec
    assert name_of(parse(own)) == own


@each_name
def test_the_names_in_this_file_are_the_codecs_own(name: str) -> None:
    assert name_of(parse(name)) == name


@settings(max_examples=200, deadline=None)
@given(
    st.builds(Grid, st.floats(1e-6, 0.999))
    | st.builds(
        TopK,
        share=st.floats(1e-6, 1),
        values=st.sampled_from(["sign", "2bit", "float"]),
        chunk=st.none() | st.integers(1, 9999),
        warm=st.integers(0, 999),
        coded=st.booleans(),
    )
    | st.builds(Sign, st.integers(1, 9999))
)
def test_every_setting_survives_its_name(codec: Codec) -> None:
    name = name_of(codec)
    assert name is not None
    assert parse(name) == codec


@pytest.mark.parametrize("wrap", [Coded, Feedback])
def test_around_a_codec_without_a_name_there_is_none(wrap: Any) -> None:
    class Unknown:
        pass

    assert name_of(wrap(Unknown())) is None


WRONG = [
    "grid1",
    "grid0",
    "grid-0.1",
    "grid1.5",
    "grid0.5.5",
    "gridx",
    "uniform",
    "uniform0",
    "uniform17",
    "uniform4:8",
    "sign0",
    "sign:0",
    "sign:-1",
    "topk0",
    "topk2",
    "topk1.01",
    "topk0.1:3bit",
    "topk0.1:",
    "topk0.1:chunk",
    "topk0.1:chunk0",
    "topk0.1:warm",
    "topk0.1:2bit:float",
    "topk0.1:chunk2:chunk3",
    "topk0.1:warm1:warm2",
    "lowrank0",
    "lowrank-1",
    "lowrank1.5",
    "+ec",
    "ec",
    "ef",
    "qsgd4+ec+ec",
    "qsgd4+ef+ec",
    "qsgd4+x",
    "topk+ec+ec",
    "Grid",
    "dense+ec",
    "lowrank2+ec",
    "lowrank2:rounded+ec",
    "lowrank2:coded",
]


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_name_is_refused_in_one_line_that_says_what_is_known(name: str) -> None:
    with pytest.raises(LasgError) as refused:
        parse(name)
    words = str(refused.value)
    assert "\n" not in words
    assert KNOWN in words or "takes" in words or "must be" in words or "nothing to code" in words


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Grid(0.0), "above 0 and below 1, got 0.0"),
        (lambda: Grid(1.0), "above 0 and below 1, got 1.0"),
        (lambda: Grid(math.nan), "above 0 and below 1, got nan"),
        (lambda: Uniform(0), "1 to 16 bits per entry, got 0"),
        (lambda: Uniform(4.0), "1 to 16 bits per entry, got 4.0"),  # type: ignore[arg-type]
        (lambda: Sign(0), "entries >= 1, got 0"),
        (lambda: Sign(2.5), "entries >= 1, got 2.5"),  # type: ignore[arg-type]
        (lambda: TopK(share=0.0), "above 0, 1 at most, got 0.0"),
        (lambda: TopK(share=math.nan), "above 0, 1 at most, got nan"),
        (lambda: TopK(values="4bit"), "sign, 2bit or float, got '4bit'"),  # type: ignore[arg-type]
        (lambda: TopK(chunk=0), "entries >= 1, got 0"),
        (lambda: TopK(chunk=2.5), "entries >= 1, got 2.5"),  # type: ignore[arg-type]
        (lambda: TopK(warm=-1), "messages >= 0, got -1"),
        (lambda: TopK(warm=1.5), "messages >= 0, got 1.5"),  # type: ignore[arg-type]
        (lambda: LowRank(0), "a rank >= 1, got 0"),
        (lambda: LowRank(1.0), "a rank >= 1, got 1.0"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_setting_is_refused_and_the_line_says_what_it_may_be(make: Any, words: str) -> None:
    with pytest.raises(LasgError) as refused:
        make()
    assert str(refused.value).endswith(words)


def test_a_state_is_of_numpy_or_of_the_models_kind_and_never_shared_between_workers() -> None:
    for name in NAMES:
        codec, like = shaped(name, ((5, 5),)), torch.zeros(25)
        state = codec.init(3, like) | codec.init_decoder(3, like)
        assert all(len(value) == 3 for value in state.values()), name
