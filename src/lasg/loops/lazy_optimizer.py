"""A lazy optimizer for a training loop of your own: around any torch.optim optimizer, on every rank of a process group.

opt = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.05))
for x, y in loader:
    loss = opt.step(lambda: F.cross_entropy(model(x), y))
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from lasg.core.algorithms import choose_stages
from lasg.core.arrays import Array, FloatArray, IntArray, checksum
from lasg.core.ledger import Ledger
from lasg.core.optimizers import UNFIT, is_plain, momentum_of
from lasg.core.own_codec import CodecLike
from lasg.core.rules import Rule
from lasg.core.server import DEFAULT_D, laziness_of
from lasg.core.training import PATIENCE, Round, Training
from lasg.errors import Faulty, LasgError, LostRank
from lasg.loops.lazy_setup import fit_ranks, has_hooks, widen, with_momentum_of
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
from lasg.loops.user_loss import ComputeLoss, UserLoss, kind_of
from lasg.problems.flat import FlatView, Workspace
from lasg.transports.links import TIMEOUT, Links, describe_code
from lasg.transports.ranks import CHECK_EVERY, Ranks


def _wrapped(name: str) -> Any:
    """Return a property that is the wrapped optimizer's; what torch's constructor sets is not taken."""
    return property(lambda self: getattr(self.optimizer, name), lambda _self, _value: None)


class LazyOptimizer(torch.optim.Optimizer):
    """Steps on the lazily aggregated gradient of all ranks. Every rank is a worker, and runs the same server."""

    last: Round | None = None
    """The last round: who uploaded, the two sides of the rule."""
    _interrupted = False

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: str | Rule | None = None,
        codec: str | CodecLike | None = None,
        *,
        algorithm: str | None = None,
        rho: float | None = None,
        c: float | None = None,
        guard: bool | None = None,
        D: int | float = DEFAULT_D,
        window: int = 10,
        weight: float | None = None,
        clip: float | None = None,
        robust: str | None = None,
        exchange: str = "auto",
        relay: int = 0,
        patience: int = PATIENCE,
        check_every: int = CHECK_EVERY,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Take over the optimizer's parameters; all ranks begin with those of rank 0.

        The default sends every gradient, in 8 bits per entry (from three ranks on the sum is rounded once more). A lazy
        rule, such as wk2, sends fewer: `rho` bounds the relative error of the aggregate, and a guard switches laziness
        off, with a warning, if it does harm. `c` is the paper's constant, in place of rho and without the guard;
        `guard` switches the guard on or off in either case.

        `weight` is this rank's share of the objective, n_m / N; 1 / ranks by default. `clip` limits the norm of the
        local gradient. `robust` bounds what one rank adds to the sum (median-clip3, trimmed; by default the algorithm's
        own bound); messages then go to every rank. `exchange` is auto, direct, scatter or hub, and `relay` the hub's
        rank. Every `check_every` rounds the ranks compare checksums of their models, and a piece of them in all others
        (0: never); one that differs takes rank 0's, with a warning. Without a process group there is one worker.
        """
        self.flat, self.optimizer = FlatView(_named(optimizer)), optimizer
        super().__init__(optimizer.param_groups, optimizer.defaults)
        links = Links(group, timeout)
        stages = fit_ranks(links.ranks, choose_stages(algorithm, rule, codec, one_gradient=True), robust)
        stages = with_momentum_of(optimizer, stages)
        lazy: dict[str, Any] = {"rho": rho, "c": c, "guard": guard, "D": D, "window": window}
        agreed = {"constants": {**lazy, "seed": seed, "patience": patience}, "exchange": [exchange, relay, check_every]}
        shares, theta = self._take_over(links, weight, {**stages.describe(), **agreed})
        check_memory(links, stages, theta, exchange, optimizer=vectors_kept(optimizer))
        workspace = Workspace(theta[:0], self.flat.p)
        self._loss = UserLoss(self.flat, shares, workspace)
        self._settings = _describe_settings(optimizer)
        routing: dict[str, Any] = {"exchange": exchange, "hub_rank": relay, "check_every": check_every}
        routing |= {"requantise": True, "overlap": True, "settings": self._settings, "workspace": workspace}
        self._ranks = Ranks(links, **routing)
        stepping = _WrappedOptimizer(optimizer, self.flat, theta, workspace)
        options: Any = {"clip": clip, "patience": patience, "minibatch_loss": self._loss.loss_now, "seed": seed}
        self._training = Training(
            self._loss, stepping, stages, laziness_of(links.ranks, **lazy), self._ranks, **options
        )
        warn_of_threads(links)
        self.listeners: list[Listener] = []
        """They are told of every round."""

    def _take_over(self, links: Links, weight: float | None, agreed: dict[str, Any]) -> tuple[FloatArray, Tensor]:
        """Take rank 0's parameters on every rank; return every rank's share, and theta, which they are views of."""
        theta, dtype = self.flat.gather(), self.flat.parameters[0].dtype
        if dtype not in {torch.float32, torch.float64, torch.bfloat16}:
            raise LasgError(
                f"parameters must be bfloat16, float32 or float64, got {dtype}, whose gradients need a GradScaler: "
                "take lasg.lazy, or bfloat16"
            )
        shares = share_of_ranks(weight, links)
        options = [{name: str(value) for name, value in g.items() if name != "params"} for g in self.param_groups]
        links.agree(
            {
                "version of lasg": describe_code(),
                **agreed,
                "optimizer": [type(self.optimizer).__name__, options],
                "parameters' shapes": [list(value.shape) for value in self.flat.parameters],
                "parameters' dtype": str(dtype),
            }
        )
        theta = links.copy_from(0, theta, "parameters")
        self.flat.point_at(theta)
        return shares, theta

    @property
    def rank(self) -> int:
        """This rank's number in its group."""
        return self._ranks.links.rank

    @property
    def ledger(self) -> Ledger:
        """What was sent and computed, as a star network would count it."""
        return self._training.ledger

    @property
    def sent(self) -> IntArray:
        """Bytes that this rank really sent, by the rank that got them."""
        return self._ranks.links.sent

    def step(self, compute_loss: ComputeLoss | Sequence[ComputeLoss] | None = None) -> Tensor | None:  # type: ignore[override]
        """Take one step, together with all ranks.

        `compute_loss` returns this rank's loss on its minibatch, without calling backward; it may be called twice,
        or, under a server rule that does not ask this rank, not at all. A list has a function per microbatch: the loss
        is their mean, and one graph is held at a time. Returns the detached loss, or None.
        """
        functions = self._functions(compute_loss)
        if torch.is_autocast_enabled(self.flat.parameters[0].device.type):
            raise LasgError("step was called under autocast: put `with torch.autocast(...)` into the function it gets")
        if torch.is_inference_mode_enabled():
            raise LasgError("step was called under inference_mode, where nothing has a gradient: leave it before")
        self._loss.compute, self._loss.value = functions, None
        try:
            self.last = self._training.step()
            self._ranks.wait()
        except Faulty:
            self._training.reset_faults()  # the next step has as much patience again
            raise
        except BaseException as error:
            self._interrupted = self._interrupted or self._loss.value is not None
            if isinstance(error, LostRank):
                raise LasgError(
                    f"{error}. This rank was in step {self._training.server.k + 1}: if rank {error.rank} ran out of "
                    "batches before, give all ranks as many (DistributedSampler, drop_last=True)"
                ) from None
            raise
        finally:
            self._loss.compute = ()
            self.flat.point_at(self._training.theta)
        if self.last.remark and self._ranks.links.rank == 0:
            warnings.warn(f"{self.last.remark}. All ranks upload in every round from here on", stacklevel=2)
        for listener in self.listeners:
            listener.heard(self.last, self._loss.value)
        return self._loss.value

    def _functions(self, compute_loss: Any) -> tuple[ComputeLoss, ...]:
        """Return the functions that step got; say what to write where it got none."""
        if callable(compute_loss):
            return (compute_loss,)
        if isinstance(compute_loss, list | tuple) and compute_loss and all(map(callable, compute_loss)):
            return tuple(compute_loss)
        if compute_loss is None:
            came = "after backward()" if any(value.grad is not None for value in self.flat.parameters) else "alone"
            raise LasgError(
                f"step() {came} cannot be lazy: write opt.step(lambda: loss_function(model(x), y)) in place of "
                "loss.backward() and opt.step(). A GradScaler is not for it: put torch.autocast with bfloat16 into "
                "the function"
            )
        raise LasgError(
            "step takes a function that returns the loss, opt.step(lambda: loss_function(model(x), y)), or a list of "
            f"them, one per microbatch; it got {kind_of(compute_loss)}"
        )

    def average_buffers(self, module: nn.Module) -> None:
        """Give the module's buffers one value on all ranks, such as BatchNorm's statistics: those of all samples.

        Every rank keeps statistics of its own minibatches: call it on every rank before you evaluate or save the model.
        The ranks compare their models here, too.
        """
        self._agree()
        pool_buffers(self._ranks.links, module, self._loss.weights)

    # -- what schedulers, loggers and checkpoints expect of an optimizer ------------------------------------------

    param_groups = _wrapped("param_groups")
    state = _wrapped("state")
    defaults = _wrapped("defaults")

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; `step` does so itself."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: the workers' memory has the parameters' length."""
        if not hasattr(self, "_training"):
            return  # torch's constructor shows the groups that are the wrapped optimizer's already
        raise LasgError("parameters cannot be added to a lazy optimizer: make a new one around the wrapped optimizer")

    def state_dict(self, *, live: bool = False) -> dict[str, Any]:
        """Return all that this rank needs to go on: tensors, numbers and strings. Each rank has its own.

        Call it on all ranks: they compare their models and their optimizers' settings before. Of a large model take it
        `live`: its tensors are the optimizer's own and not copies, to be saved before the next step.
        """
        if self._interrupted:
            raise LasgError(
                "a step broke off after this rank had computed: its state is that of no round, save no part"
            )
        self._agree()
        return {**as_tensors(self._training.state(live=live)), "of": self._identity()}

    def _agree(self) -> None:
        """Refuse optimizers that are set otherwise; give all ranks one model."""
        what = "has other settings of its optimizer than rank 0"
        self._ranks.links.agree(json.loads(self._settings()), what, "All ranks must change them alike")
        agree_on_model(self._training, self._ranks)
        self.flat.point_at(self._training.theta)

    def _identity(self) -> dict[str, Any]:
        """Return what a state dict must be of to be this rank's."""
        links, stages = self._ranks.links, self._training.stages
        own = {"rank": links.rank, "ranks": links.ranks, "p": self.flat.p, "form": self._ranks.form}
        return {**own, "rule": stages.rule.name, "belief": stages.belief, "codec": repr(stages.codec)}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict; the model's parameters are set too."""
        given, own = state_dict.get("of"), self._identity()
        # lasg 0.1 had no other belief, and said neither it nor the codec.
        given = {"belief": "replace", "codec": own["codec"], **given} if isinstance(given, dict) else {}
        if given and given.get("ranks") != own["ranks"]:
            raise LasgError(
                f"this state dict was saved on {given.get('ranks')} ranks, and here are {own['ranks']}: start as many, "
                "or begin with a new LazyOptimizer around the model as it was saved, its optimizer loaded with "
                "optimizer.load_state_dict(state['server']['optimizer']['optimizer'])"
            )
        if given != own:
            theirs, here = (", ".join(f"{name} {it[name]}" for name in own if name in it) for it in (given, own))
            theirs = theirs or "something else"
            raise LasgError(f"this state dict is of {theirs}, and here is {here}: every rank saves and loads its own")
        try:
            self._training.restore(as_arrays(state_dict, self._training.state(live=True)))
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise LasgError(f"this state dict is not of a lazy optimizer like this one: {error!r}") from None
        self._interrupted = False
        self.flat.point_at(self._training.theta)
        self._ranks.links.agree({"round": self._training.server.k, "model": checksum(self._training.theta)})

    def __repr__(self) -> str:
        """Say what is lazy here."""
        stages = self._training.stages
        belief = "" if stages.belief == "replace" else f", belief={stages.belief!r}"
        return f"LazyOptimizer({self.optimizer!r}, rule={stages.rule.name!r}, codec={stages.codec!r}{belief})"


