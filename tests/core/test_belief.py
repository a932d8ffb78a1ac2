"""What a worker takes the server to believe is what the server believes, whatever is lost, repeated or forgotten."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lasg import counter
from lasg.core import arrays, belief
from lasg.core.arrays import Array, checksum, copies, float64, zeros
from lasg.core.belief import BELIEFS, NEVER, Belief, Listener, Speaker, is_chained, upload_id
from lasg.core.block_codec import BlockCodec
from lasg.core.codec_names import parse
from lasg.core.codecs import Codec, Noise, State, StatefulCodec
from lasg.core.coded import Coded
from lasg.core.feedback import HEARD, Feedback
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from tests.core.toy import KINDS, as_kind, numpy_of

P = 6
SEED = 3
HERE = slice(None)
GRID = 4.0


@dataclass(frozen=True)
class Creeping(StatefulCodec):
    """A toy that remembers: what is decoded moves towards what is meant, by at most 2 an entry, on a grid of 1/4."""

    def init(self, workers: int, like: Array) -> State:
        return {"sent": zeros((workers, like.shape[-1]), like)}

    def init_decoder(self, workers: int, like: Array) -> State:
        return {"heard": zeros((workers, like.shape[-1]), like)}

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:
        steps = (rows - state["sent"]) * GRID
        steps = steps.round().clip(-2 * GRID, 2 * GRID)
        return [step.astype("<i2").tobytes() for step in numpy_of(steps)], {"sent": state["sent"] + steps / GRID}

    def update_decoder(self, messages: Sequence[bytes], like: Array, state: State) -> tuple[Array, State]:
        steps = np.stack([np.frombuffer(message, "<i2") for message in messages])
        heard = state["heard"] + arrays.cast(steps / GRID, like)
        return heard, {"heard": heard}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        return self.update_decoder(messages, like, self.init_decoder(len(messages), like))[0]


CODECS: dict[str, Codec] = {"dense": parse("dense"), "qsgd4:3": parse("qsgd4:3"), "creeping": Creeping()}
STATELESS = ("grid0.25", "uniform3", "sign:4")
CODED = ("qsgd4:3+ec", "grid0.25+ec", "uniform3+ec", "sign:4+ec")
"""Both sides carry on the same models from message to message."""
STATEFUL = (
    *CODED,
    "topk0.4:2bit",
    "topk0.4:float:warm3+ec",
    "lowrank1",
    "lowrank1:rounded",
    "uniform3+ef",
    "grid0.25+ec+ef",
    "dense+blocks4",
    "qsgd4:3+ec+blocks4",
    "topk0.4:float:warm3+ec+blocks2",
)
CODECS |= {name: parse(name).for_shapes(((2, 3),)) for name in (*STATELESS, *STATEFUL)}
FEW = {name: 10 if name in {*STATELESS, *STATEFUL} else 120 for name in CODECS}
"""How many examples each codec has: what they share is tried with the first."""
each_belief = pytest.mark.parametrize("mode", BELIEFS)
each_codec = pytest.mark.parametrize("codec", CODECS)


def drawn(seed: int, workers: int = 1) -> npt.NDArray[np.float64]:
    """Dyadic rationals that are small: sums of them are exact."""
    return np.random.default_rng(seed).integers(-64, 65, (workers, P)) / 8


class Upload(NamedTuple):
    """An answer on its way to the server."""

    message: bytes
    base: int
    serial: int


class Worker:
    """One worker as `transports.nodes.Node` has it, with an observer who knows all that was ever contributed."""

    def __init__(self, mode: Belief, codec: Codec, like: Array) -> None:
        self.mode, self.codec, self.like = mode, codec, like
        self.serial = 0
        self.decoded: dict[int, npt.NDArray[Any]] = {}
        self.forget()

    def forget(self) -> None:
        """Begin again, with nothing remembered."""
        self.speaker = Speaker(self.mode, self.codec, 1, self.like, confirmed_later=True)
        self.answered: tuple[list[int], Upload | None] | None = None
        self.contributed = np.zeros(P)
        self.born = self.serial
        self.confirmed: dict[int, npt.NDArray[Any]] = {}
        self.saved: list[bytes] = [self.memory()]

    def memory(self) -> bytes:
        return pack(self.speaker.state())

    def recall(self, memory: bytes) -> None:
        """Go on in another process, from what was saved."""
        self.speaker = Speaker(self.mode, self.codec, 1, self.like, confirmed_later=True)
        self.speaker.restore(unpack(memory, "a worker's memory"))

    def answer(self, k: int, server: Server, contribution: Array, *, silent: bool) -> Upload | None:
        """Confirm, then upload or be silent. What remembers rounds answers the same question once."""
        question = [k, server.held, checksum(server.theta)]
        if self.mode == "residual" and self.answered is not None and self.answered[0] == question:
            return self.answered[1]
        agreed = self.speaker.confirm(server.held)
        server.check(self, agreed)
        found = self._compute(k, contribution, silent=silent and agreed)
        self.answered = (question, found)
        self.saved.append(self.memory())
        return found

    def _compute(self, k: int, contribution: Array, *, silent: bool) -> Upload | None:
        base = self.speaker.base
        self.contributed = self.contributed + contribution[0]
        self.speaker.add(contribution, HERE)
        if silent:
            return None
        said = self.speaker.to_say(contribution, HERE)
        if isinstance(self.codec, BlockCodec):  # some blocks are no news
            for where in self.codec.blocks.slices(P)[k % 3 :: 2]:
                said[:, where] = 0
        [message], _ = self.speaker.pack(k, said, HERE, counter.Draws(SEED, k, np.arange(1), P))
        pending = self.speaker.pending
        assert pending is not None
        decoded = self.codec.decode([message], self.like) if pending.decoded is None else pending.decoded
        self.decoded[pending.upload] = decoded[0].copy()
        self.serial += 1
        return Upload(message, base, self.serial)


class Server:
    """The server as `transports.federation.Federation` has it."""

    def __init__(self, mode: Belief, codec: Codec, like: Array) -> None:
        self.mode, self.codec = mode, codec
        self.listener = Listener(mode, codec, 1, like, whole=True, forgetful=True, seed=SEED)
        self.chained = is_chained(mode, codec)
        self.k, self.held, self.theta = 0, NEVER, like.copy()
        self.used: dict[int, npt.NDArray[Any]] = {}
        """What it used of each upload, under `residual`."""
        self.excused = True
        """Whether one side forgot since they last agreed: else they may not disagree."""
        self.checkpoints: list[Any] = []
        self.save()

    def take(self, upload: Upload | None) -> None:
        """Close a round with an upload, or without one."""
        messages: list[bytes] = []
        forget: list[int] = []
        if upload is not None:
            assert upload.base in {NEVER, self.held if self.chained else NEVER}  # else it would be refused
            messages, forget = [upload.message], [0] if self.chained and upload.base == NEVER else []
            read = self.listener.read(upload.message, 0, k=self.k, in_full=upload.base == NEVER)
            self.held = upload_id(self.k, upload.message, upload.base, chained=self.chained)
        news = self.listener.take(messages, np.arange(len(messages)), forget, k=self.k)
        if self.mode == "residual":
            assert news is not None
            expected = np.zeros(P, self.theta.dtype) if upload is None else read
            np.testing.assert_array_equal(news.vector, expected)
            if upload is not None:
                self.used[upload.serial] = news.vector
        if news is not None:
            assert news.whole
            self.theta = self.theta - news.vector
        self.k += 1

    def drop(self) -> None:
        """Take the worker for gone for good."""
        self.held, self.excused = NEVER, True
        news = self.listener.take([], np.arange(0), [0])
        assert news is not None
        assert not news.vector.any()

    def save(self) -> None:
        self.checkpoints.append(copies([self.k, self.held, self.theta, self.listener.state(), self.used]))

    def restore(self, which: int) -> None:
        """Go on from an older checkpoint; where rounds alone name uploads, later ones are gone."""
        which %= len(self.checkpoints)
        self.k, self.held, self.theta, heard, self.used = copies(self.checkpoints[which])
        self.listener.restore(heard)
        self.excused = True
        if not self.chained or self.mode == "residual":
            del self.checkpoints[which + 1 :]

    def check(self, worker: Worker, agreed: bool) -> None:
        """Compare both sides, of which the worker has just confirmed what the server holds."""
        speaker = worker.speaker
        assert speaker.pending is None
        assert agreed <= (speaker.last == self.held)
        if speaker.last == self.held:
            self._check_equal(worker)
            self.excused = False
        else:
            assert self.excused, "they disagree, though neither side forgot"
            assert (speaker.last, speaker.base) == (NEVER, NEVER)
            assert speaker.rows is None or self.mode == "residual" or not speaker.rows.any()
        if self.mode == "residual":
            self._check_residual(worker)

    def _check_equal(self, worker: Worker) -> None:
        speaker, listener = worker.speaker, self.listener
        if self.mode == "difference":
            assert speaker.rows.tobytes() == listener.rows.tobytes()
        if self.mode == "replace":
            row = np.zeros(P, self.theta.dtype) if speaker.last == NEVER else worker.decoded[speaker.last]
            assert row.tobytes() == listener.rows[0].tobytes()
        assert speaker.decoder.keys() == listener.decoder.keys()
        for part, heard in listener.decoder.items():
            assert speaker.decoder[part].tobytes() == heard.tobytes(), part
            same = {"heard": "sent"}.get(part, part)
            if isinstance(self.codec, Coded | Creeping | Feedback):
                name = HEARD + part if isinstance(self.codec, Feedback) else same
                assert speaker.encoder[name].tobytes() == heard.tobytes(), part

    def _check_residual(self, worker: Worker) -> None:
        """What was contributed is what the server used and what is left to say.

        Used is also what a server had used as the worker learnt, and forgot as it went on from an older checkpoint.
        """
        mine = {serial: vector for serial, vector in self.used.items() if serial > worker.born}
        worker.confirmed |= mine
        total = sum(map(float64, worker.confirmed.values()), np.zeros(P))
        left, rows = worker.contributed - total, worker.speaker.rows[0]
        if worker.codec in (CODECS["dense"], CODECS["creeping"]):
            np.testing.assert_array_equal(rows, left)
        else:  # such as sevenths of a norm: sums of them are rounded
            scale = 1 + max(np.abs(vector).max() for vector in [rows, left, *worker.confirmed.values()])
            np.testing.assert_allclose(rows, left, rtol=0, atol=scale * (1e-11 if rows.dtype == np.float64 else 1e-3))


class Event(NamedTuple):
    """Something that happens, with a number for what it needs."""

    what: str
    number: int


ROUNDS = ("upload", "silence", "loss", "repeat", "lost silence", "unreachable")
TROUBLE = ("worker restarts", "worker forgets", "checkpoint", "server restarts")
# Where messages are chained, older memories are recognised too; what is used once cannot be dropped.
MORE = {"replace": ("drop",), "difference": ("drop", "old memory"), "residual": ()}
happenings = st.builds(Event, st.sampled_from([*ROUNDS, *TROUBLE, *MORE["difference"]]), st.integers(0, 30))
# A round that two servers had with different uploads, and then the first of them again.
TWO_PASTS = [
    Event("upload", 1),
    Event("checkpoint", 0),
    Event("server restarts", 0),
    Event("upload", 2),
    Event("server restarts", 1),
    Event("upload", 3),
]


def happen(event: Event, worker: Worker, server: Server, like: Array) -> None:
    what, number = event
    answer = functools.partial(worker.answer, server.k, server, drawn(number).astype(like.dtype))
    if what in {"upload", "silence"}:
        server.take(answer(silent=what == "silence"))
    elif what in {"loss", "lost silence"}:
        answer(silent=what == "lost silence")
        server.take(None)
    elif what == "repeat":
        answer(silent=number % 2 == 0)
        if number % 3 == 0:
            worker.recall(worker.memory())
        server.take(answer(silent=number % 2 == 0))
    elif what == "unreachable":
        server.take(None)
    elif what == "worker restarts":
        worker.recall(worker.memory())
    elif what == "worker forgets":
        worker.forget()
        server.excused = True
    elif what == "old memory":
        worker.recall(worker.saved[number % len(worker.saved)])
        server.excused = True
    elif what == "checkpoint":
        server.save()
    elif what == "server restarts":
        server.restore(number)
    elif what == "drop":
        server.drop()
    else:
        raise AssertionError(what)


@each_belief
@each_codec
def test_both_sides_believe_the_same_whatever_is_lost_repeated_or_forgotten(mode: Belief, codec: str) -> None:
    @settings(max_examples=FEW[codec], deadline=None)
    @given(events=st.lists(happenings, max_size=30), dtype=st.sampled_from(["float32", "float64"]))
    @example(events=TWO_PASTS, dtype="float64")
    def believe(events: list[Event], dtype: str) -> None:
        check_beliefs(mode, codec, events, dtype)

    believe()


def check_beliefs(mode: Belief, codec: str, events: list[Event], dtype: str) -> None:
    like = np.zeros(P, dtype)
    worker, server = Worker(mode, CODECS[codec], like), Server(mode, CODECS[codec], like)
    for event in events:
        if event.what in {*ROUNDS, *TROUBLE, *MORE[mode]}:
            happen(event, worker, server, like)
    for number in range(2):  # an upload that comes ends every disagreement
        happen(Event("upload", number), worker, server, like)
    assert worker.speaker.confirm(server.held)
    server.check(worker, agreed=True)


@each_belief
@each_codec
def test_a_lost_upload_is_taken_back_and_costs_neither_side_its_memory(mode: Belief, codec: str) -> None:
    like = np.zeros(P)
    worker, server = Worker(mode, CODECS[codec], like), Server(mode, CODECS[codec], like)
    for number, what in enumerate(["upload", "upload", "loss", "loss"]):
        happen(Event(what, number), worker, server, like)
    last = worker.speaker.last
    assert last == server.held != NEVER
    assert not worker.speaker.confirm(server.held)
    assert worker.speaker.last == last


@each_belief
@each_codec
def test_a_worker_that_forgot_begins_again_with_a_message_that_stands_for_itself(mode: Belief, codec: str) -> None:
    like = np.zeros(P)
    worker, server = Worker(mode, CODECS[codec], like), Server(mode, CODECS[codec], like)
    for number in range(3):
        happen(Event("upload", number), worker, server, like)
    happen(Event("worker forgets", 0), worker, server, like)
    upload = worker.answer(server.k, server, drawn(9), silent=True)
    assert upload is not None, "who forgot may not be silent"
    assert upload.base == NEVER
    server.take(upload)
    assert worker.speaker.confirm(server.held)
    server.check(worker, agreed=True)


def test_uploads_of_the_same_round_have_one_name_only_where_a_message_stands_for_itself() -> None:
    assert upload_id(3, b"one", NEVER, chained=False) == upload_id(3, b"other", 2, chained=False) == 3
    names = {upload_id(3, message, base, chained=True) for message in (b"one", b"other") for base in (NEVER, 1, 2)}
    assert len(names) == 6
    assert {name >> 32 for name in names} == {3}


def test_only_messages_that_stand_for_themselves_are_not_chained() -> None:
    chained = {(mode, name) for mode in BELIEFS for name, codec in CODECS.items() if is_chained(mode, codec)}
    remembering = ("creeping", *STATEFUL)
    assert chained == {("difference", name) for name in CODECS} | {
        (mode, name) for mode in BELIEFS for name in remembering
    }


# -- several workers, and a server that keeps the sum alone --------------------------------------------------------

W = 4


def mean(speaker: Speaker, listener: Listener, k: int, rows: Array, who: npt.NDArray[np.int64], path: str) -> Any:
    """Let workers say what they mean in one of the ways of `Workers`; return the news."""
    said = speaker.to_say(rows, who)
    draws = counter.Draws(SEED, k, who, P)
    if path == "messages":
        return listener.take(speaker.pack(k, said, who, draws)[0], who, k=k)
    decoded, bits = speaker.say(said, who, draws)
    assert bits > 0
    if path == "at once":
        return listener.news(listener.hear(decoded, who))
    changed = listener.nothing()
    listener.hear_long(changed, decoded, who)
    return listener.news(changed)


@pytest.mark.parametrize("path", ["messages", "at once", "block by block"])
@pytest.mark.parametrize("codec", ["dense", "creeping"])
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 99), st.sets(st.integers(0, W - 1), min_size=1)), max_size=20))
def test_the_sum_that_a_server_keeps_under_difference_is_that_of_what_the_workers_say(
    path: str, codec: str, kind: str, rounds: list[tuple[int, set[int]]]
) -> None:
    like = as_kind(np.zeros(P), kind, "float32")
    speaker = Speaker("difference", CODECS[codec], W, like)
    listener = Listener("difference", CODECS[codec], W, like, seed=SEED)
    assert listener.rows is None
    total = np.zeros(P)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(belief, "BLOCK", 2)
        patch.setattr(arrays, "AT_ONCE", 2 * P)
        for k, (seed, senders) in enumerate(rounds):
            who = np.array(sorted(senders))
            rows = as_kind(drawn(seed, W)[who], kind, "float32")
            news = mean(speaker, listener, k, rows, who, path)
            assert not news.whole
            total = total + numpy_of(news.vector)
            np.testing.assert_array_equal(total, numpy_of(speaker.rows).sum(0))


@each_belief
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", KINDS)
def test_all_ways_of_saying_it_are_heard_alike(mode: Belief, codec: str, kind: str) -> None:
    like = as_kind(np.zeros(P), kind)
    paths = ("messages", "at once", "block by block")
    speakers = [Speaker(mode, CODECS[codec], W, like) for _ in paths]
    listeners = [Listener(mode, CODECS[codec], W, like, forgetful=True, seed=SEED) for _ in paths]
    for k in range(12):
        who = np.flatnonzero(np.random.default_rng(k).random(W) < 0.6)
        if not len(who):
            continue
        rows = as_kind(np.random.default_rng(k).normal(size=(W, P)), kind)
        for speaker, listener, path in zip(speakers, listeners, paths, strict=True):
            speaker.add(rows, HERE)
            mean(speaker, listener, k, rows[who], who, path)
    for speaker, listener in zip(speakers[1:], listeners[1:], strict=True):
        for one, other in ((speaker.rows, speakers[0].rows), (listener.rows, listeners[0].rows)):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_array_equal(numpy_of(one), numpy_of(other))


def test_a_server_that_keeps_the_sum_alone_cannot_forget_a_worker() -> None:
    listener = Listener("difference", CODECS["dense"], W, np.zeros(P))
    with pytest.raises(LasgError, match="cannot forget"):
        listener.take([], np.arange(0), [1])
