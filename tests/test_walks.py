"""How many files of lasg one steady round of WK2 goes through, in each engine: docs/architecture.md lists them.

`python -m tests.test_walks` prints the walks.
"""

from __future__ import annotations

import functools
import itertools
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import lasg
from lasg.core.algorithms import choose_stages
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.training import Hosted, Round, Training
from lasg.transports.federation import Federation
from lasg.transports.nodes import Node, Parcel
from tests.transports.ranks import on_ranks

ROOT = Path(lasg.__file__).resolve().parent
PAGE = Path(__file__).resolve().parents[1] / "docs" / "architecture.md"
PROBLEM = ("problems/", "data/", "loops/user_loss.py")
"""What the user's problem computes: listed apart."""
LINKS = "transports/links.py"
"""What carries bytes between ranks, as Flower carries parcels: listed apart, too."""
CODECS = ("dense", "qsgd8:512")
STEADY = 20
"""Rounds before the one that is looked at."""
Walk = list[str]
"""`file: function`, each once, in the order of their first call."""


def follow(step: Callable[[], Any]) -> Walk:
    """Do a step; return the functions of lasg that it called."""
    walk: dict[str, None] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(f"{ROOT}/"):
            walk[f"{Path(code.co_filename).relative_to(ROOT)}: {code.co_qualname}"] = None

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return list(walk)


def steady(step: Callable[[], Any], last: Callable[[], Round], *, silent: bool = False) -> Walk:
    """Return the walk of a round in which the rule decides: some upload and some do not, or nobody does."""
    for _ in range(STEADY):
        step()
    for _ in range(200):
        walk, uploads = follow(step), int(last().uploaded.sum())
        if last().left is not None and (uploads == 0 if silent else 0 < uploads < len(last().uploaded)):
            return walk
    raise AssertionError("there was no such round")


def files_of(walk: Iterable[str]) -> list[str]:
    """Return the files of a walk without the problem's, and without what carries bytes."""
    files = dict.fromkeys(line.partition(":")[0] for line in walk)
    return [name for name in files if not name.startswith(PROBLEM) and name != LINKS]


def simulated(codec: str) -> Walk:
    run = lasg.training(lasg.task("breast-cancer").spec(f"wk2+{codec}", seed=1))
    rounds: list[Round] = []
    return steady(lambda: rounds.append(run.step()), lambda: rounds[-1])


def on_a_rank(codec: str, silent: bool) -> Walk:
    """Return the walk of this rank's step: nobody uploads, or this rank or the other one does."""
    import torch
    from torch.nn.functional import cross_entropy

    generator = torch.Generator().manual_seed(torch.distributed.get_rank())
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    optimizer = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.1), rule="wk2", codec=codec, c=0.3)

    def step() -> None:
        x, y = torch.randn(16, 8, generator=generator), torch.randint(3, (16,), generator=generator)
        optimizer.step(lambda: cross_entropy(model(x), y))

    def last() -> Round:
        assert optimizer.last is not None
        return optimizer.last

    return steady(step, last, silent=silent)


class Direct:
    """Carries parcels to nodes in this process."""

    pause = 0.0

    def __init__(self, members: dict[int, Node]) -> None:
        self.members, self.answers, self.numbers = members, dict[str, Parcel](), itertools.count()

    def nodes(self) -> Iterable[int]:
        return list(self.members)

    def push(self, node: int, parcel: Parcel) -> str:
        name = str(next(self.numbers))
        self.answers[name] = self.members[node].answer(parcel)
        return name

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        return [(name, self.answers.pop(name)) for name in names if name in self.answers]


def federated(codec: str) -> Walk:
    spec = lasg.task("breast-cancer").spec("lasg-wk2", workers=4, seed=1, c=0.1, eta=1.0)
    problem, stages, step = lasg.problem(spec), choose_stages(None, "wk2", codec), Constant(spec.eta)
    keys = [str(m) for m in range(spec.workers)]
    members = {
        m: Node(
            key,
            Hosted(problem, np.array([m])),
            samples=round(problem.weights[m] * problem.samples),
            like=problem.start(),
            stages=stages,
            optimizer=lambda theta: ClosedFormSGD(theta, step),
            D=spec.D,
        )
        for m, key in enumerate(keys)
    }
    federation = Federation(Direct(members), keys, away_after=spec.D)
    run = Training(None, ClosedFormSGD(problem.start(), step), stages, spec.laziness, federation)
    federation.gather(10)
    rounds: list[Round] = []
    return steady(lambda: rounds.append(run.step()), lambda: rounds[-1])


RANKS = {"One silent step on a rank": True, "One step on a rank that uploads": False}
WALKS = {"One simulated round": simulated, **dict.fromkeys(RANKS, on_a_rank), "One federated round": federated}
FILES = {
    ("One simulated round", "dense"): 7,
    ("One simulated round", "qsgd8:512"): 9,
    ("One silent step on a rank", "dense"): 7,
    ("One silent step on a rank", "qsgd8:512"): 7,
    ("One step on a rank that uploads", "dense"): 8,
    ("One step on a rank that uploads", "qsgd8:512"): 12,
    ("One federated round", "dense"): 12,
    ("One federated round", "qsgd8:512"): 14,
}
"""At most so many files of lasg, besides the problem's own and what carries bytes."""


@functools.cache
def measured(name: str, codec: str) -> Walk:
    """Return a walk; on ranks, that of the one which uploads."""
    if name not in RANKS:
        return simulated(codec) if WALKS[name] is simulated else federated(codec)
    walks, silent = on_ranks(2, on_a_rank, codec, RANKS[name]), RANKS[name]
    return next(walk for walk in walks if silent or "core/workers.py: Workers._say" in walk)


def listed(name: str, mark: str) -> Walk:
    """Return what the page lists under a heading with numbers, or with dashes: what is listed apart."""
    section = PAGE.read_text(encoding="utf-8").partition(f"### {name}\n")[2].partition("\n#")[0]
    return re.findall(rf"^{mark} `([^`]+)`", section, re.MULTILINE)


@pytest.mark.parametrize(("name", "codec"), FILES)
def test_a_round_goes_through_few_files(name: str, codec: str) -> None:
    files = files_of(measured(name, codec))
    assert len(files) <= FILES[name, codec], files


@pytest.mark.parametrize("name", WALKS)
def test_the_page_lists_the_walk_in_its_order_and_all_its_files(name: str) -> None:
    walk = measured(name, "dense")
    told, own = listed(name, r"\d+\."), listed(name, "-")
    assert [line for line in told + own if line not in walk] == []
    assert told == sorted(told, key=walk.index)
    assert set(files_of(told)) == set(files_of(walk))
    assert {line.partition(":")[0] for line in told + own} == {line.partition(":")[0] for line in walk}


if __name__ == "__main__":
    for which in FILES:
        print(f"== {', '.join(which)}: {len(files_of(measured(*which)))} files", *measured(*which), sep="\n")
