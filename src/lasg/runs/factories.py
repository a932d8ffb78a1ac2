"""From a spec to the things that run: data, problem, optimizer, training."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeAlias, Union

import numpy as np

from lasg.core import optimizers
from lasg.core.algorithms import Outer
from lasg.core.arrays import Array, FloatArray
from lasg.core.optimizers import ClosedFormSGD, Constant, Decreasing, Optimizer, TorchOptimizer
from lasg.core.own_codec import CodecLike, as_codec
from lasg.core.rules import Rule
from lasg.core.training import PATIENCE, Training
from lasg.core.transport import Transport
from lasg.data import weights
from lasg.data.loaders import Dataset, load
from lasg.data.partition import split
from lasg.data.raw_files import path_or_none
from lasg.data.sources import AS_IT_IS, Reading
from lasg.errors import LasgError
from lasg.problems.regression import Regression
from lasg.runs.composition import ONLY_IN_PROGRAM, find_codec, find_rule
from lasg.runs.spec import OWN, Spec

if TYPE_CHECKING:
    from lasg.problems.module import ModuleProblem  # imports torch, which regressions do without

Problem: TypeAlias = Union[Regression, "ModuleProblem"]

UNFIT = {
    **optimizers.UNFIT,
    "Muon": "it takes matrices only, and the server's model is one flat vector",
    "ReduceLROnPlateau": "it wants the loss after every round",
}
"""Classes of torch.optim that no server of flat gradients can step."""
MEASURED_WINDOWS = 8
"""Without `measured`, the loss on text is measured on every eighth window: of four parts that takes 1.6 s, not 12 s."""


@functools.lru_cache(maxsize=1)
def dataset(name: str, data_dir: Path | None, reading: Reading = AS_IT_IS) -> Dataset:
    """Load a data set, keeping the latest in memory."""
    return load(name, data_dir=data_dir, reading=reading)


def identity(spec: Spec, data_dir: Path | None = None, own: Problem | None = None) -> str:
    """Return the checksum of what a run starts from besides its spec: the data, and a network's weights.

    A problem of the caller's own tells it itself.
    """
    if own is not None:
        return own.fingerprint()
    data, start = dataset(spec.data, data_dir, spec.reading).sha256, _start(spec, data_dir)
    return data if start is None else hashlib.sha256(f"{data} {start}".encode()).hexdigest()


def _start(spec: Spec, data_dir: Path | None) -> str | None:
    """Return the checksum of the weights that a run starts from, if it does."""
    return None if spec.weights is None else weights.sha256(weights.obtain(spec.weights, data_dir))


def problem(spec: Spec, data_dir: Path | str | None = None) -> Problem:
    """Return the problem of a spec; runs that differ in the algorithm alone share it."""
    if spec.data == OWN:
        raise LasgError(f"the problem of this run {ONLY_IN_PROGRAM}")
    data_dir = path_or_none(data_dir)
    return _problem(tuple(getattr(spec, name) for name in PROBLEM), data_dir, _start(spec, data_dir))


PROBLEM = (
    *("data", "reading", "workers", "partition", "alpha", "classes", "sizes", "cut", "batch", "lam", "seed", "dtype"),
    *("model", "weights", "batch_norm", "augment", "autocast", "device", "measured"),
)
"""What decides a problem."""


@functools.lru_cache(maxsize=1)
def _problem(values: tuple[Any, ...], data_dir: Path | None, start: str | None) -> Problem:  # noqa: ARG001
    of = SimpleNamespace(**dict(zip(PROBLEM, values, strict=True)))
    loaded = dataset(of.data, data_dir, of.reading)
    options = {name: getattr(of, name) for name in ("alpha", "classes", "sizes", "cut")}
    if loaded.vocabulary:
        # One domain per worker, and the same text in every setting: as many parts as there are workers.
        loaded = loaded.first_classes(of.workers)
    shards = split(of.partition, loaded.labels, of.workers, of.seed, **options)
    common = {"batch": of.batch, "seed": of.seed, "lam": of.lam, "dtype": of.dtype}
    if of.model is not None:
        return _network(of, loaded, shards, data_dir, common)
    if loaded.vocabulary:
        raise LasgError(f"{of.data} holds text, for networks: set model to transformer")
    if loaded.features.dtype == np.uint8:
        raise LasgError(f"{of.data} holds images as bytes, for networks: set model to resnet18, cnn or mlp")
    return Regression(loaded.features, loaded.labels, shards, classes=loaded.classes, test=loaded.test, **common)


def _network(
    of: SimpleNamespace, loaded: Dataset, shards: Sequence[Any], data_dir: Path | None, common: dict[str, Any]
) -> ModuleProblem:
    from lasg.problems import models
    from lasg.problems.module import ModuleProblem

    samples = _text(of, loaded) if loaded.vocabulary else _numbers(of, loaded)
    shape, classes = samples["dataset"][0].shape[1:], loaded.vocabulary or loaded.classes
    module = models.model(of.model, shape, classes, of.seed, text=loaded.vocabulary > 0)
    if of.weights is not None:
        path = weights.obtain(of.weights, data_dir)
        try:
            models.load_weights(module, models.read_weights(path), models.MODELS[of.model].head)
        except LasgError as error:
            raise LasgError(f"{path}: {error}") from None
    return ModuleProblem(
        module,
        shards=shards,
        batch_norm=of.batch_norm or "local",
        device=of.device or "cpu",
        autocast=of.autocast,
        **samples,
        **common,
    )


def _numbers(of: SimpleNamespace, loaded: Dataset) -> dict[str, Any]:
    """Return what a network's problem is made of where samples are images, or other features, with a class each."""
    from torch.nn.functional import cross_entropy

    from lasg.problems.image_transform import IMAGENET_MEAN, IMAGENET_STD, ImageTransform

    shape, colour = loaded.shape, loaded.shape[0] == 3
    if of.augment and len(shape) != 3:
        raise LasgError(f"augment is for images, and the samples of {of.data} are {shape}: leave it out")
    mean, std = (IMAGENET_MEAN, IMAGENET_STD) if colour and loaded.features.dtype == np.uint8 else ((), ())
    test = None if loaded.test is None else tuple(values[:: of.measured] for values in loaded.test)
    return {
        "loss": cross_entropy,
        "dataset": (loaded.features.reshape(-1, *shape), loaded.labels),
        "test": None if test is None else (test[0].reshape(-1, *shape), test[1]),
        "measured": None if of.measured is None else np.arange(0, len(loaded.features), of.measured),
        "transform": ImageTransform(mean, std, shift=4 if of.augment else 0, flip=bool(of.augment) and colour),
    }


