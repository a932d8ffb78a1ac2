"""How the aggregate moves the model: plain SGD in closed form, or any torch.optim optimizer.

An optimizer here owns theta. Plain SGD says that it is plain, so that the server can use the paper's threshold; with
others the server keeps its history in gradient units.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from lasg.core.arrays import Array, cast, copy, host, zeros
from lasg.errors import LasgError

if TYPE_CHECKING:
    import torch

# eta_k for k = 0, 1, 2, ...
Schedule = Callable[[int], float]


class Optimizer(Protocol):
    """What the server asks of an optimizer."""

    theta: Array

    def rate(self, k: int) -> float:
        """Return the step size of round k (of the first parameter group)."""
        ...

    @property
    def plain(self) -> bool:
        """Whether a step is theta - rate * aggregate and nothing else."""
        ...

    @property
    def momentum(self) -> float:
        """How much of the last step goes on in the next: 0 for SGD, beta_1 for Adam."""
        ...

    def step(self, k: int, aggregate: Array) -> Array:
        """Move theta along the aggregate and return the new theta.

        It is a new array, unless the optimizer has a `copy_before(aggregate)`, which returns theta as it is now.
        """
        ...

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: arrays and JSON values."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        ...


@dataclass(frozen=True)
class Constant:
    """eta_k = eta."""

    eta: float

    def __post_init__(self) -> None:
        _check_positive("eta", self.eta)

    def __call__(self, k: int) -> float:  # noqa: ARG002
        """Return eta."""
        return self.eta


@dataclass(frozen=True)
class Decreasing:
    """eta_k = 2 / (mu (k + K0)), the schedule of thm:stronglyconvex."""

    mu: float
    K0: float

    def __post_init__(self) -> None:
        _check_positive("mu", self.mu)
        _check_positive("K0", self.K0)

    def __call__(self, k: int) -> float:
        """Return eta_k."""
        return 2.0 / (self.mu * (k + self.K0))


def _check_positive(name: str, value: float) -> None:
    if not (isinstance(value, int | float) and 0 < value < float("inf")):
        raise LasgError(f"{name} must be a positive number, got {value!r}")


@dataclass
class ClosedFormSGD:
    """theta <- theta - eta_k * aggregate: equal to torch.optim.SGD, at a fifth of its cost for small models."""

    theta: Array
    schedule: Schedule
    plain: bool = field(default=True, init=False)
    momentum: float = field(default=0.0, init=False)

    def rate(self, k: int) -> float:
        """Return eta_k."""
        return self.schedule(k)

    def step(self, k: int, aggregate: Array) -> Array:
        """Move theta along the aggregate."""
        self.theta = self.theta - cast(self.schedule(k) * aggregate, self.theta)
        return self.theta

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold."""
        return {"theta": self.theta}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.theta = state["theta"]


class Averaging:
    """An optimizer of a model, and behind the model vectors that are averaged: theirs is a plain step of rate 1."""

    plain = False

    def __init__(self, optimizer: Optimizer, behind: Array) -> None:
        """Take what steps the model, and what lies behind it."""
        self.optimizer, self.size = optimizer, int(optimizer.theta.shape[-1])
        self.theta = _joined(optimizer.theta, behind)

    @property
    def momentum(self) -> float:
        """The model's optimizer's."""
        return self.optimizer.momentum

    def rate(self, k: int) -> float:
        """Return the step size of the model."""
        return self.optimizer.rate(k)

    def step(self, k: int, aggregate: Array) -> Array:
        """Move the model along its part of the aggregate, and the rest by all of its own."""
        behind = self.theta[self.size :] - cast(aggregate[self.size :], self.theta)
        self.theta = _joined(self.optimizer.step(k, aggregate[: self.size]), behind)
        return self.theta

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: the optimizer's state, with the longer vector."""
        return {**self.optimizer.state(), "theta": self.theta}

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        self.theta = state["theta"]
        self.optimizer.restore({**state, "theta": copy(self.theta[: self.size])})


def _joined(theta: Array, behind: Array) -> Array:
    whole = zeros((theta.shape[-1] + behind.shape[-1],), theta)
    whole[: theta.shape[-1]], whole[theta.shape[-1] :] = theta, behind
    return whole


