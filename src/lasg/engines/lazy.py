"""A lazy optimizer for a training loop of your own: around any torch.optim optimizer, on every rank of a process group.

opt = lasg.LazyOptimizer(torch.optim.SGD(model.parameters(), lr=0.05), rule="wk2", codec="dense")
for x, y in loader:
    loss = opt.step(lambda: F.cross_entropy(model(x), y))
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from lasg.core import codecs
from lasg.core.arrays import Array, FloatArray, IntArray, checksum
from lasg.core.codecs import Codec
from lasg.core.ledger import Ledger
from lasg.core.optimizers import UNFIT, is_plain
from lasg.core.rules import RULES, Rule
from lasg.core.server import Laziness
from lasg.engines.distributed import CHECK_EVERY, Distributed, code
from lasg.engines.links import TIMEOUT, Links
from lasg.engines.rounds import PATIENCE, Round
from lasg.errors import Faulty, LasgError
from lasg.problems.flat import FlatView

ComputeLoss = Callable[[], Tensor]


class LazyOptimizer(torch.optim.Optimizer):
    """Steps on the lazily aggregated gradient of all ranks. Every rank is a worker, and runs the same server."""

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        rule: str | Rule = "wk2",
        codec: str | Codec = "dense",
        *,
        c: float = 0.1,
        D: int = 50,
        window: int = 10,
        weight: float | None = None,
        clip: float | None = None,
        exchange: str = "auto",
        relay: int = 0,
        patience: int = PATIENCE,
        check_every: int = CHECK_EVERY,
        seed: int = 0,
        group: dist.ProcessGroup | None = None,
        timeout: float = TIMEOUT,
    ) -> None:
        """Take over the optimizer's parameters, and rank 0's values of them.

        `weight` is this rank's share of the objective, n_m / N; 1 / ranks by default. `clip` limits the norm of the
        local gradient, before the rule sees it. `exchange` is auto, collective or hub, and `relay` the hub's rank.
        Every `check_every` rounds the ranks compare checksums of their models (0: never); one that differs takes
        rank 0's, with a warning. The group is the default one; without any this process is the only worker.
        """
        # Not torch's __init__: param_groups, state and defaults are the wrapped optimizer's.
        self.optimizer = optimizer
        if isinstance(rule, str) and rule not in RULES:
            raise LasgError(f"unknown rule {rule!r}: one of {', '.join(RULES)}")
        chosen = RULES[rule] if isinstance(rule, str) else rule
        coder = codecs.parse(codec) if isinstance(codec, str) else codec
        links = Links(group, timeout)
        self.flat = FlatView(_named(optimizer))
        theta = self.flat.gather()
        if theta.dtype not in {torch.float32, torch.float64}:
            raise LasgError(f"parameters must be float32 or float64, got {theta.dtype}: use torch.autocast in the loss")
        shares = _weights(weight, links)
        settings = {
            "version of lasg": code(),
            "rule": chosen.name,
            "codec": _described(coder),
            "constants (c, D, window, seed, patience)": [c, D, window, seed, patience],
            "exchange": [exchange, relay, check_every],
            "optimizer": [type(optimizer).__name__, [_options(group) for group in optimizer.param_groups]],
            "parameters' shapes": [list(value.shape) for value in self.flat.parameters],
            "parameters' dtype": str(theta.dtype),
        }
        links.agree(settings)
        theta = links.copy_from(0, theta, "parameters")
        self.flat.point_at(theta)
        self._model = _Model(self.flat, shares)
        self._rounds = Distributed(
            self._model,
            _Stepped(optimizer, self.flat, theta),
            rule=chosen,
            codec=coder,
            laziness=Laziness(workers=links.ranks, D=D, c=c, window=window),
            links=links,
            exchange=exchange,
            relay=relay,
            clip=clip,
            patience=patience,
            check_every=check_every,
            seed=seed,
        )
        _count_threads(links)
        self._torn = False
        self.last: Round | None = None
        """The last round: who uploaded, the two sides of the rule."""

    @property
    def ledger(self) -> Ledger:
        """What was sent and computed, as a star network would count it."""
        return self._rounds.ledger

    @property
    def sent(self) -> IntArray:
        """Bytes that this rank really sent, by the rank that got them."""
        return self._rounds.links.sent

    def step(self, compute_loss: ComputeLoss) -> Tensor | None:  # type: ignore[override]
        """Take one step, together with all ranks.

        `compute_loss` returns this rank's loss on its minibatch, without calling backward; it may be called twice,
        or, under a server rule that does not ask this rank, not at all. Returns the detached loss, or None.
        """
        if not callable(compute_loss):
            raise LasgError("step takes a function that returns the loss: opt.step(lambda: loss_function(model(x), y))")
        if torch.is_autocast_enabled(self.flat.parameters[0].device.type):
            raise LasgError("step was called under autocast: put `with torch.autocast(...)` into the function it gets")
        self._model.compute, self._model.value = compute_loss, None
        try:
            self.last = self._rounds.step()
        except Faulty:
            self._rounds.forgive()  # the next step has as much patience again
            raise
        except BaseException:
            self._torn = self._torn or self._model.value is not None
            raise
        finally:
            self._model.compute = None
            self.flat.point_at(self._rounds.theta)
        return self._model.value

    # -- what schedulers, loggers and checkpoints expect of an optimizer ------------------------------------------

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The wrapped optimizer's."""
        return self.optimizer.defaults

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients; `step` does so itself."""
        self.optimizer.zero_grad(set_to_none)

    def add_param_group(self, param_group: dict[str, Any]) -> None:  # noqa: ARG002
        """Refuse: the workers' memory has the parameters' length."""
        raise LasgError("parameters cannot be added to a lazy optimizer: make a new one around the wrapped optimizer")

    def state_dict(self) -> dict[str, Any]:
        """Return all that this rank needs to go on: tensors, numbers and strings. Each rank has its own."""
        if self._torn:
            raise LasgError(
                "a step broke off after this rank had computed: its state is that of no round, save no part"
            )
        found: dict[str, Any] = _tensors(self._rounds.state())
        return {**found, "of": self._identity()}

    def _identity(self) -> dict[str, Any]:
        """Return what a state dict must be of to be this rank's."""
        links, exchange = self._rounds.links, self._rounds.exchange
        rule = self._rounds.server.rule.name
        return {"rank": links.rank, "ranks": links.ranks, "p": self.flat.p, "form": exchange.form, "rule": rule}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go on from a state dict; the model's parameters are set too."""
        given, own = state_dict.get("of"), self._identity()
        if given != own:
            told, here = ("something else" if not isinstance(it, dict) else _listed(it) for it in (given, own))
            raise LasgError(f"this state dict is of {told}, and here is {here}: every rank saves and loads its own")
        try:
            self._rounds.restore(_arrays(state_dict))
        except (KeyError, TypeError, RuntimeError, ValueError) as error:
            raise LasgError(f"this state dict is not of a lazy optimizer like this one: {error!r}") from None
        self._torn = False
        self.flat.point_at(self._rounds.theta)
        self._rounds.links.agree({"round": self._rounds.server.k, "model": checksum(self._rounds.theta)})

    def __repr__(self) -> str:
        """Say what is lazy here."""
        server = self._rounds.server
        return f"LazyOptimizer({self.optimizer!r}, rule={server.rule.name!r}, codec={self._rounds.workers.codec!r})"


