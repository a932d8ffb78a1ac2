"""The server that every member of an elastic run has a copy of: what a round makes of the members' messages.

It knows no clock and no network, so that the rounds can be repeated from what the members said: `replay` does so.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from lasg.core.arrays import Array, checksum
from lasg.core.belief import NEVER, Listener, is_chained, upload_id
from lasg.core.ledger import Ledger
from lasg.core.messages import News, Uploads
from lasg.core.optimizers import Optimizer
from lasg.core.server import Laziness, Server
from lasg.core.stages import Stages
from lasg.errors import LasgError

SLOTS = 64
"""How many members a run may have at once."""
KEPT = 1000
"""For how many rounds it is known which upload of a member that is gone was the last to count."""


class Entry(NamedTuple):
    """What a member says in a round: who it is, and, unless it is silent, how far it moved."""

    name: str
    run: str
    """A digest of the settings that all must share."""
    checksum: int | None = None
    """Of the model that it has; None: it has none yet."""
    weight: float = 1.0
    """How much its message counts, beside the others that speak."""
    seconds: float | None = None
    """How long its last move took."""
    fresh: bool = False
    """Whether its message builds on none before it."""
    leaving: bool = False
    message: bytes = b""

    def pack(self) -> bytes:
        """Return it as it travels: a line of JSON, and the message."""
        return json.dumps(self[:-1]).encode() + b"\n" + self.message

    @classmethod
    def unpack(cls, data: bytes) -> Entry:
        """Undo `pack`."""
        head, _, message = data.partition(b"\n")
        try:
            name, run, checksum, weight, seconds, fresh, leaving = json.loads(head)
        except ValueError as error:
            raise LasgError(f"a member said what is no message of this version of lasg: {error}") from None
        return cls(str(name), str(run), checksum, float(weight), seconds, bool(fresh), bool(leaving), message)


class ElasticServer:
    """The model, the outer optimizer, and who the members are."""

    def __init__(self, optimizer: Optimizer, stages: Stages, seed: int) -> None:
        self.stages = stages
        self.chained = is_chained(stages.belief, stages.codec)
        # The members' messages are one move, the mean of theirs: how many they are is this class's business alone.
        self.server = Server(optimizer, stages, Laziness(workers=1))
        self.weights = np.zeros(SLOTS)
        bound: dict[str, Any] = {"robust": stages.robust, "weights": self.weights, "seed": seed}
        self.listener = Listener(stages.belief, stages.codec, SLOTS, optimizer.theta, **bound)
        self.slots: dict[str, int] = {}
        """The members, and the number that each has as long as it is one."""
        self.held: dict[str, tuple[int, int]] = {}
        """By name, the last upload that counted, and its round."""
        self.seconds: dict[str, float] = {}
        """How long each member's last move took."""
        self.unheard: set[str] = set()
        """Members that have said nothing since they came: what they say first builds on nothing."""
        self.ended = 0
        """How many members have left because they were done."""
        self.ledger = Ledger()

    @property
    def k(self) -> int:
        """The round that is open."""
        return int(self.server.k)

    @property
    def theta(self) -> Array:
        """The model."""
        return self.server.theta

    @property
    def checksum(self) -> int:
        """Of the model's bits."""
        return checksum(self.theta)

    @property
    def usual(self) -> float | None:
        """How long a move usually takes: the median of the members' last ones."""
        return float(np.median(list(self.seconds.values()))) if self.seconds else None

    def last_upload(self, name: str) -> int:
        """Return the number of a member's last upload that counted."""
        return self.held.get(name, (NEVER, 0))[0]

    def close(self, members: Sequence[str], said: Sequence[Entry]) -> Array:
        """Close the round with what its members said; return the new model. In a round of silence it stays."""
        new = self._seat(members)
        speaking = sorted((self.slots[entry.name], entry) for entry in said if entry.message)
        fresh = {slot for slot, entry in speaking if entry.fresh}
        self.unheard -= {entry.name for _, entry in speaking}
        for entry in said:
            if entry.seconds is not None:
                self.seconds[entry.name] = entry.seconds
        k = self.k
        who = np.array([slot for slot, _ in speaking], np.int64)
        self.weights[who] = [entry.weight for _, entry in speaking]
        messages = [entry.message for _, entry in speaking]
        news = self.listener.take(messages, who, sorted(fresh | new), k=k)
        total = float(self.weights[who].sum())
        if speaking and total > 0:
            assert news is not None
            self.server.close(Uploads(np.ones(1, np.bool_), 1), News(news.vector / total, whole=True))
        else:
            self.server.k += 1
        for _, entry in speaking:
            before = NEVER if entry.fresh else self.last_upload(entry.name)
            self.held[entry.name] = upload_id(k, entry.message, before, chained=self.chained), k
        self.ended += sum(entry.leaving for entry in said)
        self._count(messages)
        return self.theta

    def _seat(self, members: Sequence[str]) -> set[int]:
        """Give new members numbers, and take those of members that are gone; return the new numbers."""
        if len(members) > SLOTS:
            raise LasgError(f"{len(members)} members are more than an elastic run can have: {SLOTS}")
        there = set(members)
        self.slots = {name: slot for name, slot in self.slots.items() if name in there}
        self.seconds = {name: seconds for name, seconds in self.seconds.items() if name in there}
        self.held = {n: (i, k) for n, (i, k) in self.held.items() if n in there or k > self.k - KEPT}
        free = iter(sorted(set(range(SLOTS)) - set(self.slots.values())))
        new = {name: next(free) for name in sorted(there - set(self.slots))}
        self.slots.update(new)
        self.unheard = (self.unheard & there) | set(new)
        return set(new.values())

    def _count(self, messages: list[bytes]) -> None:
        ledger = self.ledger
        ledger.rounds += 1
        ledger.uploads += len(messages)
        ledger.bits_up += 8 * sum(map(len, messages))

    def state(self) -> dict[str, Any]:
        """Return what a newcomer needs, and a checkpoint."""
        return {
            "server": self.server.state(),
            "listener": self.listener.state(),
            "weights": self.weights,
            "slots": self.slots,
            "held": {name: list(pair) for name, pair in self.held.items()},
            "seconds": self.seconds,
            "unheard": sorted(self.unheard),
            "ended": self.ended,
            "ledger": list(self.ledger.row()),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a peer's state, or a checkpoint's."""
        self.server.restore(state["server"])
        self.listener.restore(state["listener"])
        self.weights[:] = state["weights"]
        self.slots = {str(name): int(slot) for name, slot in state["slots"].items()}
        self.held = {str(name): (int(pair[0]), int(pair[1])) for name, pair in state["held"].items()}
        self.seconds = {str(name): float(seconds) for name, seconds in state["seconds"].items()}
        self.unheard = set(map(str, state["unheard"]))
        self.ended, self.ledger = int(state["ended"]), Ledger(*state["ledger"])
