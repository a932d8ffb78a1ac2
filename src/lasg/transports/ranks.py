"""Workers on the ranks of a process group. Every rank runs the same server, so the model never travels."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lasg.core.arrays import Array, FloatArray, IntArray, checksum, host
from lasg.core.codecs import Dense
from lasg.core.messages import News, Request, Uploads
from lasg.core.transport import Hosting, Local, Plan, Problem
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.transports.links import PATIENT, Links
from lasg.transports.quantised_sum import QuantisedSum
from lasg.transports.routes import HOP, ROUTES, Form, Route, assign_workers, choose_form, choose_route
from lasg.transports.uploads import ONWARDS, PIECES, Messages, Remainder, Sums, cut_messages

CHECK_EVERY = 100
"""Rounds between two comparisons of the ranks' models."""
FLAGS, ALL_FLAGS = 1, 2
"""Channels: messages of one kind keep their order."""


class Ranks(Local):
    """The ranks of a process group: each hosts some of the M workers and computes for them alone.

    A round has two parts: a few bytes per worker, the flags, and what was uploaded, in a form and over a route that are
    this module's business alone: `routes.py` says which.
    """

    def __init__(
        self,
        links: Links | None = None,
        *,
        exchange: str = "auto",
        hub_rank: int = 0,
        tell_left: bool = False,
        check_every: int = CHECK_EVERY,
        requantise: bool = False,
    ) -> None:
        """Take the links, and how uploads are exchanged over them.

        Every `check_every` rounds the ranks compare checksums of their models; 0 is never. `requantise` allows what the
        simulation does not do: to round the sum of quantised uploads again, where that is shorter.
        """
        self.links = (links or Links()).with_own_tags()
        if exchange not in ROUTES:
            raise LasgError(f"exchange must be one of {', '.join(ROUTES)}, got {exchange!r}")
        if not 0 <= hub_rank < self.links.ranks:
            raise LasgError(f"the hub must be a rank, 0 to {self.links.ranks - 1}, got {hub_rank!r}")
        self.setting, self.hub_rank, self.tell_left = exchange, hub_rank, tell_left
        self.check_every, self.requantise = check_every, requantise
        self.is_first = self.links.rank == 0

    def begin(self, plan: Plan) -> Hosting:
        """Choose the form of the uploads, and open the channels that it needs."""
        links, stages, theta = self.links, plan.stages, plan.theta
        self.owners = assign_workers(plan.workers, links.ranks)
        ids: IntArray = np.flatnonzero(self.owners == links.rank)
        self.p, itemsize = theta.shape[-1], int(theta.itemsize)
        self.dense, self.like = self.p * itemsize, theta
        self.local_steps, self.once = stages.local_steps, stages.belief == "residual"
        self.form: Form = choose_form(self.p, itemsize, self.owners, stages, self.setting, requantise=self.requantise)
        told = {"estimate": bool(stages.rule.estimate), "left": self.tell_left, "loss": plan.wants_loss}
        self.flags = FlagExchange(links, self.owners, self.hub_rank if self.setting == "hub" else None, told)
        dtype = torch.float64 if itemsize == 8 else torch.float32
        self.sums: Sums | None = None
        self.messages: Messages | None = None
        self.quantised: QuantisedSum | None = None
        self.hub_remainder: Remainder | None = None
        self.hub_listener = None
        if self.form in ("summed", "totals"):
            self.sums = Sums(links, self.setting, self.hub_rank, self.p, dtype, self.form)
            return Hosting(ids, plan.listener(len(ids), whole=self.form == "totals"), "news")
        if self.form == "requantised":
            serving = [self.hub_rank] if self.setting == "hub" else list(range(links.ranks))
            self.quantised = QuantisedSum(
                links, stages.codec, theta, serving=serving, seed=plan.seed, channels=(PIECES, ONWARDS)
            )
            dense = dataclasses.replace(stages, codec=Dense())  # here the transport encodes
            return Hosting(ids, plan.listener(len(ids), whole=True), "news", dense)
        length = stages.codec.length(self.p, itemsize) or 0
        lengths = [int(count) * length for count in np.bincount(self.owners, minlength=links.ranks)]
        self._longest = max(lengths)
        relayed = self.form == "relayed"
        self.messages = Messages(links, self.setting, self.hub_rank, lengths, self.dense if relayed else None)
        if not relayed:
            return Hosting(ids, plan.listener(plan.workers))
        self.hub_remainder = Remainder(self.p, dtype)
        if links.rank == self.hub_rank:
            self.hub_listener = plan.listener(plan.workers)
        return Hosting(ids, None)

    def exchange(self, request: Request, own: Uploads) -> Uploads:
        """Tell the others what the workers of this rank answered, and return what all of them did."""
        checks = self.check_every and request.k and request.k % self.check_every == 0
        number = checksum(request.theta) if checks else None
        outgoing, route = self._outgoing(own), self._known_route()
        if self.quantised is not None:
            assert own.news is not None
            started = self.quantised.begin(request.k, own.news.vector)
        else:
            started = [] if route is None or outgoing is None else self._carrier.begin(outgoing, route)
        flags = self.flags.exchange(own, self._sizes(own), number)
        uploaded = flags.sizes > 0
        uploads = int(np.count_nonzero(uploaded))
        news: News | None = None
        messages: tuple[bytes, ...] = ()
        if self.quantised is not None:
            news = News(self._here(self.quantised.finish(request.k)), whole=True)
        elif uploads or self.form == "totals":
            lengths = self._lengths(np.maximum(flags.sizes, 0))
            if route is None:
                route = choose_route(self.setting, self.form, self.dense, lengths)
                started = self._carrier.begin(outgoing, route)
            news, messages = self._finish(outgoing, flags.sizes, lengths, route)
        elif self.once and self.form != "packed":
            news = News(self._here(torch.zeros(self.p, dtype=torch.float64)), whole=True)
        self.links.wait(started, "uploads")
        return self._together(request, flags, uploaded, news, messages)

    def _together(
        self, request: Request, flags: Flags, uploaded: Any, news: News | None, messages: tuple[bytes, ...]
    ) -> Uploads:
        """Return what all ranks answered."""
        broken = flags.sizes < 0
        return Uploads(
            uploaded,
            int(np.count_nonzero(uploaded)),
            8 * int(flags.sizes[uploaded].sum()),
            int(np.count_nonzero(request.computes)) * request.points * self.local_steps,
            news,
            messages,
            left=flags.left,
            estimates=None if flags.estimates is None else flags.estimates[uploaded],
            broken=broken if broken.any() else None,
            loss=flags.loss,
            control=flags.control,
            differing=flags.differing,
        )

    # -- uploads ----------------------------------------------------------------------------------------------

    @property
    def _carrier(self) -> Sums | Messages:
        carrier = self.messages if self.sums is None else self.sums
        assert carrier is not None
        return carrier

    def _outgoing(self, own: Uploads) -> Tensor | None:
        """Return what this rank uploads, as it travels."""
        if own.messages:
            return self.links.wire(np.frombuffer(b"".join(own.messages), np.uint8).copy())
        if self.sums is None or own.news is None or not (own.uploads or self.form == "totals"):
            return None
        return self.sums.outgoing(self.links.wire(own.news.vector))

    def _sizes(self, own: Uploads) -> IntArray | int:
        """Return the bytes of this rank's uploads, one number each."""
        if self.quantised is not None:
            return self.quantised.message_length(self.p)
        if own.messages:
            return np.array([len(message) for message in own.messages])
        return own.bits // 8 // max(1, own.uploads)

    def _lengths(self, sizes: IntArray) -> IntArray:
        """Return the bytes that each rank uploads."""
        if self.form == "totals":
            return np.full(self.links.ranks, self.dense)
        lengths: IntArray = np.bincount(self.owners, sizes, self.links.ranks).astype(np.int64)
        return np.where(lengths > 0, self.dense, 0) if self.form == "summed" else lengths

    def _known_route(self) -> Route | None:
        """Return the route where it does not depend on who uploads: then uploads leave together with the flags."""
        allowed = ROUTES[self.setting]
        if len(allowed) == 1:
            return allowed[0]
        if self.form == "totals":
            return choose_route(self.setting, self.form, self.dense, np.full(self.links.ranks, self.dense))
        short = self.form == "packed" and 0 < self._longest * (self.links.ranks - 1) <= HOP
        return "direct" if short else None  # what `choose_route` would say, whoever uploads

    def _finish(
        self, own: Tensor | None, sizes: IntArray, lengths: IntArray, route: Route
    ) -> tuple[News | None, tuple[bytes, ...]]:
        """Return the sum of all news, or all messages."""
        if self.sums is not None:
            return News(self._here(self.sums.finish(own, lengths, route)), self.form == "totals" or self.once), ()
        assert self.messages is not None
        if self.form == "relayed":
            return News(self._here(self._relay(own, sizes, lengths).double()), self.once), ()
        return None, cut_messages(self.messages.finish(own, lengths, route), sizes, self.owners)

    def _relay(self, own: Tensor | None, sizes: IntArray, lengths: IntArray) -> Tensor:
        """Return the sum of all news, which the hub hears and tells."""
        links = self.links
        assert self.messages is not None
        assert self.hub_remainder is not None
        if self.hub_listener is None:
            total = links.empty(self.p, self.hub_remainder.dtype)
            links.receive({self.hub_rank: total}, "sums", ONWARDS)
            return total
        messages = cut_messages(self.messages.at_hub(own, lengths), sizes, self.owners)
        news = self.hub_listener.take(messages, np.flatnonzero(sizes > 0))
        assert news is not None
        total = self.hub_remainder.round(links.wire(news.vector))
        links.exchange(dict.fromkeys(links.others, total), {}, "sums", ONWARDS)
        return total

    def _here(self, total: Tensor) -> Array:
        """Return what came over the links as the server has its vectors."""
        return host(total) if isinstance(self.like, np.ndarray) else total.to(self.like.device)

    # -- what the ranks share ---------------------------------------------------------------------------------

    def from_first(self, make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
        """Return on every rank what rank 0 makes, however long it takes."""
        data = pack(make()) if self.is_first else b""
        return unpack(self.links.broadcast(data, what, PATIENT), f"rank 0's {what}")

    def collect(self, problem: Problem) -> None:
        """Let rank 0 know what of the problem belongs to the workers of the others, such as BatchNorm's statistics."""
        for rows in problem.state().values():
            if not self.is_first:
                self.links.exchange({0: self.links.wire(rows[self.owners == self.links.rank])}, {}, "buffers")
                continue
            for rank in self.links.others:
                theirs = np.flatnonzero(self.owners == rank)
                received = torch.empty_like(rows[theirs], device="cpu")
                self.links.exchange({}, {rank: received}, "buffers")
                rows[theirs] = received.to(rows.device)

    @property
    def _remainders(self) -> dict[str, Remainder | None]:
        """What rounding has taken away, by the name under which it is checkpointed."""
        own, served = (None, self.hub_remainder) if self.sums is None else (self.sums.own, self.sums.served)
        return {"owed": own, "owed_sum": served}

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank."""
        owed = {name: None if it is None else it.owed for name, it in self._remainders.items()}
        heard = None if self.hub_listener is None else self.hub_listener.state()
        return {**owed, "hub": heard, "sent": self.links.sent}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        for name, remainder in self._remainders.items():
            if remainder is not None and remainder.owed is not None:
                remainder.owed.copy_(state[name])
        if self.hub_listener is not None:
            rows = state.get("contributed")  # lasg 0.1's name
            self.hub_listener.restore(state["hub"] if rows is None else {"decoder": {}, "rows": rows})
        self.links.sent[:] = host(state["sent"])


# -- flags: the few bytes that every rank says of its workers in every round -------------------------------------------


class Flags(NamedTuple):
    """What every rank knows of all M workers."""

    sizes: IntArray
    """Bytes of each worker's upload; 0: silent; -1: its gradient was not finite."""
    estimates: FloatArray | None
    """Estimates of L_m, where the rule has them; 0 for who does not upload."""
    left: FloatArray | None
    """The rule's left side, where it is told."""
    loss: float | None
    """The mean loss of those that computed, where it is told."""
    control: int
    """The highest control field of any rank."""
    differing: tuple[int, ...]
    """The ranks whose model was not rank 0's, if the round compared them."""


class FlagExchange:
    """Tells everybody, over the hub or directly, how much the workers of this rank upload."""

    def __init__(self, links: Links, owners: IntArray, hub_rank: int | None, told: dict[str, bool]) -> None:
        """Take the links, the rank of each worker, the hub if there is one, and which numbers are `told` per worker.

        Of these, `estimate`, `left` and `loss` are known. A rank's message begins with a header of 8 or 16 bytes: the
        control field, and in rounds that compare the models a checksum.
        """
        self.links, self.owners, self.hub_rank, self.told = links, owners, hub_rank, told
        self.mine = owners == links.rank
        self._counts = np.bincount(owners, minlength=links.ranks).tolist()
        self._row = np.dtype([("size", "<i8"), *((name, "<f8") for name, is_told in told.items() if is_told)])
        rows = {rank: 16 + self._counts[rank] * self._row.itemsize for rank in range(links.ranks)}
        if hub_rank is None or links.rank == hub_rank:
            links.open(FLAGS, rows)
        if hub_rank is not None:
            links.open(ALL_FLAGS, {hub_rank: 16 * links.ranks + len(owners) * self._row.itemsize})

    def exchange(self, own: Uploads, sizes: IntArray | int, checksum: int | None) -> Flags:
        """Tell what the workers of this rank answered; return what all did. `sizes` are the bytes of its uploads."""
        table = np.zeros(len(self.owners), self._row)
        rows = table[self.mine]
        if own.uploads:
            rows["size"][own.uploaded] = sizes
        if own.broken is not None:
            rows["size"][own.broken] = -1
        if own.estimates is not None:
            rows["estimate"][own.uploaded] = own.estimates
        if self.told["left"]:
            rows["left"] = np.nan if own.left is None else own.left
        if self.told["loss"]:
            rows["loss"] = own.loss
        table[self.mine] = rows
        head = [own.control] if checksum is None else [own.control, checksum]
        heads = np.zeros((self.links.ranks, len(head)), np.uint64)
        heads[self.links.rank] = head
        (self._tell if self.hub_rank is None else self._tell_over_hub)(heads, table)
        return self._read(heads, table, own)

    def _read(self, heads: npt.NDArray[np.uint64], table: npt.NDArray[Any], own: Uploads) -> Flags:
        left = None
        if self.told["left"] and not np.isnan(table["left"]).all():
            left = table["left"].copy()
        elif own.left is not None:  # of the others it is not known
            left = np.full(len(self.owners), np.nan)
            left[self.mine] = own.left
        estimates = table["estimate"].copy() if self.told["estimate"] else None
        losses = table["loss"][np.isfinite(table["loss"])] if self.told["loss"] else ()
        sums = heads[:, 1:]
        return Flags(
            table["size"].astype(np.int64),
            estimates,
            left,
            float(np.mean(losses)) if len(losses) else None,
            int(heads[:, 0].max()),
            tuple(np.flatnonzero((sums != sums[0]).any(1)).tolist()) if sums.size else (),
        )

    def _tell(self, heads: npt.NDArray[np.uint64], table: npt.NDArray[Any]) -> None:
        """Tell every rank, and hear every rank."""
        heard = self._room(heads)
        said = self.links.wire(_as_bytes(heads[self.links.rank], table[self.mine]))
        self.links.exchange(dict.fromkeys(self.links.others, said), heard, "flags", FLAGS)
        self._note(heads, table, heard)

    def _tell_over_hub(self, heads: npt.NDArray[np.uint64], table: npt.NDArray[Any]) -> None:
        """Tell the hub, which tells everybody."""
        links, hub = self.links, self.hub_rank
        assert hub is not None
        if links.rank == hub:
            heard = self._room(heads)
            links.receive(heard, "flags", FLAGS)
            self._note(heads, table, heard)
            everything = links.wire(_as_bytes(heads, table))
            links.exchange(dict.fromkeys(links.others, everything), {}, "flags", ALL_FLAGS)
            return
        everything = links.empty(heads.nbytes + table.nbytes)
        said = links.wire(_as_bytes(heads[links.rank], table[self.mine]))
        started = links.start({hub: said}, "flags", FLAGS)
        links.receive({hub: everything}, "flags", ALL_FLAGS)
        links.wait(started, "flags")
        data = host(everything)
        heads[:] = data[: heads.nbytes].view(np.uint64).reshape(heads.shape)
        table[:] = data[heads.nbytes :].view(self._row)

    def _room(self, heads: npt.NDArray[np.uint64]) -> dict[int, Tensor]:
        """Return room for what the other ranks say."""
        head = 8 * heads.shape[1]
        return {rank: self.links.empty(head + self._counts[rank] * self._row.itemsize) for rank in self.links.others}

    def _note(self, heads: npt.NDArray[np.uint64], table: npt.NDArray[Any], heard: dict[int, Tensor]) -> None:
        """Take what the other ranks said."""
        head = 8 * heads.shape[1]
        for rank, said in heard.items():
            data = host(said)
            heads[rank] = data[:head].view(np.uint64)
            table[self.owners == rank] = data[head:].view(self._row)


def _as_bytes(head: npt.NDArray[np.uint64], rows: npt.NDArray[Any]) -> npt.NDArray[np.uint8]:
    """Return headers, and the flags of some workers, as bytes."""
    return np.concatenate([np.ascontiguousarray(head).reshape(-1).view(np.uint8), rows.view(np.uint8)])
