"""How uploads get from rank to rank: in which form, and over which route.

The forms, one per run, each with its carrier (`Sums` in `ranks.py`, `encoded.py`, `quantised_sum.py`):

- summed: each uploading rank sends the sum of its workers' news in the run's dtype. What rounding takes away
  stays with the sender and goes along with its next upload, so nothing is lost over the rounds.
- totals: the same where everybody uploads in every round, with the contributions themselves: their sum is the
  aggregate. A rank whose gradient was not finite sends its last one again.
- packed: the encoded messages themselves, to everybody.
- relayed: encoded messages to the hub, which alone hears them, and the dense sum from there.
- requantised: where everybody uploads in every round, encoded pieces to the ranks that serve them, and the encoded
  sum of each piece from there. It rounds the sum, too, so it is for who asks for it.

The routes, one per round: `direct`, from the uploader to everybody; `scatter`, in pieces to the ranks, each of which
sums (or collects) its piece and sends it on; and `hub`, the same with one rank that does it all.

Both are chosen by lengths, never by measured time. Sums are taken in the order of the ranks, in float64, by one rank or
by all alike: all ranks agree to the bit.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lasg.core.algorithms import Stages
from lasg.core.arrays import IntArray, Remainder
from lasg.errors import LasgError
from lasg.transports.links import Links

Form = Literal["summed", "totals", "packed", "relayed", "requantised"]
Route = Literal["direct", "scatter", "hub"]
ROUTES: dict[str, tuple[Route, ...]] = {
    "auto": ("direct", "scatter"),
    "collective": ("direct", "scatter"),
    "direct": ("direct",),
    "scatter": ("scatter",),
    "hub": ("hub",),
}
"""What a user may set, and what it allows."""
HOP = 128 * 1024
"""Bytes that a link could carry while a message is under way: 50 Mbit/s and 20 ms, or 10 Gbit/s and 0.1 ms."""
DIRECT, PIECES, ONWARDS, AT_ONCE = 3, 4, 5, 6
"""Channels: messages of one kind keep their order."""


class Setup(NamedTuple):
    """What all carriers need to know."""

    links: Links
    setting: str
    """What the user set: a key of `ROUTES`."""
    hub_rank: int
    owners: IntArray
    """The rank of each worker."""
    form: Form
    p: int
    dtype: torch.dtype
    length: int | None
    """The bytes of a message, if they are known before."""

    @property
    def dense(self) -> int:
        """The bytes of a dense vector."""
        return self.p * self.dtype.itemsize

    @property
    def in_every_round(self) -> bool:
        """Whether all ranks send in every round, whoever uploads."""
        return self.form in ("totals", "requantised")

    def open(self, longest: list[int], onwards: int | None = None) -> None:
        """Get ready for uploads of up to `longest` bytes per rank, and for what is sent `onwards`: by default, all."""
        links = self.links
        # A piece is rounded up, in entries or bytes.
        pieces = {rank: -(-size // links.ranks) + 8 for rank, size in enumerate(longest)}
        serves = set(range(links.ranks))
        if self.setting == "hub":
            pieces, serves = dict(enumerate(longest)), {self.hub_rank}
        if "direct" in ROUTES[self.setting]:
            links.open(DIRECT, dict(enumerate(longest)))
        if links.rank in serves:
            links.open(PIECES, pieces)
        links.open(ONWARDS, dict.fromkeys(serves, sum(pieces.values()) if onwards is None else onwards))

    def remainder(self) -> Remainder:
        """Return what rounds sums; what stands for itself in every round owes nothing to the next."""
        return Remainder(torch.empty(0, dtype=self.dtype), self.p, exact=self.form == "totals")

    def pieces(self, count: int, route: Route) -> dict[int, slice]:
        """Return which part of so many entries or bytes each rank serves that serves any."""
        if route == "hub":
            return {self.hub_rank: slice(0, count)}
        ranks = self.links.ranks
        return {rank: slice(count * rank // ranks, count * (rank + 1) // ranks) for rank in range(ranks)}


def rooms_of(room: Tensor, where: slice) -> Iterator[Tensor]:
    """Give rooms as long as a piece of a vector: its place in the room of the whole, others there, then new ones."""
    length = where.stop - where.start
    yield room[where]
    for part in (room[: where.start], room[where.stop :]):
        yield from (rest for rest in torch.split(part, length) if len(rest) == length)
    while True:
        yield room.new_empty(length)


def assign_workers(workers: int, ranks: int) -> IntArray:
    """Return the rank that hosts each worker: consecutive ones, as evenly as can be."""
    if ranks > workers:
        raise LasgError(f"{ranks} ranks for {workers} workers: a rank without a worker has nothing to do, start fewer")
    return np.arange(workers) * ranks // workers


def choose_form(
    p: int, itemsize: int, owners: IntArray, stages: Stages, setting: str, *, requantise: bool = False
) -> Form:
    """Return the form of a run's uploads.

    Packed messages go to everybody, one per uploader: in the worst round M of them, which must not be more than
    DistributedDataParallel sends. It is one form for all rounds: who missed a message cannot use the next. Messages as
    long as the vector are never shorter than their sum. `owners` are the ranks of the workers. `requantise` allows to
    round the sum as well, which is shorter from three ranks on.
    """
    codec, dense = stages.codec, p * itemsize
    length = codec.length(p, itemsize)
    if stages.robust is not None:  # a bound looks at every upload: their sum says too little
        return "packed"
    sums: Form = "totals" if stages.rule.left is None and stages.belief != "difference" else "summed"
    if length is not None and length >= dense:
        return sums
    # The sum of others' messages would be another algorithm's, and so would that of what is said once or in parts.
    again = requantise and sums == "totals" and stages.belief == "replace"
    if again and length and codec.unbiased and len(np.unique(owners)) > 2 and setting != "direct":
        return "requantised"
    if length is None or len(owners) * length <= 2 * dense:
        return "packed"
    # A rank with many workers sends one sum with fewer bytes than their messages.
    shorter = int(np.bincount(owners).max()) * length <= dense
    return "relayed" if setting == "hub" and shorter else sums


def choose_route(setup: Setup, sizes: IntArray) -> Route:
    """Return the route of a round's uploads, of which each rank has so many bytes; 0: it uploads nothing.

    The one whose busiest link carries least, among those that send no more than an all-reduce, 2 (R - 1) vectors.
    """
    ranks, total, largest = len(sizes), int(sizes.sum()), int(sizes.max())
    others, onwards = ranks - 1, total if setup.form == "packed" else setup.dense
    # The bytes over all links, and those of the busiest one with what its hops are worth.
    costs: dict[Route, tuple[int, int]] = {
        "direct": (others * total, others * largest + HOP),
        "scatter": (
            total * others // ranks + others * onwards,
            largest * others // ranks + onwards * others // ranks + 2 * HOP,
        ),
        "hub": (total + others * onwards, others * onwards + 2 * HOP),
    }
    allowed = ROUTES[setup.setting]
    fitting = [route for route in allowed if costs[route][0] <= 2 * others * setup.dense]
    return min(fitting or allowed, key=lambda route: costs[route][1])
