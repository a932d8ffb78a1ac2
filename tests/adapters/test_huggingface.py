"""Hugging Face's Trainer under LazyCallback, on real ranks: DDP is silent, checkpoints resume, logs have the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

pytest.importorskip("transformers", reason="transformers is not installed: make test-all installs it")
pytest.importorskip("accelerate", reason="accelerate is not installed: make test-all installs it")

from accelerate.state import AcceleratorState, GradientState, PartialState
from safetensors.torch import load_file
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    default_data_collator,
)

from lasg.errors import LasgError
from lasg.loops.huggingface import LazyCallback
from tests.adapters.common import as_torchrun_would, flat
from tests.transports.ranks import on_ranks

DENSE: dict[str, Any] = {"algorithm": "diloco", "outer": torch.optim.SGD, "outer_options": {"lr": 1.0}}


class Recorder(TrainerCallback):  # type: ignore[misc]
    """What a logger of the user's own is told, and the model after every step."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.models: list[Tensor] = []

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        self.models.append(flat(model))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
        self.logs.append(dict(logs))


def sentences(count: int = 96) -> list[dict[str, Tensor]]:
    """Return texts in which a number is followed by the next but one."""
    starts = torch.arange(count)[:, None] % 16
    return [{"input_ids": row, "labels": row} for row in (starts + 2 * torch.arange(8)[None]) % 16]


def trainer_of(folder: str, dropout: float = 0.1, **options: Any) -> tuple[Trainer, Recorder]:
    if dist.is_initialized():
        as_torchrun_would()
    for state in (AcceleratorState, GradientState, PartialState):
        state._reset_state()
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 4,
        "max_steps": 12,
        "learning_rate": 0.01,
        "logging_steps": 4,
        "save_strategy": "no",
        "report_to": [],
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
        "use_cpu": True,
    }
    arguments = TrainingArguments(folder, **{**settings, **options})
    arguments.__dict__["_setup_devices"] = torch.device("cpu")  # torch.load, which resumes, knows no "cpu:0"
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=16,
        n_positions=8,
        n_embd=16,
        n_layer=1,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
    )
    recorder, data = Recorder(), sentences()
    trainer = Trainer(
        GPT2LMHeadModel(config),
        arguments,
        data_collator=default_data_collator,
        train_dataset=data,
        eval_dataset=data[:16],
        callbacks=[recorder],
    )
    return trainer, recorder


def like_ddp(folder: str) -> tuple[Tensor, Tensor, Tensor]:
    options: dict[str, Any] = {"dropout": 0.0, "optim": "sgd", "learning_rate": 0.1, "gradient_accumulation_steps": 2}
    options["max_grad_norm"] = 0.0  # the mean of clipped gradients is not their clipped mean
    plain, _ = trainer_of(folder, **options)
    plain.train()
    lazy, recorder = trainer_of(folder, **options)
    lazy.add_callback(LazyCallback(lazy, every=1, **DENSE))
    lazy.train()
    return flat(plain.model), flat(lazy.model), recorder.models[5]


def test_a_dense_round_after_every_step_of_sgd_is_ddp(found: dict[str, Any]) -> None:
    first, second = found["like_ddp"]
    assert torch.equal(first[1], second[1])
    assert (first[0] - first[1]).abs().max() < 1e-6


def resumed(folder: str) -> tuple[Tensor, Tensor, list[Tensor], list[dict[str, Any]], list[dict[str, Any]]]:
    options: dict[str, Any] = {"save_strategy": "steps", "save_steps": 6}
    trainer, recorder = trainer_of(folder, **options)
    trainer.add_callback(LazyCallback(trainer, every=4))
    trainer.train()
    again, _ = trainer_of(folder, **options)
    again.add_callback(LazyCallback(again, every=4))
    again.train(resume_from_checkpoint=f"{folder}/checkpoint-6")
    return flat(trainer.model), flat(again.model), recorder.models, recorder.logs, trainer.state.log_history


