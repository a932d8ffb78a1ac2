"""A network with BatchNorm and dropout on digits, as a federation has it and as the simulation has it."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from flwr.app import Context, RecordDict
from sklearn.datasets import load_digits
from torch import nn

from lasg import ModuleProblem
from lasg.core.training import Training
from lasg.flower import Settings, apps, client_app
from lasg.runs import factories
from lasg.transports.federation import Federation
from tests.flower.grid import Inline

WORKERS, TEST = 3, 297
CONFIG: dict[str, Any] = {
    "workers": WORKERS,
    "rounds": 20,
    "local-steps": 5,
    "rule": "always",
    "codec": "dense",
    "eta": 0.2,
    "D": 10,
    "wait": 10.0,
}


def network() -> nn.Module:
    torch.manual_seed(0)
    # A mask that no training changes must not travel; it has -inf in it, as those of attention have.
    found = nn.Sequential(nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 10))
    found.register_buffer("mask", torch.full((1000,), -torch.inf))
    return found.double()


@functools.cache
def digits() -> tuple[Any, Any]:
    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    # The pixels' own scale: statistics of mean 0 and variance 1 are far from theirs.
    return found.data[order].astype(np.float64), found.target[order].astype(np.int64)


@functools.cache
def shards() -> list[Any]:
    """Return unequal parts of the training data, sorted by label in part: the workers' statistics differ."""
    y = digits()[1][TEST:]
    order = np.argsort(y + np.random.default_rng(1).normal(0, 2, len(y)), kind="stable")
    return [part + TEST for part in np.split(order, [300, 800])]


def problem(own: list[Any], **options: Any) -> ModuleProblem:
    test = tuple(part[:TEST] for part in digits())
    return ModuleProblem(
        network(), nn.functional.cross_entropy, digits(), own, batch=0.1, dtype="float64", test=test, **options
    )


def clients() -> Any:
    return client_app(lambda _, worker: problem([shards()[worker]], ids=[worker]))


def measure(model: nn.Module) -> tuple[float, float]:
    """Return loss and accuracy on the test data; whatever mode the model is in, it is used as it came."""
    x, y = (torch.from_numpy(part[:TEST]) for part in digits())
    with torch.no_grad():
        output = model(x)
    return float(nn.functional.cross_entropy(output, y)), float((output.argmax(1) == y).double().mean())


def federated(
    out: Path, grid: Inline | None = None, client: Any = None, *, measured: bool = True, **changes: Any
) -> Training:
    """Train over nodes as the settings say; the server measures, if it has anything to measure on."""
    config = {**CONFIG, "out": str(out), **{name.replace("_", "-"): value for name, value in changes.items()}}
    grid = grid or Inline(client or clients(), WORKERS, config)
    for node, context in grid.contexts.items():
        grid.contexts[node] = Context(context.run_id, node, context.node_config, context.state, config)
    return apps.train(grid, Settings.from_config(config), network(), measure if measured else None)


def transport(run: Training) -> Federation:
    assert isinstance(run.transport, Federation)
    return run.transport


def simulated(**changes: Any) -> Training:
    """Train in the simulation as the settings say."""
    config = {**CONFIG, **{name.replace("_", "-"): value for name, value in changes.items()}}
    settings = Settings.from_config(config)
    own = problem(shards())
    optimizer = factories.optimizer(settings.spec, own.start())
    run = Training(own, optimizer, settings.stages, settings.laziness, seed=settings.seed)
    for _ in range(settings.rounds):
        run.step()
    return run


def forget(grid: Inline) -> None:
    """Take every node's memory, as a restart of it does."""
    for context in grid.contexts.values():
        context.state = RecordDict()
