"""Blocks of a model that are news or not by themselves."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lasg.core.algorithms import algorithm
from lasg.core.arrays import copies
from lasg.core.block_codec import BlockCodec
from lasg.core.blocks import Blocks
from lasg.core.codec_names import name_of, parse
from lasg.core.messages import Request, Uploads
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from lasg.core.training import Training
from lasg.core.transport import Local
from lasg.core.workers import Workers
from lasg.errors import LasgError
from tests.core.toy import KINDS, M, P, Toy, as_kind, numpy_of

SHAPES = ((2, 2), (3,))
ROUNDS = 60
COMPOSITIONS = (
    "lag+dense+difference",
    "lag+qsgd4:3+difference",
    "lag+qsgd4:3+ec+difference",
    "lag+lowrank1+difference",
    "lag+dense+residual",
    "lag+topk0.3:warm3+ec+residual+correction0.9",
    "wk1+dense+difference",
    "clag+topk0.3+difference",
    "clag+grid0.25+ec+difference+momentum0.9",
    "clag+dense+difference+storm",
    "laq+uniform4+difference",
)
LAZY: tuple[dict[str, Any], ...] = ({"c": 0.5}, {"rho": 0.5}, {"rho": 0.5, "guard": True}, {"c": 0.5, "D": 3})


def training(
    name: str, shapes: Any = SHAPES, kind: str = "numpy", transport: Local | None = None, **laziness: Any
) -> Training:
    settings = {"D": 6, "c": 0.5} | laziness
    return Training(
        Toy(kind),
        ClosedFormSGD(as_kind(np.zeros(P), kind), Constant(0.1)),
        algorithm(name).stages(),
        Laziness(workers=M, **settings),
        transport,
        seed=3,
        shapes=shapes,
    )


def workers_of(run: Training) -> Workers:
    assert run.workers is not None
    return run.workers


class Heard(Local):
    """Keeps what was asked and answered."""

    def __init__(self) -> None:
        self.asked: list[Request] = []
        self.answered: list[Uploads] = []

    def exchange(self, request: Request, own: Uploads) -> Uploads:
        self.asked.append(request)
        self.answered.append(own)
        return own


@pytest.mark.parametrize("name", COMPOSITIONS)
@pytest.mark.parametrize("laziness", LAZY)
@pytest.mark.parametrize("kind", KINDS)
def test_one_block_is_the_whole_vector_to_the_bit_and_a_byte_more(
    name: str, laziness: dict[str, Any], kind: str
) -> None:
    whole, blocks = (training(each, ((P,),), kind, **laziness) for each in (name, f"{name}+blocks"))
    for _ in range(ROUNDS):
        one, other = whole.step(), blocks.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
        np.testing.assert_array_equal(one.left, other.left)
        np.testing.assert_array_equal(one.threshold, other.threshold)
        np.testing.assert_array_equal(numpy_of(whole.theta), numpy_of(blocks.theta))
    assert blocks.ledger.uploads == whole.ledger.uploads
    assert blocks.ledger.bits_up == whole.ledger.bits_up + 8 * whole.ledger.uploads
    assert blocks.given_up == whole.given_up


@pytest.mark.parametrize(
    "name", [f"{name}+blocks{size}" for name in COMPOSITIONS for size in ("", "3") if not size or "lowrank" not in name]
)
def test_a_run_by_blocks_resumes_bit_for_bit_and_is_the_same_in_torch(name: str) -> None:
    whole, torch = (training(name, kind=kind, rho=0.5, guard=True) for kind in KINDS)
    for _ in range(20):
        whole.step()
        torch.step()
    resumed = training(name, rho=0.5, guard=True)
    resumed.restore(copies(whole.state()))
    for _ in range(20):
        one, other, third = whole.step(), resumed.step(), torch.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
        np.testing.assert_array_equal(whole.theta, resumed.theta)
        np.testing.assert_array_equal(one.uploaded, third.uploaded)
        np.testing.assert_allclose(whole.theta, numpy_of(torch.theta), rtol=0, atol=1e-12)
    assert whole.ledger == resumed.ledger
    assert whole.ledger.bits_up == torch.ledger.bits_up


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_the_simulation_counts_what_the_messages_would_say(name: str) -> None:
    """The workers once beside a listener, and once as in a process of their own."""

    class Carried(Local):
        def begin(self, plan: Any) -> Any:
            return super().begin(plan)._replace(carries="messages")

    here, apart = training(f"{name}+blocks"), training(f"{name}+blocks", transport=Carried())
    for _ in range(ROUNDS):
        one, other = here.step(), apart.step()
        np.testing.assert_array_equal(one.uploaded, other.uploaded)
        np.testing.assert_allclose(here.theta, apart.theta, rtol=0, atol=1e-12)
    assert here.ledger == apart.ledger
    assert here.server.blocks is not None
    assert apart.server.blocks is not None
    np.testing.assert_array_equal(here.server.blocks.ages, apart.server.blocks.ages)


@pytest.mark.parametrize("name", ["lag+dense+difference+blocks", "clag+dense+difference+blocks"])
def test_a_block_is_said_within_so_many_rounds_and_what_is_silent_stays_believed(name: str) -> None:
    D, heard = 6, Heard()
    run = training(name, transport=heard, D=D, c=5.0)
    before, slices = np.zeros((M, P)), Blocks(shapes=SHAPES).slices(P)
    age, partly = np.zeros((M, 2), int), 0
    for _ in range(ROUNDS):
        uploaded = run.step().uploaded
        rows, said = workers_of(run).speaker.rows, np.zeros((M, 2), np.bool_)
        own = heard.answered[-1]
        if own.said is not None:
            said[uploaded] = own.said
        np.testing.assert_array_equal(said.any(-1), uploaded)
        for b, where in enumerate(slices):
            np.testing.assert_array_equal(rows[~said[:, b], where], before[~said[:, b], where])
        assert own.bits == 8 * said.any(-1).sum() + 64 * (said * [4, 3]).sum()
        age = np.where(said, 0, age + 1)
        assert age.max() < D
        partly += int((said.sum(-1) == 1).sum())
        before = rows.copy()
    assert partly > 20


def test_the_two_sides_of_a_round_are_the_sums_over_the_blocks() -> None:
    heard = Heard()
    run = training("lag+dense+difference+blocks", transport=heard)
    rounds = [run.step() for _ in range(10)]
    for finished, request in zip(rounds, heard.asked, strict=True):
        assert request.blocks is not None
        assert finished.threshold == request.blocks.thresholds.sum()
    whole = training("lag+dense+difference")
    whole.step()
    one, other = rounds[1].left, whole.step().left
    assert one is not None
    assert other is not None
    np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("name", ["lag+dense+difference", "lag+qsgd4:3+ec+difference"])
def test_with_c_equal_to_0_every_block_is_said_in_every_round(name: str) -> None:
    heard = Heard()
    run = training(f"{name}+blocks", transport=heard, c=0.0)
    for _ in range(20):
        run.step()
        assert heard.answered[-1].said is not None
        assert heard.answered[-1].said.all()


class Dead(Toy):
    """The second block has no gradient, as of parameters that the loss does not reach."""

    def gradients(self, *given: Any) -> list[Any]:
        found = super().gradients(*given)
        for rows in found:
            rows[:, 4:] = 0
        return found


def test_a_block_that_never_has_news_is_asked_for_only_when_it_is_due() -> None:
    heard = Heard()
    stages = algorithm("lag+dense+difference+blocks").stages()
    laziness = Laziness(workers=M, D=6, c=float("inf"))
    run = Training(Dead(), ClosedFormSGD(np.zeros(P), Constant(0.1)), stages, laziness, heard, shapes=SHAPES)
    uploaded = np.array([run.step().uploaded for _ in range(25)])
    np.testing.assert_array_equal(uploaded.all(-1), np.arange(25) % 6 == 0)
    np.testing.assert_array_equal(uploaded.any(-1), np.arange(25) % 6 == 0)
    assert not any(own.said is not None and own.said[:, 1].any() for own in heard.answered)


def test_a_transport_that_does_not_hand_on_what_was_said_is_refused() -> None:
    class Careless(Local):
        def exchange(self, request: Request, own: Uploads) -> Uploads:
            return own._replace(said=None)

    with pytest.raises(LasgError, match=r"does not say which blocks were uploaded: it must hand on Uploads\.said"):
        training("lag+dense+difference+blocks", transport=Careless()).step()


# -- messages --------------------------------------------------------------------------------------------------


def test_a_message_is_a_bit_per_block_and_a_message_per_block_that_is_said() -> None:
    codec = parse("dense+blocks").for_shapes(((2,), (0,), (1, 2), (1,)))
    row = np.array([[1, 2, 0, 0, 3]], np.float32)
    [message] = codec.encode(row, lambda: np.zeros((1, 5)))
    assert message == b"\xa0" + np.array([1, 2, 3], "<f4").tobytes()
    np.testing.assert_array_equal(codec.decode([message], row[0]), row)
    assert codec.encode(0 * row, lambda: np.zeros((1, 5))) == [b"\0"]


def test_lengths_stand_in_front_of_blocks_whose_codec_does_not_know_them_but_the_last() -> None:
    codec, inner = parse("topk1:float+blocks200"), parse("topk1:float")
    row = np.arange(1, 601.0)[None]
    noise = lambda: np.zeros((1, 600))  # noqa: E731
    [message] = codec.encode(row, noise)
    parts = [inner.encode(row[:, at : at + 200], noise)[0] for at in (0, 200, 400)]
    length = bytes([len(parts[0]) & 0x7F | 0x80, len(parts[0]) >> 7])
    assert message == b"\xe0" + length + parts[0] + length + parts[1] + parts[2]


def test_blocks_are_tensors_or_pieces_of_them() -> None:
    shapes = ((2, 3), (), (0, 4), (7,))
    assert [where.stop for where in Blocks(shapes=shapes).slices(14)] == [6, 7, 14]
    assert [where.stop for where in Blocks(4, shapes).slices(14)] == [4, 6, 7, 11, 14]
    assert Blocks(6, shapes).tensors(14) == ((2, 3), (), (6,), (1,))
    assert [where.stop for where in Blocks().slices(14)] == [14]
    with pytest.raises(LasgError, match="tensors of 14 entries in all, and a vector of 13"):
        Blocks(shapes=shapes).slices(13)
    with pytest.raises(LasgError, match=r"^blocks have a number of entries >= 1, got 0"):
        Blocks(0)


@pytest.mark.parametrize("name", ["dense+blocks", "qsgd4:512+ec+blocks4096", "topk0.01:2bit:chunk64+blocks"])
def test_codecs_of_blocks_have_names(name: str) -> None:
    codec = parse(name)
    assert isinstance(codec, BlockCodec)
    assert name_of(codec) == name


def test_a_matrix_that_low_rank_needs_whole_is_not_cut() -> None:
    with pytest.raises(LasgError, match="blocks64 cuts matrices, which lowrank needs whole: take blocks alone"):
        parse("lowrank2+blocks64")
