"""Hugging Face's Trainer with local steps. torchrun --nproc-per-node 2 examples/adapters/trainer.py"""

from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import Trainer, TrainingArguments

from lasg.loops.huggingface import LazyCallback


class Network(nn.Module):
    """A small network that returns its loss, as Trainer wants it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 10))

    def forward(self, x: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.layers(x)
        return {"loss": cross_entropy(logits, labels), "logits": logits}


def main() -> None:
    """Train on digits, on every rank."""
    torch.manual_seed(0)
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    x = x.float() / 16
    data: Any = [{"x": image, "labels": label} for image, label in zip(x, y, strict=True)]
    arguments = TrainingArguments(
        "lasg-trainer",
        num_train_epochs=5,
        per_device_train_batch_size=16,
        learning_rate=0.01,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
        use_cpu=not torch.cuda.is_available(),
    )
    trainer = Trainer(Network(), arguments, train_dataset=data)
    trainer.add_callback(LazyCallback(trainer, every=20))
    trainer.train()
    if trainer.is_world_process_zero():
        right = (trainer.model.cpu().layers(x).argmax(1) == y).float().mean()
        sent = trainer.state.log_history[-1]["lasg_bytes_sent"]
        print(f"{sent / 1e6:.3f} MB sent by rank 0; {100 * right:.1f} % right")


if __name__ == "__main__":
    main()
