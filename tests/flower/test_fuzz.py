"""Thousands of malformed answers: none stops the server, none changes what it holds."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from lasg.core.arrays import host
from lasg.flower.records import ARRAYS, HEAD, STYPE, parcel
from tests.flower.grid import Inline
from tests.flower.test_apps import federated
from tests.transports.test_ranks import M

CASES, ROUNDS = 60, 60
ODD: list[Any] = [
    0,
    -1,
    2**62,
    0.0,
    float("nan"),
    float("inf"),
    -1e308,
    "",
    "upload",
    b"\0" * 9,
    True,
    [1, 2],
    [0.5],
    ["a"],
]
KINDS = ["upload", "silent", "broken", "lost", "stale", "here", "work", "unreadable"]


def array(chance: random.Random) -> Array:
    """Return an array whose words and bytes may not agree."""
    dtype = chance.choice(["uint8", "float32", "float64", "object", "<U9", ""])
    length = chance.choice([0, 1, 17, 18, 19, 72, 143, 144, 145, 1000])
    data = chance.randbytes(length)
    shape = chance.choice([(length,), (length, 1), (), (2**40,), (-1,), (18,), (144,)])
    stype = chance.choice([STYPE, STYPE, STYPE, "numpy.ndarray", "pickle"])
    return Array(dtype=dtype, shape=shape, stype=stype, data=data)


def forged(chance: random.Random, honest: RecordDict) -> RecordDict:
    """Return something like an answer, in which something is wrong."""
    head = dict(honest.config_records[HEAD])
    for _ in range(chance.randint(1, 3)):
        name = chance.choice([*head, "estimate", "left", "more"])
        if chance.random() < 0.3:
            head.pop(name, None)
        else:
            head[name] = chance.choice(KINDS if name == "kind" else ODD)
    arrays = {chance.choice(["contribution", "model", ""]): array(chance) for _ in range(chance.randint(0, 2))}
    content: dict[str, Any] = {HEAD: ConfigRecord(head), ARRAYS: ArrayRecord(arrays)}
    if chance.random() < 0.2:
        content[chance.choice([HEAD, ARRAYS])] = MetricRecord({"number": 1})
    if chance.random() < 0.1:
        content.pop(chance.choice([HEAD, ARRAYS]))
    return RecordDict(content)


class Hostile(Inline):
    """A grid with nodes that answer anything, once they are let loose."""

    chance: random.Random | None = None
    thrown = 0

    def answer(self, message: Message, context: Context) -> Message:
        honest = super().answer(message, context)
        if self.chance is None or not honest.has_content():
            return honest
        found = forged(self.chance, honest.content)
        if parcel(found) == parcel(honest.content):
            return honest
        self.thrown += 1
        honest.content = found
        return honest


@pytest.mark.parametrize("name", ["lasg-wk2", "laqsg-wk2", "lasg-pse"])
def test_malformed_answers_stop_nothing_and_change_nothing(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.flower.test_apps.Inline", Hostile)
    thrown = 0
    for case in range(CASES // 3):
        run, fed = federated(name)
        fed.members.strikes_allowed = 10**9
        fed.checker.norm_bound = 1e6
        fed.gather(10)
        run.step()
        grid: Any = fed.members.carrier.grid  # type: ignore[attr-defined]
        grid.chance = random.Random(case)
        for _ in range(ROUNDS // 3):
            held, last, refused = host(fed.listener.rows).copy(), list(fed.held), len(fed.members.refused)
            found = run.step()
            changed = [m for m in range(M) if not np.array_equal(host(fed.listener.rows)[m], held[m])]
            # Whatever was taken is a whole contribution of the open round, and everybody else's is as it was.
            assert all(found.uploaded[m] and fed.held[m] == found.k for m in changed)
            assert (np.array(fed.held) == last)[~found.uploaded].all()
            assert np.isfinite(host(fed.listener.rows)).all()
            assert len(fed.members.refused) >= refused
        np.testing.assert_allclose(host(run.server.aggregate), host(fed.listener.rows).sum(0), atol=1e-12)
        thrown += grid.thrown
    assert thrown > 1000
    assert fed.members.refused