def _text(of: SimpleNamespace, loaded: Dataset) -> dict[str, Any]:
    """The same where samples are windows of text: each character's target is the next one."""
    from lasg.problems.models import sequence_cross_entropy

    if of.augment:
        raise LasgError(f"augment is for images, and {of.data} holds text: leave it out")
    tested = None if loaded.test_features is None else loaded.test_features[:: of.measured]
    dataset, test = (
        None if windows is None else (windows[:, :-1].astype(np.int64), windows[:, 1:].astype(np.int64))
        for windows in (loaded.features, tested)
    )
    measured = np.arange(0, len(loaded.features), of.measured or MEASURED_WINDOWS)
    return {"loss": sequence_cross_entropy, "dataset": dataset, "test": test, "measured": measured}


@functools.lru_cache(maxsize=1)
def _smoothness(of: Problem, reading: str) -> FloatArray:
    return of.smoothness(reading)  # type: ignore[arg-type]


def optimizer(spec: Spec, theta: Array) -> Optimizer:
    """Return the server optimizer of a spec: plain SGD in closed form, anything else from torch.optim."""
    chosen = spec.server_optimizer
    if spec.composition.outer is not None:
        if chosen.name == "SGD" and not any(chosen.options.values()):
            return ClosedFormSGD(theta, Constant(chosen.eta))
        return _torch_optimizer(chosen, spec.but(schedule="constant", schedule_options={}), theta)
    if chosen.name == "sgd" and spec.schedule in {"constant", "decreasing"}:
        if spec.optimizer_options:
            given = ", ".join(spec.optimizer_options)
            raise LasgError(f"optimizer sgd takes no options, got {given}. optimizer = 'SGD' is torch's, and does")
        return ClosedFormSGD(theta, schedule(spec))
    return _torch_optimizer(chosen, spec, theta)


