"""Which nodes are there, and which of them is which worker: the one that says its key, and may.

What a node says of itself is not believed further than `Admission` says: a worker's key belongs to the first node that
says it, and how many samples a node says that it has counts up to a multiple of what the others say.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from lasg.core.arrays import FloatArray, IntArray, host
from lasg.errors import LasgError
from lasg.transports.model_deltas import NodeModel
from lasg.transports.nodes import FAILED, Parcel, is_integer, require

STRIKES = 3
"""Refused answers after which a node is excluded."""
FAILURES = 3
"""Errors in a row after which a node fails for good: a model that does not fit its data fails every time."""
LONGEST_REASON = 300
"""Characters of a node's own words that are repeated: one line, whatever it sends."""
LONGEST_PAUSE = 64.0
"""Seconds, at most, after which a node that failed, or was refused, when it was greeted is greeted again."""
SAMPLES_BOUND = 5
"""Samples that a node says it has count up to so many times the median of what the others say."""
MOST_SAMPLES = 10**12
"""Whoever says more is not believed at all."""
Bind = Literal["node", "key"]


@dataclass(frozen=True, kw_only=True)
class Admission:
    """Who may be which worker, and how much it counts for."""

    bind: Bind = "node"
    """node: a worker's key belongs to the first node that says it, for good, also after the server went on from a
    checkpoint. key: to whoever says it while no other node has it."""
    nodes: tuple[int, ...] = ()
    """The nodes that the workers are, in their order; none: see `bind`."""
    samples: tuple[int, ...] = ()
    """How many samples each worker counts for; none: what it says, bounded by what the others say."""

    def check(self, keys: Sequence[str]) -> None:
        """Refuse what does not fit these workers."""
        if self.bind not in ("node", "key"):
            raise LasgError(f"bind must be node or key, got {self.bind!r}")
        for name, values in {"nodes": self.nodes, "samples": self.samples}.items():
            if values and len(values) != len(keys):
                raise LasgError(f"{name} must be one number per worker, {len(keys)}, got {len(values)}")
        if len(set(self.nodes)) != len(self.nodes):
            raise LasgError("nodes names a node twice: a node is one worker")
        if any(not 1 <= count <= MOST_SAMPLES for count in self.samples):
            raise LasgError(f"samples must be from 1 to {MOST_SAMPLES:g}, got {list(self.samples)}")


class GreetingError(LasgError):
    """A greeting was answered, and the node cannot be a worker as things are: it is greeted again later."""


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
    taken: bool = False
    """Whether what the node said was used all the same, as far as it is believed."""


Report = Callable[[Trouble], None]


