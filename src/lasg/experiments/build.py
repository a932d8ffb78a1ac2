"""From a spec to the things that run: data, problem, optimizer, simulation."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from lasg.core.algorithms import algorithm
from lasg.core.arrays import FloatArray
from lasg.core.codecs import Codec
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, Optimizer, Schedule, TorchOptimizer
from lasg.core.rules import Rule
from lasg.core.server import Laziness
from lasg.data.loaders import Dataset, load
from lasg.data.partition import split
from lasg.engines.simulation import Simulation
from lasg.errors import LasgError
from lasg.experiments.spec import Spec
from lasg.problems.regression import Regression

UNFIT = {
    "LBFGS": "it wants to evaluate the loss itself",
    "SparseAdam": "it takes sparse gradients only",
    "Muon": "it takes matrices only, and the server's model is one flat vector",
    "ReduceLROnPlateau": "it wants the loss after every round",
}
"""Classes of torch.optim that no server of flat gradients can step."""


@functools.lru_cache(maxsize=1)
def dataset(name: str, data_dir: Path | None) -> Dataset:
    """Load a data set, keeping the latest in memory."""
    return load(name, data_dir=data_dir)


def problem(spec: Spec, data_dir: Path | None = None) -> Regression:
    """Return the problem of a spec; runs that differ in the algorithm alone share it."""
    return _problem(
        spec.data,
        data_dir,
        spec.workers,
        spec.partition,
        (spec.alpha, spec.classes, spec.sizes, spec.cut),
        spec.batch,
        spec.lam,
        spec.seed,
        spec.dtype,
    )


@functools.lru_cache(maxsize=1)
def _problem(
    data: str,
    data_dir: Path | None,
    workers: int,
    partition: str,
    options: tuple[Any, ...],
    batch: float,
    lam: float,
    seed: int,
    dtype: str,
) -> Regression:
    loaded = dataset(data, data_dir)
    alpha, classes, sizes, cut = options
    shards = split(partition, loaded.labels, workers, seed, alpha=alpha, classes=classes, sizes=sizes, cut=cut)
    test = None
    if loaded.test_features is not None and loaded.test_labels is not None:
        test = (loaded.test_features, loaded.test_labels)
    return Regression(
        loaded.features,
        loaded.labels,
        shards,
        classes=loaded.classes,
        batch=batch,
        seed=seed,
        lam=lam,
        dtype=dtype,
        test=test,
    )


@functools.lru_cache(maxsize=1)
def _smoothness(of: Regression, reading: str) -> FloatArray:
    return of.smoothness(reading)  # type: ignore[arg-type]


def optimizer(spec: Spec, theta: FloatArray) -> Optimizer:
    """Return the server optimizer of a spec: plain SGD in closed form, anything else from torch.optim."""
    if spec.optimizer == "sgd" and spec.schedule in {"constant", "decreasing"}:
        if spec.optimizer_options:
            given = ", ".join(spec.optimizer_options)
            raise LasgError(f"optimizer sgd takes no options, got {given}. optimizer = 'SGD' is torch's, and does")
        return ClosedFormSGD(theta, _schedule(spec))
    return _torch_optimizer(spec, theta)


def _schedule(spec: Spec) -> Schedule:
    if spec.schedule == "constant":
        if spec.schedule_options:
            raise LasgError(f"schedule 'constant' takes no options, got {', '.join(spec.schedule_options)}")
        return Constant(spec.eta)
    if set(spec.schedule_options) != {"mu", "K0"}:
        raise LasgError("schedule 'decreasing' is eta_k = 2 / (mu (k + K0)): give schedule_options with mu and K0")
    return Decreasing(**spec.schedule_options)


def _torch_optimizer(spec: Spec, theta: FloatArray) -> TorchOptimizer:
    import torch

    name = "SGD" if spec.optimizer == "sgd" else spec.optimizer
    make = _class_of(torch.optim, name, torch.optim.Optimizer, "optimizer")
    scheduler = None
    if spec.schedule == "decreasing":
        raise LasgError("schedule 'decreasing' goes with optimizer 'sgd'; torch's optimizers take a torch LR scheduler")
    if name in UNFIT or spec.schedule in UNFIT:
        unfit = name if name in UNFIT else spec.schedule
        raise LasgError(f"{unfit} cannot serve here: {UNFIT[unfit]}. Take another of torch's")
    if spec.schedule != "constant":
        base = torch.optim.lr_scheduler.LRScheduler
        scheduler = _class_of(torch.optim.lr_scheduler, spec.schedule, base, "schedule")

    def made() -> TorchOptimizer:
        return TorchOptimizer(
            theta,
            lambda parameters: make(parameters, lr=spec.eta, **_plain(spec.optimizer_options)),
            (lambda of: scheduler(of, **_plain(spec.schedule_options))) if scheduler else None,
        )

    # torch checks some options when they are first used only: one step on a copy, before anything is written.
    try:
        made().step(0, np.zeros(theta.shape))
        return made()
    except Exception as error:
        raise LasgError(
            f"{name} or {spec.schedule} refused its options: {str(error) or type(error).__name__}"
        ) from None


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no tuples, torch wants some (betas)."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _class_of(module: Any, name: str, base: type, what: str) -> Any:
    found = getattr(module, name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        known = sorted(
            n for n in dir(module) if isinstance(getattr(module, n), type) and issubclass(getattr(module, n), base)
        )
        raise LasgError(f"unknown {what} {name!r}. {module.__name__} has {', '.join(known)}")
    return found


def simulation(
    spec: Spec, of: Regression | None = None, *, rule: Rule | None = None, codec: Codec | None = None
) -> Simulation:
    """Return the simulation of a spec at round 0, theta = 0; a rule or codec of your own replaces the algorithm's."""
    of = problem(spec) if of is None else of
    chosen = algorithm(spec.algorithm)
    rule = rule or chosen.rule
    theta = np.zeros(of.p, of.dtype)
    needs_smoothness = rule.where == "server" and rule.estimate is None
    return Simulation(
        of,
        optimizer(spec, theta),
        rule=rule,
        codec=codec or chosen.codec(spec.bits, spec.bucket),
        laziness=Laziness(workers=spec.workers, D=spec.D, c=spec.c, window=spec.window, start=spec.start),
        local_steps=chosen.local_steps(spec.H),
        seed=spec.seed,
        smoothness=_smoothness(of, spec.smoothness) if needs_smoothness else None,
    )