def test_ranks_train_apart_agree_at_the_end_and_resume_to_the_bit(found: dict[str, Any]) -> None:
    first, second = found["resumed"]
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0], first[1])
    assert torch.equal(second[0], second[1])
    same = [torch.equal(one, other) for one, other in zip(first[2], second[2], strict=True)]
    assert [i + 1 for i, equal in enumerate(same) if equal] == [4, 6, 10, 12], "after rounds, and before a checkpoint"
    folder = found["folder"] / "resumed"
    saved = load_file(folder / "checkpoint-6" / "model.safetensors")
    assert torch.equal(saved["transformer.wpe.weight"].flatten(), first[2][5][16 * 16 : 16 * 16 + 8 * 16])
    assert sorted(path.name for path in folder.glob("checkpoint-12/lasg*")) == ["lasg_rank_0.pt", "lasg_rank_1.pt"]
    logs, history = first[3], first[4]
    assert [line["lasg_rounds"] for line in logs] == [1, 2, 4, 4]
    assert logs[2]["lasg_uploads"] == 8
    assert 0 < logs[0]["lasg_bytes_sent"] < logs[1]["lasg_bytes_sent"] < logs[2]["lasg_bytes_sent"]
    assert [line["lasg_bytes_sent"] for line in history] == [line["lasg_bytes_sent"] for line in logs]
    assert logs[2]["loss"] < logs[0]["loss"]


def best(folder: str) -> tuple[Tensor, list[float], float]:
    trainer, _ = trainer_of(
        folder,
        learning_rate=0.5,
        save_strategy="steps",
        eval_strategy="steps",
        save_steps=4,
        eval_steps=4,
        load_best_model_at_end=True,
        metric_for_best_model="loss",
    )
    trainer.add_callback(LazyCallback(trainer, every=3))
    trainer.train()
    measured = [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
    return flat(trainer.model), measured, trainer.evaluate()["eval_loss"]


def everything(folder: str) -> dict[str, Any]:
    return {work.__name__: work(f"{folder}/{work.__name__}") for work in (like_ddp, resumed, best)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks found, by the function that they called; they take long to start."""
    folder = tmp_path_factory.mktemp("huggingface")
    first, second = on_ranks(2, everything, str(folder))
    return {"folder": folder, **{name: (first[name], second[name]) for name in first}}


def test_the_best_model_is_what_was_evaluated_and_stays_at_the_end(found: dict[str, Any]) -> None:
    first, second = found["best"]
    assert torch.equal(first[0], second[0])
    measured, at_the_end = first[1:]
    assert len(measured) == 3
    assert min(measured) < measured[-1], "the best is not the last: the step is far too large"
    assert at_the_end == pytest.approx(min(measured), rel=1e-5)


def test_a_single_process_trains_again_after_it_has_ended(tmp_path: Path) -> None:
    trainer, recorder = trainer_of(str(tmp_path), max_steps=5)
    callback = LazyCallback(trainer, every=2)
    trainer.add_callback(callback)
    trainer.train()
    assert recorder.logs[-1]["lasg_rounds"] == 3
    assert callback.loop is None
    assert trainer.args.average_tokens_across_devices
    trainer.train()
    assert trainer.state.global_step == 5


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="takes the Trainer, then settings"):
        LazyCallback(20)
    trainer, _ = trainer_of(str(tmp_path))
    trainer.add_callback(LazyCallback(trainer, every=0))
    with pytest.raises(LasgError, match="every must be a number of optimizer steps"):
        trainer.train()
    trainer, _ = trainer_of(str(tmp_path), save_strategy="steps", save_steps=2, max_steps=2)
    trainer.train()
    trainer, _ = trainer_of(str(tmp_path), max_steps=4)
    trainer.add_callback(LazyCallback(trainer, every=2))
    with pytest.raises(LasgError, match=r"the checkpoint has no lasg_rank_0\.pt"):
        trainer.train(resume_from_checkpoint=True)
