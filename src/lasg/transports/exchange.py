"""How uploads reach every rank, so that each can run the same server.

A round has two parts: a few bytes a worker, the flags, and what was uploaded. The uploads travel in one of these forms:

- summed: each uploading rank sends the sum of its workers' innovations in the run's dtype. What rounding takes away
  stays with the sender and goes along with its next upload, so nothing is lost over the rounds.
- totals: the same where everybody uploads in every round, with the contributions themselves: their sum is the
  aggregate. A rank whose gradient was not finite sends its last one again.
- packed: the encoded messages themselves. Every rank keeps each worker's last decoded contribution, O(M p).
- relayed: encoded messages to the hub, which alone keeps the contributions, and the dense sum from there.
- requantised: where everybody uploads in every round, encoded pieces to the ranks that serve them, and the encoded
  sum of each piece from there (`quantised_sum.py`). It rounds the sum, too, so it is for who asks for it.

and over one of three routes: `direct`, from the uploader to everybody; `scatter`, in pieces to the ranks, each of
which sums (or collects) its piece and sends it on; and `hub`, the same with one rank that does it all. Sums are taken
in the order of the ranks, in float64, by one rank or by all alike: all ranks agree to the bit.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lasg.core.arrays import Array, FloatArray, IntArray, copies, host
from lasg.core.codecs import Codec, Dense
from lasg.core.contributions import Contributions
from lasg.core.rules import Rule
from lasg.core.workers import Gives, Reply
from lasg.errors import LasgError
from lasg.transports.links import Begun, Links
from lasg.transports.quantised_sum import QuantisedSum, SizedCodec

Form = Literal["summed", "totals", "packed", "relayed", "requantised"]
GIVES: dict[Form, Gives] = {
    "summed": "innovation",
    "totals": "total",
    "packed": "messages",
    "relayed": "messages",
    "requantised": "total",
}
"""What the workers of a rank must answer with."""
Route = Literal["direct", "scatter", "hub"]
ROUTES: dict[str, tuple[Route, ...]] = {
    "auto": ("direct", "scatter"),
    "collective": ("direct", "scatter"),
    "direct": ("direct",),
    "scatter": ("scatter",),
    "hub": ("hub",),
}
"""What a user may set, and what it allows."""
FLAGS, ALL_FLAGS, DIRECT, PIECES, ONWARDS = range(1, 6)
"""Channels: messages of one kind keep their order."""
HOP = 128 * 1024
"""Bytes that a link could carry while a message is under way: 50 Mbit/s and 20 ms, or 10 Gbit/s and 0.1 ms."""


def form(
    p: int, itemsize: int, owners: IntArray, codec: Codec, rule: Rule, setting: str, *, requantise: bool = False
) -> Form:
    """Return the form of a run's uploads.

    Packed messages go to everybody, one an uploader: in the worst round M of them, which must not be more than
    DistributedDataParallel sends. It is one form for all rounds: who missed a message cannot use the next. Dense
    messages are never shorter than their sum. `owners` are the ranks of the workers. `requantise` allows to round the
    sum as well, which is shorter from three ranks on.
    """
    length, dense = getattr(codec, "length", None), p * itemsize
    sums: Form = "totals" if rule.left is None else "summed"
    if isinstance(codec, Dense):
        return sums
    unbiased = getattr(codec, "unbiased", False)  # the sum of others' messages would be another algorithm's
    if requantise and sums == "totals" and unbiased and len(np.unique(owners)) > 2 and setting != "direct":
        return "requantised"
    if length is None or len(owners) * length(p) <= 2 * dense:
        return "packed"
    # A rank with many workers sends one sum with fewer bytes than their messages.
    shorter = int(np.bincount(owners).max()) * length(p) <= dense
    return "relayed" if setting == "hub" and shorter else sums


def cost(route: Route, how: Form, dense: int, sizes: IntArray) -> tuple[int, int]:
    """Return the bytes over all links, and those of the busiest one with what its hops are worth.

    `sizes` are the bytes that each rank uploads, 0 for those that do not; `dense` are those of a dense vector.
    """
    ranks, total = len(sizes), int(sizes.sum())
    largest, others = int(sizes.max()), len(sizes) - 1
    onwards = total if how == "packed" else dense
    if route == "direct":
        return others * total, others * largest + HOP
    if route == "scatter":
        up = largest * others // ranks + onwards * others // ranks
        return total * others // ranks + others * onwards, up + 2 * HOP
    return total + others * onwards, others * onwards + 2 * HOP


def route(setting: str, how: Form, dense: int, sizes: IntArray) -> Route:
    """Return the route of a round's uploads: a pure function of what is sent, never of measured time.

    The one whose busiest link carries least, among those that send no more than an all-reduce, 2 (R - 1) vectors.
    """
    allowed = ROUTES[setting]
    limit = 2 * (len(sizes) - 1) * dense
    costs = {name: cost(name, how, dense, sizes) for name in allowed}
    fitting = [name for name in allowed if costs[name][0] <= limit] or list(allowed)
    return min(fitting, key=lambda name: costs[name][1])


class Flags(NamedTuple):
    """What every rank knows of all M workers before anything is sent."""

    sizes: IntArray
    """Bytes of each worker's upload; 0: silent; -1: its gradient was not finite."""
    estimates: FloatArray | None
    """Estimates of L_m, where the rule has them; 0 for who does not upload."""
    left: FloatArray | None
    """The rule's left side, where it is told."""
    loss: float | None
    """The mean loss of those that computed, where it is told."""


