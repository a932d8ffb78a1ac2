"""Which nodes are there, and which of them is which worker. A node is worker m if it says key m."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

import numpy as np

from lasg.core.arrays import FloatArray, IntArray, host
from lasg.errors import LasgError
from lasg.transports.nodes import Parcel, Unfit, failure, is_integer

STRIKES = 3
"""Refused answers after which a node is excluded."""
FAILURES = 3
"""Errors in a row after which a node fails for good: a model that does not fit its data fails every time."""
LONGEST_PAUSE = 64.0
"""Seconds, at most, after which a node that failed when it was greeted is greeted again."""


class Carrier(Protocol):
    """What brings parcels to nodes, and answers back."""

    @property
    def pause(self) -> float:
        """Seconds between two looks for answers."""
        ...

    def nodes(self) -> Iterable[int]:
        """Return the nodes that can be reached now."""
        ...

    def push(self, node: int, parcel: Parcel) -> str:
        """Send a parcel to a node; return a name for its answer."""
        ...

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        """Return the answers that have come, each once; None is one that was lost on its way.

        A node whose own code raised an error answers with a parcel of kind `FAILED` that says so.
        """
        ...


class Refused(NamedTuple):
    """An answer that was not used."""

    round: int
    node: int
    key: str
    reason: str


class Failed(NamedTuple):
    """A node whose own code raised an error: to the round it is silent."""

    round: int
    node: int
    key: str
    reason: str
    times: int
    """In a row. Reported at 1, 2, 4, 8 ..., so that a node that fails for ever fills no log."""


Report = Callable[[Refused | Failed], None]


class Failures:
    """The errors of each node since it last answered."""

    def __init__(self) -> None:
        self.times: dict[int, int] = {}
        self.reasons: dict[int, str] = {}

    def note(self, node: int, reason: str) -> int:
        """Count an error; return how many there are in a row."""
        self.times[node], self.reasons[node] = self.times.get(node, 0) + 1, reason
        return self.times[node]

    def clear(self, node: int) -> None:
        """Forget the errors of a node that has answered."""
        self.times.pop(node, None)
        self.reasons.pop(node, None)

    def for_good(self, nodes: Iterable[int]) -> bool:
        """Tell whether there are any nodes, and all of them fail for good."""
        times = [self.times.get(node, 0) for node in nodes]
        return bool(times) and min(times) >= FAILURES

    def pause(self, node: int) -> float:
        """Return the seconds to wait before a node is greeted again: more after every error."""
        return min(LONGEST_PAUSE, 2.0 ** max(0, self.times.get(node, 0) - 1))

    def summary(self, names: Mapping[int, str]) -> str:
        """Return what the nodes that fail said, each thing once, with who said it first if they have names."""
        first: dict[str, str] = {}
        for node in sorted(self.reasons, key=lambda node: names.get(node, "")):
            first.setdefault(self.reasons[node], f"{names[node]}: " if node in names else "")
        return "; ".join(f"{who}{reason}" for reason, who in list(first.items())[:3])


class Membership:
    """Greets nodes, knows them by their workers' keys, and excludes those that are refused too often."""

    def __init__(
        self,
        carrier: Carrier,
        keys: Sequence[str],
        *,
        strikes: int,
        report: Report | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
        on_change: Callable[[int], None],
    ) -> None:
        """Take the workers' keys; `on_change` is told a worker whose node left, or is another one now."""
        self.carrier, self.keys, self.strikes_allowed = carrier, list(keys), strikes
        self.report, self.clock, self.sleep, self.on_change = report, clock, sleep, on_change
        self.settings: dict[str, Any] = {}
        """What nodes must be set up with."""
        self.k = 0
        """The round that is open, for reports."""
        self.samples: IntArray = np.zeros(len(self.keys), np.int64)
        self.refused: list[Refused] = []
        """By this server; `refusals` counts those of its incarnations before, too."""
        self.refusals = 0
        self.bytes_down = self.bytes_up = 0
        self.strikes: dict[int, int] = {}
        self.forget_nodes()

    def forget_nodes(self) -> None:
        """Know no node: every one is met again."""
        self.node_of_worker: dict[int, int] = {}
        self.failures = Failures()
        self._greeted: dict[str, int] = {}
        self._seen: set[int] = set()
        self._greet_at: dict[int, float] = {}
        """When a node is greeted again whose greeting failed."""

    @property
    def weights(self) -> FloatArray:
        """n_m / N, of those that have said how much data they have."""
        weights: FloatArray = self.samples / max(1, self.samples.sum())
        return weights

    def push(self, node: int, parcel: Parcel) -> str:
        """Send a parcel; return a name for its answer."""
        self.bytes_down += parcel.size
        return self.carrier.push(node, parcel)

    def gather(self, seconds: float) -> None:
        """Wait until every worker has said how much data it has; after so many seconds say who is missing.

        A server that goes on from a checkpoint knows that already, and needs somebody to begin with.
        """
        end = self.clock() + seconds
        while True:
            self.meet()
            missing = [key for key, samples in zip(self.keys, self.samples, strict=True) if not samples]
            if self.node_of_worker and not missing:
                return
            there = set(self.carrier.nodes())
            strangers = there - set(self.node_of_worker.values())
            if len(there) >= len(self.keys) and self.failures.for_good(strangers):
                self.give_up()
            if self.clock() > end:
                reasons = [one.reason for one in self.refused[-3:]] + [self.failures.summary({})]
                who = ", ".join(missing or self.keys)
                raise LasgError("; ".join(filter(None, [f"no node came for worker {who} in {seconds:g} s", *reasons])))
            self.sleep(self.carrier.pause)

    def give_up(self) -> NoReturn:
        """End a run that nobody can do: say what the nodes say."""
        names = {node: f"worker {self.keys[m]}" for m, node in self.node_of_worker.items()}
        raise LasgError(
            f"every node failed {FAILURES} times in a row, so the run ends: {self.failures.summary(names)}. "
            "Look at the model and the data; resume=true goes on from the last checkpoint, if there is one"
        )

    def meet(self) -> list[int]:
        """Greet nodes that are new, forget those that left; return the workers that have come."""
        there = set(self.carrier.nodes())
        for m in [m for m, node in self.node_of_worker.items() if node not in there]:
            self._drop(m)
        self._seen &= there
        for node in sorted(there - self._seen):
            if self.clock() < self._greet_at.get(node, -math.inf):
                continue
            self._seen.add(node)
            if self.strikes.get(node, 0) < self.strikes_allowed:
                hello = Parcel({"kind": "hello", "settings": json.dumps(self.settings)}, {})
                self._greeted[self.push(node, hello)] = node
        come = []
        for name, parcel in self.carrier.pull(list(self._greeted)):
            node = self._greeted.pop(name)
            if self.failed(node, "", parcel):
                self._seen.discard(node)
                self._greet_at[node] = self.clock() + self.failures.pause(node)
                continue
            assert parcel is not None
            self.bytes_up += parcel.size
            self.failures.clear(node)
            try:
                come.append(self._recognise(node, parcel, there))
            except Unfit as error:
                self.refuse(node, "", str(error))
        return come

    def _recognise(self, node: int, parcel: Parcel, there: set[int]) -> int:
        """Take a node as the worker whose key it says."""
        key, samples, differs = (parcel.head.get(name) for name in ("key", "samples", "differs"))
        if parcel.head.get("kind") != "here" or not isinstance(key, str) or not is_integer(samples) or samples < 1:
            raise Unfit("it did not say who it is")
        if key not in self.keys:
            raise Unfit(f"nobody knows its key {key[:80]!r}")
        if differs:
            raise Unfit(f"{key} was set up otherwise: {str(differs)[:500]}")
        m = self.keys.index(key)
        if self.node_of_worker.get(m, node) != node and self.node_of_worker[m] in there:
            raise Unfit(f"another node is {key}")
        if self.samples[m] and self.samples[m] != samples:
            raise Unfit(f"{key} had {self.samples[m]} samples, and now has {samples}")
        self.node_of_worker[m], self.samples[m] = node, samples
        self.on_change(m)
        return m

    def _drop(self, m: int) -> None:
        """Know no node of a worker."""
        del self.node_of_worker[m]
        self.on_change(m)

    def failed(self, node: int, key: str, parcel: Parcel | None) -> bool:
        """Tell whether an answer is none: it was lost, or the node says that it failed, which is then reported."""
        reason = None if parcel is None else failure(parcel)
        if parcel is None or reason is None:
            return parcel is None
        self.bytes_up += parcel.size
        times = self.failures.note(node, reason)
        if self.report is not None and times & (times - 1) == 0:
            self.report(Failed(self.k, node, key, reason, times))
        return True

    def refuse(self, node: int, key: str, reason: str) -> None:
        """Count a refused answer; exclude a node that has too many."""
        self.strikes[node] = self.strikes.get(node, 0) + 1
        refused = [Refused(self.k, node, key, reason)]
        if self.strikes[node] >= self.strikes_allowed:
            for m in [m for m, other in self.node_of_worker.items() if other == node]:
                self._drop(m)
            refused.append(Refused(self.k, node, key, f"excluded after {self.strikes[node]} refused answers"))
        self.refusals += 1
        for one in refused:
            self.refused.append(one)
            if self.report is not None:
                self.report(one)

    def state(self) -> dict[str, Any]:
        """Return what survives the server."""
        return {
            "settings": self.settings,
            "samples": self.samples,
            "strikes": [[node, count] for node, count in self.strikes.items()],
            "bytes": [self.bytes_down, self.bytes_up],
            "refused": self.refusals,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state: every node is met again."""
        self.samples = host(state["samples"]).copy()
        self.strikes = dict(map(tuple, state["strikes"]))
        self.bytes_down, self.bytes_up = state["bytes"]
        self.refusals = state["refused"]
        self.forget_nodes()
