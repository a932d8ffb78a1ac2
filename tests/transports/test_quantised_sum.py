"""The quantised all-reduce that `always` takes from three ranks on: short, unbiased, and the same bits everywhere."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import lasg
from lasg.core.algorithms import Stages
from lasg.core.codec_names import parse
from lasg.core.codecs import Dense, Noise
from lasg.core.messages import News, Uploads
from lasg.core.own_codec import as_codec
from lasg.core.rules import RULES
from lasg.transports.links import Links
from lasg.transports.quantised_sum import QuantisedSum
from lasg.transports.routes import PIECES, Setup, choose_form
from tests.transports.ranks import on_ranks

P = 1_000


def vector(rank: int) -> Tensor:
    return torch.randn(P, generator=torch.Generator().manual_seed(rank))


def sums(rounds: int) -> tuple[list[Tensor], int]:
    """On a rank: the quantised sum of the ranks' vectors, with the noise of so many rounds, and the bytes sent."""
    links = Links().with_own_tags()
    setup = Setup(links, "scatter", 0, np.arange(links.ranks), "requantised", P, torch.float32, None)
    added = QuantisedSum(setup, parse("qsgd8:64"), seed=3)
    everybody, own = np.ones(links.ranks, np.int64), Uploads(np.ones(1, np.bool_), news=News(vector(links.rank)))
    found = []
    for k in range(rounds):
        outgoing = added.outgoing(k, own)
        started = links.start(outgoing, "uploads", PIECES)
        found.append(added.finish(k, outgoing, everybody, "scatter"))
        links.wait(started, "uploads")
    return found, int(links.sent.sum())


def test_the_quantised_sum_is_unbiased_and_the_same_bits_on_every_rank() -> None:
    rounds = 200
    ranks = on_ranks(3, functools.partial(sums, rounds))
    exact = torch.stack([vector(rank).double() for rank in range(3)]).sum(0)
    first = torch.stack(ranks[0][0])
    for found, sent in ranks:
        assert torch.equal(torch.stack(found), first)
        assert sent <= rounds * (2 * 2 / 3 * (P + 4 * P / 64) + 64)
    assert not torch.equal(first[0], first[1])  # a round has noise of its own
    spread = first.std(0)
    assert float(((first.mean(0) - exact).abs() / spread).max()) < 5 / np.sqrt(rounds)
    assert float((first[0] - exact).norm() / exact.norm()) < 0.1


def test_it_is_taken_by_always_with_a_quantiser_from_three_ranks_on_and_only_where_it_is_allowed() -> None:
    eight = parse("qsgd8:512")
    always, wk2 = (Stages(rule=RULES[name], codec=eight) for name in ("always", "wk2"))
    chosen = functools.partial(choose_form, 100_000, 4, requantise=True)
    assert chosen(np.arange(3), always, "auto") == "requantised"
    assert chosen(np.arange(16), always, "hub") == "requantised"
    assert chosen(np.arange(2), always, "auto") == "packed"  # two messages are as short, and exact
    assert chosen(np.arange(3), always, "direct") == "packed"
    assert chosen(np.arange(3), wk2, "auto") == "packed"  # who may be silent sends messages
    assert chosen(np.arange(3), Stages(codec=Dense()), "auto") == "totals"
    assert choose_form(100_000, 4, np.arange(3), always, "auto") == "packed"


class Unmeasured:
    """A codec of one's own that is unbiased, and does not say how long its messages are."""

    unbiased = True

    def encode(self, rows: Tensor, _: Noise) -> list[bytes]:
        return [row.numpy().tobytes() for row in rows]

    def decode(self, messages: Sequence[bytes], like: Tensor) -> Tensor:
        return torch.stack([torch.frombuffer(bytearray(message), dtype=like.dtype) for message in messages])


def test_messages_of_unknown_length_are_sent_as_they_are() -> None:
    own = Stages(rule=RULES["always"], codec=as_codec(Unmeasured()))
    assert choose_form(100_000, 4, np.arange(3), own, "auto", requantise=True) == "packed"


def bytes_beside_an_all_reduce() -> tuple[float, bool]:
    """On a rank: what the default sends, as a share of what a ring all-reduce would, and whether a NaN was survived."""
    torch.manual_seed(0)
    model = nn.Linear(400, 100)
    opt = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.01))
    x, y = torch.randn(8, 400), torch.randint(0, 100, (8,))
    steps, ranks = 4, dist.get_world_size()
    before = opt.sent.copy()
    for k in range(steps):
        factor = float("nan") if k == 2 and dist.get_rank() == 1 else 1.0
        opt.step(lambda factor=factor: factor * cross_entropy(model(x), y))  # type: ignore[misc]
    dense = 2 * (ranks - 1) / ranks * 4 * sum(value.numel() for value in model.parameters())
    finite = all(bool(value.isfinite().all()) for value in model.parameters())
    return float((opt.sent - before).sum()) / steps / dense, finite


def test_from_eight_ranks_on_the_default_is_still_four_times_shorter_than_an_all_reduce() -> None:
    for share, finite in on_ranks(8, bytes_beside_an_all_reduce):
        assert share < 0.27
        assert finite


def test_training_with_it_ends_where_exact_sums_end() -> None:
    for auto, hub, exact in on_ranks(3, losses):
        assert auto == pytest.approx(exact, rel=0.05)
        assert hub == pytest.approx(exact, rel=0.05)


def losses() -> list[float]:
    """On a rank: the last loss with quantised sums, over both routes, and with exact ones."""
    found = []
    made = torch.Generator().manual_seed(dist.get_rank())
    y = torch.randint(0, 3, (60, 16), generator=made)
    x = torch.randn(60, 16, 20, generator=made) + nn.functional.one_hot(y, 20)
    for codec, exchange in (("qsgd8:64", "auto"), ("qsgd8:64", "hub"), ("dense", "auto")):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(20, 30), nn.Tanh(), nn.Linear(30, 3))
        opt = lasg.LazyOptimizer(
            torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9), codec=codec, exchange=exchange
        )
        for k in range(60):
            opt.step(lambda k=k, model=model: cross_entropy(model(x[k]), y[k]))  # type: ignore[misc]
        with torch.no_grad():
            found.append(float(cross_entropy(model(x.flatten(0, 1)), y.flatten())))
    return found
