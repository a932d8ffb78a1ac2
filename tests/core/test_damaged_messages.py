"""Damaged messages are refused, or say other numbers: never another error, no end, or more memory than a vector."""

from __future__ import annotations

import contextlib
import random
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest

from lasg.core import coded
from lasg.core.arrays import copies
from lasg.core.codec_names import parse
from lasg.core.codecs import Codec, Noise, State, StatefulCodec
from lasg.errors import LasgError
from tests.core.toy import numpy_of

MESSAGES = 10_000
CASES: dict[str, int] = {
    "qsgd4:3": 9,
    "grid0.25": 9,
    "uniform3": 9,
    "sign:4": 9,
    "topk0.3": 9,
    "topk0.3:2bit": 9,
    "topk0.3:float": 9,
    "topk0.4:2bit:chunk3": 10,
    "topk0.3+ec": 9,
    "topk0.5:float+ec": 200,
    "lowrank1": 9,
    "lowrank1:rounded": 9,
    "uniform3+ef": 9,
    "uniform3+blocks4": 9,
    "qsgd4:3+blocks": 9,
    "topk0.3+ec+blocks4": 9,
    "qsgd4:3+ec": 4,
    "qsgd4+ec": 6,
    "qsgd4:3+ec, long": 30,
    "qsgd3+ec, long": 1000,
    "grid0.25+ec": 5,
    "uniform3+ec": 4,
    "sign:4+ec": 5,
    "grid0.25+ec, long": 30,
    "uniform6+ec, long": 30,
}
"""Codecs, and how long their vectors are; long: coded as long ones are, by a table."""


def codec_of(case: str, monkeypatch: pytest.MonkeyPatch) -> Codec:
    name, _, long = case.partition(", ")
    if long:
        monkeypatch.setattr(coded, "SHORT", 0)
    return parse(name).for_shapes(((3, 3),) if CASES[case] == 9 else ((CASES[case],),))


def mutated(message: bytes, rng: random.Random) -> bytes:
    """Return a message that something happened to."""
    what, data = rng.randrange(6), bytearray(message)
    if what == 0:
        return message[: rng.randrange(len(message))]
    if what == 1:
        return message + rng.randbytes(rng.randint(1, 8))
    if what == 2:
        return rng.randbytes(rng.randrange(2 * len(message) + 2))
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(data))
        data[at] = rng.choice((0, 127, 128, 255)) if what == 3 else data[at] ^ (1 << rng.randrange(8))
    return bytes(data)


def draws_of(p: int) -> Noise:
    return np.random.default_rng(p).random((1, p)).copy


def said(codec: Codec, p: int, dtype: str) -> tuple[list[bytes], State, Any]:
    """Return a few messages that could be next, and the decoder's state before them."""
    like = np.zeros(p, dtype)
    rng = np.random.default_rng(p)
    rows = [(rng.normal(size=(1, p)) * 10.0**k).astype(dtype) for k in range(-3, 4)]
    draws = draws_of(p)
    if not isinstance(codec, StatefulCodec):
        return [codec.encode(row, draws)[0] for row in rows], {}, like
    encoder, decoder = codec.init(1, like), codec.init_decoder(1, like)
    for row in rows[:3]:
        messages, encoder = codec.update(row, draws, encoder)
        _, decoder = codec.decode_with(messages, like, draws, decoder)
    return [codec.update(row, draws, encoder)[0][0] for row in rows], decoder, like


def decode(codec: Codec, message: bytes, state: State, like: Any) -> Any:
    if isinstance(codec, StatefulCodec):
        return codec.decode_with([message], like, draws_of(len(like)), state)[0]
    return codec.decode([message], like)


@pytest.mark.parametrize("case", CASES)
def test_ten_thousand_damaged_messages_are_refused_or_say_finite_rows(
    case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    codec, p = codec_of(case, monkeypatch), CASES[case]
    rng = random.Random(p)
    longest, refused, lines = 0.0, 0, 1
    for dtype in ("float32", "float64"):
        messages, state, like = said(codec, p, dtype)
        before = copies(state)
        for _ in range(MESSAGES // 2):
            message = mutated(rng.choice(messages), rng)
            start = time.perf_counter()
            try:
                rows = decode(codec, message, state, like)
            except LasgError as error:
                lines = max(lines, str(error).count("\n") + 1)
                refused += 1
                continue
            finally:
                longest = max(longest, time.perf_counter() - start)
            assert rows.shape == (1, p)
            assert rows.dtype == like.dtype
            assert np.isfinite(rows).all()
        for part, value in state.items():
            np.testing.assert_array_equal(numpy_of(value), numpy_of(before[part]))
        for message in messages:  # the sound ones still decode
            assert np.isfinite(decode(codec, message, state, like)).all()
    assert 0 < refused < MESSAGES
    assert lines == 1
    assert longest < 2


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_message_takes_no_more_memory_than_a_vector(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    codec, p = codec_of(case, monkeypatch), CASES[case]
    messages, state, like = said(codec, p, "float32")
    rng = random.Random(1)
    decode(codec, messages[0], state, like)  # what is allocated once is not a message's
    tracemalloc.start()
    try:
        for _ in range(300):
            message = mutated(rng.choice(messages), rng)
            if rng.random() < 0.3:
                message = b"\xff" * rng.randint(1, 12) + message
            tracemalloc.reset_peak()
            held = tracemalloc.get_traced_memory()[0]
            with contextlib.suppress(LasgError):
                decode(codec, message, state, like)
            assert tracemalloc.get_traced_memory()[1] - held < 200_000 + 1000 * p
    finally:
        tracemalloc.stop()
