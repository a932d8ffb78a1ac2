"""Which nodes are there, and which of them is which worker. A node is worker m if it says key m."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from lasg.core.arrays import FloatArray, IntArray, host
from lasg.errors import LasgError
from lasg.transports.model_deltas import Told
from lasg.transports.nodes import FAILED, Parcel, is_integer, require

STRIKES = 3
"""Refused answers after which a node is excluded."""
FAILURES = 3
"""Errors in a row after which a node fails for good: a model that does not fit its data fails every time."""
LONGEST_REASON = 300
"""Characters of a node's own words that are repeated: one line, whatever it sends."""
LONGEST_PAUSE = 64.0
"""Seconds, at most, after which a node that failed when it was greeted is greeted again."""


class Carrier(Protocol):
    """What brings parcels to nodes, and answers back."""

    pause: float
    """Seconds between two looks for answers."""

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


class Trouble(NamedTuple):
    """An answer that was not used: it was refused, or the node's own code raised an error."""

    round: int
    node: int
    key: str
    reason: str
    times: int = 0
    """Errors in a row, reported at 1, 2, 4, 8 ..., so that a node that fails for ever fills no log; 0: refused."""


Report = Callable[[Trouble], None]


class Membership:
    """Greets nodes, knows them by their workers' keys, and excludes those that are refused too often."""

    def __init__(
        self,
        carrier: Carrier,
        keys: Sequence[str],
        *,
        report: Report | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take the workers' keys, in their order."""
        self.carrier, self.keys, self.strikes_allowed = carrier, list(keys), STRIKES
        self.report, self.clock, self.sleep = report or (lambda _: None), clock, sleep
        self.settings: dict[str, Any] = {}
        """What nodes must be set up with."""
        self.k = 0
        """The round that is open, for reports."""
        self.samples: IntArray = np.zeros(len(self.keys), np.int64)
        self.refused: list[Trouble] = []
        """By this server; `refusals` counts those of its incarnations before, too."""
        self.refusals = 0
        self.bytes_down = self.bytes_up = 0
        self.strikes: Counter[int] = Counter()
        self.forget_nodes()

    def forget_nodes(self) -> None:
        """Know no node: every one is met again."""
        self.node_of_worker: dict[int, int] = {}
        self.told: dict[int, Told] = {}
        """What each worker's node has, if it answers."""
        self.starts: dict[int, Any] = {}
        """The checksum of the model that each worker's node would start from by itself, where it says so."""
        self.failures: dict[int, Trouble] = {}
        """The last error of each node that has not answered since."""
        self._greeted: dict[str, int] = {}
        self._greet_at: dict[int, float] = {}
        """When a node is greeted again: once its greeting has failed; until then, never."""

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
            if len(there) >= len(self.keys):
                self.stop_if_all_fail(there - set(self.node_of_worker.values()))
            if self.clock() > end:
                who = ", ".join(missing or self.keys)
                reasons = [one.reason for one in self.refused[-3:]] + [self._failures_in_words()]
                raise LasgError("; ".join(filter(None, [f"no node came for worker {who} in {seconds:g} s", *reasons])))
            self.sleep(self.carrier.pause)

    def stop_if_all_fail(self, nodes: Iterable[int]) -> None:
        """End a run that nobody can do, if there are nodes and all of them fail for good: say what they say."""
        times = [self._times_failed(node) for node in nodes]
        if times and min(times) >= FAILURES:
            raise LasgError(
                f"every node failed {FAILURES} times in a row, so the run ends: {self._failures_in_words()}. "
                "Look at the model and the data; resume=true goes on from the last checkpoint, if there is one"
            )

    def _times_failed(self, node: int) -> int:
        """Return how often a node has failed in a row."""
        return self.failures[node].times if node in self.failures else 0

    def _failures_in_words(self) -> str:
        """Return what the nodes that fail said, each thing once, with the worker that said it first."""
        first: dict[str, str] = {}
        for failed in sorted(self.failures.values(), key=lambda failed: failed.key):
            first.setdefault(failed.reason, f"worker {failed.key}: " if failed.key else "")
        return "; ".join(f"{who}{reason}" for reason, who in list(first.items())[:3])

    def meet(self) -> list[int]:
        """Greet nodes that are new, forget those that left; return the workers that have come."""
        there = set(self.carrier.nodes())
        for m in [m for m, node in self.node_of_worker.items() if node not in there]:
            self._drop(m)
        self._greet_at = {node: at for node, at in self._greet_at.items() if node in there or at < math.inf}
        for node in sorted(there):
            if self.clock() < self._greet_at.get(node, -math.inf):
                continue
            self._greet_at[node] = math.inf
            if self.strikes[node] < self.strikes_allowed:
                hello = Parcel({"kind": "hello", "settings": json.dumps(self.settings)}, {})
                self._greeted[self.push(node, hello)] = node
        come = []
        for name, parcel in self.carrier.pull(list(self._greeted)):
            node = self._greeted.pop(name)
            if self.failed(node, "", parcel):
                pause = min(LONGEST_PAUSE, 2.0 ** max(0, self._times_failed(node) - 1))  # longer after every error
                self._greet_at[node] = self.clock() + pause
                continue
            assert parcel is not None
            self.failures.pop(node, None)
            try:
                come.append(self._recognise(node, parcel, there))
            except LasgError as error:
                self.refuse(node, "", str(error))
        return come

    def _recognise(self, node: int, parcel: Parcel, there: set[int]) -> int:
        """Take a node as the worker whose key it says."""
        said: list[Any] = [parcel.head.get(name) for name in ("kind", "key", "samples", "differs")]
        kind, key, samples, differs = said
        known = kind == "here" and isinstance(key, str) and is_integer(samples) and samples >= 1
        require(known, "it did not say who it is")
        require(key in self.keys, f"nobody knows its key {key[:80]!r}")
        require(not differs, f"{key} was set up otherwise: {str(differs)[:500]}")
        m = self.keys.index(key)
        before = self.node_of_worker.get(m, node)
        require(before == node or before not in there, f"another node is {key}")
        same = self.samples[m] in (0, samples)
        require(same, f"{key} had {self.samples[m]} samples, and now has {samples}")
        self.node_of_worker[m], self.samples[m] = node, samples
        self.told.pop(m, None)
        self.starts[m] = parcel.head.get("start")
        return m

    def _drop(self, m: int) -> None:
        """Know no node of a worker."""
        del self.node_of_worker[m]
        self.told.pop(m, None)

    def failed(self, node: int, key: str, parcel: Parcel | None) -> bool:
        """Tell whether an answer is none: it was lost, or the node says that it failed, which is then reported."""
        if parcel is None:
            return True
        self.bytes_up += parcel.size
        if parcel.head.get("kind") != FAILED:
            return False
        words = "".join(letter if letter.isprintable() else " " for letter in str(parcel.head.get("reason", "")))
        reason = " ".join(words.split())[:LONGEST_REASON] or "it does not say why"
        times = self._times_failed(node) + 1
        self.failures[node] = Trouble(self.k, node, key, reason, times)
        if times & (times - 1) == 0:
            self.report(self.failures[node])
        return True

    def refuse(self, node: int, key: str, reason: str) -> None:
        """Count a refused answer; exclude a node that has too many."""
        self.refusals += 1
        self.strikes[node] += 1
        told = [reason]
        if self.strikes[node] >= self.strikes_allowed:
            for m in [m for m, other in self.node_of_worker.items() if other == node]:
                self._drop(m)
            told.append(f"excluded after {self.strikes[node]} refused answers")
        for text in told:
            self.refused.append(Trouble(self.k, node, key, text))
            self.report(self.refused[-1])

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
        self.strikes = Counter(dict(state["strikes"]))
        self.bytes_down, self.bytes_up = state["bytes"]
        self.refusals = state["refused"]
        self.forget_nodes()