def lengthen(theta: Array, averages: int) -> Array:
    """Return the vector of a server: the model, and so many of its length behind it, which are 0 at first."""
    return _joined(theta, zeros((averages * theta.shape[-1],), theta)) if averages else theta


def with_averages(optimizer: Optimizer, averages: int, vector: Array | None = None) -> Optimizer:
    """Return an optimizer of such a vector, of one that steps the model in it; None: the rest is 0."""
    if not averages:
        return optimizer
    whole = lengthen(optimizer.theta, averages) if vector is None else vector
    return Averaging(optimizer, whole[optimizer.theta.shape[-1] :])


UNFIT = {
    "LBFGS": "it wants to evaluate the loss itself",
    "SparseAdam": "it takes sparse gradients only",
}
"""Optimizers of torch that no aggregate of gradients can step."""


def is_plain(optimizer: torch.optim.Optimizer) -> bool:
    """Tell whether an optimizer of torch is SGD with one step size and nothing else."""
    import torch

    groups = optimizer.param_groups
    settings = ("momentum", "weight_decay", "dampening", "nesterov", "maximize")
    sgd = type(optimizer) is torch.optim.SGD and len(groups) == 1
    return sgd and not any(groups[0][name] for name in settings)


def momentum_of(optimizer: torch.optim.Optimizer) -> float:
    """Return the largest momentum of an optimizer's parameter groups: SGD's, Adam's beta_1, or 0."""
    return max(float(group.get("momentum") or (group.get("betas") or (0.0,))[0]) for group in optimizer.param_groups)


class TorchOptimizer:
    """Any torch.optim optimizer, with any torch LR scheduler, moving one flat parameter."""

    def __init__(
        self,
        theta: Array,
        make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer],
        make_scheduler: Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LRScheduler] | None = None,
        *,
        in_place: bool = False,
    ) -> None:
        """Take a model; with `in_place` it is a tensor that steps write into: nobody keeps one that was handed out."""
        import torch

        self._numpy = isinstance(theta, np.ndarray)
        self.theta = theta
        self.parameter = torch.nn.Parameter(theta if in_place else torch.as_tensor(copy(theta)))
        self.copy_before: Callable[[Array], Array] | None = (lambda _: copy(self.theta)) if in_place else None
        self.optimizer = make([self.parameter])
        self.scheduler = make_scheduler(self.optimizer) if make_scheduler else None
        self.plain = is_plain(self.optimizer)

    @property
    def momentum(self) -> float:
        """The optimizer's, as it is now: a scheduler may change it."""
        return momentum_of(self.optimizer)

    def rate(self, k: int) -> float:  # noqa: ARG002
        """Return the learning rate of the first group, as the scheduler has it now."""
        return float(self.optimizer.param_groups[0]["lr"])

    def step(self, k: int, aggregate: Array) -> Array:
        """Move theta along the aggregate, then let the scheduler take its step."""
        # A copy: some optimizers write into the gradient, and the aggregate is the server's for ever.
        self.parameter.grad = copy(cast(aggregate, self.parameter.detach()))
        self.optimizer.step()
        self.parameter.grad = None
        if self.scheduler is not None:
            try:
                self.scheduler.step()
            except ValueError as error:  # such as OneCycleLR beyond its total_steps
                raise LasgError(f"the schedule cannot go on after round {k}: {error}") from None
        # The server keeps old models, so a step must not write into one that was handed out.
        if self.copy_before is None:
            self.theta = copy(host(self.parameter) if self._numpy else self.parameter)
        return self.theta

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: the optimizer's and scheduler's own state dicts."""
        state = {"theta": self.theta, "optimizer": self.optimizer.state_dict()}
        if self.scheduler is not None:
            state["scheduler"] = self.scheduler.state_dict()
        return state

    def restore(self, state: dict[str, Any]) -> None:
        """Take a checkpoint's state."""
        import torch

        if self.copy_before is None:
            self.theta = state["theta"]
        with torch.no_grad():
            self.parameter.copy_(torch.as_tensor(state["theta"]))
        self.optimizer.load_state_dict(state["optimizer"])
        if self.scheduler is not None:
            self.scheduler.load_state_dict(state["scheduler"])
