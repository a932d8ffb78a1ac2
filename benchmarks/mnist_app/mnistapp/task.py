"""What both train, on what, and how it is measured: the same code for both."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from flwr.app import Context
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from lasg import ModuleProblem
from lasg.problems import models
from lasg.problems.image_transform import ImageTransform

PIXELS = ImageTransform()


def model() -> nn.Module:
    """Return the paper's CNN at its start: the same on the server and on every node."""
    return models.model("cnn", (1, 28, 28), 10, 0)


def images(path: str) -> tuple[Tensor, Tensor]:
    """Read images, as bytes, and digits."""
    with np.load(Path(path), allow_pickle=False) as found:
        return torch.from_numpy(found["x"]).reshape(-1, 1, 28, 28), torch.from_numpy(found["y"])


def problem(context: Context, worker: int) -> ModuleProblem:
    """Return a node's module, loss and data, which its node config names."""
    x, y = images(str(context.node_config["data"]))
    batch, seed = int(context.run_config["batch"]) / len(y), int(context.run_config["seed"])
    shards = [np.arange(len(y))]
    return ModuleProblem(model(), cross_entropy, (x, y), shards, batch=batch, seed=seed, ids=[worker], transform=PIXELS)


def measure(context: Context) -> Callable[[nn.Module], tuple[float, float]]:
    """Return what gives loss and accuracy on the server's data."""
    x, y = images(str(context.run_config["test"]))

    def measured(trained: nn.Module) -> tuple[float, float]:
        with torch.no_grad():
            output = torch.cat([trained(PIXELS.test(part)) for part in torch.split(x, 500)])
        return float(cross_entropy(output, y)), int((output.argmax(1) == y).sum()) / len(y)

    return measured
