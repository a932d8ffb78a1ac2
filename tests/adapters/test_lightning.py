"""Lightning under strategy="lasg", on real ranks: its Trainer and Fabric train apart, agree, resume and log."""

from __future__ import annotations

import csv
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

L = pytest.importorskip("lightning", reason="lightning is not installed: make test-all installs it")

from lightning.pytorch.callbacks import Callback, ModelCheckpoint  # noqa: E402
from lightning.pytorch.loggers import CSVLogger  # noqa: E402

from lasg.errors import LasgError  # noqa: E402
from lasg.loops.lightning import FabricLazyStrategy, LazyStrategy  # noqa: E402
from tests.adapters.common import as_torchrun_would, flat, network, samples  # noqa: E402
from tests.transports.ranks import on_ranks  # noqa: E402

DENSE: dict[str, Any] = {"algorithm": "diloco", "outer": torch.optim.SGD, "outer_options": {"lr": 1.0}}


class Classifier(L.LightningModule):  # type: ignore[misc, name-defined]
    """A small network, as users write one."""

    def __init__(self, optimizer: Any = torch.optim.AdamW, lr: float = 0.01) -> None:
        super().__init__()
        self.network = network(norm=optimizer is torch.optim.AdamW, dropout=0.0)  # Lightning saves no random state
        self.make = lambda values: optimizer(values, lr=lr)

    def training_step(self, batch: Any, _: int) -> Tensor:
        loss = cross_entropy(self.network(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def validation_step(self, batch: Any, _: int) -> None:
        self.log("validation", cross_entropy(self.network(batch[0]), batch[1]), sync_dist=True)

    def configure_optimizers(self) -> Any:
        return self.make(self.parameters())


class Recorder(Callback):  # type: ignore[misc]
    """The model after every batch, and when validation begins."""

    def __init__(self) -> None:
        self.models: list[Tensor] = []
        self.validated: list[Tensor] = []

    def on_train_batch_end(self, trainer: Any, module: Any, *_: Any) -> None:
        self.models.append(flat(module))

    def on_validation_batch_start(self, trainer: Any, module: Any, *_: Any) -> None:
        self.validated.append(flat(module))


def loader() -> Any:
    return DataLoader(TensorDataset(*samples(192)), batch_size=8)


def trainer_of(folder: str, strategy: Any, **options: Any) -> Any:
    if dist.is_initialized():
        as_torchrun_would()
    settings: dict[str, Any] = {
        "accelerator": "cpu",
        "devices": dist.get_world_size() if dist.is_initialized() else 1,
        "max_epochs": 1,
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "default_root_dir": folder,
        "logger": False,
        "enable_checkpointing": False,
        "num_sanity_val_steps": 0,
    }
    torch.manual_seed(7 + (dist.get_rank() if dist.is_initialized() else 0))
    return L.Trainer(strategy=strategy, **{**settings, **options})


def like_ddp(folder: str) -> tuple[Tensor, Tensor]:
    found = []
    for strategy in ("ddp", LazyStrategy(every=1, **DENSE)):
        model = Classifier(torch.optim.SGD, lr=0.1)
        trainer_of(folder, strategy, accumulate_grad_batches=2).fit(model, loader())
        found.append(flat(model))
    return found[0], found[1]


def resumed(folder: str) -> dict[str, Any]:
    """Two epochs of 12 steps each, and the second one again from the checkpoint between them."""
    recorder, model = Recorder(), Classifier()
    options: dict[str, Any] = {"max_epochs": 2, "enable_checkpointing": True}
    kept = ModelCheckpoint(folder, filename="{step}", save_top_k=-1)
    logger = CSVLogger(folder, name="", version="")
    trainer = trainer_of(folder, LazyStrategy(every=5), callbacks=[recorder, kept], **{**options, "logger": logger})
    trainer.fit(model, loader(), loader())
    again = Classifier()
    options["callbacks"] = [ModelCheckpoint(f"{folder}/again")]
    trainer_of(folder, LazyStrategy(every=5), **options).fit(
        again, loader(), loader(), ckpt_path=f"{folder}/step=12.ckpt"
    )
    return {
        "model": flat(model),
        "again": flat(again),
        "models": recorder.models,
        "validated": recorder.validated,
        "files": sorted(path.name for path in Path(folder).glob("step=12*")),
    }


def with_fabric(folder: str) -> dict[str, Any]:
    as_torchrun_would()

    def fresh() -> Any:
        fabric = L.Fabric(strategy=FabricLazyStrategy(every=4), accelerator="cpu", devices=2)
        fabric.launch()
        model = network(norm=True, dropout=0.0)
        model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=0.01))
        return fabric, model, optimizer, list(fabric.setup_dataloaders(loader()))

    def train(fabric: Any, model: Any, optimizer: Any, batches: Any) -> None:
        for x, y in batches:
            with fabric.no_backward_sync(model, enabled=False):
                fabric.backward(cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()

    fabric, model, optimizer, batches = fresh()
    train(fabric, model, optimizer, batches[:6])
    fabric.save(f"{folder}/fabric.ckpt", {"model": model, "optimizer": optimizer})
    fabric.barrier()
    saved = flat(model)
    train(fabric, model, optimizer, batches[6:])
    apart, logs = flat(model), fabric.strategy.logs
    fabric.strategy.close()
    fabric, again, optimizer, batches = fresh()
    fabric.load(f"{folder}/fabric.ckpt", {"model": again, "optimizer": optimizer})
    train(fabric, again, optimizer, batches[6:])
    fabric.strategy.close()
    return {"saved": saved, "apart": apart, "logs": logs, "model": flat(model), "again": flat(again)}


def everything(folder: str) -> dict[str, Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers of loaders
        return {work.__name__: work(f"{folder}/{work.__name__}") for work in (like_ddp, resumed, with_fabric)}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What two ranks found, by the function that they called; they take long to start."""
    folder = tmp_path_factory.mktemp("lightning")
    first, second = on_ranks(2, everything, str(folder))
    return {"folder": folder, **{name: (first[name], second[name]) for name in first}}


def test_a_dense_round_after_every_step_of_sgd_is_ddp(found: dict[str, Any]) -> None:
    first, second = found["like_ddp"]
    assert torch.equal(first[1], second[1])
    assert (first[0] - first[1]).abs().max() < 1e-6
    assert (first[0] - flat(network())).abs().max() > 0.01, "it was trained"


def test_ranks_train_apart_agree_at_the_end_and_resume_to_the_bit(found: dict[str, Any]) -> None:
    first, second = found["resumed"]
    assert torch.equal(first["model"], second["model"])
    assert torch.equal(first["model"], first["again"])
    assert torch.equal(second["model"], second["again"])
    same = [torch.equal(one, other) for one, other in zip(first["models"], second["models"], strict=True)]
    assert [i + 1 for i, equal in enumerate(same) if equal] == [5, 10, 17, 22], "after rounds, not between them"
    assert len(first["validated"]) == 24
    assert all(torch.equal(one, other) for one, other in zip(first["validated"], second["validated"], strict=True))
    assert first["files"] == ["step=12.ckpt", "step=12.ckpt.lasg_rank_0.pt", "step=12.ckpt.lasg_rank_1.pt"]


def test_lightnings_logs_have_rounds_uploads_and_bytes(found: dict[str, Any]) -> None:
    with (found["folder"] / "resumed" / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row["lasg_rounds"]]
    assert len(rows) == 25, "one per step, and the end"
    rounds, uploads, sent = (
        [float(row[name]) for row in rows] for name in ("lasg_rounds", "lasg_uploads", "lasg_bytes_sent")
    )
    assert rounds[:12] == [0] * 5 + [1] * 5 + [2] * 2, "before every step"
    assert uploads[-1] == 2 * 6, "rounds of 5, 5 and 2 steps, twice"
    assert sent == sorted(sent)
    assert sent[0] < sent[-1] < 6 * 4 * sum(value.numel() for value in network(norm=True).parameters())


def test_fabric_trains_apart_saves_one_model_and_resumes_to_the_bit(found: dict[str, Any]) -> None:
    first, second = found["with_fabric"]
    assert torch.equal(first["saved"], second["saved"])
    assert not torch.equal(first["apart"], second["apart"])
    assert torch.equal(first["model"], second["model"])
    assert torch.equal(first["model"], first["again"])
    assert torch.equal(second["model"], second["again"])
    assert first["logs"]["lasg_rounds"] == 3
    assert first["logs"]["lasg_uploads"] == 6


def refused(folder: str) -> None:
    with pytest.raises(LasgError, match="every must be a number of optimizer steps"):
        trainer_of(folder, LazyStrategy(every=0)).fit(Classifier(), loader())
    fabric = L.Fabric(strategy="lasg", accelerator="cpu", devices=1)
    fabric.launch()
    model = network()
    with pytest.raises(LasgError, match="needs both at once"):
        fabric.setup_optimizers(torch.optim.SGD(model.parameters(), lr=0.1))
    fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
    other = network()
    with pytest.raises(LasgError, match="has a model already"):
        fabric.setup(other, torch.optim.SGD(other.parameters(), lr=0.1))


def test_what_does_not_fit_is_refused_in_one_line(tmp_path: Path) -> None:
    on_ranks(1, refused, str(tmp_path))


def kept(folder: str) -> None:
    last = ModelCheckpoint(folder, filename="{step}", every_n_train_steps=3, save_top_k=1, monitor=None)
    options: dict[str, Any] = {"enable_checkpointing": True, "max_steps": 8, "max_epochs": -1}
    trainer_of(folder, "lasg", callbacks=[last], **options).fit(Classifier(), loader())


def test_a_single_rank_trains_and_a_checkpoint_that_goes_takes_its_file_along(tmp_path: Path) -> None:
    on_ranks(1, kept, str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {"step=6.ckpt", "step=6.ckpt.lasg_rank_0.pt"}
