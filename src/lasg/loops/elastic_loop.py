"""Any training loop, with local steps, on ranks that come and go.

with lasg.elastic(model, optimizer, lighthouse="10.0.0.1:29510", every=20) as loop:
    for x, y in loader:
        loss_function(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lasg.core.algorithms import LOCAL_DEFAULT, Outer, Stages
from lasg.core.arrays import copies
from lasg.core.ledger import Ledger
from lasg.core.training import PATIENCE
from lasg.errors import LasgError
from lasg.loops.lazy_setup import check, choose_stages, named_parameters, outer_optimizer
from lasg.loops.sharing import as_arrays, as_tensors
from lasg.problems.flat import FlatView
from lasg.transports.elastic import Closed, Elastic, Member
from lasg.transports.elastic_record import Recorder
from lasg.transports.elastic_server import ElasticServer
from lasg.transports.links import describe_code


class ElasticLoop:
    """Local steps on ranks that come and go; see `elastic`, and docs/elastic.md."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        every: int,
        algorithm: str,
        robust: str | None,
        stages: Stages,
        outer: Outer | tuple[type[torch.optim.Optimizer], Mapping[str, Any]],
        how: Elastic,
        *,
        weight: float,
        patience: int,
        seed: int,
    ) -> None:
        self.model, self.optimizers, self.every, self.how, self.patience = model, optimizers, every, how, patience
        self.flat = FlatView(named_parameters(model, optimizers))
        if not 0 < weight < float("inf"):
            raise LasgError(f"weight must be this rank's number of samples, or any number above 0, got {weight!r}")
        theta = self._gather()
        stages = stages.for_shapes(self.flat.shapes)
        described = describe_outer(outer)
        self.settings: dict[str, Any] = {
            "version of lasg": describe_code(),
            "algorithm": algorithm,
            "robust setting": robust,
            **{name: value for name, value in stages.describe().items() if name != "local steps"},
            "every": every,
            "outer optimizer": described,
            "seed": seed,
            "model (the shapes of its parameters)": [list(shape) for shape in self.flat.shapes],
            "model's dtype": str(theta.dtype),
        }
        self._server = ElasticServer(outer_optimizer(theta, outer), stages, seed)
        self._weight, self._seed = weight, seed
        self._member: Member | None = None
        self._recorder = None if how.record is None else Recorder(how.record, self.settings)
        self.listeners: list[Callable[[Closed], None]] = []
        """Called with every round, from a thread of its own."""
        self.last: Closed | None = None
        """The last round: its members, and who of them spoke."""
        self.steps = 0
        """Optimizer steps since the last round."""
        self._broken = 0
        self._start = theta
        self._closed = False
        self._hook = optimizers[0].register_step_post_hook(lambda *_: self.step())

    # -- rounds -------------------------------------------------------------------------------------------------------

    def join(self) -> None:
        """Become a member, and take the others' model; the first step does so, if nobody did before."""
        if self._member is not None:
            return
        resumed = self._server.k > 0
        self._member = Member(
            self.how, self._server, self.settings, weight=self._weight, seed=self._seed, resumed=resumed
        )
        self._member.on_round.append(self._heard)
        self._go_on(self._member.join()[1])

    def _heard(self, closed: Closed) -> None:
        self.last = closed
        if self._recorder is not None:
            self._recorder.note(closed, self._server)
        for listener in list(self.listeners):
            listener(closed)

    def _go_on(self, theta: Tensor) -> None:
        assert self._member is not None
        self._start = self._set(theta)
        self.steps = 0
        self._member.begin()

    def step(self) -> None:
        """Count a step of the optimizer; the last of a round closes it."""
        if self._closed:
            raise LasgError(
                "the optimizer was stepped after its elastic loop had ended, which would move this rank's model alone"
            )
        if self._member is None:
            raise LasgError(
                "this rank is no member yet: use `with lasg.elastic(...)`, or call join() before the first step"
            )
        self.steps += 1
        self._member.progress(self.steps / self.every)
        if self.steps == self.every:
            self._close_round()

    @torch.no_grad()
    def _close_round(self, *, leaving: bool = False) -> None:
        """Say how far this rank moved, and go on from what all said."""
        assert self._member is not None
        move: Tensor | None = self._start - self._gather() if self.steps else None
        if move is not None and not bool(torch.isfinite(move).all()):
            move = None
            self._note_broken()
        elif move is not None:
            self._broken = 0
        self._go_on(self._member.finish(move, leaving=leaving)[1])

    def _note_broken(self) -> None:
        self._broken += 1
        for optimizer in self.optimizers:
            optimizer.state.clear()
        if self._broken >= self.patience:
            raise LasgError(
                f"this rank's model was not finite {self._broken} rounds in a row: look at its data, or take a smaller "
                "step"
            )
        warnings.warn(
            f"this rank's model was not finite after round {self.rounds}: it goes on from the others', and its "
            "optimizer begins again",
            stacklevel=4,
        )

    def _gather(self) -> Tensor:
        """Return the parameters as one flat vector, at least in float32."""
        flat = self.flat.gather()
        return flat if flat.dtype in (torch.float32, torch.float64) else flat.float()

    @torch.no_grad()
    def _set(self, theta: Tensor) -> Tensor:
        """Give the parameters the values of a flat vector; return what they are then, rounded to their dtype."""
        torch._foreach_copy_([value.data for value in self.flat.parameters], self.flat.views(theta))
        return theta if self.flat.parameters[0].dtype == theta.dtype else self._gather()

    # -- the end ------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End the loop: a last, shorter round; then this rank is no member any more."""
        if self._closed:
            return
        if self._member is not None:
            self._close_round(leaving=True)
        self.leave()

    def release(self) -> None:
        """End the loop without another word, so that the optimizer can have another one."""
        self._hook.remove()
        self.leave()

    def leave(self) -> None:
        """End the loop without another word: this rank's model stays as it is."""
        self._closed = True
        if self._member is not None:
            self._member.leave()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> ElasticLoop:
        self.join()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self.leave()

    # -- what loggers and checkpoints want ----------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """The round that is open: how many have ended since the run began, this rank a member or not."""
        return self._server.k

    @property
    def ledger(self) -> Ledger:
        """What all members said, as a star network would count it."""
        return self._server.ledger

    @property
    def checksum(self) -> int:
        """Of the model that all members have between two rounds."""
        return self._server.checksum

    def state_dict(self) -> dict[str, Any]:
        """Return the run's state at the last round's end, for the case that all ranks die: any one rank may save it."""
        state = self._server.state() if self._member is None else self._member.state_for(0)["state"]
        return {**as_tensors(copies(state)), "of": {name: str(value) for name, value in self.settings.items()}}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict, before joining. Ranks without one get it from those that have the latest round."""
        if self._member is not None:
            raise LasgError("load the state dict before this rank joins: before the `with` block, or before join()")
        own = {name: str(value) for name, value in self.settings.items()}
        given = state_dict.get("of")
        if given != own:
            differing = [name for name in own if not isinstance(given, Mapping) or given.get(name) != own[name]]
            raise LasgError(f"this state dict is not of an elastic loop like this one: {', '.join(differing)} differ")
        self._server.restore(as_arrays({k: v for k, v in state_dict.items() if k != "of"}, self._server.state()))

    def __repr__(self) -> str:
        """Say what is elastic here."""
        return f"ElasticLoop(name={self.how.name!r}, every={self.every}, rounds={self.rounds})"


def describe_outer(outer: Outer | tuple[type[torch.optim.Optimizer], Mapping[str, Any]]) -> dict[str, Any]:
    """Return the outer optimizer in words that all members, and a replay, read alike."""
    if isinstance(outer, Outer):
        return {"name": outer.name, "options": {"lr": outer.eta, **outer.options}, "own": True}
    kind, options = outer
    return {"name": kind.__name__, "options": dict(options), "own": False}


def elastic(
    model: nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    *,
    lighthouse: str,
    every: int = 20,
    name: str = "",
    minimum: int = 1,
    timeout: float = 10.0,
    slack: float = 2.0,
    record: str | None = None,
    address: str = "",
    algorithm: str = LOCAL_DEFAULT,
    outer: type[torch.optim.Optimizer] | None = None,
    outer_options: Mapping[str, Any] | None = None,
    weight: float = 1.0,
    robust: str | None = None,
    patience: int = PATIENCE,
    seed: int = 0,
) -> ElasticLoop:
    """Train as with `lasg.lazy`, on ranks that may die, come back, and come later.

    `lighthouse` is torchft's, HOST:PORT: it knows who is there. `name` is this rank's, by default the host's and the
    process's number. Below `minimum` members training waits. A rank that says nothing for `timeout` seconds beyond the
    round's deadline is left out; the deadline is `slack` times as long as a move usually takes. With `record`, a
    folder, this rank writes down what all said in every round, and `lasg replay` computes the model from it.

    `weight` is this rank's, such as its number of samples: in every round those that spoke count by their weights.
    `every`, `algorithm`, `outer`, `outer_options`, `robust`, `patience` and `seed` are as for `lasg.lazy`, and the same
    on all ranks. Buffers such as BatchNorm's statistics stay every rank's own.
    """
    optimizers = [optimizer] if isinstance(optimizer, torch.optim.Optimizer) else list(optimizer)
    check(model, optimizers, every, 0, "never")
    how = Elastic(
        lighthouse=lighthouse, name=name, minimum=minimum, timeout=timeout, slack=slack, record=record, address=address
    )
    stages, own_outer = choose_stages(algorithm, robust)
    if outer is None and outer_options:
        raise LasgError("outer_options are those of `outer`: name its class too, such as outer=torch.optim.SGD")
    stepping = own_outer if outer is None else (outer, dict(outer_options or {}))
    options: dict[str, Any] = {"weight": weight, "patience": patience, "seed": seed}
    return ElasticLoop(model, optimizers, every, algorithm, robust, stages, stepping, how, **options)
