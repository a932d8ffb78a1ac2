"""Any training loop, with local steps: after every so many optimizer steps the ranks say how far they moved.

with lasg.lazy(model, optimizer, every=20):
    for x, y in loader:
        loss_function(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from lasg.core.algorithms import LOCAL_DEFAULT, Outer, Stages
from lasg.core.arrays import Array, FloatArray, IntArray, checksum
from lasg.core.codecs import Dense
from lasg.core.ledger import Ledger
from lasg.core.server import Laziness
from lasg.core.training import MORE, PATIENCE, Round, Training
from lasg.errors import LasgError, LostRank
from lasg.loops.lazy_setup import check, choose_stages, named_parameters, outer_optimizer
from lasg.loops.memory import check_memory, vectors_kept
from lasg.loops.sharing import (
    Listener,
    agree_on_model,
    as_arrays,
    as_tensors,
    pool_buffers,
    share_of_ranks,
    warn_of_threads,
)
from lasg.problems.flat import FlatView
from lasg.transports.links import TIMEOUT, Links, describe_code
from lasg.transports.ranks import CHECK_EVERY, Ranks

PoolBuffers = Literal["end", "round", "never"]
_ended: WeakKeyDictionary[torch.optim.Optimizer, RemovableHandle] = WeakKeyDictionary()
"""The hooks of loops that have ended: they refuse further steps, until there is a new loop."""


class _Moves:
    """What this rank has to say: how far its optimizer moved the model since the round began."""

    def __init__(self, flat: FlatView, weights: FloatArray) -> None:
        self.weights, self.shapes, self.workers = weights, flat.shapes, len(weights)
        self.move: Tensor | None = None

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:  # noqa: ARG002
        """Return this rank's share of the mean move, `(1, p)`: what an outer optimizer takes for a gradient."""
        assert self.move is not None
        move, self.move = self.move, None
        return [move[None].mul_(float(self.weights[0 if rows is None else int(rows[0])]))]


