"""What a worker computes in a round: one gradient, or H local steps, returned as a pseudo-gradient.

Work is a frozen setting with `init` and `update`; its state is a dict of arrays with a row per worker, which every
engine checkpoints.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, cast, copy, host, stacked, zeros
from lasg.core.codecs import State
from lasg.core.optimizers import UNFIT
from lasg.errors import LasgError

LONGEST_ROUND = 10**6
"""Local steps: a longer round, of a step size that has nearly vanished, would never end."""
# The contributions (n_m / N times the mean gradient) of the workers on their minibatch of an iteration, at each point.
Gradients: TypeAlias = Callable[[int, Sequence[Array]], list[Array]]


class Oracle(Protocol):
    """What the workers differentiate: their data, their minibatches and the loss."""

    @property
    def weights(self) -> FloatArray:
        """n_m / N for each worker of this process."""
        ...

    def gradients(self, iteration: int, points: Sequence[Array], rows: IntArray | None) -> list[Array]:
        """Return each worker's contribution on its minibatch of `iteration`, at each of the points.

        A point is one model `(p,)` for all, or one per worker: `(n, p)`, or a list of n tensors. The first point is
        where the workers are, the others are probes. `rows` chooses workers; None is all.
        """
        ...


class Work(ABC):
    """From the server's model to what the workers have to contribute."""

    steps: int = 1
    """H, local steps per round: of all rounds, or of those that have fewest."""

    def steps_of(self, k: int) -> range:
        """Return the numbers of round k's local steps, counted from the first step of the run on."""
        return range(k * self.steps, (k + 1) * self.steps)

    def init(self, workers: int, theta: Array) -> State:  # noqa: ARG002
        """Return what so many workers remember before the first round: nothing, for most work."""
        return {}

    @abstractmethod
    def update(
        self, k: int, eta: float, gradients: Gradients, points: Sequence[Array], weights: FloatArray, state: State
    ) -> tuple[list[Array], State]:
        """Return the contributions of round k from each starting point, `(n, p)` each, and the workers' new state.

        `eta` is the server's step size, `weights` are n_m / N.
        """


@dataclass(frozen=True)
class SGDSteps(Work):
    """One gradient, or H steps of SGD at the server's step size (local SGD).

    The pseudo-gradient is (n_m / N) (theta - theta_m) / eta: the server's step on its sum IS the weighted average of
    the local models. It equals the sum of the contributions on the way, and is computed as that: no digits cancel, and
    a step of 0 divides nothing. With H = 1 it is the gradient.
    """

    steps: int = 1

    def update(
        self, k: int, eta: float, gradients: Gradients, points: Sequence[Array], weights: FloatArray, state: State
    ) -> tuple[list[Array], State]:
        """Return the sums of the gradients on the way."""
        first, *others = self.steps_of(k)
        total = gradients(first, points)
        if others:
            step = eta / cast(weights[:, None], points[0])
        for iteration in others:
            local = [stacked(start) - step * so_far for start, so_far in zip(points, total, strict=True)]
            there = gradients(iteration, local)
            total = [so_far + grad for so_far, grad in zip(total, there, strict=True)]
        return total, state


