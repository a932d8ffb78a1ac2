"""What the server takes each worker to say, on both sides and in every engine.

An upload says what its message decodes to, never what the worker meant. What that changes is the belief:

- `replace`: the message is the worker's contribution (the paper's LAQSG). The server keeps a row per worker.
- `difference`: the message is added to what was believed (LASG's delta, LAQ, EF21). What rounding or quantising took
  away is part of the next difference. The server needs the sum alone, unless workers may forget or be dropped: then it
  keeps a row per worker here, too, in double precision.
- `residual`: the message is used once; what was not said stays with the worker, and is said later (error feedback).
  The server keeps nothing.

A `Speaker` is the workers' side, a `Listener` the server's. Both keep what they must in arrays with a row per worker.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lasg import counter
from lasg.core.arrays import (
    BLOCK,
    LONG,
    Array,
    FloatArray,
    IntArray,
    add_rows,
    cast,
    change,
    copies,
    copy,
    float64,
    for_sums,
    pick,
    pieces,
    put,
    zeros,
)
from lasg.core.codecs import Codec, Noise, State, StatefulCodec
from lasg.core.messages import News
from lasg.core.robust import Bound, bounded_sum
from lasg.errors import LasgError

Belief = Literal["replace", "difference", "residual"]
BELIEFS: tuple[Belief, ...] = ("replace", "difference", "residual")

NEVER = -1
"""The last upload of a worker of whom nothing is believed: it has to say everything."""


def is_chained(belief: Belief, codec: Codec) -> bool:
    """Tell whether a message means something only after those before it."""
    return belief == "difference" or isinstance(codec, StatefulCodec)


def upload_id(k: int, message: bytes, before: int, *, chained: bool) -> int:
    """Return a number for an upload that both sides know: its round, and a checksum of it and of all before it.

    Rounds alone do where a message stands for itself. Where it builds on others they would not: a server that goes on
    from an older checkpoint has the same rounds with other uploads.
    """
    if not chained:
        return k
    return k << 32 | zlib.crc32(message, 0 if before == NEVER else before & 0xFFFFFFFF)


class Pending(NamedTuple):
    """An upload of which the worker does not know yet whether the server took it."""

    upload: int
    decoded: Array
    encoder: State
    decoder: State


class Speaker:
    """The workers' side: what the server believes of them, or what they have not said yet."""

    def __init__(
        self,
        belief: Belief,
        codec: Codec,
        workers: int,
        theta: Array,
        *,
        decay: float = 1.0,
        confirmed_later: bool = False,
        decodes: bool = False,
    ) -> None:
        """Speak for some workers. With `confirmed_later`, for one whose uploads may be lost: see `confirm`.

        `decay` is what remains of a residual from one round to the next. `decodes`: somebody wants to know what
        messages decode to, whatever the belief.
        """
        self.belief, self.codec, self.confirmed_later, self.decay = belief, codec, confirmed_later, decay
        self.decodes, self.workers, self.like = decodes or belief != "replace", workers, theta
        self.chained = is_chained(belief, codec)
        # What is decoded as it was: its length is known.
        self._exact_bits = 8 * (codec.length(theta.shape[-1], int(theta.itemsize)) or 0) if codec.exact else 0
        self.pending: Pending | None = None
        self.reset()

    def reset(self) -> None:
        """Begin again: nothing was said."""
        shape = (self.workers, self.like.shape[-1])
        # Differences add up on both sides to the same bits only in one precision, whatever the run's.
        rows = None if self.belief == "replace" else zeros(shape, self.like)
        self.rows: Array = for_sums(rows) if self.belief == "difference" else rows
        self.encoder = self.codec.init(self.workers, self.like)
        self.decoder = self.codec.init_decoder(self.workers, self.like)
        self.last = NEVER
        """The last upload that counts, by its `upload_id`, where one worker's are confirmed later."""

    def add(self, contribution: Array, who: IntArray | slice) -> None:
        """Add what workers have to say, whether they say it now or later: a residual grows by it."""
        if self.belief == "residual":
            add_rows(self.rows, who, contribution, decay=self.decay)

    def to_say(self, contribution: Array, who: IntArray | slice, *, in_place: bool = False) -> Array:
        """Return what workers that upload say: their contribution, or what of it is not believed yet.

        It may take the contribution's place, `in_place`, if nobody needs that any more.
        """
        if self.belief == "replace":
            return contribution
        if self.belief == "difference":
            if not in_place:
                return cast(for_sums(contribution) - self.rows[who], contribution)
            contribution -= self.rows[who]
            return contribution
        return copy(self.rows[who])  # a codec may give back what it gets, and what was said is taken from the rows

    def say(self, rows: Array, who: IntArray | slice, noise: Noise) -> tuple[Array, int]:
        """Return rows as the server will decode them, and their bits: without packing, where the codec can do so."""
        if isinstance(self.codec, StatefulCodec):
            states = pick(self.encoder, who), pick(self.decoder, who)
            decoded, bits, *after = self.codec.transmit_with(rows, noise, *states)
            self._commit(who, decoded, *after)
            return decoded, bits
        said = (rows, self._exact_bits * len(rows)) if self._exact_bits else self.codec.transmit(rows, noise)
        self._commit(who, said[0])
        return said

    def pack(self, k: int, rows: Array, who: IntArray | slice, noise: Noise) -> tuple[list[bytes], Array | None]:
        """Return the messages of rows, as they travel, and what they decode to; None: not known, and not needed."""
        said: tuple[Any, State, State] = (None, {}, {})
        if isinstance(self.codec, StatefulCodec):
            messages, encoder = self.codec.update(rows, noise, pick(self.encoder, who))
            decoded, decoder = self.codec.decode_with(messages, rows[0], noise, pick(self.decoder, who))
            said = (decoded, encoder, decoder)
        else:
            messages = self.codec.encode(rows, noise)
            if self.decodes:
                said = (self.codec.decode(messages, rows[0]), {}, {})
        if self.confirmed_later:
            self.pending = Pending(upload_id(k, messages[0], self.base, chained=self.chained), *said)
        else:
            self._commit(who, *said)
        return messages, said[0]

    def _commit(
        self, who: IntArray | slice, decoded: Array, encoder: State | None = None, decoder: State | None = None
    ) -> None:
        """Take what was said for believed."""
        if self.belief == "replace" and not encoder and not decoder:
            return
        if self.belief == "difference":
            add_rows(self.rows, who, for_sums(decoded))
        elif self.belief == "residual":
            add_rows(self.rows, who, decoded, sign=-1)
        put(self.encoder, who, encoder or {})
        put(self.decoder, who, decoder or {})

    @property
    def said_last(self) -> int:
        """The last upload, whether it counts or not."""
        return self.last if self.pending is None else self.pending.upload

    @property
    def base(self) -> int:
        """The upload that the next message builds on; `NEVER`: it stands for itself."""
        return self.last if self.chained else NEVER

    def confirm(self, held: int) -> bool:
        """Learn which upload the server holds, by its `upload_id`; tell whether that is the last one.

        If it is the one before, the last was lost: it is taken back. If it is any other, one side forgot: the worker
        begins again, and its next message stands for itself.
        """
        agreed = held == self.said_last
        if agreed and self.pending is not None:
            self.last, *said = self.pending
            self._commit(slice(None), *said)
        elif not agreed and held != self.last:
            kept = self.rows
            self.reset()
            if self.belief == "residual":  # nobody believes anything, so nothing is lost but a message
                self.rows = kept
        self.pending = None
        return agreed

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays."""
        pending = None if self.pending is None else list(self.pending)
        rows = {} if self.rows is None else {"rows": self.rows}
        return {"encoder": self.encoder, "decoder": self.decoder, "last": self.last, "pending": pending, **rows}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        state = copies(state, self.like)
        self.rows = None if self.rows is None else cast(state["rows"], self.rows)
        self.encoder, self.decoder, self.last = state["encoder"], state["decoder"], int(state["last"])
        self.pending = None if state["pending"] is None else Pending(*state["pending"])


class Listener:
    """The server's side: what it takes the workers to have said, as far as it needs to know that."""

    def __init__(
        self,
        belief: Belief,
        codec: Codec,
        workers: int,
        theta: Array,
        *,
        whole: bool = False,
        forgetful: bool = False,
        robust: Bound | None = None,
        weights: FloatArray | None = None,
        seed: int | None = None,
    ) -> None:
        """Listen to some workers.

        `whole`: news are the sum of all that is believed, and not what changed it. `forgetful`: a worker may begin
        again, or be dropped, so each has a row of its own. `robust` bounds what each adds to the sum, given `weights`,
        n_m / N, of all M workers; what is not used once it bounds in every round: then each has a row, and news are the
        whole sum. `seed` is that of the noise, which some codecs decode with.
        """
        self.belief, self.codec, self.robust, self.seed = belief, codec, robust, seed
        self.weights: FloatArray = np.ones(workers) if weights is None else weights
        self._bound_now = robust.bound if robust is not None and belief == "residual" else None
        whole = whole or robust is not None
        self.whole = whole or belief == "residual"
        self.like, self.forgetful = theta, forgetful
        self._changed: Array = None
        self._blank = False  # whether `_changed` is room for a change, and nothing was written there yet
        shape = (workers, theta.shape[-1])
        self.rows: Array = None
        if belief == "replace":
            self.rows = zeros(shape, theta)
        elif belief == "difference" and (whole or forgetful):
            self.rows = for_sums(zeros(shape, theta))
        self.decoder = codec.init_decoder(workers, theta)

    @property
    def sums_rows(self) -> bool:
        """Whether news are the sum of the rows: then nobody needs to know what changed them."""
        return self.whole and self.rows is not None

    @property
    def keeps_nothing(self) -> bool:
        """Whether what a single worker says is news as it is."""
        return self.rows is None and not (self.robust or self.forgetful) and self.like.shape[-1] > LONG

    def pieces(self, uploads: int) -> list[slice]:
        """Cut the uploads of a round into pieces to be heard one after the other; a bound needs all at once."""
        return [slice(0, uploads)] if self._bound_now else pieces(uploads, self.like.shape[-1])

    def hear(self, decoded: Array, who: IntArray | slice) -> Array:
        """Take decoded messages; return the sum of what they change, in double precision."""
        if self._bound_now is not None:
            decoded = self._bound_now(decoded, self.weights[who])
        if self.belief == "replace":
            changed = change(decoded, self.rows[who]).sum(0)
            self.rows[who] = decoded
            return changed
        wide = for_sums(decoded)
        if self.rows is not None:
            add_rows(self.rows, who, wide)
        return wide.sum(0)

    def hear_long(self, changed: Array | None, decoded: Array, who: IntArray) -> None:
        """Take decoded messages one after the other, and add what they change, block by block; None: do not add."""
        if self._bound_now is not None:
            decoded = self._bound_now(decoded, self.weights[who])
        for row, m in zip(decoded, who.tolist(), strict=True):
            if changed is None:
                self.rows[m] = row if self.belief == "replace" else self.rows[m] + row
                continue
            blank, self._blank = self._blank, False
            for start in range(0, len(row), BLOCK):
                block = slice(start, start + BLOCK)
                new, total = row[block], changed[block]
                if self.belief == "replace":
                    old = self.rows[m, block]
                    if blank:  # in place: the same as below
                        total[:] = new
                        total -= old
                    else:
                        total += change(new, old)
                    old[:] = new
                    continue
                wide = float64(new) if total.itemsize == 8 else new
                if self.rows is not None:
                    add_rows(self.rows[m], block, wide)
                total[:] = wide if blank else total + wide

    def read(self, message: bytes, m: int, *, k: int | None = None, in_full: bool = False) -> Array:
        """Return what a worker's message of round k would decode to, without taking it; `in_full`: as its first."""
        if not isinstance(self.codec, StatefulCodec):
            return self.codec.decode([message], self.like)[0]
        state = self.codec.init_decoder(1, self.like) if in_full else pick(self.decoder, slice(m, m + 1))
        return self.codec.decode_with([message], self.like, self._noise(k, np.array([m])), state)[0][0]

    def take(
        self, messages: Sequence[bytes], who: IntArray, forget: Sequence[int] = (), *, k: int | IntArray | None = None
    ) -> News | None:
        """Take encoded messages, in the order of the workers; return the news. Who is in `forget` begins again.

        `k` is the round of the messages, or one per message.
        """
        if forget:
            self._forget(forget)
        if not (messages or forget or (self.whole and self.rows is None)):
            return None
        changed = None if self.sums_rows else self.nothing()
        rounds = None if k is None else np.broadcast_to(k, len(messages))
        for some in self.pieces(len(messages)):
            decoded = self._decode(messages[some], who[some], None if rounds is None else rounds[some])
            self.hear_long(changed, decoded, who[some])
        return self.news(changed)

    def _noise(self, k: int | IntArray | None, who: IntArray) -> Noise:
        """Return what draws the noise that messages of a round, or of one each, were made with."""
        if self.seed is not None and k is not None:
            return counter.Draws(self.seed, k, who, self.like.shape[-1])

        def refuse() -> FloatArray:
            raise LasgError(f"{self.codec.name} decodes with the noise of a round: give the seed, and the round")

        return refuse

    def _decode(self, messages: Sequence[bytes], who: IntArray, k: IntArray | None) -> Array:
        """Return the rows of messages; a codec that remembers has then heard them."""
        if not isinstance(self.codec, StatefulCodec):
            return self.codec.decode(messages, self.like)
        decoded, state = self.codec.decode_with(messages, self.like, self._noise(k, who), pick(self.decoder, who))
        put(self.decoder, who, state)
        return decoded

    def _forget(self, who: Sequence[int]) -> None:
        """Take workers for having said nothing."""
        if self.rows is not None:
            self.rows[list(who)] = 0
        elif self.belief == "difference":
            raise LasgError("a server that keeps the sum alone cannot forget a worker")
        put(self.decoder, np.array(who, np.int64), self.codec.init_decoder(len(who), self.like))

    def nothing(self) -> Array:
        """Return room for a change, in double precision, good until the next call unless it becomes the aggregate."""
        if self.whole:
            return for_sums(zeros(self.like.shape, self.like))
        self._blank = True
        # A new vector in every round would cost more than the sum, and so would zeros; a large model's is not kept.
        changed = for_sums(zeros(self.like.shape, self.like)) if self._changed is None else self._changed
        self._changed = changed if self.like.shape[-1] <= LONG else None
        return changed

    def news(self, changed: Array | None) -> News | None:
        """Return what the aggregate becomes, after what has changed; None: nothing has."""
        if self._blank and changed is not None:  # nobody said anything
            changed[:], self._blank = 0, False
        if self.sums_rows:
            return News(self.total(), whole=True)
        if self.whole:
            changed = self.nothing() if changed is None else changed  # what is used once is nothing without uploads
            return News(cast(changed, self.like) if self.forgetful else changed, whole=True)
        return None if changed is None else News(changed)

    def total(self) -> Array:
        """Return the sum of all that is believed, in the run's dtype: the same bits on whichever machine."""
        if len(self.rows) == 1 and self.belief == "replace" and not self.forgetful:
            return self.rows[0]  # not a copy: it is about to be sent
        summed = bounded_sum(self.robust, self.rows, self.weights) if self.robust else float64(self.rows).sum(0)
        return cast(summed, self.like)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays."""
        return {"decoder": self.decoder, **({} if self.rows is None else {"rows": self.rows})}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        state = copies(state, self.like)
        self.decoder = state["decoder"]
        if self.rows is not None:
            self.rows = cast(state["rows"], self.rows)
