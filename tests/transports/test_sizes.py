"""Models and messages beyond 2^32 entries or bytes: whatever says how large they are holds it. Without the memory."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from lasg.core import codec_names
from lasg.core.algorithms import choose_stages
from lasg.core.arrays import pieces, stand_in
from lasg.core.ledger import Ledger
from lasg.core.messages import Uploads
from lasg.core.sparse import TopK
from lasg.packing import flatten, pack, unpack
from lasg.problems.flat import FlatView
from lasg.transports.links import Links
from lasg.transports.ranks import FlagExchange
from lasg.transports.routes import ROUTES, Setup, assign_workers, choose_form, choose_route, rooms_of

P = 2**33 + 5
"""Entries: 34 GB of float32."""


def setup(ranks: int = 4, setting: str = "auto") -> Setup:
    links = Links()
    links.ranks, links.others = ranks, list(range(1, ranks))
    return Setup(links, setting, 0, assign_workers(ranks, ranks), "summed", P, torch.float32, 4 * P)


def test_pieces_of_a_huge_vector_follow_one_another_and_end_where_it_ends() -> None:
    cut = list(setup().pieces(P, "scatter").values())
    assert cut[0].start == 0
    assert cut[-1].stop == P
    assert all(one.stop == other.start for one, other in itertools.pairwise(cut))
    assert max(piece.stop - piece.start for piece in cut) == -(-P // 4)
    assert setup().dense == 4 * P
    assert pieces(3, P) == [slice(0, 1), slice(1, 2), slice(2, 3)]
    room = torch.empty(P, device="meta")
    parts = [part.numel() for part, _ in zip(rooms_of(room, cut[1]), range(3), strict=False)]
    assert parts == [cut[1].stop - cut[1].start] * 3


@pytest.mark.parametrize("setting", [name for name in ROUTES if name != "collective"])
def test_routes_of_huge_messages_are_chosen_as_those_of_long_ones(setting: str) -> None:
    huge, long = (np.full(4, size, np.int64) for size in (4 * P, 4 * 10**7))
    as_long = setup(setting=setting)._replace(p=10**7)
    assert choose_route(setup(setting=setting), huge) == choose_route(as_long, long)


@pytest.mark.parametrize("name", ["wk2+dense+difference", "wk2+qsgd8:512+difference", "always+topk0.01+residual"])
def test_the_form_of_huge_uploads_is_that_of_long_ones(name: str) -> None:
    stages = choose_stages(name, None, None, one_gradient=True)
    owners = assign_workers(4, 4)
    assert choose_form(P, 4, owners, stages, "auto") == choose_form(10**7, 4, owners, stages, "auto")


@pytest.mark.parametrize(("name", "bits"), [("dense", 32), ("qsgd8:512", 8 + 32 / 512), ("qsgd4:512", 4 + 32 / 512)])
def test_lengths_of_huge_messages_are_their_bits(name: str, bits: float) -> None:
    length = codec_names.parse(name).length(P)
    assert length == pytest.approx(bits * P / 8, rel=1e-8)


def test_flags_say_the_bytes_of_huge_messages_to_the_byte() -> None:
    alone = setup(1)
    sizes, uploads, _ = FlagExchange(alone, []).exchange(Uploads(np.array([True]), 1), 4 * P + 1, None)
    assert sizes.tolist() == [4 * P + 1]
    assert uploads.bits == 8 * (4 * P + 1)


def test_positions_beyond_two_to_the_32_are_packed_and_found_again() -> None:
    codec, positions = TopK(values="float"), np.array([0, 2**31, 2**32 + 7, P - 1])
    rest = codec._take_positions(codec._pack_positions(positions, P) + b"rest", P)
    assert rest[0].tolist() == positions.tolist()
    assert rest[1] == b"rest"
    coded = TopK(values="float", coded=True)
    assert coded._take_positions(coded._pack_positions(positions, P), P)[0].tolist() == positions.tolist()


def test_a_huge_model_is_laid_out_and_its_shape_takes_no_memory() -> None:
    parameters = [
        torch.nn.Parameter(torch.empty(2**31, 2, device="meta")),
        torch.nn.Parameter(torch.empty(P, device="meta")),
    ]
    flat = FlatView((str(i), value) for i, value in enumerate(parameters))
    assert flat.p == 2**32 + P
    first, second = flat.views(torch.empty(flat.p, device="meta"))
    assert (tuple(first.shape), second.storage_offset()) == ((2**31, 2), 2**32)
    huge = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (P,), (0,))
    assert stand_in(huge).shape == (P,)


def test_counts_of_huge_runs_survive_a_checkpoint() -> None:
    ledger = Ledger(rounds=10, bits_up=2**70, bits_down=2**65)
    assert Ledger(*unpack(pack({"ledger": list(ledger.row())}), "it")["ledger"]) == ledger
    assert flatten({"at": 2**70}, "", {}) == {"dict": [["at", {"value": 2**70}]]}
