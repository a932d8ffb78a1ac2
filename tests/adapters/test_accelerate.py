"""Accelerate: LazyLocalSGD is its LocalSGD where messages are dense, resumes to the bit, and counts bytes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

pytest.importorskip("accelerate", reason="accelerate is not installed: make test-all installs it")

from accelerate import Accelerator, skip_first_batches
from accelerate.local_sgd import LocalSGD
from accelerate.state import AcceleratorState, GradientState, PartialState

from lasg.errors import LasgError
from lasg.loops.accelerate import LazyLocalSGD
from tests.adapters.common import as_torchrun_would, flat, network, samples
from tests.transports.ranks import on_ranks

DENSE: dict[str, Any] = {"algorithm": "diloco", "outer": torch.optim.SGD, "outer_options": {"lr": 1.0}}


def fresh(accumulation: int = 1, norm: bool = False) -> tuple[Accelerator, Any, Any, Any]:
    as_torchrun_would()
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulation)
    model = network(norm)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader = DataLoader(TensorDataset(*samples(480)), batch_size=8)
    torch.manual_seed(5 + accelerator.process_index)
    return accelerator, *accelerator.prepare(model, optimizer, loader)


def train(local: Any, accelerator: Accelerator, model: nn.Module, optimizer: Any, batches: Any) -> None:
    """The loop of Accelerate's guide to local SGD."""
    for x, y in batches:
        with accelerator.accumulate(model):
            accelerator.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
            local.step()


def trained(kind: Any, accumulation: int, **settings: Any) -> Tensor:
    accelerator, model, optimizer, loader = fresh(accumulation)
    with kind(accelerator=accelerator, model=model, local_sgd_steps=4, **settings) as local:
        train(local, accelerator, model, optimizer, loader)
    assert local.num_steps == 30
    return flat(model)


def both(accumulation: int) -> tuple[Tensor, Tensor]:
    return trained(LocalSGD, accumulation), trained(LazyLocalSGD, accumulation, **DENSE)


def resumed(folder: str) -> tuple[Tensor, Tensor, dict[str, int], int]:
    """Train; save in the middle of a round, and go on from there in a new accelerator."""
    accelerator, model, optimizer, loader = fresh(norm=True)
    with LazyLocalSGD(accelerator, model, local_sgd_steps=4) as local:
        train(local, accelerator, model, optimizer, list(loader)[:18])
        accelerator.save_state(folder)
        accelerator.wait_for_everyone()
        train(local, accelerator, model, optimizer, skip_first_batches(loader, 18))
        logs = local.logs
    accelerator, again, optimizer, loader = fresh(norm=True)
    with LazyLocalSGD(accelerator, again, local_sgd_steps=4) as local:
        accelerator.load_state(folder)
        train(local, accelerator, again, optimizer, skip_first_batches(loader, 18))
        assert local.logs["lasg_uploads"] == logs["lasg_uploads"]
    return flat(model), flat(again), logs, sum(value.numel() for value in model.parameters())


def unprepared() -> str:
    accelerator, _, _, _ = fresh()
    with pytest.raises(LasgError) as error, LazyLocalSGD(accelerator, network(), 4):
        pass
    return str(error.value)


def everything(folder: str) -> dict[Any, Any]:
    return {1: both(1), 2: both(2), "resumed": resumed(folder), "unprepared": unprepared()}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Any]:
    """What two ranks found; they take long to start."""
    first, second = on_ranks(2, everything, str(tmp_path_factory.mktemp("accelerate")))
    return {name: (first[name], second[name]) for name in first}


@pytest.mark.parametrize("accumulation", [1, 2])
def test_dense_messages_and_an_outer_rate_of_1_are_accelerates_own_local_sgd(
    found: dict[Any, Any], accumulation: int
) -> None:
    first, second = found[accumulation]
    assert torch.equal(first[1], second[1])
    assert (first[0] - first[1]).abs().max() < 1e-6
    assert (first[0] - flat(network())).abs().max() > 0.01, "it was trained"


def test_a_run_that_was_saved_in_the_middle_of_a_round_goes_on_to_the_bit(found: dict[Any, Any]) -> None:
    first, second = found["resumed"]
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], first[1])
    assert torch.equal(second[0], second[1])
    logs, parameters = first[2:]
    assert logs["lasg_rounds"] == 7
    assert logs["lasg_uploads"] == 14
    assert 0 < logs["lasg_bytes_sent"] < 7 * parameters * 4


def test_a_model_that_was_not_prepared_is_refused(found: dict[Any, Any]) -> None:
    assert "accelerator.prepare" in found["unprepared"][0]


def test_without_other_processes_it_only_counts() -> None:
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    accelerator = Accelerator(cpu=True)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, y = samples(16)
    with LazyLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=8, enabled=True) as local:
        train(local, accelerator, model, optimizer, [(x, y)] * 3)
    assert local.num_steps == 3
    assert local.logs == {}
