"""After: the plain loop, averaged every ten steps. torchrun --nproc-per-node 4 examples/torchrun/local_steps.py"""

from typing import Any

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import lasg

EPOCHS, BATCH, LR = 20, 16, 0.05


def main() -> None:
    """Train a small network on digits, on every rank."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x / 16, dtype=torch.float32).reshape(-1, 1, 8, 8), torch.tensor(y))
    sampler: DistributedSampler[Any] = DistributedSampler(data, seed=0)
    loader = DataLoader(data, BATCH, sampler=sampler)
    model = nn.Sequential(nn.Conv2d(1, 16, 3), nn.ELU(), nn.Flatten(), nn.Linear(576, 64), nn.ELU(), nn.Linear(64, 10))
    opt = torch.optim.SGD(model.parameters(), lr=LR, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(opt, EPOCHS)
    with lasg.lazy(model, opt, every=10) as loop:
        for epoch in range(EPOCHS):
            sampler.set_epoch(epoch)
            for x, y in loader:
                opt.zero_grad()
                cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                opt.step()
            scheduler.step()
    with torch.no_grad():
        x, y = data.tensors
        right = (model(x).argmax(1) == y).float().mean()
    if dist.get_rank() == 0:
        print(f"{loop.sent.sum() / 1e6:.2f} MB sent by rank 0; {100 * right:.1f} % right")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