def schedule(spec: Spec) -> Constant | Decreasing:
    """Return the step sizes of a spec whose optimizer is plain SGD in closed form."""
    if spec.schedule == "constant":
        if spec.schedule_options:
            raise LasgError(f"schedule 'constant' takes no options, got {', '.join(spec.schedule_options)}")
        return Constant(spec.eta)
    if set(spec.schedule_options) != {"mu", "K0"}:
        raise LasgError("schedule 'decreasing' is eta_k = 2 / (mu (k + K0)): give schedule_options with mu and K0")
    return Decreasing(**spec.schedule_options)


def _torch_optimizer(chosen: Outer, spec: Spec, theta: Array) -> TorchOptimizer:
    from torch import optim

    if spec.schedule == "decreasing":
        raise LasgError("schedule 'decreasing' goes with optimizer 'sgd'; torch's optimizers take a torch LR scheduler")
    name = "SGD" if chosen.name == "sgd" else chosen.name
    make = _class_of(optim, name, optim.Optimizer, "optimizer")
    plan = None
    if spec.schedule != "constant":
        plan = _class_of(optim.lr_scheduler, spec.schedule, optim.lr_scheduler.LRScheduler, "schedule")

    def made() -> TorchOptimizer:
        return TorchOptimizer(
            theta,
            lambda parameters: make(parameters, lr=chosen.eta, **_plain(chosen.options)),
            (lambda of: plan(of, **_plain(spec.schedule_options))) if plan else None,
        )

    # torch checks some options when they are first used only: one step on a copy, before anything is written.
    try:
        made().step(0, np.zeros(theta.shape))
        return made()
    except Exception as error:
        reason = str(error) or type(error).__name__
        raise LasgError(f"{name} or {spec.schedule} refused its options: {reason}") from None


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """TOML has no tuples, torch wants some (betas)."""
    return {key: tuple(value) if isinstance(value, list) else value for key, value in options.items()}


def _class_of(module: Any, name: str, base: type, what: str) -> Any:
    known = {key: kind for key, kind in vars(module).items() if isinstance(kind, type) and issubclass(kind, base)}
    if name not in known:
        raise LasgError(f"unknown {what} {name!r}. {module.__name__} has {', '.join(sorted(known))}")
    if name in UNFIT:
        raise LasgError(f"{name} cannot serve here: {UNFIT[name]}. Take another of torch's")
    return known[name]


def training(
    spec: Spec,
    of: Problem | None = None,
    transport: Transport | None = None,
    *,
    rule: Rule | str | None = None,
    codec: CodecLike | str | None = None,
) -> Training:
    """Return the training of a spec at round 0, simulated unless there is a transport.

    Another rule or codec, or one of your own, replaces the spec's.
    """
    of = problem(spec) if of is None else of
    stages = spec.stages
    for what, given in (("rule", rule), ("codec", codec)):
        if given is None and what in spec.own_parts:
            raise LasgError(f"the {what} of this run {ONLY_IN_PROGRAM}")
    if rule is not None:
        stages = replace(stages, rule=find_rule(rule))
    if codec is not None:
        stages = replace(stages, codec=as_codec(find_codec(codec)))
    needs_smoothness = stages.rule.where == "server" and stages.rule.estimate is None
    return Training(
        of,
        optimizer(spec, of.start()),
        stages,
        spec.laziness,
        transport,
        seed=spec.seed,
        smoothness=_smoothness(of, spec.smoothness) if needs_smoothness else None,
        clip=spec.clip,
        patience=spec.patience or PATIENCE,
    )
