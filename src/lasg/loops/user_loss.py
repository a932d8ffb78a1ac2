"""The loss of a user's own training loop, as what the workers differentiate: the ranks are the workers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from lasg.core.arrays import Array, FloatArray, IntArray
from lasg.errors import LasgError
from lasg.problems.flat import FlatView, Workspace

ComputeLoss = Callable[[], Tensor]


class UserLoss:
    """The user's loss: gradients on the minibatch of a step."""

    gives_rows = True
    """Whether nobody else needs the gradients it returns: who gets them may write into them."""

    def __init__(self, flat: FlatView, weights: FloatArray, workspace: Workspace | None = None) -> None:
        self._workspace = workspace or Workspace(flat.empty(0), flat.p)
        self.flat, self.weights, self.shapes = flat, weights, flat.shapes
        self.workers = len(weights)
        self.compute: tuple[ComputeLoss, ...] = ()
        self.value: Tensor | None = None
        self._known_unused: set[int] = set()

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:  # noqa: ARG002
        """Return this rank's contribution at each point, on one minibatch, with one dropout mask.

        The first point alone changes what BatchNorm remembers.
        """
        assert self.compute
        share = float(self.weights[0 if rows is None else int(rows[0])])  # a rank is one worker
        found = self._workspace.rows(len(points))  # whoever keeps one of them copies it
        device = self.flat.parameters[0].device
        before = _randomness(device)
        with _Buffers() as first:
            for j, point in enumerate(points):
                if j:
                    _set_randomness(device, before)
                    first.restore()
                self.flat.point_at(point if isinstance(point, Tensor) and point.ndim == 1 else point[0])
                value = self._differentiate(found[j][0], share)
                if j == 0:
                    self.value = value
                    after = _randomness(device)
                    first.keep()
            _set_randomness(device, after)
            # A gradient that is not finite counts as silence: it leaves no trace in the statistics either.
            first.restore(finite=not first.before or bool(torch.isfinite(found[0].sum())))
        return found

    def _differentiate(self, row: Tensor, share: float) -> Tensor:
        """Write a share of the gradient of the mean loss into a row, one graph at a time; return the loss."""
        alone = len(self.compute) == 1
        losses: list[Tensor] = []
        for compute in self.compute:
            with torch.enable_grad():  # whatever the loop around it has set
                value = self._evaluate(compute) / len(self.compute)
            gradients = self._gradients(value)
            if losses:
                self.flat.add(row, gradients)
            else:
                self.flat.write(row, gradients, share if alone else 1.0)
            losses.append(value.detach())
            del value, gradients  # before the next graph is built
        if not alone:
            row *= share
        return functools.reduce(torch.add, losses)

    def _gradients(self, value: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient of a loss, by parameter; None where it does not depend on one."""
        try:
            found = torch.autograd.grad(value, self.flat.parameters, allow_unused=True)
        except RuntimeError as error:
            if "use_reentrant" in str(error):
                raise LasgError(REENTRANT) from None
            raise
        unused = {i for i, gradient in enumerate(found) if gradient is None}
        if not unused <= self._known_unused:  # a loss may leave parameters out; a reentrant checkpoint hides them
            if _is_reentrant(value):
                raise LasgError(REENTRANT)
            self._known_unused |= unused
        return found

    def _evaluate(self, compute: ComputeLoss) -> Tensor:
        """Return the loss of one function; refuse what is none."""
        parameters = self.flat.parameters
        for parameter in parameters:
            parameter.grad = None
        versions = [parameter._version for parameter in parameters]
        torch.clear_autocast_cache()  # it would keep the weights of another point
        value = compute()
        if versions != [parameter._version for parameter in parameters]:
            raise LasgError(
                "the function that step got wrote into the parameters (as Embedding with max_norm does): they are "
                "views of the server's model, which only the server may move"
            )
        if any(parameter.grad is not None for parameter in parameters):
            raise LasgError("the function that step got called backward itself: delete the line loss.backward()")
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise LasgError(
                f"the function that step got must return the loss, one number; it returned {kind_of(value)}"
            )
        if not value.requires_grad:
            raise LasgError(
                "the loss does not depend on the parameters: compute it without no_grad() and detach(), and a "
                "torch.utils.checkpoint with use_reentrant=False"
            )
        return value.reshape(())

    def loss_now(self) -> float:
        """Return the loss on this step's minibatch; NaN where this rank computed none."""
        return math.nan if self.value is None else float(self.value)


REENTRANT = (
    "the function that step got uses torch.utils.checkpoint with use_reentrant=True, which knows backward() only: "
    "pass use_reentrant=False"
)


def _is_reentrant(value: Tensor) -> bool:
    """Tell whether a loss was computed with reentrant checkpoints, whose parameters are not in its graph."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if node.name() == "CheckpointFunctionBackward":
            return True
        seen.add(node)
        waiting += [following for following, _ in node.next_functions]
    return False


class _Buffers:
    """The buffers of the modules that are called while it watches, as they were before."""

    def __init__(self) -> None:
        self.before: dict[nn.Module, dict[str, Tensor]] = {}
        self.after: dict[nn.Module, dict[str, Tensor]] = {}

    def __enter__(self) -> _Buffers:
        self._handle = register_module_forward_pre_hook(self._called)
        return self

    def __exit__(self, *_: object) -> None:
        self._handle.remove()

    def _called(self, module: nn.Module, _: Any) -> None:
        """Remember the buffers of a module that is about to be called for the first time."""
        inside = module.modules() if isinstance(module, torch.jit.ScriptModule) else (module,)
        for part in inside:  # a script calls its parts without hooks
            if part._buffers and part not in self.before:
                self.before[part] = _own_buffers(part)

    def keep(self) -> None:
        """Remember what the call made of them."""
        self.after = {module: _own_buffers(module) for module in self.before}

    def restore(self, *, finite: bool = False) -> None:
        """Set them as they were before the call, or, if its gradient was finite, as the call left them."""
        _set_buffers({**self.before, **self.after} if finite else self.before)


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


def _randomness(device: torch.device) -> list[Tensor]:
    """Return the state of torch's generators: of the CPU, and of the parameters' device."""
    cpu = torch.get_rng_state()
    return [cpu] if device.type == "cpu" else [cpu, torch.get_device_module(device).get_rng_state(device)]


def _set_randomness(device: torch.device, states: list[Tensor]) -> None:
    torch.set_rng_state(states[0])
    for state in states[1:]:
        torch.get_device_module(device).set_rng_state(state, device)


def kind_of(value: Any) -> str:
    """Say what a value is that is not what it should be."""
    return f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