@dataclass(frozen=True, kw_only=True)
class OptimizerSteps(Work):
    """H steps of any torch optimizer from the server's model; the contribution is (n_m / N) (theta - theta_m).

    The server's optimizer is then the outer one: SGD of rate 1 averages the local models (McMahan et al. 2017), with
    Nesterov's momentum it is DiLoCo (Douillard et al. 2023), Adam is FedAdam (Reddi et al. 2021). With one step it is
    the optimizer's own move that is said, not the gradient: sparse messages must not feed Adam's second moments.
    """

    steps: int = 1
    optimizer: str = "SGD"
    """A class of torch.optim that works entry by entry."""
    eta: float = 0.1
    """Its step size."""
    options: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = "constant"
    """A class of torch.optim.lr_scheduler, stepped after every local step."""
    schedule_options: Mapping[str, Any] = field(default_factory=dict)
    memory: Literal["kept", "reset"] = "kept"
    """Whether a worker's optimizer remembers, across rounds, its momenta of the rounds before."""
    drift: float = 0.0
    """How much of the workers' drift apart is corrected, 0 to 1: see `_correct`."""
    qsr: float = 0.0
    """alpha of the quadratic synchronization rule: see `steps_of`. 0: every round has H steps."""
    total: int | None = None
    """T, after which step the run ends, where it is known: so does a round that the rule makes longer."""

    def __post_init__(self) -> None:
        if self.optimizer in UNFIT or self.optimizer == "Muon":
            raise LasgError(f"{self.optimizer} cannot take local steps on a flat vector: take SGD, AdamW or the like")
        if not 0 <= self.drift <= 1:
            raise LasgError(f"drift, the share of the workers' drift that is corrected, must be 0 to 1: {self.drift!r}")
        if not 0 <= self.qsr < math.inf:
            raise LasgError(f"qsr, the alpha of H = (alpha / eta)^2, must be >= 0 and finite, got {self.qsr!r}")
        if self.qsr and self.drift:
            raise LasgError("drift divides by one number of local steps, and with qsr rounds differ: set one of them")

    def __hash__(self) -> int:
        return hash(repr(self))

    def _made(self, parameters: list[Any]) -> Any:
        """Return the optimizer of some parameters."""
        import torch

        kind: Any = getattr(torch.optim, self.optimizer, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)):
            raise LasgError(f"unknown optimizer {self.optimizer!r}: a class of torch.optim such as SGD or AdamW")
        options = {name: tuple(value) if isinstance(value, list) else value for name, value in self.options.items()}
        make: Any = kind
        try:
            return make(parameters, lr=self.eta, **options)
        except (TypeError, ValueError) as error:
            raise LasgError(f"{self.optimizer} refused its options: {error}") from None

    def rate(self, iteration: int) -> float:
        """Return the step size of an iteration."""
        if self.schedule == "constant":
            return self.eta
        rates = _rates(self)
        while len(rates.values) <= iteration:
            rates.advance()
        return rates.values[iteration]

    def steps_of(self, k: int) -> range:
        """Return the numbers of round k's local steps; with qsr, H = max(steps, floor((alpha / eta)^2)) of them.

        eta is the step size of the round's first step, so rounds grow as a schedule lets it fall: the quadratic
        synchronization rule (Gu, Lyu, Arora, Huang 2024). The last round ends at T. It depends on k alone.
        """
        if not self.qsr:
            return super().steps_of(k)
        starts = _starts(self)
        while len(starts) <= k + 1:
            starts.append(starts[-1] + self._steps_from(starts[-1]))
        return range(starts[k], starts[k + 1])

    def _steps_from(self, first: int) -> int:
        """Return how many steps a round has that begins with this one."""
        eta = self.rate(first)
        wanted = (self.qsr / eta) ** 2 * (1 + 1e-9) if eta else math.inf  # (.3 / .1)^2 is 9
        if self.total is not None and self.total > first:
            return int(min(max(self.steps, wanted), self.total - first))
        if wanted > LONGEST_ROUND:
            raise LasgError(
                f"qsr makes a round of {wanted:.3g} steps at eta = {eta:g}: take a schedule that ends above 0"
            )
        return max(self.steps, int(wanted))

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros for all that the optimizer will remember; `begun` says who has a state."""
        names = self._remembered(theta) if self.memory == "kept" else {}
        state = {name: zeros((workers, *shape), theta) for name, shape in names.items()}
        if names:
            state["begun"] = zeros((workers,), theta)
        if self.drift:
            state |= {name: zeros((workers, theta.shape[-1]), theta) for name in ("own", "previous")}
            state["rounds"] = zeros((workers,), theta)
        return state

    def _remembered(self, theta: Array) -> dict[str, tuple[int, ...]]:
        """Return what the optimizer keeps per parameter, by name: its shape, `()` for numbers."""
        import torch

        parameter = torch.nn.Parameter(torch.zeros(theta.shape[-1], dtype=_dtype(theta)))
        parameter.grad = torch.zeros_like(parameter)
        optimizer = self._made([parameter])
        optimizer.step()
        kept = optimizer.state[parameter]
        return {name: tuple(torch.as_tensor(value).shape) for name, value in kept.items() if value is not None}

    def update(
        self,
        k: int,
        eta: float,  # noqa: ARG002 (the outer one)
        gradients: Gradients,
        points: Sequence[Array],
        weights: FloatArray,
        state: State,
    ) -> tuple[list[Array], State]:
        """Let every worker take its H steps; return its move, weighted, and what its optimizer remembers."""
        import torch

        theta = points[0]
        count = len(weights)
        local = copy(zeros((count, theta.shape[-1]), theta) + theta)
        rows = torch.as_tensor(local)  # of a NumPy array the same memory
        parameters = [torch.nn.Parameter(row) for row in rows]
        optimizers = [self._made([parameter]) for parameter in parameters]
        for i, (parameter, optimizer) in enumerate(zip(parameters, optimizers, strict=True)):
            self._recall(optimizer, parameter, {name: value[i : i + 1] for name, value in state.items()})
        shares = cast(weights[:, None], theta)
        push = self._correct(theta, state)
        for iteration in self.steps_of(k):
            found = gradients(iteration, [local])[0] / shares
            found = torch.as_tensor(found if push is None else found + push)
            rate = self.rate(iteration)
            for parameter, optimizer, gradient in zip(parameters, optimizers, found, strict=True):
                parameter.grad = gradient
                optimizer.param_groups[0]["lr"] = rate
                optimizer.step()
        moved = shares * (theta - local)
        known = self._remember(theta, state, parameters, optimizers)
        if push is not None:
            own = (theta - local) / (self.steps * self.eta) - push
            known |= {"own": own, "previous": zeros(local.shape, theta) + theta, "rounds": state["rounds"] + 1}
        return [moved], known

    def _recall(self, optimizer: Any, parameter: Any, row: Mapping[str, Array]) -> None:
        """Give an optimizer what a worker remembers, its row of every array of the state, if it has begun."""
        import torch

        if "begun" not in row or not row["begun"][0]:
            return
        own = [name for name in row if name not in _OWN]
        optimizer.state[parameter] = {name: torch.as_tensor(copy(row[name]))[0] for name in own}

    def _remember(self, theta: Array, state: State, parameters: list[Any], optimizers: list[Any]) -> State:
        """Return what the workers' optimizers know after the round."""
        import torch

        found: State = {}
        kept = [optimizer.state[parameter] for optimizer, parameter in zip(optimizers, parameters, strict=True)]
        for name in state:
            if name not in _OWN:
                rows = torch.stack([torch.as_tensor(row[name]).to(_dtype(theta)) for row in kept])
                found[name] = host(rows) if isinstance(theta, np.ndarray) else rows
        if "begun" in state:
            found["begun"] = state["begun"] * 0 + 1
        return found

    def _correct(self, theta: Array, state: State) -> Array | None:
        """Return what is added to every local gradient: drift (c - c_m), SCAFFOLD's control variates.

        c_m is the worker's own mean gradient of its last round, (theta - theta_m) / (H eta) less what was added to it,
        and c that of all workers, which the model's move since then says: (theta^{k-1} - theta^k) / (H eta) where the
        outer step is an average (Karimireddy et al. 2020, option II, without its extra messages).
        """
        if not self.drift:
            return None
        begun = (state["rounds"] > 0)[:, None]
        everybody = (state["previous"] - theta) / (self.steps * self.eta)
        # A number times flags would be of another precision than the model.
        return self.drift * ((everybody - state["own"]) * begun)


