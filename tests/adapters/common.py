"""What tests of the adapters share: an environment as torchrun makes it, and small data."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn


def as_torchrun_would() -> int:
    """Set on a rank what torchrun sets; return its number."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(ranks),
        LOCAL_WORLD_SIZE=str(ranks),
        GROUP_RANK="0",
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT="29500",
        TORCHELASTIC_RUN_ID="test",
        TORCHELASTIC_RESTART_COUNT="0",
        OMP_NUM_THREADS="1",
    )
    return rank


def samples(count: int, features: int = 6, classes: int = 3) -> tuple[Tensor, Tensor]:
    """Return samples whose label is a linear function of their features."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, features, generator=generator)
    return x, (x @ torch.randn(features, classes, generator=generator)).argmax(1)


def network(norm: bool = False, dropout: float = 0.1) -> nn.Sequential:
    torch.manual_seed(1)
    middle: list[nn.Module] = [nn.BatchNorm1d(12)] if norm else []
    return nn.Sequential(nn.Linear(6, 12), *middle, nn.Tanh(), nn.Dropout(dropout), nn.Linear(12, 3))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()]).clone()