class LazyLoop:
    """Averages the ranks' models every so many steps, from messages that say little; see `lazy`."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        every: int,
        stages: Stages,
        outer: Outer | tuple[type[torch.optim.Optimizer], Mapping[str, Any]],
        *,
        weight: float | None,
        delay: int,
        buffers: PoolBuffers,
        exchange: str,
        relay: int,
        check_every: int,
        patience: int,
        seed: int,
        links: Links,
    ) -> None:
        self.model, self.optimizers, self.every, self.delay, self.buffers = model, optimizers, every, delay, buffers
        self.flat = FlatView(named_parameters(model, optimizers))
        shares = share_of_ranks(weight, links)
        theta = self._take_over(links, stages, outer, [exchange, relay, check_every, patience, seed])
        if links.ranks == 1:  # nothing travels: rounding would save nothing
            stages = dataclasses.replace(stages, codec=Dense())
        stepping = outer_optimizer(theta, outer, in_place=True)
        kept = sum(map(vectors_kept, optimizers), vectors_kept(getattr(stepping, "optimizer", None)))
        check_memory(links, stages, theta, exchange, optimizer=kept, move=True)
        self._moves = _Moves(self.flat, shares)
        self._ranks = Ranks(links, exchange=exchange, hub_rank=relay, check_every=check_every)
        options: Any = {"patience": patience, "seed": seed}
        laziness = Laziness(workers=links.ranks)
        self._training = Training(self._moves, stepping, stages, laziness, self._ranks, **options)
        self._training.control = MORE
        warn_of_threads(links)
        self.last: Round | None = None
        """The last round: who spoke."""
        self.listeners: list[Listener] = []
        """They are told of every round, and of the end."""
        self.steps = 0
        """Optimizer steps since the last round."""
        self._start = self._set(theta)
        self._thread = ThreadPoolExecutor(1, "lasg") if delay else None
        self._under_way: Future[Round] | None = None
        self._closed = False
        self._in_step = False
        if (ended := _ended.pop(optimizers[0], None)) is not None:
            ended.remove()
        self._hook = optimizers[0].register_step_post_hook(self._stepped)

    def _take_over(self, links: Links, stages: Stages, outer: Any, ways: list[Any]) -> Tensor:
        """Take rank 0's parameters on every rank, once all agree on the settings; return the server's model."""
        theta = self._gather()
        links.agree(
            {
                "version of lasg": describe_code(),
                "every": self.every,
                "delay": self.delay,
                "buffers": self.buffers,
                **stages.describe(),
                "outer optimizer": str(outer),
                "exchange, check_every, patience and seed": ways,
                "parameters' shapes": [list(shape) for shape in self.flat.shapes],
                "parameters' dtype": str(self.flat.parameters[0].dtype),
            }
        )
        return links.copy_from(0, theta, "parameters")

    # -- rounds ---------------------------------------------------------------------------------------------------

    def _stepped(self, *_: Any) -> None:
        self.step()

    def step(self) -> None:
        """Count a step of the optimizer; the last of a round closes it. Only after `release` it is yours to call."""
        if self._closed:
            raise LasgError(
                "the optimizer was stepped after its lazy loop had ended, which would move this rank's model alone: "
                "step inside `with lasg.lazy(...)`, or make a new one"
            )
        self.steps += 1
        self._in_step = False
        if self.steps == self.every:
            self._close_round()

    def synchronise(self) -> None:
        """Close the round now, so that all ranks have one model; all must call it after the same step."""
        if self._in_step:
            return
        if self.steps:
            self._close_round()
        self._finish_exchange()
        agree_on_model(self._training, self._ranks)
        self._start = self._set(self._training.theta)
        if self.buffers != "never":
            pool_buffers(self._ranks.links, self.model, self._moves.weights)
        self._in_step = True

    @torch.no_grad()
    def _close_round(self) -> None:
        """Say how far this rank moved, and go on from what all ranks' moves come to."""
        now = self._gather()
        move = torch.sub(self._start, now, out=now)
        if self._thread is None:
            self._moves.move = move
            self._take(self._exchange())
            self._start = self._set(self._training.theta)
        else:
            # What this rank did in the round is kept; what the others did comes one round later.
            self._finish_exchange()
            self._moves.move = move
            begin = self._training.theta - move
            self._under_way = self._thread.submit(self._exchange)
            self._start = self._set(begin)
        self.steps = 0
        if self.buffers == "round":
            self._finish_exchange()
            pool_buffers(self._ranks.links, self.model, self._moves.weights)

    def _exchange(self) -> Round:
        """Let the server take its step with what all ranks say."""
        try:
            return self._training.step()
        except LostRank as error:
            raise LasgError(f"{error}. This rank was in round {self._training.server.k + 1}") from None

    def _finish_exchange(self) -> None:
        """Wait for the exchange that is under way, if one is."""
        if self._under_way is not None:
            under_way, self._under_way = self._under_way, None
            self._take(under_way.result())

    def _take(self, finished: Round) -> None:
        """Take note of a round; a rank whose move was not finite begins again, its optimizers with an empty memory."""
        self.last = finished
        if finished.broken is not None and finished.broken[self._ranks.links.rank]:
            for optimizer in self.optimizers:
                optimizer.state.clear()
            warnings.warn(
                f"this rank's model was not finite after round {finished.k}: it goes on from the others', and its "
                "optimizer begins again. A smaller step, or clipped gradients, may prevent it",
                stacklevel=2,
            )
        for listener in self.listeners:
            listener.heard(finished, None)

    def _gather(self) -> Tensor:
        """Return the parameters as one flat vector, at least in float32."""
        return self.flat.gather()

    @torch.no_grad()
    def _set(self, theta: Tensor) -> Tensor:
        """Give the parameters the values of a flat vector; return what they are then, rounded to their dtype."""
        torch._foreach_copy_([value.data for value in self.flat.parameters], self.flat.views(theta))
        same = self.flat.parameters[0].dtype == theta.dtype
        return theta if same else self._gather()

    # -- the end --------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the loop: a last, shorter round, then silence until all ranks have ended. All models are equal then."""
        if self._closed:
            return
        links, training = self._ranks.links, self._training
        if self.steps:
            self._close_round()
        self._finish_exchange()
        if links.ranks > 1:
            training.silent, training.control = True, 0
            while self._exchange().control == MORE:
                pass
        links.agree({"round": training.server.k})
        agree_on_model(training, self._ranks)
        self._set(training.theta)
        if self.buffers != "never":
            pool_buffers(links, self.model, self._moves.weights)
        self._leave()

    def release(self) -> None:
        """Let go of the optimizer: whoever made the loop calls `step`, on all ranks alike."""
        self._hook.remove()

    def leave(self) -> None:
        """End the loop without another word: this rank's model stays as it is."""
        self.release()
        self._leave()

    def _leave(self) -> None:
        self._closed = True
        for listener in list(self.listeners):
            listener.close()
        _ended[self.optimizers[0]] = self._hook
        if self._thread is not None:
            self._thread.shutdown(wait=False, cancel_futures=True)

    def __enter__(self) -> LazyLoop:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Close it; where the loop failed, only let go of the optimizer."""
        if kind is None:
            self.close()
        else:
            self.leave()

    # -- what loggers and checkpoints want ------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This rank's number in its group."""
        return self._ranks.links.rank

    @property
    def rounds(self) -> int:
        """Rounds so far."""
        return int(self._training.server.k)

    @property
    def ledger(self) -> Ledger:
        """What was said, as a star network would count it."""
        return self._training.ledger

    @property
    def sent(self) -> IntArray:
        """Bytes that this rank really sent, by the rank that got them."""
        return self._ranks.links.sent

    def state_dict(self) -> dict[str, Any]:
        """Return what this rank needs to go on, besides the states of its model and optimizers: each rank its own."""
        self._finish_exchange()
        now = {"steps": self.steps, "start": self._start.clone(), "parameters": checksum(self._gather())}
        now["settled"] = self._in_step
        return {**as_tensors(self._training.state()), "loop": now, "of": self._identity()}

    def _identity(self) -> dict[str, Any]:
        """Return what a state dict must be of to be this rank's."""
        links = self._ranks.links
        own = {"rank": links.rank, "ranks": links.ranks, "p": self.flat.p, "every": self.every, "delay": self.delay}
        return {**own, **self._training.stages.describe()}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict. Load the states of the model and of the optimizers before."""
        given, own = state_dict.get("of"), self._identity()
        if given != own:
            differing = [name for name in own if not isinstance(given, Mapping) or given.get(name) != own[name]]
            raise LasgError(
                f"this state dict is not of a lazy loop like this one: {', '.join(differing)} differ. Every rank saves "
                "and loads its own"
            )
        loop = state_dict["loop"]
        if checksum(self._gather()) != loop["parameters"]:
            raise LasgError(
                "the model is not the one that was saved with this state dict: load the model's state dict, and the "
                "optimizer's, before the lazy loop's"
            )
        self._finish_exchange()
        try:
            self._training.restore(as_arrays(state_dict, self._training.state(live=True)))
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise LasgError(f"this state dict is not of a lazy loop like this one: {error!r}") from None
        # A copy, and where the model is: states are often loaded to the CPU.
        self._start = loop["start"].to(self._start.device, copy=True)
        self.steps, self._in_step = int(loop["steps"]), bool(loop["settled"])
        self._ranks.links.agree({"round": self.rounds, "model": checksum(self._training.theta)})

    def __repr__(self) -> str:
        """Say what is lazy here."""
        stages = self._training.stages
        return f"LazyLoop(every={self.every}, codec={stages.codec!r}, belief={stages.belief!r}, rounds={self.rounds})"


def lazy(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    every: int = 20,
    algorithm: str = LOCAL_DEFAULT,
    outer: type[torch.optim.Optimizer] | None = None,
    outer_options: Mapping[str, Any] | None = None,
    weight: float | None = None,
    robust: str | None = None,
    delay: int = 0,
    buffers: PoolBuffers = "end",
    exchange: str = "auto",
    relay: int = 0,
    check_every: int = CHECK_EVERY,
    patience: int = PATIENCE,
    seed: int = 0,
    group: dist.ProcessGroup | None = None,
    timeout: float = TIMEOUT,
) -> LazyLoop:
    """Let the ranks train on their own and average what moved after every so many steps of the optimizer.

    Nothing else in the loop changes. All ranks begin with rank 0's parameters. After `every` steps each rank says how
    far it moved, as the algorithm's codec has it, and all take the step of the `outer` optimizer on the mean: the
    algorithm's own, or this class with these options (`lr` among them). Of several optimizers the first counts.

    `weight` is this rank's share of the objective, 1 / ranks by default. `robust` bounds what one rank adds to a round
    (median-clip3, trimmed, none; absent: the algorithm's); messages then go to every rank. With `delay=1` messages
    travel while the next steps are computed, and count one round later. Buffers such as BatchNorm's are pooled at the
    end, after every `round`, or `never`. `exchange`, `relay`, `check_every`, `patience`, `seed`, `group` and `timeout`
    are as for LazyOptimizer.

    Use it as a context manager, or keep the object and call `close()` at the end: that closes a last, shorter round. A
    rank whose data end first is silent from then on; nobody loses a round by it.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    check(model, optimizers, every, delay, buffers)
    stages, own_outer = choose_stages(algorithm, robust)
    if outer is None and outer_options:
        raise LasgError("outer_options are those of `outer`: name its class too, such as outer=torch.optim.SGD")
    stepping = own_outer if outer is None else (outer, dict(outer_options or {}))
    return LazyLoop(
        model,
        optimizers,
        every,
        stages,
        stepping,
        weight=weight,
        delay=delay,
        buffers=buffers,
        exchange=exchange,
        relay=relay,
        check_every=check_every,
        patience=patience,
        seed=seed,
        links=Links(group, timeout),
    )