class _WrappedOptimizer:
    """The user's optimizer, stepping in place: its parameters are views of theta.

    Those of a module in bfloat16 are rounded from theta, and the optimizer gets parameters in float32 in their place.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatView, theta: Tensor, workspace: Workspace) -> None:
        """Take theta, and what the optimizer's gradient may be written into."""
        self.optimizer, self.flat, self.theta, self._workspace = optimizer, flat, theta, workspace
        self.plain = is_plain(optimizer)
        self._before: Tensor | None = None
        self._parameters = widen(optimizer, flat, theta) if flat.rounded else flat.parameters

    @property
    def momentum(self) -> float:
        """The optimizer's, as it is now: a scheduler may change it."""
        return momentum_of(self.optimizer)

    def rate(self, k: int) -> float:  # noqa: ARG002
        """Return the learning rate of the first group, as it is now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def copy_before(self, aggregate: Array) -> Array:
        """Return a copy of theta, good until the end of the round."""
        self._before = self._workspace.free(aggregate).copy_(self.theta)
        return self._before

    def step(self, k: int, aggregate: Array) -> Array:  # noqa: ARG002
        """Move the parameters along the aggregate."""
        if not self.flat.rounded:
            self.flat.point_at(self.theta)
        before, self._before = self._before, None
        gradient = aggregate
        if aggregate.dtype != self.theta.dtype or not self.plain or has_hooks(self.optimizer):
            # A copy: optimizers and hooks may write into gradients, and the aggregate is the server's.
            gradient = self._workspace.free(aggregate, before).copy_(aggregate)
        for parameter, view in zip(self._parameters, self.flat.views(gradient), strict=True):
            parameter.grad = view
        self.optimizer.step()
        for parameter in self._parameters:
            parameter.grad = None
        return self.theta

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"theta": self.theta, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.theta.copy_(state["theta"])
        self.flat.point_at(self.theta)
        self.optimizer.load_state_dict(state["optimizer"])


def _describe_settings(optimizer: torch.optim.Optimizer) -> Callable[[], str]:
    """Return what says, in JSON, how the optimizer's groups are set now: what ranks must have alike."""
    before: list[Any] = []
    text = "{}"

    def describe() -> str:
        nonlocal before, text
        now = [
            value.item() if isinstance(value, Tensor) and value.numel() == 1 else value
            for group in optimizer.param_groups
            for name, value in group.items()
            if name != "params"
        ]
        if len(now) != len(before) or any(new is not old and new != old for new, old in zip(now, before, strict=True)):
            groups = enumerate(optimizer.param_groups)
            named = ((i, *pair) for i, group in groups for pair in group.items() if pair[0] != "params")
            shown = {f"{name} of group {i}" if i else name: value for i, name, value in named}
            before, text = now, json.dumps(shown, default=str)
        return text

    return describe


def _named(optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of all groups; torch's optimizers know no names."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise LasgError(f"LazyOptimizer wraps an optimizer of torch.optim, got {kind_of(optimizer)}")
    if isinstance(optimizer, LazyOptimizer):
        raise LasgError("this optimizer is lazy already: wrap the torch optimizer inside it, once")
    name = type(optimizer).__name__
    if name in UNFIT:
        raise LasgError(f"{name} cannot be lazy: {UNFIT[name]}")
    groups = optimizer.param_groups
    return [(f"{g}.{i}", value) for g, group in enumerate(groups) for i, value in enumerate(group["params"])]