class Membership:
    """Greets nodes, knows them by their workers' keys, and excludes those that are refused too often."""

    def __init__(
        self,
        carrier: Carrier,
        keys: Sequence[str],
        *,
        admission: Admission,
        report: Report | None,
        clock: Callable[[], float],
        sleep: Callable[[float], None],
    ) -> None:
        """Take the workers' keys, in their order."""
        admission.check(keys)
        self.admission = admission
        self.carrier, self.keys, self.strikes_allowed = carrier, list(keys), STRIKES
        self.report, self.clock, self.sleep = report or (lambda _: None), clock, sleep
        self.settings: dict[str, Any] = {}
        """What nodes must be set up with."""
        self.k = 0
        """The round that is open, for reports."""
        self.samples: IntArray = np.zeros(len(self.keys), np.int64)
        """As the nodes say: 0 of those that have not come. `counted` is what serves."""
        self.owners: dict[int, int] = dict(enumerate(admission.nodes))
        """The node that each worker's key belongs to, where it is bound."""
        self.excluded: dict[int, str] = {}
        """Workers whose nodes were excluded, and why."""
        self.refused: list[Trouble] = []
        """By this server; `refusals` counts those of its incarnations before, too."""
        self.refusals = 0
        self.bytes_down = self.bytes_up = 0
        self.strikes: Counter[int] = Counter()
        self.forget_nodes()

    def forget_nodes(self) -> None:
        """Know no node: every one is met again."""
        self.node_of_worker: dict[int, int] = {}
        self.node_models: dict[int, NodeModel] = {}
        """What each worker's node has, if it answers."""
        self.starts: dict[int, Any] = {}
        """The checksum of the model that each worker's node would start from by itself, where it says so."""
        self.failures: dict[int, Trouble] = {}
        """The last error of each node that has not answered since."""
        self._greeted: dict[str, int] = {}
        self._greet_at: dict[int, float] = {}
        """When a node is greeted again: once its greeting has failed or was refused; until then, never."""
        self._waits_for: dict[int, int] = {}
        """Nodes that would be a worker if another one were not."""
        self._turned_away: Counter[int] = Counter()
        """How often in a row a node could not be a worker when it was greeted."""

    @property
    def counted(self) -> FloatArray:
        """How many samples each worker counts for: of those that have said how many they have."""
        claimed = self.samples.astype(np.float64)
        if self.admission.samples:
            claimed = np.array(self.admission.samples, np.float64)
        claimed[list(self.excluded)] = 0
        if self.admission.samples:
            return claimed
        there = np.flatnonzero(claimed > 0)
        if len(there) > 1:
            order = there[np.argsort(claimed[there], kind="stable")]
            middle = (len(there) - 2) // 2  # of the others; of an even number the lower one
            medians = np.where(np.arange(len(there)) <= middle, claimed[order[middle + 1]], claimed[order[middle]])
            claimed[order] = np.minimum(claimed[order], SAMPLES_BOUND * medians)
        return claimed

    @property
    def weights(self) -> FloatArray:
        """n_m / N, of those that have said how much data they have."""
        counted = self.counted
        weights: FloatArray = counted / max(1, counted.sum())
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
            expected = [m for m in range(len(self.keys)) if m not in self.excluded]
            missing = [self.keys[m] for m in expected if not self.samples[m]]
            if self.node_of_worker and not missing:
                self._report_bounded()
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

    def _report_bounded(self) -> None:
        """Say whose samples count for less than it says."""
        for m, counts in enumerate(self.counted.tolist()):
            if not self.admission.samples and 0 < counts < self.samples[m]:
                says = (
                    f"it says that it has {self.samples[m]} samples, more than {SAMPLES_BOUND} times what others have"
                )
                reason = f"{says}: counted as {counts:.0f}. The setting samples says what counts"
                self.report(Trouble(self.k, self.node_of_worker.get(m, 0), self.keys[m], reason, taken=True))

    def stop_if_all_excluded(self) -> None:
        """End a run that nobody may do any more: say why."""
        if len(self.excluded) == len(self.keys):
            reasons = "; ".join(f"worker {self.keys[m]}: {reason}" for m, reason in list(self.excluded.items())[:3])
            raise LasgError(f"every worker's node was excluded, so the run ends: {reasons}")

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
                self._greet_later(node, self._times_failed(node))  # longer after every error
                continue
            assert parcel is not None
            self.failures.pop(node, None)
            try:
                come.append(self._recognise(node, parcel, there))
                self._turned_away.pop(node, None)
            except GreetingError as error:
                self._turn_away(node, str(error))
            except LasgError as error:
                self.refuse(node, "", str(error))
                self._greet_later(node, self.strikes[node])
        return come

    def _greet_later(self, node: int, times: int) -> None:
        """Greet a node again, the later the more often it was in vain."""
        self._greet_at[node] = self.clock() + min(LONGEST_PAUSE, 2.0 ** max(0, times - 1))

    def _turn_away(self, node: int, reason: str) -> None:
        """Refuse a node that may be a worker later: reported at the first, second, fourth, eighth ... time in a row."""
        self._turned_away[node] += 1
        times = self._turned_away[node]
        self._greet_later(node, times)
        if times & (times - 1) == 0:
            self.refusals += 1
            self._note_refused(node, "", reason)

    def _recognise(self, node: int, parcel: Parcel, there: set[int]) -> int:
        """Take a node as the worker whose key it says."""
        said: list[Any] = [parcel.head.get(name) for name in ("kind", "key", "samples", "differs")]
        kind, key, samples, differs = said
        known = kind == "here" and isinstance(key, str) and is_integer(samples) and samples >= 1
        require(known, "it did not say who it is")
        require(samples <= MOST_SAMPLES, f"it says that it has {samples} samples, above {MOST_SAMPLES:g}")
        if key not in self.keys:
            raise GreetingError(f"nobody knows its key {key[:80]!r}")
        if differs:
            raise GreetingError(f"{key} was set up otherwise: {str(differs)[:500]}")
        m = self.keys.index(key)
        self._claim(m, node, there)
        if self.samples[m] not in (0, samples) and not self.admission.samples:
            raise GreetingError(f"{key} had {self.samples[m]} samples, and now has {samples}")
        self.node_of_worker[m], self.samples[m] = node, samples
        self.excluded.pop(m, None)
        self._waits_for.pop(node, None)
        if self.admission.bind == "node":
            self.owners[m] = node
        self.node_models.pop(m, None)
        self.starts[m] = parcel.head.get("start")
        return m

    def _claim(self, m: int, node: int, there: set[int]) -> None:
        """Refuse a node as worker m where another one is it, or where its key belongs to another one."""
        key, before = self.keys[m], self.node_of_worker.get(m, node)
        if before != node and before in there:
            self._waits_for[node] = m
            raise GreetingError(f"another node is {key}")
        if self.owners.get(m, node) != node:
            why = 'with bind = "key" whoever says a key first is its worker, and may come back as another node'
            raise GreetingError(f"{key} belongs to node {self.owners[m]}: {why}")
        other = [self.keys[n] for n, owner in self.owners.items() if owner == node and n != m]
        if other:
            raise GreetingError(f"it says that it is {key}, and is {other[0]}: a node is one worker")

    def _drop(self, m: int) -> None:
        """Know no node of a worker; who was refused as a second one is greeted again."""
        del self.node_of_worker[m]
        self.node_models.pop(m, None)
        for node in [node for node, wanted in self._waits_for.items() if wanted == m]:
            self._greet_at[node] = -math.inf
            del self._waits_for[node]

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
        self._note_refused(node, key, reason)
        if self.strikes[node] >= self.strikes_allowed:
            self.exclude(node, key, f"excluded after {self.strikes[node]} refused answers")

    def exclude(self, node: int, key: str, reason: str) -> None:
        """Ask a node no more, and count its worker's data for nothing."""
        self.strikes[node] = max(self.strikes[node], self.strikes_allowed)
        for m in [m for m, other in self.node_of_worker.items() if other == node]:
            self._drop(m)
            self.excluded[m] = reason
        self._note_refused(node, key, reason)

    def _note_refused(self, node: int, key: str, reason: str) -> None:
        self.refused.append(Trouble(self.k, node, key, reason))
        self.report(self.refused[-1])

    def state(self) -> dict[str, Any]:
        """Return what survives the server."""
        return {
            "settings": self.settings,
            "samples": self.samples,
            "owners": [[m, node] for m, node in self.owners.items()],
            "excluded": [[m, reason] for m, reason in self.excluded.items()],
            "strikes": [[node, count] for node, count in self.strikes.items()],
            "bytes": [self.bytes_down, self.bytes_up],
            "refused": self.refusals,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state: every node is met again."""
        self.samples = host(state["samples"]).copy()
        self.strikes = Counter(dict(state["strikes"]))
        if self.admission.bind == "node" and not self.admission.nodes:  # older checkpoints bind nobody
            self.owners = dict(state.get("owners", []))
        self.excluded = dict(state.get("excluded", []))
        self.bytes_down, self.bytes_up = state["bytes"]
        self.refusals = state["refused"]
        self.forget_nodes()