class _Model:
    """The user's loss, as a problem whose workers are the ranks."""

    def __init__(self, flat: FlatView, weights: FloatArray) -> None:
        self.flat, self.weights = flat, weights
        self.workers = len(weights)
        self.compute: ComputeLoss | None = None
        self.value: Tensor | None = None

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:  # noqa: ARG002
        """Return this rank's contribution at each point, on one minibatch, with one dropout mask.

        The first point alone changes what BatchNorm remembers.
        """
        assert self.compute is not None
        assert rows is not None
        assert len(rows) == 1  # a rank is one worker
        found = [self.flat.parameters[0].new_empty((1, self.flat.p)) for _ in points]
        before = _randomness(self.flat.parameters[0].device)
        with _watched() as first:
            for j, point in enumerate(points):
                if j:
                    _set_randomness(before)
                    first.restore()
                self.flat.point_at(point if isinstance(point, Tensor) and point.ndim == 1 else point[0])
                value = self._differentiate(found[j][0])
                if j == 0:
                    self.value = value
                    after = _randomness(self.flat.parameters[0].device)
                    first.keep()
            _set_randomness(after)
            # A gradient that is not finite counts as silence: it leaves no trace in the statistics either.
            first.settle(finite=bool(torch.isfinite(found[0].sum())))
        for row in found:
            row *= float(self.weights[rows[0]])
        return found

    def _differentiate(self, row: Tensor) -> Tensor:
        """Write the gradient of the loss into a row; return the loss."""
        assert self.compute is not None
        parameters = self.flat.parameters
        for parameter in parameters:
            parameter.grad = None
        versions = [parameter._version for parameter in parameters]
        torch.clear_autocast_cache()  # it would keep the weights of another point
        with torch.enable_grad():
            value = self.compute()
        if versions != [parameter._version for parameter in parameters]:
            raise LasgError(
                "the function that step got wrote into the parameters (as Embedding with max_norm does): they are "
                "views of the server's model, which only the server may move"
            )
        if any(parameter.grad is not None for parameter in parameters):
            raise LasgError("the function that step got called backward itself: delete the line loss.backward()")
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise LasgError(f"the function that step got must return the loss, one number; it returned {_kind(value)}")
        if not value.requires_grad:
            raise LasgError("the loss does not depend on the parameters: compute it without no_grad() and detach()")
        self.flat.write(row, torch.autograd.grad(value.reshape(()), parameters, allow_unused=True))
        return value.detach()

    def loss(self, theta: Array) -> float:  # noqa: ARG002
        """Refuse: only the user knows the objective over all samples."""
        raise LasgError("a lazy optimizer sees minibatches only: measure the loss over all samples in your own loop")

    def accuracy(self, theta: Array) -> float | None:  # noqa: ARG002
        """Return None, as `loss` refuses."""
        return None

    def export(self, theta: Array) -> dict[str, Tensor]:
        """Return the parameters at theta."""
        return dict(zip(self.flat.names, self.flat.views(theta), strict=True))

    def fresh(self) -> _Model:
        """Return itself: an optimizer is one run."""
        return self

    def state(self) -> dict[str, Any]:
        """Return nothing: the model's buffers are the user's."""
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        """Take nothing."""


