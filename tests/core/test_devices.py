"""Every tensor of the core is made where its input is: the runs on a device that refuses to meet the CPU are the same.

No GPU is needed for it, and no GPU's kernels are tested by it (docs/releasing.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from lasg.core import arrays, belief
from lasg.core.algorithms import algorithm
from lasg.core.estimators import Momentum, Storm
from lasg.core.optimizers import ClosedFormSGD, Constant, TorchOptimizer
from lasg.core.rules import RULES
from lasg.core.server import Laziness
from lasg.core.stages import Stages
from lasg.core.training import Training
from tests.core import toy
from tests.core.device import AWAY, Away, away, elsewhere
from tests.core.toy import M, P, Run, Toy

ROUNDS = 12
CODECS = (
    "dense",
    "qsgd4:3",
    "qsgd8",
    "uniform4",
    "grid0.5",
    "sign:3",
    "topk0.4",
    "lowrank1",
    "qsgd4:3+ec",
    "topk0.4+ec",
)


@pytest.fixture(autouse=True)
def other_device(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give the toy problem a kind of array that is on the other device."""
    plain = toy.as_kind

    def as_kind(x: Any, kind: str, dtype: str = "float64") -> Any:
        return away(np.asarray(x, dtype)) if kind == "away" else plain(x, kind, dtype)

    monkeypatch.setattr(toy, "as_kind", as_kind)
    monkeypatch.setattr(toy, "numpy_of", arrays.host)
    with elsewhere():
        yield


def same(rule: str, codec: str = "dense", **options: Any) -> None:
    """Look that a run on the other device is the CPU's, and stays there."""
    here, there = (Run(rule, codec, kind=kind, **options) for kind in ("torch", "away"))
    for _ in range(ROUNDS):
        (_, expected), (request, found) = here.step(), there.step()
        np.testing.assert_array_equal(expected.uploaded, found.uploaded)
        assert expected.bits == found.bits
        assert isinstance(request.theta, Away)
    np.testing.assert_array_equal(here.theta, there.theta)


@pytest.mark.parametrize("codec", ["dense", "qsgd4:3"])
@pytest.mark.parametrize("rule", RULES)
def test_every_rule_stays_on_the_device_of_the_model(rule: str, codec: str) -> None:
    same(rule, codec)


@pytest.mark.parametrize("how", ["replace", "difference", "residual"])
@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_and_belief_stays_there(codec: str, how: Any) -> None:
    if how == "residual":
        same("always", codec, belief=how)
    else:
        same("wk2", codec, belief=how)


@pytest.mark.parametrize("estimator", [Momentum(0.9), Storm(0.3)], ids=lambda one: type(one).__name__)
def test_estimators_stay_there(estimator: Any) -> None:
    same("always", "qsgd4:3", estimator=estimator)


def test_local_steps_stay_there() -> None:
    same("wk2", "qsgd4:3", H=3)


def test_an_optimizer_of_torch_stays_there() -> None:
    runs = []
    for kind in ("torch", "away"):
        theta = toy.as_kind(np.zeros(P), kind)
        runs.append(Run("wk2", kind=kind, optimizer=TorchOptimizer(theta, lambda p: torch.optim.SGD(p, 0.1, 0.9))))
    for _ in range(ROUNDS):
        for run in runs:
            run.step()
    np.testing.assert_array_equal(runs[0].theta, runs[1].theta)
    assert isinstance(runs[1].server.theta, torch.Tensor)
    assert runs[1].server.theta.device == AWAY


COMPOSITIONS = (
    "fda+dense+H2+inner+residual",
    "clag+grid0.25+ec+difference",
    "laq+uniform4+difference",
    "lasg-vr",
    "lag+qsgd4:3+difference+blocks3",
    "wk1+sign:3+difference+blocks",
    "always+topk0.4+ec+residual0.9+correction0.9",
    "wk2+topk0.4+ef",
    "always+lowrank1:rounded+residual",
    "always+qsgd8+median-clip3",
    "wk2+qsgd8:3+difference+trimmed",
    "pse-recent+dense",
    "pse-code+dense",
)
"""What has code of its own beyond the rules, codecs and beliefs above."""


def trained(stages: Stages, kind: str) -> Training:
    """Return a training of the toy problem, after some rounds."""
    theta = toy.as_kind(np.zeros(P), kind)
    training = Training(Toy(kind), ClosedFormSGD(theta, Constant(0.1)), stages, Laziness(workers=M, D=6, c=0.5))
    for _ in range(ROUNDS):
        training.step()
    return training


def same_training(stages: Stages) -> None:
    here, there = (trained(stages, kind) for kind in ("torch", "away"))
    assert here.ledger == there.ledger
    assert isinstance(there.theta, Away)
    np.testing.assert_array_equal(arrays.host(here.theta), arrays.host(there.theta))


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_every_further_stage_stays_there(name: str) -> None:
    same_training(algorithm(name).stages(inner={"optimizer": "SGD", "eta": 0.1}))


@pytest.mark.parametrize("drift", [0.0, 1.0])
@pytest.mark.parametrize("memory", ["kept", "reset", "averaged"])
@pytest.mark.parametrize("optimizer", ["SGD", "AdamW"])
def test_optimizers_of_the_workers_stay_there(optimizer: str, memory: str, drift: float) -> None:
    if drift and memory == "averaged":
        pytest.skip("refused: no model of the workers' momenta is corrected")
    options = {"momentum": 0.9} if optimizer == "SGD" else {}
    inner = {"optimizer": optimizer, "options": options, "memory": memory, "drift": drift, "eta": 0.05}
    same_training(algorithm("always+qsgd8+H3+inner").stages(inner=inner))


def test_a_stray_tensor_on_the_cpu_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def stray(shape: tuple[int, ...], like: Any) -> Any:
        return torch.zeros(shape, dtype=like.dtype)

    monkeypatch.setattr(arrays, "zeros", stray)
    monkeypatch.setattr(belief, "zeros", stray)
    with pytest.raises(AssertionError, match="meets tensors of two devices"):
        same("wk2", "qsgd4:3", belief="difference")
