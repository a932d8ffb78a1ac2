"""A carrier over which every request comes twice, and some answers never do."""

from __future__ import annotations

from collections.abc import Mapping

from lasg.transports.nodes import Node, Parcel
from tests.transports.wire import Wire

ELSEWHERE = 1000
"""What is added to the number of a node that comes back as another one."""


class Flaky(Wire):
    """Delivers requests twice, and only the second answer, as `fates` say by round and worker.

    deaf: no request comes. lost: no answer does. moved: the answer is lost, and the node is there again at once, under
    another number: it is asked once more in the same round.
    """

    def __init__(self, nodes: dict[int, Node], fates: Mapping[tuple[int, int], str] | None = None) -> None:
        super().__init__(nodes)
        self.fates = dict(fates or {})

    def push(self, node: int, parcel: Parcel) -> str:
        if parcel.head["kind"] != "work" or node not in self.there:
            return super().push(node, parcel)
        where = (parcel.head["round"], parcel.head["worker"])
        fate = self.fates.get(where, "")
        if fate == "deaf":
            return str(next(self.numbers))
        del self.answers[super().push(node, parcel)]
        name = super().push(node, parcel)
        if fate == "lost":
            del self.answers[name]
        if fate == "moved":
            del self.fates[where]
            self.answers[name] = None
            self.there[node + ELSEWHERE] = self.there.pop(node)
        return name