class _Stepped:
    """The user's optimizer, stepping the user's parameters, which are views of theta."""

    def __init__(self, optimizer: torch.optim.Optimizer, flat: FlatView, theta: Tensor) -> None:
        self.optimizer, self.flat, self.theta = optimizer, flat, theta
        self.plain = is_plain(optimizer)

    def rate(self, k: int) -> float:  # noqa: ARG002
        """Return the learning rate of the first group, as it is now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, k: int, aggregate: Array) -> Array:  # noqa: ARG002
        """Move the parameters along the aggregate."""
        # The server keeps old models, so a step must not write into one that was handed out.
        self.theta = self.theta.clone()
        self.flat.point_at(self.theta)
        gradient = aggregate.to(self.theta.device, self.theta.dtype, copy=True)
        for parameter, view in zip(self.flat.parameters, self.flat.views(gradient), strict=True):
            parameter.grad = view
        self.optimizer.step()
        for parameter in self.flat.parameters:
            parameter.grad = None
        return self.theta

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"theta": self.theta, "optimizer": self.optimizer.state_dict()}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.theta = state["theta"]
        self.flat.point_at(self.theta)
        self.optimizer.load_state_dict(state["optimizer"])


class _Buffers:
    """The buffers of the modules that were called, as they were before."""

    def __init__(self) -> None:
        self.before: dict[nn.Module, dict[str, Tensor]] = {}
        self.after: dict[nn.Module, dict[str, Tensor]] = {}

    def called(self, module: nn.Module, _: Any) -> None:
        """Remember the buffers of a module that is about to be called for the first time."""
        inside = module.modules() if isinstance(module, torch.jit.ScriptModule) else (module,)
        for part in inside:  # a script calls its parts without hooks
            if part._buffers and part not in self.before:
                self.before[part] = _own_buffers(part)

    def keep(self) -> None:
        """Remember what the call made of them."""
        self.after = {module: _own_buffers(module) for module in self.before}

    def restore(self) -> None:
        """Set them as they were before the call."""
        _set_buffers(self.before)

    def settle(self, *, finite: bool) -> None:
        """Leave what the first call made of them, or, if its gradient was not finite, what was there before."""
        _set_buffers({**self.before, **self.after} if finite else self.before)


@contextmanager
def _watched() -> Iterator[_Buffers]:
    """Watch which modules are called, and what their buffers were."""
    found = _Buffers()
    handle = register_module_forward_pre_hook(found.called)
    try:
        yield found
    finally:
        handle.remove()


def _own_buffers(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module._buffers.items() if value is not None}


def _set_buffers(states: Mapping[nn.Module, Mapping[str, Tensor]]) -> None:
    with torch.no_grad():
        for module, values in states.items():
            for name, value in values.items():
                held = module._buffers.get(name)
                if held is not None and (held.shape, held.dtype) == (value.shape, value.dtype):
                    held.copy_(value)
                else:
                    module._buffers[name] = value.clone()


def _randomness(device: torch.device) -> list[tuple[torch.device, Tensor]]:
    """Return the state of torch's generators: of the CPU, and of the parameters' device."""
    found = [(torch.device("cpu"), torch.get_rng_state())]
    if device.type != "cpu":
        found.append((device, torch.get_device_module(device).get_rng_state(device)))
    return found


def _set_randomness(states: list[tuple[torch.device, Tensor]]) -> None:
    for device, state in states:
        if device.type == "cpu":
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


def _named(optimizer: torch.optim.Optimizer) -> list[tuple[str, nn.Parameter]]:
    """Return the parameters of all groups; torch's optimizers know no names."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise LasgError(f"LazyOptimizer wraps an optimizer of torch.optim, got {_kind(optimizer)}")
    name = type(optimizer).__name__
    if name in UNFIT:
        raise LasgError(f"{name} cannot be lazy: {UNFIT[name]}")
    groups = optimizer.param_groups
    return [(f"{g}.{i}", value) for g, group in enumerate(groups) for i, value in enumerate(group["params"])]


