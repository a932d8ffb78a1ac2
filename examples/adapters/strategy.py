"""Lightning with local steps. torchrun --nproc-per-node 2 examples/adapters/strategy.py"""

import os
from typing import Any

import lightning as L  # noqa: N812
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import lasg.loops.lightning  # noqa: F401 (it registers the strategy)


class Classifier(L.LightningModule):  # type: ignore[misc]
    """A small network."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 10))

    def training_step(self, batch: Any, _: int) -> Tensor:
        return cross_entropy(self.layers(batch[0]), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


def main() -> None:
    """Train on digits, on every rank."""
    L.seed_everything(0, verbose=False)
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    data = TensorDataset(x.float() / 16, y)
    model = Classifier()
    trainer = L.Trainer(
        strategy="lasg",
        accelerator="auto" if torch.cuda.is_available() else "cpu",
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "2")),
        max_epochs=5,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(model, DataLoader(data, 16, shuffle=True))
    if trainer.is_global_zero:
        right = (model.cpu().layers(data.tensors[0]).argmax(1) == y).float().mean()
        sent = float(trainer.callback_metrics["lasg_bytes_sent"])
        print(f"{sent / 1e6:.3f} MB sent by rank 0; {100 * right:.1f} % right")


if __name__ == "__main__":
    main()
