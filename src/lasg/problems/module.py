"""Any torch module as a problem: a module, a loss and a dataset; the workers' gradients are those of its parameters.

The objective is the mean loss over all N samples plus (lam / 2) ||theta||^2 over the trainable parameters. Worker m
contributes (n_m / N) * (mean gradient of its minibatch) + (lam / M) * theta.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.parameter import is_lazy

from lasg import counter
from lasg.core.arrays import FloatArray, IntArray, norms
from lasg.data.batches import Batches, batch_sizes, shard_sizes
from lasg.errors import LasgError, first_line
from lasg.problems.buffers import BatchNorms, Buffers, named_tensors
from lasg.problems.flat import FlatView
from lasg.problems.samples import SampleReader, Samples, Transform, are_classes, join_shards, right, wrap_module_errors

Loss = Callable[[Any, Any], Tensor]
How = Literal["auto", "loop", "vmap"]

CHUNK = 256
"""Samples that are evaluated at once, when the loss and the accuracy are measured."""
VMAP_SIZE = 100_000
"""Up to so many parameters the workers' gradients are computed by one vmap: then a loop is mostly overhead."""
HALF_SCALE = 1024.0
"""By which a float16 loss is multiplied before its gradient is taken: small gradients would be rounded to 0."""


class ModuleProblem:
    """What `lasg` needs to train a `torch.nn.Module`: gradients of many workers, loss and accuracy."""

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        dataset: Samples | tuple[Any, Any],
        shards: Sequence[IntArray],
        *,
        batch: float,
        seed: int = 0,
        lam: float = 0.0,
        measured: Sequence[int] | IntArray | None = None,
        test: Samples | tuple[Any, Any] | None = None,
        metric: Callable[[Any, Any], Tensor] | None = None,
        transform: Transform | None = None,
        batch_norm: Literal["local", "frozen"] = "local",
        device: str | torch.device = "cpu",
        dtype: Literal["float32", "float64"] = "float32",
        autocast: Literal["bfloat16", "float16"] | None = None,
        how: How = "auto",
        ids: Sequence[int] | None = None,
    ) -> None:
        """Take a copy of the module.

        `loss(output, target)` returns the mean over its samples. `dataset` is a pair (inputs, targets) of arrays or
        tensors, or a map-style dataset; `shards` are the row numbers of each worker. `batch` is the minibatch as a
        share of the shard. `metric(output, target)` returns one number per sample, by default whether the class is
        right. `measured` are the rows that the loss is measured on, if not all. `how` gradients are computed follows
        from the model's size (benchmarks/networks.py). `ids` number the workers, if some live elsewhere.
        """
        if lam < 0:
            raise LasgError(f"lam, the weight of the l2 term, must be >= 0, got {lam!r}")
        _check_choice("batch_norm", batch_norm, "local", "frozen")
        _check_choice("how", how, "auto", "loop", "vmap")
        _check_choice("autocast", autocast, None, "bfloat16", "float16")
        if autocast is not None and dtype == "float64":
            raise LasgError("autocast is for float32: a float64 run computes everything in float64")
        if any(is_lazy(value) for value in module.parameters()):
            raise LasgError("the module has lazy layers without a shape yet: call it once on a sample first")
        self.sizes = shard_sizes(shards)
        self.device, self.dtype = _device(device), dtype
        self.module = copy.deepcopy(module).to(device=self.device, dtype=getattr(torch, dtype))
        self.flat = FlatView(self.module.named_parameters())
        self.p, self.lam, self.seed = self.flat.p, lam, seed
        self.loss_function, self.metric, self.transform = loss, metric, transform
        self.data, self.test = SampleReader(dataset), None if test is None else SampleReader(test)
        self.order = join_shards(shards, len(self.data))
        self.measured = None if measured is None else join_shards([np.asarray(measured)], len(self.data))
        self.samples, self.workers = len(self.order), len(self.sizes)
        self.weights: FloatArray = self.sizes / self.samples
        self.share, self.batch = batch, batch_sizes(self.sizes, batch)
        self.ids: IntArray = np.arange(self.workers) if ids is None else np.asarray(ids)
        self.batches = Batches(self.sizes, self.batch, ids=self.ids, seed=seed)
        self.autocast: torch.dtype | None = None if autocast is None else getattr(torch, autocast)
        self._scale, self.batch_norm = HALF_SCALE if autocast == "float16" else 1.0, batch_norm
        self._start = self.flat.gather()
        self._channels_last = any(value.ndim == 4 and not value.is_contiguous() for value in self.flat.parameters)
        self._train_mode()
        self.buffers = Buffers(self.module, self.workers) if self._changes_buffers() else None
        self._try_one_sample()
        self.how = self._choose_how(how)

    def _try_one_sample(self) -> None:
        """Refuse at once what cannot work: an input the module does not take, a loss that is not a number."""
        versions = [value._version for value in self.flat.parameters]
        self.module.eval()
        with torch.no_grad(), self._own_randomness(), wrap_module_errors("its first sample"):
            self._value(*self._minibatch(0, 0, self.order[:1]))
        self._train_mode()
        if versions != [value._version for value in self.flat.parameters]:
            raise LasgError(
                "the module writes into its own parameters when it is called (as Embedding with max_norm does): "
                "they are views of the server's model, which only the server may move"
            )

    # -- what a simulation begins with ----------------------------------------------------------------------

    def start(self) -> Tensor:
        """Return theta^0: the parameters that the module came with."""
        return self._start.clone()

    def fresh(self) -> ModuleProblem:
        """Return a problem of its own for one run: the data is shared, the workers' buffers are not."""
        other = copy.copy(self)
        other.buffers = None if self.buffers is None else self.buffers.fresh()
        return other

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint must hold: the workers' buffers."""
        return {} if self.buffers is None else self.buffers.state()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take a checkpoint's state."""
        if self.buffers is not None:
            self.buffers.restore(state)

    def fingerprint(self) -> str:
        """Return a checksum of what decides the gradients: start, samples, shards, minibatches and the way to compute.

        Of a map-style dataset only its length is known; of module and loss, only the parameters' names and start.
        """
        ways = [self.flat.names, self.share, self.seed, self.lam, self.batch_norm, self.dtype, str(self.autocast)]
        digest = hashlib.sha256(repr([*ways, len(self.data)]).encode())
        for values in (self._start.cpu().numpy(), self.sizes, self.order, *self.data.arrays()):
            digest.update(np.ascontiguousarray(values).data)
        return digest.hexdigest()

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors that lie one after the other in theta."""
        return self.flat.shapes

    def smoothness(self, reading: str = "paper") -> FloatArray:  # noqa: ARG002
        """Refuse: nobody knows the smoothness constants of a network."""
        raise LasgError("LASG-PS needs the smoothness constants L_m, which a network has not: lasg-pse estimates them")

    # -- gradients ------------------------------------------------------------------------------------------

    def gradients(self, iteration: int, points: Sequence[Any], rows: IntArray | None) -> list[Tensor]:
        """Return the contributions of the chosen workers at each point, all on one minibatch per worker.

        The first point is where the workers are: it alone changes what BatchNorm remembers. The others are probes,
        on the same inputs and with the same dropout masks.
        """
        who = np.arange(self.workers) if rows is None else rows
        chosen = self.batches.draw_all(iteration) if rows is None else self.batches.draw(iteration, rows)
        drawn = np.split(self.order[chosen], np.cumsum(self.batch[who])[:-1])
        grads = [self._start.new_empty((len(who), self.p)) for _ in points]
        with self._own_randomness():
            compute = self._by_vmap if self.how == "vmap" else self._by_loop
            compute(iteration, who, drawn, points, grads)
        for rows_of_point, point in zip(grads, points, strict=True):
            for i, m in enumerate(who):
                rows_of_point[i] *= float(self.weights[m]) / self._scale
                if self.lam:
                    rows_of_point[i].add_(_model_of(point, i), alpha=self.lam / self.workers)
        return grads

    def _by_loop(
        self, iteration: int, who: IntArray, drawn: Sequence[IntArray], points: Sequence[Any], grads: Sequence[Tensor]
    ) -> None:
        """One forward and backward per worker and point."""
        masks = counter.keys(self.seed, counter.DROPOUT, self.ids[who], iteration)[0] >> np.uint64(1)
        for i, m in enumerate(who.tolist()):
            x, y = self._minibatch(iteration, m, drawn[i])
            after = None
            for j, point in enumerate(points):
                self._seed(int(masks[i]))
                if self.buffers is not None:
                    self.buffers.load(m)
                self.flat.point_at(_model_of(point, i))
                with wrap_module_errors(f"worker {self.ids[m]}'s minibatch of iteration {iteration}"):
                    value = self._value(x, y)
                    parts = torch.autograd.grad(value, self.flat.parameters, allow_unused=True)
                self.flat.write(grads[j][i], parts)
                if self.buffers is not None and j == 0:
                    after = self.buffers.read()
            # A gradient that is not finite counts as silence: it leaves no trace in the statistics either.
            if self.buffers is not None and after is not None and bool(torch.isfinite(grads[0][i].sum())):
                self.buffers.keep(m, after)

    def _by_vmap(
        self, iteration: int, who: IntArray, drawn: Sequence[IntArray], points: Sequence[Any], grads: Sequence[Tensor]
    ) -> None:
        """One vectorised gradient for all workers whose minibatches have one size."""
        for size in np.unique(self.batch[who]):
            alike = np.flatnonzero(self.batch[who] == size).tolist()
            inputs, targets = zip(*(self._minibatch(iteration, int(who[i]), drawn[i]) for i in alike), strict=True)
            x, y = torch.stack(inputs), torch.stack(targets)
            for j, point in enumerate(points):
                shared = isinstance(point, Tensor) and point.ndim == 1
                theta = point if shared else torch.stack([_model_of(point, i) for i in alike])
                with wrap_module_errors("vmap; how='loop' works for every module"):
                    parts = self._vectorised(theta, x, y)
                for row, i in enumerate(alike):
                    self.flat.write(grads[j][i], [part[row] for part in parts])

    def _vectorised(self, theta: Tensor, x: Tensor, y: Tensor) -> list[Tensor]:
        """Return the gradient of every worker, `(n, ...)` per parameter; theta is `(p,)` or `(n, p)`."""
        named = dict(zip(self.flat.names, self.flat.views(theta), strict=True))

        def value(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return self._value(x, y, lambda x: functional_call(self.module, parameters, (x,)))

        gradients = vmap(grad(value), in_dims=(None if theta.ndim == 1 else 0, 0, 0))(named, x, y)
        return [gradients[name] for name in self.flat.names]

    def _value(self, x: Any, y: Any, call: Callable[[Any], Any] | None = None) -> Tensor:
        with self._precision():
            return _check_scalar(self.loss_function((call or self.module)(x), y)) * self._scale

    def _minibatch(self, iteration: int, m: int, rows: IntArray) -> tuple[Any, Any]:
        key = counter.keys(self.seed, counter.AUGMENTATION, self.ids[[m]], iteration)[0, 0]
        self._seed(int(key >> np.uint64(1)))  # a dataset may draw from torch's generator
        x, y = self.data.read(rows)
        if self.transform is not None:
            x = self.transform.train(x, key)
        return self._move(x), self._move(y)

    def _move(self, value: Any) -> Any:
        """Return a batch on the device, floats in the run's dtype, images as the module has its filters."""
        if isinstance(value, Mapping):
            return {name: self._move(part) for name, part in value.items()}
        if isinstance(value, list | tuple):
            return type(value)(self._move(part) for part in value)
        if not isinstance(value, Tensor):
            return value
        if value.is_floating_point():
            value = value.to(getattr(torch, self.dtype))
        if self._channels_last and value.ndim == 4:
            return value.to(self.device, memory_format=torch.channels_last)
        return value.to(self.device)

    def _precision(self) -> AbstractContextManager[Any]:
        return nullcontext() if self.autocast is None else torch.autocast(self.device.type, self.autocast)

    def _own_randomness(self) -> AbstractContextManager[None]:
        """Leave torch's generators as they were: what is drawn inside comes from our own keys."""
        if self.device.type == "cpu":
            return torch.random.fork_rng(devices=[])
        return torch.random.fork_rng(device_type=self.device.type)

    def _seed(self, key: int) -> None:
        """Start torch's generators from a key: of the CPU, and of the device if it is another."""
        torch.default_generator.manual_seed(key)  # torch.manual_seed also keeps a traceback for every device
        if self.device.type != "cpu":
            torch.get_device_module(self.device).manual_seed(key)

    def _choose_how(self, how: How) -> How:
        if how == "vmap" and self.buffers is not None:
            raise LasgError("vmap cannot keep the workers' BatchNorm statistics apart: take how='loop'")
        if how != "auto":
            return how
        if self.buffers is not None or self.p > VMAP_SIZE or len(np.unique(self.batch)) == self.workers > 1:
            return "loop"
        return "vmap" if self._can_vmap() else "loop"

    def _can_vmap(self) -> bool:
        """Try the module under vmap: dropout and data-dependent branches cannot be vectorised."""
        with self._own_randomness():
            x, y = self._minibatch(0, 0, self.order[:1])
            if not isinstance(x, Tensor) or not isinstance(y, Tensor):
                return False
            try:
                self._vectorised(self._start, x[None], y[None])
            except Exception:  # torch raises nearly anything here, and a loop works for all
                return False
        return True

    # -- buffers --------------------------------------------------------------------------------------------

    def _train_mode(self) -> None:
        self.module.train()
        if self.batch_norm == "frozen":
            for part in self.module.modules():
                if isinstance(part, BatchNorms):
                    part.eval()

    def _changes_buffers(self) -> bool:
        """Tell whether training changes any buffer; frozen BatchNorm layers do not."""
        parts = [part for part in self.module.modules() if part.training or not isinstance(part, BatchNorms)]
        return any(True for part in parts for _ in part.buffers(recurse=False))

    # -- what is measured -----------------------------------------------------------------------------------

    @contextmanager
    def evaluating(self, theta: Tensor) -> Iterator[nn.Module]:
        """Give the module at theta in evaluation mode, with the workers' statistics pooled."""
        self.flat.point_at(theta)
        if self.buffers is not None:
            self.buffers.load_pooled(self.weights)
        self.module.eval()
        try:
            with torch.no_grad(), self._precision(), self._own_randomness():
                self._seed(self.seed & (2**62 - 1))
                yield self.module
        finally:
            self._train_mode()

    def _outputs(self, data: SampleReader, rows: IntArray, module: nn.Module) -> Iterator[tuple[Any, Any, int]]:
        for start in range(0, len(rows), CHUNK):
            some = rows[start : start + CHUNK]
            x, y = data.read(some)
            x = x if self.transform is None else self.transform.test(x)
            with wrap_module_errors("an evaluation"):
                yield module(self._move(x)), self._move(y), len(some)

    def loss(self, theta: Tensor, rows: IntArray | None = None) -> float:
        """Return the objective over all samples, `measured` or these, in evaluation mode, summed in float64."""
        total = 0.0
        rows = self.measured if rows is None else rows
        chosen = np.sort(self.order) if rows is None else rows
        with self.evaluating(theta) as module:
            for output, target, count in self._outputs(self.data, chosen, module):
                total += count * float(_check_scalar(self.loss_function(output, target)))
        return total / len(chosen) + (0.5 * self.lam * float(norms(theta)) ** 2 if self.lam else 0.0)

    def hessian_times(self, theta: Tensor, vector: Tensor, rows: IntArray) -> Tensor:
        """Return the Hessian of the mean loss over some samples, l2 term left out, times a vector."""
        product, part = torch.zeros_like(vector), torch.empty_like(vector)
        along = self.flat.views(vector)
        parameters = self.flat.parameters
        with self.evaluating(theta) as module, torch.enable_grad():
            for output, target, count in self._outputs(self.data, rows, module):
                value = _check_scalar(self.loss_function(output, target))
                first = torch.autograd.grad(value, parameters, create_graph=True, allow_unused=True)
                used = [(grad * way).sum() for grad, way in zip(first, along, strict=True) if grad is not None]
                second = torch.autograd.grad(torch.stack(used).sum(), parameters, allow_unused=True)
                self.flat.write(part, second)
                product.add_(part, alpha=count / len(rows))
        return product

    def accuracy(self, theta: Tensor) -> float | None:
        """Return the metric's mean over the test set; by default the share of it that is classified right.

        None without a test set, or where the targets are no classes and no metric was given.
        """
        if self.test is None:
            return None
        total = 0.0
        with self.evaluating(theta) as module:
            for output, target, _ in self._outputs(self.test, np.arange(len(self.test)), module):
                if self.metric is None and not are_classes(output, target):
                    return None
                total += float((self.metric or right)(output, target).sum())
        return total / len(self.test)

    def export(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the model at theta by the names of the module's state dict: parameters, frozen ones and buffers."""
        with self.evaluating(theta) as module:
            return named_tensors(module)


def _check_choice(name: str, value: str | None, *known: str | None) -> None:
    if value not in known:
        *most, last = [repr(choice) for choice in known if choice is not None]
        raise LasgError(f"{name} must be {', '.join(most)} or {last}, got {value!r}")


def _check_scalar(value: Tensor) -> Tensor:
    """Return a loss; refuse one that is not a number."""
    if value.ndim:
        raise LasgError(f"the loss must be one number, the mean over its samples; got shape {tuple(value.shape)}")
    return value


def _model_of(point: Any, i: int) -> Tensor:
    """Return worker i's model: the shared one, or its row."""
    model: Tensor = point if isinstance(point, Tensor) and point.ndim == 1 else point[i]
    return model


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise LasgError(f"device {str(name)!r} cannot be used here: {first_line(error)}") from None
    return device