def _weights(weight: float | None, links: Links) -> FloatArray:
    """Return every rank's share of the objective."""
    own = 1 / links.ranks if weight is None else float(weight)
    shares = np.array(
        [np.frombuffer(data, np.float64)[0] for data in links.gather(np.float64(own).tobytes(), "weights")]
    )
    if not (shares >= 0).all() or abs(shares.sum() - 1) > 1e-6:
        given = ", ".join(f"{share:g}" for share in shares)
        raise LasgError(f"the ranks' weights must sum to 1, as n_m / N do: they are {given}")
    return shares


def _count_threads(links: Links) -> None:
    """Warn where the ranks of this host have more threads than it has cores: that is many times slower than fewer."""
    here = int(os.environ.get("LOCAL_WORLD_SIZE", links.ranks))
    threads, cores = torch.get_num_threads(), os.cpu_count() or 1
    if here > 1 and threads > 1 and here * threads > cores and os.environ.get("LOCAL_RANK", str(links.rank)) == "0":
        warnings.warn(
            f"{here} ranks of {threads} threads on {cores} cores will be slow: call torch.set_num_threads("
            f"{max(1, cores // here)}) on every rank, or start them with torchrun, which sets OMP_NUM_THREADS=1",
            stacklevel=3,
        )


def _described(coder: Codec) -> Any:
    """Return what a codec is, in words that are the same on every rank."""
    if type(coder).__repr__ is not object.__repr__:
        return repr(coder)
    return [type(coder).__qualname__, sorted(f"{name} = {value}" for name, value in vars(coder).items())]


def _listed(values: dict[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())


def _options(group: dict[str, Any]) -> dict[str, str]:
    """Return the settings of a parameter group."""
    return {name: str(value) for name, value in group.items() if name != "params"}


def _kind(value: Any) -> str:
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


def _tensors(node: Any) -> Any:
    """Return nested dicts with tensors for arrays, which torch.load(weights_only=True) takes."""
    if isinstance(node, dict):
        return {key: _tensors(value) for key, value in node.items()}
    return torch.from_numpy(node) if isinstance(node, np.ndarray) else node


_CONTROL = {"tau", "smoothness", "streak", "slot"}
"""The small arrays that the core keeps in NumPy."""


def _arrays(node: Any, name: str = "") -> Any:
    """Undo `_tensors`."""
    if isinstance(node, Mapping):
        return {key: _arrays(value, str(key)) for key, value in node.items()}
    return node.cpu().numpy() if name in _CONTROL and isinstance(node, Tensor) else node
