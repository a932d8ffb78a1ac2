"""The workers that live in this process: what they compute, whether it is news, and how they say it.

All vectors are stacked, `(W, p)`. W is M in a simulation and 1 in a process that is one worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lasg import counter
from lasg.core.algorithms import Stages
from lasg.core.arrays import (
    AT_ONCE,
    LONG,
    Array,
    FloatArray,
    IntArray,
    Mask,
    copies,
    copy,
    count_set,
    pick,
    pieces,
    places_of,
    put,
    view_of,
    zeros,
)
from lasg.core.belief import Listener, Speaker
from lasg.core.blocks import BlockDecisions
from lasg.core.codecs import State
from lasg.core.estimators import Estimator
from lasg.core.messages import News, Request, Uploads
from lasg.core.rules import Iterates, Record, all_sound, is_sound, left_sides, reports_of, rows_of
from lasg.core.work import Oracle
from lasg.errors import LasgError


class Workers:
    """W stacked workers: the stages of work, decide and say."""

    def __init__(
        self,
        oracle: Oracle,
        stages: Stages,
        *,
        theta: Array,
        ids: IntArray,
        seed: int,
        D: float,
        workers: int | None = None,
        listener: Listener | None = None,
        confirmed_later: bool = False,
        gives_rows: bool = False,
    ) -> None:
        """Take the workers `ids` of all M, `workers` in number; None: they are all.

        What they say is heard by the listener in this process and answered as news; without one it is packed into
        messages. `confirmed_later`: the one worker here learns with the next request whether its upload counts.
        `gives_rows`: nobody else needs the gradients that the oracle returns.
        """
        self.oracle, self.stages, self.rule, self.work = oracle, stages, stages.rule, stages.work
        self.ids, self.seed, self.D, self.listener, self.count = ids, seed, D, listener, workers or len(ids)
        shape = (len(ids), theta.shape[-1])
        self.speaker = Speaker(
            stages.belief,
            stages.codec,
            len(ids),
            theta,
            decay=stages.decay,
            confirmed_later=confirmed_later,
            decodes=stages.estimator is not None and type(stages.estimator).said is not Estimator.said,
        )
        self.worked = self.work.init(len(ids), theta)
        self._one_gradient = stages.one_gradient
        self.estimates = {} if stages.estimator is None else stages.estimator.init(len(ids), theta)
        self.memory: dict[str, Array] = {name: zeros(shape, theta) for name in self.rule.remembers}
        self.by_block = None if stages.blocks is None else BlockDecisions(self.rule, stages.blocks, theta.shape[-1])
        watch = self.rule.watch if self.by_block is None else self.by_block.watch
        self.watch, self.watched = watch, {} if watch is None else watch.init(len(ids), theta)
        self.iterates = Iterates(len(ids), theta) if stages.probe in ("last", "previous") else None
        self._periodic = self.rule.periodic
        self._probes, self._each_round = stages.probe is not None, stages.probe == "previous"
        self._estimator_probes = stages.own_probe is not None
        self._begun = not self._each_round or len(ids) == 0
        self.like = theta
        self.snapshot: Array = copy(theta) if stages.probe == "snapshot" else None
        # What was said of a long vector, as it is, is what the worker had to say, but for its last digit.
        said = stages.belief == "difference" and stages.codec.exact and stages.estimator is None
        self._shares_memory = said and set(self.memory) == {"grad"} and theta.shape[-1] > LONG
        self.memory |= {"grad": self.speaker.rows} if self._shares_memory else {}
        self._may_write = gives_rows and stages.estimator is None and (not self.memory or self._shares_memory)
        self._remembers = bool(self.memory) or (self.iterates is not None and not self._each_round)
        if self._each_round and self.iterates is not None:
            self.iterates.slot[:] = -1  # nobody has computed
        self._nobody = np.zeros(len(ids), np.bool_)
        self._all = np.arange(len(ids))

    @property
    def remembers_rounds(self) -> bool:
        """Whether to compute a round twice is not to compute it once: a stage keeps something of every round.

        An estimate of L_m compares with the last upload's model, which an upload that may be lost replaces. Who does
        not know whether its upload came says all blocks.
        """
        stages, rule = self.stages, self.stages.rule
        remembers = bool(stages.estimator or rule.watch or rule.estimate or self.worked) or self._each_round
        return remembers or stages.belief == "residual" or self.by_block is not None

    def confirm(self, held: int) -> bool:
        """Learn which upload the server holds: see `Speaker.confirm`."""
        pending = self.speaker.pending
        agreed = self.speaker.confirm(held)
        if agreed and pending is not None:
            self._said(pending.decoded, slice(None))
        return agreed

    def answer(self, request: Request) -> Uploads:
        """Compute what was asked, decide who uploads (worker rules), and say it."""
        if self._periodic and request.k % self.D == 0:
            self.snapshot = copy(request.theta)  # whoever computes in this round: all processes have the same
        if not (count := count_set(request.computes)):
            return Uploads(self._nobody, news=self._no_news())
        rows = None if count == len(self.ids) else np.flatnonzero(request.computes)
        now, evaluations, worked = self._compute(request, rows, count)
        contributions, broken = None, None
        if self.rule.sees_belief:
            broken = self._find_broken(now, rows)
            contributions = self._contribute(now, rows, broken)
            now = self._with_belief(now, contributions, rows, broken)
        left, uploaded, saying = self._decide(request, now, rows)
        estimates = self.rule.estimate(now, Record()) if self.rule.estimate else None
        if contributions is None:
            broken = self._find_broken(now, rows, left, estimates)
            # Who goes on from its own model says all of its move, once: before that nothing of it is unsaid.
            contributions = (
                now.grad if self.rule.report is not None and not uploaded.any() else self._contribute(now, rows, broken)
            )
        if broken is not None:
            uploaded = uploaded & ~broken
        if worked or self._each_round:
            self._keep_round(now, worked, rows, broken)
        reports = self._report(now._replace(work=worked), rows, uploaded, broken) if self.rule.report else None
        if not (uploads := count_set(uploaded)):
            return Uploads(uploaded, 0, 0, evaluations, self._no_news(), left=left, broken=broken, reports=reports)
        who = self._all if uploads == len(self.ids) else np.flatnonzero(uploaded)
        places = places_of(who, rows, uploads, count)
        news, messages, bits, said = self._say(request.k, contributions, who, places, saying)
        if self._remembers:
            self._remember(now, uploaded, who, places, saying)
        if estimates is not None:
            estimates = estimates[places]
        found = Uploads(uploaded, uploads, bits, evaluations, news, messages, (), left, estimates, broken, reports)
        return found if said is None else found._replace(said=said)

    # -- work -------------------------------------------------------------------------------------------------

    def _compute(self, request: Request, rows: IntArray | None, count: int) -> tuple[Record, int, State]:
        """Return the record of now, a row per worker that computes; the gradient evaluations; the work's new state."""
        theta = request.theta
        moved = previous = None
        points = [theta]
        if request.points > 1:
            if self._each_round and not self._begun:
                self._begin(theta, request.computes)
            previous = self.snapshot if self.iterates is None else self.iterates.rows(rows)
            points.append(previous)
        if self.rule.estimate:
            assert self.iterates is not None
            moved = self.iterates.moved(theta, rows) if request.k else np.zeros(count)
        worked: State = {}
        if self._one_gradient:
            found = self.oracle.gradients(request.k, points, rows)
        else:
            found, worked = self._take_steps(request, points, rows)
        probe, before = found[-1] if self._probes else None, previous if self._each_round else None
        now = Record(theta, request.k, request.eta, self.count, found[0], probe, moved, previous=before)
        return now, count * len(points) * (1 if self._one_gradient else len(self.work.steps_of(request.k))), worked

    def _take_steps(
        self, request: Request, points: Sequence[Array], rows: IntArray | None
    ) -> tuple[list[Array], State]:
        """Return what the local steps of a round come to, from each point, and what the work remembers."""
        weights = self.oracle.weights if rows is None else self.oracle.weights[rows]
        state = self.worked if rows is None or not self.worked else pick(self.worked, rows)

        def gradients(iteration: int, at: Sequence[Array]) -> list[Array]:
            return self.oracle.gradients(iteration, at, rows)

        return self.work.update(request.k, request.eta, gradients, points, weights, state)

    def _begin(self, theta: Array, computes: Mask) -> None:
        """Let workers that have never computed probe where they are: they know of no model before."""
        assert self.iterates is not None
        fresh = computes & (self.iterates.slot < 0)
        if fresh.any():
            self.iterates.keep(theta, fresh)
        self._begun = bool((self.iterates.slot >= 0).all())

    def _find_broken(
        self, now: Record, rows: IntArray | None, left: FloatArray | None = None, estimates: FloatArray | None = None
    ) -> Mask | None:
        """Tell whose gradients are NaN or infinite; None: nobody's."""
        if all_sound(self.rule, now, left, estimates, probed=self._estimator_probes):
            return None
        broken = self._nobody.copy()
        broken[slice(None) if rows is None else rows] = ~is_sound(now)
        return broken

    def _keep_round(self, now: Record, worked: State, rows: IntArray | None, broken: Mask | None) -> None:
        """Keep, of those whose gradients are finite, the work's state and the model that they computed at."""
        computed = self._nobody.copy()
        computed[slice(None) if rows is None else rows] = True
        sound = computed if broken is None else computed & ~broken
        if worked:
            who = np.flatnonzero(sound)
            places = np.arange(len(who)) if rows is None and broken is None else np.cumsum(computed)[who] - 1
            put(self.worked, who, pick(worked, places))
        if self._each_round:
            assert self.iterates is not None
            self.iterates.keep(now.theta, sound)

    def _contribute(self, now: Record, rows: IntArray | None, broken: Mask | None) -> Array:
        """Return the contributions of those that computed: what the estimator makes of their gradients."""
        estimator, grad = self.stages.estimator, now.grad
        if estimator is None and self.stages.belief != "residual":
            return grad
        who: Any = slice(None) if rows is None else rows
        sound: Any = slice(None)
        if broken is not None:  # who has no finite gradient remembers nothing of this round
            who = np.arange(len(self.ids))[who]
            sound = np.flatnonzero(~broken[who])
            who, grad = who[sound], zeros(grad.shape, grad) + grad
        if estimator is not None:
            seen = now if broken is None else rows_of(now, sound)
            contributions, state = estimator.update(seen, pick(self.estimates, who))
            put(self.estimates, who, state)
            if broken is None:
                grad = contributions
            else:
                grad[sound] = contributions
        self.speaker.add(grad[sound], who)
        return grad

    def _with_belief(self, now: Record, contributions: Array, rows: IntArray | None, broken: Mask | None) -> Record:
        """Return the record with what the workers would contribute, and what they are taken to contribute."""
        who: Any = slice(None) if rows is None else rows
        known = pick(self.estimates, who)
        now = now._replace(estimate=contributions, believed=self.speaker.rows[who], estimator=known)
        if not self.rule.sees_message:
            return now
        said = wanted = self.speaker.to_say(contributions, who)
        if broken is not None:  # what is not finite has no message, and no error: it is said by nobody
            said = copy(wanted)
            said[np.flatnonzero(broken[who])] = 0
        message = self.stages.codec.transmit(said, self._noise(now.k, who, said.shape[-1]))[0]
        return now._replace(message=message, error=wanted - message)

    def _said(self, decoded: Array, who: IntArray | slice) -> None:
        """Let the estimator know what was said, as the server takes it."""
        if self.stages.estimator is not None and decoded is not None:
            put(self.estimates, who, self.stages.estimator.said(decoded, pick(self.estimates, who)))

    # -- decide -----------------------------------------------------------------------------------------------

    def _decide(
        self, request: Request, now: Record, rows: IntArray | None
    ) -> tuple[FloatArray | None, Mask, Mask | None]:
        """Return the rule's left side, where the workers evaluate it, who is to upload, and which blocks; None: all."""
        must = request.must_upload
        if self.watch is not None:
            now = now._replace(state=self._watch(now, rows))
        if self.rule.left is None or self.rule.where != "worker" or not request.by_rule:
            return None, must if rows is None else must & request.computes, None
        if self.by_block is not None:
            return self.by_block.decide(request, now, self.memory, rows)
        left = left_sides(self.rule, now, self.memory, rows)
        if rows is None:
            return left, (left > request.threshold) | must, None
        spread = np.full(len(self.ids), np.nan)
        spread[rows] = left
        return spread, ((spread > request.threshold) | must) & request.computes, None

    def _watch(self, now: Record, rows: IntArray | None) -> dict[str, Array]:
        """Let the rule see the round of those that computed, whether they upload or not; return what it knows."""
        assert self.watch is not None
        who: Any = slice(None) if rows is None else rows
        state = self.watch.update(now, pick(self.watched, who))
        sound = np.flatnonzero(is_sound(now))  # the others remember nothing of this round
        put(self.watched, np.arange(len(self.ids))[who][sound], pick(state, sound))
        return state

    def _report(self, now: Record, rows: IntArray | None, uploaded: Mask, broken: Mask | None) -> FloatArray:
        """Return what the workers report; who uploads or failed will begin again from the server's model."""
        again = np.flatnonzero(uploaded if broken is None else uploaded | broken)
        put(self.worked, again, self.work.begin_again(pick(self.worked, again)))
        return reports_of(self.rule, now, slice(None) if rows is None else rows, broken, len(self.ids))

    # -- say --------------------------------------------------------------------------------------------------

    def _say(
        self, k: int, contributions: Array, who: IntArray, places: IntArray | slice, saying: Mask | None
    ) -> tuple[News | None, tuple[bytes, ...], int, Mask | None]:
        """Say the rows of the uploaders, which stand at `places`, or the blocks of them in `saying`.

        Return the news or the messages, the bits, and which blocks were said, where no messages say it.
        """
        masks: list[Mask] = []
        p, listener, speaker = contributions.shape[-1], self.listener, self.speaker
        if listener is not None and len(who) * p <= AT_ONCE and not listener.sums_rows:
            senders: Any = slice(None) if len(who) == len(self.ids) else who
            said = speaker.to_say(contributions[places], senders)
            if self.by_block is not None:
                masks.append(self.by_block.clear(said, saying, senders))
            decoded, bits = speaker.say(said, senders, self._noise(k, senders, p))
            self._said(decoded, senders)
            changed = listener.hear(decoded, senders)
            return listener.news(changed), (), bits, masks[0] if masks else None
        alone = listener is not None and listener.keeps_nothing and len(who) == 1
        changed = None if alone or listener is None or listener.sums_rows else listener.nothing()
        standing = np.arange(len(contributions))[places]
        messages: list[bytes] = []
        bits = 0
        for some in pieces(len(who), p) if listener is None else listener.pieces(len(who)):
            mine, noise = view_of(who[some]), self._noise(k, who[some], p)
            said = speaker.to_say(contributions[view_of(standing[some])], mine, in_place=self._may_write)
            if self.by_block is not None:
                masks.append(self.by_block.clear(said, saying, mine))
            if listener is None:
                packed, decoded = speaker.pack(k, said, mine, noise)
                messages += packed
                if not speaker.confirmed_later:
                    self._said(decoded, mine)
                continue
            decoded, size = speaker.say(said, mine, noise)
            self._said(decoded, mine)
            bits += size
            if not alone:
                listener.hear_long(changed, decoded, who[some])
        if listener is not None:
            news = News(decoded[0], listener.whole) if alone else listener.news(changed)
            return news, (), bits, np.concatenate(masks) if masks else None
        if not all(messages):
            raise LasgError("the codec made an empty message, which cannot be told from silence")
        return None, tuple(messages), 8 * sum(map(len, messages)), None

    def _no_news(self) -> News | None:
        """Return what it means that nobody here uploads: nothing, or where news are the whole, the same as before."""
        return self.listener.news(None) if self.listener is not None and self.listener.whole else None

    def _noise(self, k: int, senders: IntArray | slice, p: int) -> counter.Draws:
        """Return what draws uniform numbers for each sender and entry."""
        return counter.Draws(self.seed, k, self.ids[senders], p)

    def _remember(
        self, now: Record, uploaded: Mask, who: IntArray, places: IntArray | slice, saying: Mask | None
    ) -> None:
        """Keep of the uploaders, or of the blocks that they say, what the rule compares with later."""
        if self.by_block is not None and saying is not None:
            self.by_block.remember(self.memory, now, who, np.arange(len(now.grad))[places], saying)
        elif self.memory and not self._shares_memory:
            rows = np.arange(len(now.grad))[places]
            for name, kept in self.memory.items():
                for some in pieces(len(who), kept.shape[-1]):
                    kept[who[some]] = getattr(now, name)[rows[some]]
        if self.iterates is not None and not self._each_round:
            self.iterates.keep(now.theta, uploaded)

    # -- what survives the process ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: live arrays, to be copied or written before the next round."""
        return {
            "rule": {
                "memory": {} if self._shares_memory else dict(self.memory),
                "snapshot": self.snapshot,
                "watched": self.watched,
                "iterates": None if self.iterates is None else self.iterates.state(),
            },
            "estimator": self.estimates,
            "work": self.worked,
            "speaker": self.speaker.state(),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        rule = copies(state["rule"], self.like)
        self.memory, self.snapshot, self.watched = dict(rule["memory"]), rule["snapshot"], rule["watched"]
        if self.iterates is not None:
            self.iterates.restore(rule["iterates"])
        self.estimates = copies(state["estimator"], self.like)
        self.worked = copies(state.get("work", {}), self.like)  # older checkpoints have no work with a memory
        self._begun = not self._each_round  # looked at again in the next round
        self.speaker.restore(state["speaker"])
        self.memory |= {"grad": self.speaker.rows} if self._shares_memory else {}
