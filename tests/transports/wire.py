"""A carrier of parcels to nodes in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from lasg.transports.nodes import Node, Parcel


class Wire:
    """Carries parcels to nodes in this process, as bytes would be: nothing is shared. Time passes when it is waited."""

    pause = 0.05

    def __init__(self, nodes: dict[int, Node]) -> None:
        self.there = nodes
        self.answers: dict[str, Parcel | None] = {}
        self.numbers = itertools.count()
        self.now = 0.0
        self.deaf: set[int] = set()
        self.forged: Callable[[int, Parcel, Parcel], Parcel | None] | None = None
        self.asked: list[tuple[int, Parcel]] = []
        self.answered: list[Parcel] = []

    def nodes(self) -> Iterable[int]:
        return list(self.there)

    def push(self, node: int, parcel: Parcel) -> str:
        name = str(next(self.numbers))
        self.asked.append((node, parcel))
        if node in self.deaf or node not in self.there:
            return name
        member = self.there[node]
        arrays = {key: np.frombuffer(value.tobytes(), value.dtype) for key, value in parcel.arrays.items()}
        memory = member.memory()
        found = member.answer(Parcel(dict(parcel.head), arrays))
        again = member.memory()
        member.recall(memory)  # as a process that is started for every message
        member.recall(again)
        self.answered.append(found)
        self.answers[name] = found if self.forged is None else self.forged(node, parcel, found)
        return name

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        return [(name, self.answers.pop(name)) for name in names if name in self.answers]

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds
