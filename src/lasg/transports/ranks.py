"""Workers on the ranks of a process group. Every rank runs the same server, so the model never travels."""

from __future__ import annotations

import dataclasses
import json
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lasg.core.arrays import LONG, Array, FloatArray, IntArray, add_to, add_up, checksum, host
from lasg.core.codecs import Dense
from lasg.core.messages import News, Request, Uploads
from lasg.core.transport import Hosting, Local, Plan, Problem
from lasg.errors import LasgError
from lasg.packing import pack, unpack
from lasg.problems.flat import Workspace
from lasg.transports import routes
from lasg.transports.encoded import Messages, Relayed
from lasg.transports.links import PATIENT, Links, Pending
from lasg.transports.quantised_sum import QuantisedSum
from lasg.transports.routes import AT_ONCE, DIRECT, ONWARDS, PIECES, ROUTES, Route, Setup

CHECK_EVERY = 100
"""Rounds between two comparisons of the ranks' models."""
REPORTS = ("first of the report", "second of the report")
"""What the ranks tell of their workers where the server decides for all."""
MODEL, SETTINGS, CONTROLS = 1 << 26, 1 << 24, 4
"""Below these are what travels in every round: checksums of a piece of the model and of settings, the control field."""
FLAGS, ALL_FLAGS = 1, 2
"""Channels: messages of one kind keep their order."""


