"""Over which route the uploads of ranks travel, and in which form: pure functions of lengths, never of measured time.

The forms, one per run:

- summed: each uploading rank sends the sum of its workers' news in the run's dtype. What rounding takes away
  stays with the sender and goes along with its next upload, so nothing is lost over the rounds.
- totals: the same where everybody uploads in every round, with the contributions themselves: their sum is the
  aggregate. A rank whose gradient was not finite sends its last one again.
- packed: the encoded messages themselves, to everybody.
- relayed: encoded messages to the hub, which alone hears them, and the dense sum from there.
- requantised: where everybody uploads in every round, encoded pieces to the ranks that serve them, and the encoded
  sum of each piece from there (`quantised_sum.py`). It rounds the sum, too, so it is for who asks for it.

The routes, one per round: `direct`, from the uploader to everybody; `scatter`, in pieces to the ranks, each of which
sums (or collects) its piece and sends it on; and `hub`, the same with one rank that does it all.
"""

from __future__ import annotations

from typing import Literal

import numpy as np

from lasg.core.algorithms import Stages
from lasg.core.arrays import IntArray
from lasg.errors import LasgError

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
    sums: Form = "totals" if stages.rule.left is None and stages.belief != "difference" else "summed"
    if length is not None and length >= dense:
        return sums
    # The sum of others' messages would be another algorithm's, and so would that of what is said once or in parts.
    again = requantise and sums == "totals" and stages.belief == "replace"
    if again and codec.unbiased and len(np.unique(owners)) > 2 and setting != "direct":
        return "requantised"
    if length is None or len(owners) * length <= 2 * dense:
        return "packed"
    # A rank with many workers sends one sum with fewer bytes than their messages.
    shorter = int(np.bincount(owners).max()) * length <= dense
    return "relayed" if setting == "hub" and shorter else sums


def cost(route: Route, form: Form, dense: int, sizes: IntArray) -> tuple[int, int]:
    """Return the bytes over all links, and those of the busiest one with what its hops are worth.

    `sizes` are the bytes that each rank uploads, 0 for those that do not; `dense` are those of a dense vector.
    """
    ranks, total = len(sizes), int(sizes.sum())
    largest, others = int(sizes.max()), len(sizes) - 1
    onwards = total if form == "packed" else dense
    if route == "direct":
        return others * total, others * largest + HOP
    if route == "scatter":
        up = largest * others // ranks + onwards * others // ranks
        return total * others // ranks + others * onwards, up + 2 * HOP
    return total + others * onwards, others * onwards + 2 * HOP


def choose_route(setting: str, form: Form, dense: int, sizes: IntArray) -> Route:
    """Return the route of a round's uploads.

    The one whose busiest link carries least, among those that send no more than an all-reduce, 2 (R - 1) vectors.
    """
    allowed = ROUTES[setting]
    limit = 2 * (len(sizes) - 1) * dense
    costs = {name: cost(name, form, dense, sizes) for name in allowed}
    fitting = [name for name in allowed if costs[name][0] <= limit] or list(allowed)
    return min(fitting, key=lambda name: costs[name][1])


def split(count: int, ranks: int, route: Route, hub_rank: int) -> dict[int, slice]:
    """Return which part of so many entries or bytes each rank serves that serves any."""
    if route == "hub":
        return {hub_rank: slice(0, count)}
    bounds = [count * rank // ranks for rank in range(ranks + 1)]
    return {rank: slice(bounds[rank], bounds[rank + 1]) for rank in range(ranks)}