class Exchange:
    """Makes one reply of all workers out of the ranks' own, the same on every rank."""

    def __init__(
        self,
        links: Links,
        owners: IntArray,
        codec: Codec,
        rule: Rule,
        theta: Array,
        *,
        setting: str = "auto",
        relay: int = 0,
        tell_left: bool = False,
        tell_loss: bool = False,
        requantise: bool = False,
        seed: int = 0,
    ) -> None:
        """Take the links, and the rank of each worker: the workers of a rank have consecutive numbers.

        `seed` is for the rounding of sums, where `requantise` allows it.
        """
        if setting not in ROUTES:
            raise LasgError(f"exchange must be one of {', '.join(ROUTES)}, got {setting!r}")
        if not 0 <= relay < links.ranks:
            raise LasgError(f"relay must be a rank, 0 to {links.ranks - 1}, got {relay!r}")
        self.links, self.owners, self.codec, self.rule = links, owners, codec, rule
        self.setting, self.relay = setting, relay
        self.p, self.itemsize = theta.shape[-1], int(theta.itemsize)
        self.form = form(self.p, self.itemsize, owners, codec, rule, setting, requantise=requantise)
        keeps = self.form == "packed" or (self.form == "relayed" and links.rank == relay)
        self.contributions = Contributions(len(owners), theta) if keeps else None
        self.mine = owners == links.rank
        self._counts = np.bincount(owners, minlength=links.ranks).tolist()
        self._tells_left = tell_left
        self._like = theta
        self._dtype = torch.float64 if self.itemsize == 8 else torch.float32
        # What rounding has taken from this rank's uploads, and from the sums of the piece that it owns.
        self.owed = torch.zeros(self.p, dtype=torch.float64) if self._rounds else None
        self.owed_sum = torch.zeros_like(self.owed) if self.owed is not None else None
        self.heads = np.zeros((links.ranks, 1), np.uint64)
        told = {"estimate": bool(rule.estimate), "left": tell_left, "loss": tell_loss}
        self._flag = np.dtype([("size", "<i8"), *((name, "<f8") for name, is_told in told.items() if is_told)])
        self._tells_loss = tell_loss
        self._be_ready()
        self.quantised_sum: QuantisedSum | None = None
        if self.form == "requantised":
            serving = [relay] if setting == "hub" else list(range(links.ranks))
            self.quantised_sum = QuantisedSum(
                links, cast("SizedCodec", codec), theta, serving=serving, seed=seed, channels=(PIECES, ONWARDS)
            )

    @property
    def _rounds(self) -> bool:
        return self.form in ("summed", "relayed") and self._dtype != torch.float64

    @property
    def _sums(self) -> bool:
        """Whether ranks send vectors that are added up, and not messages."""
        return self.form in ("summed", "totals")

    def _be_ready(self) -> None:
        """Open the channels: the longest messages that each rank can send are known."""
        links, ranks = self.links, range(self.links.ranks)
        counts, length = self._counts, getattr(self.codec, "length", None)
        if self._sums:
            uploads = [self.p * self.itemsize] * links.ranks
        else:
            uploads = [0 if length is None else counts[rank] * length(self.p) for rank in ranks]
        self._longest = max(uploads)
        # A piece is rounded up, in entries or bytes.
        pieces = {rank: -(-size // links.ranks) + 8 for rank, size in enumerate(uploads)}
        onwards = max(pieces.values()) if self._sums else sum(pieces.values())
        over_relay = self.setting == "hub"
        if over_relay:
            pieces = dict(enumerate(uploads))
            onwards = sum(uploads) if self.form == "packed" else self.p * self.itemsize
        serves = {self.relay} if over_relay else set(ranks)
        if not over_relay or links.rank == self.relay:
            links.open(FLAGS, {rank: 16 + counts[rank] * self._flag.itemsize for rank in ranks})
        if over_relay:
            links.open(ALL_FLAGS, {self.relay: 16 * links.ranks + len(self.owners) * self._flag.itemsize})
        if self.form == "requantised" or (self.form == "packed" and length is None):
            return  # the quantised sum opens its own; a codec's messages may have any length
        if "direct" in ROUTES[self.setting]:
            links.open(DIRECT, dict(enumerate(uploads)))
        if links.rank in serves:
            links.open(PIECES, pieces)
        links.open(ONWARDS, dict.fromkeys(serves, onwards))

    def carry(self, k: int, reply: Reply, wish: int = 0, checksum: int | None = None, loss: float = np.nan) -> Reply:
        """Tell the others what the workers of this rank answered in round k, and return what all of them did.

        A wish goes along: after it `wished` is the highest of all ranks'. In rounds that all ranks agree on a checksum
        of the model does, too: after it `differing` are the ranks whose is not that of rank 0. `loss` is that of this
        rank's minibatches, where losses are told; NaN: it computed none.
        """
        head = [wish] if checksum is None else [wish, checksum]
        self.heads = np.zeros((self.links.ranks, len(head)), np.uint64)
        self.heads[self.links.rank] = head
        own, way = None, None
        if self.quantised_sum is not None:
            started = self.quantised_sum.begin(k, reply.total)
        else:
            own, way = self._own(reply), self._known_way()
            started = [] if way is None else self._begin(own, way)
        flags = self._flags(reply, loss)
        uploaded = flags.sizes > 0
        uploads = int(np.count_nonzero(uploaded))
        broken = flags.sizes < 0
        estimates = None if flags.estimates is None else flags.estimates[uploaded]
        found = None
        if self.quantised_sum is not None:
            found = self._here(self.quantised_sum.finish(k))
        elif uploads or self.form == "totals":
            lengths = self._lengths(np.maximum(flags.sizes, 0))
            if way is None:
                way = route(self.setting, self.form, self.p * self.itemsize, lengths)
                started = self._begin(own, way)
            finish = self._summed if self._sums else {"packed": self._packed, "relayed": self._relayed}[self.form]
            found = finish(own, flags.sizes, lengths, way)
        self.links.settle(started, "uploads")
        return Reply(
            uploaded,
            None if GIVES[self.form] == "total" else found,
            uploads,
            8 * int(flags.sizes[uploaded].sum()),
            reply.gradients,
            flags.left,
            estimates,
            broken if broken.any() else None,
            total=found if GIVES[self.form] == "total" else None,
            loss=flags.loss,
        )

    # -- flags ------------------------------------------------------------------------------------------------

    def _flags(self, reply: Reply, loss: float) -> Flags:
        """Tell everybody, over the relay or directly, how much the workers of this rank upload."""
        table = np.zeros(len(self.owners), self._flag)
        own = table[self.mine]
        if reply.uploads:
            own["size"][reply.uploaded] = self._sizes(reply)
        if reply.broken is not None:
            own["size"][reply.broken] = -1
        if reply.estimates is not None:
            own["estimate"][reply.uploaded] = reply.estimates
        if self._tells_left:
            own["left"] = np.nan if reply.left is None else reply.left
        if self._tells_loss:
            own["loss"] = loss
        table[self.mine] = own
        if self.setting == "hub":
            self._tell_over_relay(table)
        else:
            self._tell(table)
        left = None
        if self._tells_left and not np.isnan(table["left"]).all():
            left = table["left"].copy()
        elif reply.left is not None:  # of the others it is not known
            left = np.full(len(self.owners), np.nan)
            left[self.mine] = reply.left
        estimates = table["estimate"].copy() if self.rule.estimate else None
        losses = table["loss"][np.isfinite(table["loss"])] if self._tells_loss else ()
        return Flags(table["size"].astype(np.int64), estimates, left, float(np.mean(losses)) if len(losses) else None)

    def _sizes(self, reply: Reply) -> IntArray | int:
        """Return the bytes of this rank's uploads, one number each."""
        if self.quantised_sum is not None:
            return self.quantised_sum.codec.length(self.p)
        if reply.messages:
            return np.array([len(message) for message in reply.messages])
        return reply.bits // 8 // reply.uploads

    @property
    def wished(self) -> int:
        """The highest wish of any rank, in the last round."""
        return int(self.heads[:, 0].max())

    @property
    def differing(self) -> list[int]:
        """The ranks whose model was not rank 0's, if the last round compared them."""
        sums = self.heads[:, 1:]
        return np.flatnonzero((sums != sums[0]).any(1)).tolist()

    def _tell(self, table: npt.NDArray[Any]) -> None:
        """Tell every rank, and hear every rank."""
        heard = self._heard()
        said = self.links.wire(_bytes(self.heads[self.links.rank], table[self.mine]))
        self.links.exchange(dict.fromkeys(self.links.others, said), heard, "flags", FLAGS)
        self._note(table, heard)

    def _tell_over_relay(self, table: npt.NDArray[Any]) -> None:
        """Tell the relay, which tells everybody."""
        links, relay = self.links, self.relay
        if links.rank == relay:
            heard = self._heard()
            links.receive(heard, "flags", FLAGS)
            self._note(table, heard)
            everything = links.wire(_bytes(self.heads, table))
            links.exchange(dict.fromkeys(links.others, everything), {}, "flags", ALL_FLAGS)
            return
        everything = links.empty(self.heads.nbytes + table.nbytes)
        said = links.wire(_bytes(self.heads[links.rank], table[self.mine]))
        started = links.start({relay: said}, "flags", FLAGS)
        links.receive({relay: everything}, "flags", ALL_FLAGS)
        links.settle(started, "flags")
        data = host(everything)
        self.heads[:] = data[: self.heads.nbytes].view(np.uint64).reshape(self.heads.shape)
        table[:] = data[self.heads.nbytes :].view(self._flag)

    def _heard(self) -> dict[int, Tensor]:
        """Return room for what the other ranks say."""
        head = 8 * self.heads.shape[1]
        return {rank: self.links.empty(head + self._counts[rank] * self._flag.itemsize) for rank in self.links.others}

    def _note(self, table: npt.NDArray[Any], heard: dict[int, Tensor]) -> None:
        """Take what the other ranks said."""
        head = 8 * self.heads.shape[1]
        for rank, said in heard.items():
            data = host(said)
            self.heads[rank] = data[:head].view(np.uint64)
            table[self.owners == rank] = data[head:].view(self._flag)

    # -- uploads ----------------------------------------------------------------------------------------------

    def _own(self, reply: Reply) -> Tensor | None:
        """Return what this rank uploads, as it travels."""
        if reply.messages:
            return self.links.wire(np.frombuffer(b"".join(reply.messages), np.uint8).copy())
        if reply.total is not None:
            return self.links.wire(reply.total).to(self._dtype)
        if reply.innovation is None:
            return None
        return self._rounded(self.links.wire(reply.innovation), self.owed, slice(None))

    def _lengths(self, sizes: IntArray) -> IntArray:
        """Return the bytes that each rank uploads."""
        if self.form == "totals":
            return np.full(self.links.ranks, self.p * self.itemsize)
        lengths: IntArray = np.bincount(self.owners, sizes, self.links.ranks).astype(np.int64)
        return np.where(lengths > 0, self.p * self.itemsize, 0) if self.form == "summed" else lengths

    def _known_way(self) -> Route | None:
        """Return the route where it does not depend on who uploads: then uploads leave together with the flags."""
        allowed = ROUTES[self.setting]
        if len(allowed) == 1:
            return allowed[0]
        if self.form == "totals":
            dense = self.p * self.itemsize
            return route(self.setting, self.form, dense, np.full(self.links.ranks, dense))
        short = self.form == "packed" and 0 < self._longest * (self.links.ranks - 1) <= HOP
        return "direct" if short else None  # what `route` would say, whoever uploads

    def _begin(self, own: Tensor | None, way: Route) -> list[Begun]:
        """Begin to send what this rank uploads: to everybody, or in pieces to those that serve them."""
        if own is None:
            return []
        if way == "direct":
            return self.links.start(dict.fromkeys(self.links.others, own), "uploads", DIRECT)
        pieces = {rank: own[piece] for rank, piece in self._pieces(len(own), way).items() if rank != self.links.rank}
        return self.links.start(pieces, "uploads", PIECES)

    def _pieces(self, count: int, way: Route) -> dict[int, slice]:
        """Return which part of so many entries or bytes each rank serves that serves any."""
        if way == "hub":
            return {self.relay: slice(0, count)}
        bounds = [count * rank // self.links.ranks for rank in range(self.links.ranks + 1)]
        return {rank: slice(bounds[rank], bounds[rank + 1]) for rank in range(self.links.ranks)}

    def _summed(self, own: Tensor | None, _: IntArray, lengths: IntArray, way: Route) -> Array:
        """Return the sum of all innovations."""
        uploading = np.flatnonzero(lengths).tolist()
        return self._here(
            self._direct_sum(own, uploading) if way == "direct" else self._served_sum(own, uploading, way)
        )

    def _here(self, total: Tensor) -> Array:
        """Return what came over the links as the server has its vectors."""
        return host(total) if isinstance(self._like, np.ndarray) else total.to(self._like.device)

    def _direct_sum(self, own: Tensor | None, uploading: list[int]) -> Tensor:
        """Every uploader to everybody, who all add in the same order."""
        links = self.links
        received = {rank: links.empty(self.p, self._dtype) for rank in uploading if rank != links.rank}
        links.receive(received, "uploads", DIRECT)
        if own is not None:
            received[links.rank] = own
        return _total([received[rank] for rank in uploading])

    def _served_sum(self, own: Tensor | None, uploading: list[int], way: Route) -> Tensor:
        """Pieces to the ranks that serve them, their sums to everybody."""
        links = self.links
        pieces = self._pieces(self.p, way)
        mine = pieces.get(links.rank)
        result = links.empty(self.p, self._dtype)
        if mine is not None:
            length = mine.stop - mine.start
            received = {rank: links.empty(length, self._dtype) for rank in uploading if rank != links.rank}
            links.receive(received, "uploads", PIECES)
            if own is not None:
                received[links.rank] = own[mine]
            total = _total([received[rank] for rank in uploading])
            result[mine] = self._rounded(total, self.owed_sum, mine)
        sends = {} if mine is None else dict.fromkeys(links.others, result[mine])
        theirs = {rank: result[piece] for rank, piece in pieces.items() if rank != links.rank}
        links.exchange(sends, theirs, "sums", ONWARDS)
        return result if self.form == "totals" else result.double()

    def _rounded(self, values: Tensor, owed: Tensor | None, where: slice) -> Tensor:
        """Return values in the run's dtype; what that takes away is owed, and was paid with the values before."""
        if owed is None:
            return values.to(self._dtype)
        wanted = owed[where]  # in place: temporaries of double precision cost more than the sums
        wanted += values
        found = wanted.to(self._dtype)
        wanted -= found
        return found

    def _packed(self, own: Tensor | None, sizes: IntArray, lengths: IntArray, way: Route) -> Array:
        """Return the sum of all innovations, from everybody's messages."""
        payloads = self._payloads(own, lengths)
        if way == "direct":
            received = {rank: payload for rank, payload in payloads.items() if rank != self.links.rank}
            self.links.receive(received, "uploads", DIRECT)
        else:
            self._served_messages(payloads, way)
        return self._taken(payloads, sizes)

    def _relayed(self, own: Tensor | None, sizes: IntArray, lengths: IntArray, _: Route) -> Array:
        """Return the sum of all innovations: the relay has the messages, and tells it."""
        links = self.links
        if links.rank != self.relay:
            total = links.empty(self.p, self._dtype)
            links.receive({self.relay: total}, "sums", ONWARDS)
        else:
            payloads = self._payloads(own, lengths)
            received = {rank: payload for rank, payload in payloads.items() if rank != links.rank}
            links.receive(received, "uploads", PIECES)
            total = self._rounded(links.wire(self._taken(payloads, sizes)), self.owed_sum, slice(None))
            links.exchange(dict.fromkeys(links.others, total), {}, "sums", ONWARDS)
        return self._here(total.double())

    def _payloads(self, own: Tensor | None, lengths: IntArray) -> dict[int, Tensor]:
        """Return this rank's messages, and room for the others'."""
        found = {rank: self.links.empty(int(lengths[rank])) for rank in np.flatnonzero(lengths).tolist()}
        return found if own is None else {**found, self.links.rank: own}

    def _taken(self, payloads: dict[int, Tensor], sizes: IntArray) -> Array:
        """Take everybody's messages, in the order of the workers; return the sum of what they change."""
        assert self.contributions is not None
        who = np.flatnonzero(sizes > 0)
        messages = []
        for rank in sorted(payloads):
            data, start = host(payloads[rank]).tobytes(), 0
            for m in who[self.owners[who] == rank].tolist():
                messages.append(data[start : start + int(sizes[m])])
                start += int(sizes[m])
        return self.contributions.take(self.codec, messages, who)

    def _served_messages(self, payloads: dict[int, Tensor], way: Route) -> None:
        """Fill in the other ranks' messages: pieces to the ranks that serve them, which send on all they have."""
        links = self.links
        pieces = {rank: self._pieces(len(payload), way) for rank, payload in payloads.items()}
        serving = [rank for rank in range(links.ranks) if way == "scatter" or rank == self.relay]

        def parts(server: int, to: int) -> list[Tensor]:
            """What a serving rank sends on: its piece of every upload but that of who gets it."""
            return [payloads[rank][pieces[rank][server]] for rank in sorted(payloads) if rank != to]

        sends = {}
        if links.rank in serving:
            others = {rank: payload for rank, payload in payloads.items() if rank != links.rank}
            received = {rank: payload[pieces[rank][links.rank]] for rank, payload in others.items()}
            links.receive(received, "uploads", PIECES)
            sends = {to: torch.cat(parts(links.rank, to)) for to in links.others if parts(links.rank, to)}
        incoming = {server: parts(server, links.rank) for server in serving if server != links.rank}
        onwards = {server: links.empty(sum(map(len, some))) for server, some in incoming.items()}
        links.exchange(sends, onwards, "uploads", ONWARDS)
        for server, some in incoming.items():
            for part, data in zip(some, torch.split(onwards[server], [len(part) for part in some]), strict=True):
                part.copy_(data)

    def state(self) -> dict[str, Array | None]:
        """Return what a checkpoint must hold of this rank."""
        contributed = None if self.contributions is None else self.contributions.rows
        return {"owed": self.owed, "owed_sum": self.owed_sum, "contributed": contributed}

    def restore(self, state: dict[str, Array | None]) -> None:
        """Take a checkpoint's state."""
        for name in ("owed", "owed_sum"):
            held = getattr(self, name)
            if held is not None:
                held.copy_(state[name])
        if self.contributions is not None:
            self.contributions.rows = copies(state["contributed"], self._like)


def _bytes(head: npt.NDArray[np.uint64], rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return what is said in every round, and the flags of some workers, as bytes."""
    return np.concatenate([np.ascontiguousarray(head).reshape(-1).view(np.uint8), rows.view(np.uint8)])


def _total(parts: list[Tensor]) -> Tensor:
    """Return the sum in double precision, in the given order."""
    total = parts[0].double()
    for part in parts[1:]:
        total = total + part.double()
    return total