_OWN = ("begun", "own", "previous", "rounds")
"""Names in the state that are not the optimizer's."""


def _dtype(theta: Array) -> Any:
    import torch

    return torch.as_tensor(theta[:0]).dtype


class _Rates:
    """The step sizes of a schedule, from the first on: a scheduler knows only the next one."""

    def __init__(self, work: OptimizerSteps) -> None:
        import torch

        self.name = work.schedule
        kind = getattr(torch.optim.lr_scheduler, work.schedule, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)):
            raise LasgError(f"unknown schedule {work.schedule!r}: constant, or a class of torch.optim.lr_scheduler")
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=work.eta)
        try:
            self.scheduler = kind(self.optimizer, **work.schedule_options)
        except (TypeError, ValueError) as error:
            raise LasgError(f"{work.schedule} refused its options: {error}") from None
        except NotImplementedError:
            raise self._refused("it is the class of all schedules") from None
        self.values = [float(self.optimizer.param_groups[0]["lr"])]

    def advance(self) -> None:
        """Know one more."""
        self.optimizer.step()
        try:
            self.scheduler.step()
        except (TypeError, ValueError) as error:
            raise self._refused(str(error)) from None
        self.values.append(float(self.optimizer.param_groups[0]["lr"]))

    def _refused(self, reason: str) -> LasgError:
        """Build the error for a schedule that cannot say its next step size: it wants a loss, or is over."""
        line = " ".join(reason.split())
        return LasgError(f"{self.name} has no step size by itself: {line}. Take one such as CosineAnnealingLR")


@functools.lru_cache(maxsize=16)
def _starts(work: OptimizerSteps) -> list[int]:  # noqa: ARG001 (what they are of)
    """Return the first steps of the rounds so far, to be added to."""
    return [0]


@functools.lru_cache(maxsize=16)
def _rates(work: OptimizerSteps) -> _Rates:
    return _Rates(work)
