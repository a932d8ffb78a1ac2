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
from lasg.core.step_sizes import StepSizes
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

    def begin_again(self, state: State) -> State:  # noqa: ARG002
        """Return what changes of the state of workers that uploaded, or failed: nothing, for most work."""
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
    memory: Literal["kept", "reset", "averaged"] = "kept"
    """Whether a worker's optimizer remembers, across rounds, its momenta of the rounds before; or has all workers' mean
    of them, which travels behind the model: see `averaged`."""
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

    @property
    def averaged(self) -> tuple[str, ...]:
        """Which of the optimizer's vectors are averaged over the workers, by name: none, unless its memory is.

        The server's vector is then [theta; s], as many times longer, and the workers' contribution is the move of both.
        """
        return _averaged(self) if self.memory == "averaged" else ()

    def init(self, workers: int, theta: Array) -> State:
        """Return zeros for all that the optimizer will remember; `begun` says who has a state."""
        theta = theta[: theta.shape[-1] // (1 + len(self.averaged))]
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

        theta, *means = _cut(points[0], 1 + len(self.averaged))
        count = len(weights)
        local = copy(zeros((count, theta.shape[-1]), theta) + theta)
        rows = torch.as_tensor(local)  # of a NumPy array the same memory
        parameters = [torch.nn.Parameter(row) for row in rows]
        optimizers = [self._made([parameter]) for parameter in parameters]
        for i, (parameter, optimizer) in enumerate(zip(parameters, optimizers, strict=True)):
            self._recall(optimizer, parameter, {name: value[i : i + 1] for name, value in state.items()})
            self._begin_at(self.steps_of(k).start, optimizer, parameter, means)
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
        if means:
            moved = self._with_state(moved, shares, means, parameters, optimizers)
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
        known = {name: torch.as_tensor(copy(row[name]))[0] for name in own}
        # Numbers, such as Adam's count of steps, are the CPU's, as torch's optimizers have them.
        optimizer.state[parameter] = {name: value if value.dim() else value.cpu() for name, value in known.items()}

    def _begin_at(self, steps: int, optimizer: Any, parameter: Any, means: Sequence[Array]) -> None:
        """Give an optimizer the mean state of all workers after so many steps; before the first it has none."""
        import torch

        if not means or not steps:
            return
        known = {name: torch.as_tensor(copy(mean)) for name, mean in zip(self.averaged, means, strict=True)}
        for name in _NOT_NEGATIVE.intersection(known):
            known[name].clamp_(min=0)  # a mean of rounded or sparse messages may be below, and has a root
        optimizer.state[parameter] = known | {"step": torch.tensor(float(steps))}  # all workers have taken as many

    def _with_state(
        self, moved: Array, shares: Array, means: Sequence[Array], parameters: list[Any], optimizers: list[Any]
    ) -> Array:
        """Return the workers' weighted move of [theta; s]: that of the model, and of each vector of the state."""
        import torch

        count, p = moved.shape
        whole = zeros((count, p * (1 + len(means))), moved)
        whole[:, :p] = moved
        kept = [optimizer.state[parameter] for optimizer, parameter in zip(optimizers, parameters, strict=True)]
        for i, (name, mean) in enumerate(zip(self.averaged, means, strict=True), start=1):
            rows = torch.stack([row[name].detach() for row in kept])
            own = host(rows) if isinstance(mean, np.ndarray) else rows
            whole[:, i * p : (i + 1) * p] = shares * (mean - own)
        return whole

    def _remember(self, theta: Array, state: State, parameters: list[Any], optimizers: list[Any]) -> State:
        """Return what the workers' optimizers know after the round."""
        import torch

        found: State = {}
        kept = [optimizer.state[parameter] for optimizer, parameter in zip(optimizers, parameters, strict=True)]
        for name in state:
            if name not in _OWN:
                rows = torch.stack([torch.as_tensor(row[name]) for row in kept])
                found[name] = cast(rows, theta)  # torch counts steps on the CPU, wherever the model is
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


_NOT_NEGATIVE = frozenset(
    ("exp_avg_sq", "max_exp_avg_sq", "exp_inf", "square_avg", "acc_delta", "sum", "variance", "step_size")
)
"""Names of what torch's optimizers keep that is never below 0: second moments, sums of squares, step sizes."""
_OWN = ("begun", "own", "previous", "rounds")
"""Names in the state that are not the optimizer's."""


def _cut(vector: Array, parts: int) -> list[Array]:
    """Return so many equal parts of a vector."""
    p = vector.shape[-1] // parts
    return [vector[..., i * p : (i + 1) * p] for i in range(parts)]


@functools.lru_cache(maxsize=16)
def _averaged(work: OptimizerSteps) -> tuple[str, ...]:
    """Return the names of an optimizer's vectors; refuse one that has none, or other numbers than its step."""
    kept = work._remembered(np.zeros(2))
    vectors = tuple(sorted(name for name, shape in kept.items() if shape == (2,)))
    if not vectors:
        raise LasgError(
            f"inner_memory = averaged: {work.optimizer} with these options remembers nothing to average. "
            "Give it momentum, or take kept"
        )
    others = [name for name in kept if name not in (*vectors, "step")]
    if others:
        raise LasgError(
            f"inner_memory = averaged: {work.optimizer} also keeps {others[0]}, which no average says: take AdamW, SGD "
            "with momentum, or kept"
        )
    return vectors


def _dtype(theta: Array) -> Any:
    import torch

    return torch.as_tensor(theta[:0]).dtype


@functools.lru_cache(maxsize=16)
def _starts(work: OptimizerSteps) -> list[int]:  # noqa: ARG001 (what they are of)
    """Return the first steps of the rounds so far, to be added to."""
    return [0]


@functools.lru_cache(maxsize=16)
def _rates(work: OptimizerSteps) -> StepSizes:
    return StepSizes(work.eta, work.schedule, work.schedule_options)