class Ranks(Local):
    """The ranks of a process group: each hosts some of the M workers and computes for them alone.

    A round has two parts: a few bytes per worker, the flags, and what was uploaded, in a form and over a route that are
    the ranks' business alone: `routes.py` says which. Dense uploads are `Sums`, below.
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
        overlap: bool = False,
        settings: Callable[[], str] | None = None,
        workspace: Workspace | None = None,
    ) -> None:
        """Take the links, and how uploads are exchanged over them.

        Every `check_every` rounds the ranks compare checksums of their models; 0 is never. In every round they compare
        a piece of them, another one each time, and what `settings` returns, JSON values by name: the optimizer's.
        `requantise` allows what the simulation does not do: to round the sum of quantised uploads again, where that is
        shorter. With `overlap` a round may go on while uploads are still leaving: `wait` must be called at its end.
        Long vectors are summed in the `workspace`.
        """
        self.links = (links or Links()).with_own_tags()
        if exchange not in ROUTES:
            raise LasgError(f"exchange must be one of {', '.join(ROUTES)}, got {exchange!r}")
        if not 0 <= hub_rank < self.links.ranks:
            raise LasgError(f"the hub must be a rank, 0 to {self.links.ranks - 1}, got {hub_rank!r}")
        self.setting, self.hub_rank, self.tell_left = exchange, hub_rank, tell_left
        self.check_every, self.requantise, self.overlap = check_every, requantise, overlap
        self.settings, self._compared, self._workspace = settings, 0, workspace
        self._under_way: list[Pending] = []
        self.is_first = self.links.rank == 0

    def begin(self, plan: Plan) -> Hosting:
        """Choose the form of the uploads, and open the channels that it needs."""
        links, stages, theta = self.links, plan.stages, plan.theta
        self.owners = routes.assign_workers(plan.workers, links.ranks)
        ids: IntArray = np.flatnonzero(self.owners == links.rank)
        p, itemsize = theta.shape[-1], int(theta.itemsize)
        self.like, self.steps_of = theta, None if stages.one_gradient else stages.work.steps_of
        self.form = routes.choose_form(p, itemsize, self.owners, stages, self.setting, requantise=self.requantise)
        dtype = torch.float64 if itemsize == 8 else torch.float32
        length = stages.codec.length(p, itemsize)
        setup = self.setup = Setup(links, self.setting, self.hub_rank, self.owners, self.form, p, dtype, length)
        self.in_every_round = setup.in_every_round
        told: dict[str, Any] = {"estimate": stages.rule.estimate, "left": self.tell_left, "loss": plan.wants_loss}
        told |= dict.fromkeys(REPORTS, stages.rule.report)
        self.flags = FlagExchange(setup, [name for name, is_told in told.items() if is_told])
        self.once = stages.belief == "residual"
        # Of long vectors what is sent lies where the optimizer's gradient will.
        self.overlap, self._wide = self.overlap and p <= LONG, dtype if p > LONG else torch.float64
        if self.form in ("summed", "totals"):
            workspace = self._workspace or Workspace(torch.empty(0, dtype=dtype), p)
            self.carrier: Carrier = Sums(setup, workspace)
            if self.form == "summed" and stages.codec.exact and p > LONG:
                # The same messages, and both sides keep less: what was said, and nothing that is owed.
                plan = plan._replace(stages=dataclasses.replace(stages, belief="difference"))
            return Hosting(ids, plan.listener(len(ids), whole=self.form == "totals"), "news", plan.stages)
        if self.form == "requantised":
            self.carrier = QuantisedSum(setup, stages.codec, plan.seed)
            dense = dataclasses.replace(stages, codec=Dense())  # here the transport encodes
            return Hosting(ids, plan.listener(len(ids), whole=True), "news", dense)
        if self.form == "packed":
            self.carrier = Messages(setup)
            return Hosting(ids, plan.listener(plan.workers))
        listener = plan.listener(plan.workers) if links.rank == self.hub_rank else None
        self.carrier = Relayed(setup, listener, setup.remainder())
        return Hosting(ids, None)

    def exchange(self, request: Request, own: Uploads) -> Uploads:
        """Tell the others what the workers of this rank answered, and return what all of them did."""
        carrier, k, every = self.carrier, request.k, self.check_every
        whole = checksum(request.theta) if every and k and k % every == 0 else None
        speaks, route = own.uploads or self.in_every_round, carrier.route
        outgoing: Any = carrier.outgoing(request.k, own) if speaks else None
        at_once = speaks and (route is not None or len(outgoing) <= carrier.at_once)
        if at_once:
            self._send(outgoing, route)
        size = carrier.size(own) if own.uploads else 0
        sizes, uploads, words = self.flags.exchange(own, size, whole, self._word(request))
        if (words != words[0]).any():
            uploads = self._differ(k, uploads, words)
        if uploads.uploads or self.in_every_round:
            if route is None:
                route = carrier.choose(sizes)
                if speaks and not at_once:
                    self._send(outgoing, route)
            carried: Any = carrier.finish(request.k, outgoing, sizes, route)
            uploads = uploads._replace(messages=carried) if self.form == "packed" else self._with_news(uploads, carried)
        elif self.once and self.form != "packed":
            uploads = self._with_news(uploads, torch.zeros(self.setup.p, dtype=self._wide))
        if not self.overlap:
            self.wait()
        each = request.points * (1 if self.steps_of is None else len(self.steps_of(request.k)))
        return uploads._replace(gradients=int(np.count_nonzero(request.computes)) * each)

    def _word(self, request: Request) -> int:
        """Return what this rank says of its model and its optimizer's settings in every round, in no more bytes."""
        settings = 0 if self.settings is None else zlib.crc32(self.settings().encode()) % SETTINGS
        if not self.check_every or self.links.ranks == 1:
            return settings * MODEL
        start = request.k % self.check_every * (length := -(-self.setup.p // self.check_every))
        return settings * MODEL + checksum(request.theta[start : start + length]) % MODEL

    def _differ(self, k: int, uploads: Uploads, words: IntArray) -> Uploads:
        """Refuse other settings of the optimizer; say whose model is another one, once per `check_every` rounds."""
        if (words // MODEL != words[0] // MODEL).any():
            assert self.settings is not None
            what = f"has other settings of its optimizer than rank 0 in step {k + 1}"
            self.links.agree(json.loads(self.settings()), what, "All ranks must change them alike")
        if uploads.differing or k < self._compared:
            return uploads
        self._compared = k + self.check_every  # what differs again and again, by other arithmetic, may wait as long
        return uploads._replace(differing=tuple(np.flatnonzero(words != words[0]).tolist()))

    def _send(self, outgoing: Any, route: Route | None) -> None:
        """Begin to send what this rank uploads: to everybody (None: at once), or in pieces to those that serve them."""
        channel = AT_ONCE if route is None else DIRECT if route == "direct" else PIECES
        if route in (None, "direct"):
            outgoing = dict.fromkeys(self.links.others, outgoing)
        elif isinstance(outgoing, Tensor):
            outgoing = {rank: outgoing[piece] for rank, piece in self.setup.pieces(len(outgoing), route).items()}
        self._under_way = self.links.start(outgoing, "uploads", channel)

    def _with_news(self, uploads: Uploads, total: Tensor) -> Uploads:
        """Return uploads that mean this for the aggregate."""
        if self.once and not self.in_every_round:  # the aggregate must not be where the carrier writes
            total = total.to(self._wide, copy=True)
        vector: Array = host(total) if isinstance(self.like, np.ndarray) else total.to(self.like.device)
        return uploads._replace(news=News(vector, self.in_every_round or self.once))

    def wait(self) -> None:
        """Wait until what this rank uploads has left it."""
        self.links.wait(self._under_way, "uploads")
        self._under_way = []

    # -- what the ranks share ---------------------------------------------------------------------------------

    def from_first(self, make: Callable[[], dict[str, Any]], what: str) -> dict[str, Any]:
        """Return on every rank what rank 0 makes, however long it takes."""
        return unpack(self.links.broadcast(pack(make()) if self.is_first else b"", what, PATIENT), f"rank 0's {what}")

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

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of this rank."""
        heard = None if self.carrier.listener is None else self.carrier.listener.state()
        return {"owed": None, "owed_sum": None, **self.carrier.owed, "hub": heard, "sent": self.links.sent}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        for name, owed in self.carrier.owed.items():
            owed.copy_(state[name])
        if self.carrier.listener is not None:
            rows = state.get("contributed")  # lasg 0.1's name
            self.carrier.listener.restore(state["hub"] if rows is None else {"decoder": {}, "rows": rows})
        self.links.sent[:] = host(state["sent"])


class FlagExchange:
    """Tells everybody, over the hub or directly, the few bytes that every rank says of its workers in every round."""

    def __init__(self, setup: Setup, told: list[str]) -> None:
        """Take what is `told` per worker besides how much it uploads: some of `estimate`, `left`, `loss`, `REPORTS`.

        A rank's message is numbers in float64, where all of these are exact: the control field; in rounds that compare
        the models a checksum; then a row per worker.
        """
        links = self.links = setup.links
        self.hub_rank = setup.hub_rank if setup.setting == "hub" else None
        self.mine = setup.owners == links.rank
        self.columns = {name: i for i, name in enumerate(["size", *told])}
        self._numbers = (np.bincount(setup.owners, minlength=links.ranks) * len(self.columns)).tolist()
        if self.hub_rank is None or links.rank == self.hub_rank:
            links.open(FLAGS, {rank: 8 * (2 + count) for rank, count in enumerate(self._numbers)})
        if self.hub_rank is not None:
            links.open(ALL_FLAGS, {self.hub_rank: 8 * (2 * links.ranks + sum(self._numbers))})

    def exchange(
        self, own: Uploads, size: IntArray | int, checksum: int | None, word: int = 0
    ) -> tuple[IntArray, Uploads, IntArray]:
        """Tell what the workers of this rank answered, with the bytes of each upload; return what all did.

        First the bytes of all workers' uploads; 0: silent; -1: its gradient was not finite. Last the ranks' `word`.
        """
        columns = self.columns
        rows = np.zeros((len(own.uploaded), len(columns)))
        if own.uploads:
            rows[own.uploaded, 0] = size
        if own.broken is not None:
            rows[own.broken, 0] = -1
        if own.estimates is not None:
            rows[own.uploaded, columns["estimate"]] = own.estimates
        for name, value in {"left": np.nan if own.left is None else own.left, "loss": own.loss}.items():
            if name in columns:
                rows[:, columns[name]] = value
        if own.reports is not None:
            rows[:, [columns[name] for name in REPORTS]] = own.reports
        head = [own.control + CONTROLS * word, *(() if checksum is None else (checksum,))]  # exact: below 2^53
        said = torch.from_numpy(np.concatenate([head, rows.reshape(-1)]))
        heard = self._tell(said, [len(head) + count for count in self._numbers])
        heads = np.stack([numbers[: len(head)] for numbers in heard])
        table = np.concatenate([numbers[len(head) :] for numbers in heard]).reshape(-1, len(columns))
        words = heads[:, 0].astype(np.int64)
        heads[:, 0] = words % CONTROLS
        return *self._read(heads, table, own), words // CONTROLS

    def _tell(self, said: Tensor, lengths: list[int]) -> list[FloatArray]:
        """Tell every rank, or the hub, which tells everybody; return what each rank said, of so many numbers."""
        links, hub = self.links, self.hub_rank
        if hub is not None and links.rank != hub:
            everything = said.new_empty(sum(lengths))
            started = links.start({hub: said}, "flags", FLAGS)
            links.receive({hub: everything}, "flags", ALL_FLAGS)
            links.wait(started, "flags")
            return [numbers.numpy() for numbers in torch.split(everything, lengths)]
        room = {rank: said.new_empty(lengths[rank]) for rank in links.others}
        links.exchange({} if links.rank == hub else dict.fromkeys(links.others, said), room, "flags", FLAGS)
        heard = [said if rank == links.rank else room[rank] for rank in range(links.ranks)]
        if links.rank == hub:
            links.exchange(dict.fromkeys(links.others, torch.cat(heard)), {}, "flags", ALL_FLAGS)
        return [numbers.numpy() for numbers in heard]

    def _read(self, heads: FloatArray, table: FloatArray, own: Uploads) -> tuple[IntArray, Uploads]:
        """Return the bytes of all workers' uploads, and what all of them answered."""
        told = {name: table[:, i] for name, i in self.columns.items()}
        sizes = told["size"].astype(np.int64)
        uploaded, broken = sizes > 0, sizes < 0
        left = told.get("left", np.full(len(sizes), np.nan))
        if own.left is not None:  # of the others it may not be known
            left[self.mine] = own.left
        losses = told["loss"][np.isfinite(told["loss"])] if "loss" in told else ()
        return sizes, Uploads(
            uploaded,
            int(np.count_nonzero(uploaded)),
            8 * int(sizes[uploaded].sum()),
            left=None if np.isnan(left).all() else left,
            estimates=told["estimate"][uploaded] if "estimate" in told else None,
            broken=broken if broken.any() else None,
            reports=np.stack([told[name] for name in REPORTS], -1) if REPORTS[0] in told else None,
            loss=float(np.mean(losses)) if len(losses) else None,
            control=int(heads[:, 0].max()),
            differing=tuple(np.flatnonzero((heads[:, 1:] != heads[0, 1:]).any(1)).tolist()),
        )


class Sums:
    """Vectors of the run's dtype that are added up: of those that upload, or in every round of everybody."""

    def __init__(self, setup: Setup, workspace: Workspace) -> None:
        self.setup, self.links, self.listener, self._workspace = setup, setup.links, None, workspace
        self.at_once = 0
        dense, ranks = setup.dense, self.links.ranks
        setup.open([dense] * ranks, dense if setup.setting == "hub" else -(-dense // ranks) + 8)
        self._routes = [routes.choose_route(setup, np.where(np.arange(ranks) < n, dense, 0)) for n in range(ranks + 1)]
        """The route of a round, by how many ranks upload."""
        only = len(set(self._routes[1:])) == 1
        self.route = self._routes[-1] if setup.in_every_round or only else None
        # Of this rank's uploads, and of the sums of the piece that it serves.
        self._rounding, self._rounding_sums = setup.remainder(), setup.remainder()
        owed = {"owed": self._rounding.owed, "owed_sum": self._rounding_sums.owed}
        self.owed = {name: vector for name, vector in owed.items() if vector is not None}
        # Vectors as long as the model are made once: new ones in every round would cost more than the sums.
        self._received: dict[int, Tensor] = {}
        self._total = torch.empty(0, dtype=torch.float64)
        self._everybody = list(range(ranks)) if setup.in_every_round else None

    def _uploading(self, sizes: IntArray) -> list[int]:
        """Return the ranks that send a vector, whoever of their workers uploads."""
        return self._everybody or np.unique(self.setup.owners[sizes > 0]).tolist()

    def size(self, own: Uploads) -> int:
        """Return the bytes of an upload, as the ledger counts them."""
        return own.bits // 8 // own.uploads

    def choose(self, sizes: IntArray) -> Route:
        """Return the route by how many ranks upload."""
        return self._routes[len(self._uploading(sizes))]

    def outgoing(self, k: int, own: Uploads) -> Tensor:  # noqa: ARG002
        """Return the sum of this rank's news as it travels."""
        assert own.news is not None
        rounded: Tensor = self._rounding.round(self.links.wire(own.news.vector))
        return rounded

    def finish(self, k: int, own: Tensor | None, sizes: IntArray, route: Route) -> Tensor:  # noqa: ARG002
        """Return the sum of what all uploading ranks sent."""
        uploading = self._uploading(sizes)
        if route == "direct":
            return self._sum(own, uploading, slice(0, self.setup.p), DIRECT)
        links = self.links
        pieces = self.setup.pieces(self.setup.p, route)
        result = self._workspace.free(own)
        sends = {}
        if links.rank in pieces:
            mine = pieces[links.rank]
            total = self._sum(own, uploading, mine, PIECES, result)
            if total.data_ptr() != result[mine].data_ptr():
                result[mine] = self._rounding_sums.round(total, mine)
            sends = dict.fromkeys(links.others, result[mine])
        theirs = {rank: result[piece] for rank, piece in pieces.items()}
        links.exchange(sends, theirs, "sums", ONWARDS)
        return result

    def _sum(
        self, own: Tensor | None, uploading: list[int], where: slice, channel: int, room: Tensor | None = None
    ) -> Tensor:
        """Receive a piece of what ranks upload; return its sum, of long vectors in a room, good until the next call."""
        length, rank = where.stop - where.start, self.links.rank
        if self.setup.p > LONG:
            room = self._workspace.free(own) if room is None else room
            parts = dict(
                zip([other for other in uploading if other != rank], routes.rooms_of(room, where), strict=False)
            )
        else:
            for other in uploading:
                if other not in self._received or len(self._received[other]) != length:
                    self._received[other] = torch.empty(length, dtype=self.setup.dtype)
            parts = {other: self._received[other] for other in uploading}
        self.links.receive(parts, "uploads", channel)
        if own is not None:
            parts[rank] = own[where]
        first, *others = (parts[other] for other in uploading)
        if not others and (self.setup.p > LONG or not self._everybody):
            return first
        if self.setup.p > LONG:
            total: Tensor = add_up([first, *others], parts[next(iter(parts))])
            return total
        self._total.resize_(length).copy_(first)
        for part in others:
            add_to(self._total, part)
        return self._total


Carrier = Sums | Messages | QuantisedSum
"""What carries a run's uploads, in one of the forms.

`route` is the route, where it does not depend on who uploads: then uploads leave together with the flags, as those of
up to `at_once` bytes always do. `outgoing` is what this rank uploads, as it travels; `finish` gives what all have sent,
their sum or the messages in the order of the workers. `owed` is what rounding has taken away, by the name under which
it is checkpointed.
"""
