"""Accelerate with local steps. torchrun --nproc-per-node 2 examples/adapters/local_sgd.py"""

import torch
from accelerate import Accelerator
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lasg.loops.accelerate import LazyLocalSGD


def main() -> None:
    """Train on digits, on every rank."""
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    torch.manual_seed(0)
    x, y = (torch.tensor(values) for values in load_digits(return_X_y=True))
    data = TensorDataset(x.float() / 16, y)
    network = nn.Sequential(nn.Linear(64, 64), nn.ELU(), nn.Linear(64, 10))
    model, optimizer, loader = accelerator.prepare(
        network, torch.optim.AdamW(network.parameters(), lr=0.01), DataLoader(data, 16, shuffle=True)
    )
    with LazyLocalSGD(accelerator=accelerator, model=model, local_sgd_steps=20) as local:
        for _ in range(5):
            for images, labels in loader:
                accelerator.backward(cross_entropy(model(images), labels))
                optimizer.step()
                optimizer.zero_grad()
                local.step()
    if accelerator.is_main_process:
        right = (network.cpu()(data.tensors[0]).argmax(1) == y).float().mean()
        print(f"{local.logs['lasg_bytes_sent'] / 1e6:.3f} MB sent by rank 0; {100 * right:.1f} % right")


if __name__ == "__main__":
    main()
