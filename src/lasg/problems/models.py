"""Networks by name: the paper's CNN, ResNet-18 with torchvision's parameter names, a transformer for text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu

from lasg import counter
from lasg.errors import LasgError, did_you_mean, first_line


class CNN(nn.Sequential):
    """conv 20 5x5, ELU, maxpool, conv 50 5x5, ELU, maxpool, 500 units, ELU: 431,080 parameters for 10 digits.

    The pooling stands before the ELU: an increasing function and a maximum can be exchanged, and the ELU then has
    a quarter of the entries to do.
    """

    def __init__(self, shape: tuple[int, ...] = (1, 28, 28), classes: int = 10) -> None:
        channels, *sides = shape
        height, width = (((side - 4) // 2 - 4) // 2 for side in sides)
        if min(height, width) < 1:
            raise LasgError(f"model cnn takes images of 16 x 16 or more, these are {sides[0]} x {sides[1]}")
        super().__init__(
            nn.Conv2d(channels, 20, 5),
            nn.MaxPool2d(2),
            nn.ELU(),
            nn.Conv2d(20, 50, 5),
            nn.MaxPool2d(2),
            nn.ELU(),
            nn.Flatten(),
            nn.Linear(50 * height * width, 500),
            nn.ELU(),
            nn.Linear(500, classes),
        )


class MLP(nn.Sequential):
    """One hidden layer of 64 units with ELU, for samples of any shape."""

    def __init__(self, shape: tuple[int, ...] = (64,), classes: int = 10) -> None:
        inputs = torch.Size(shape).numel()
        super().__init__(nn.Flatten(), nn.Linear(inputs, 64), nn.ELU(), nn.Linear(64, classes))


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a way around them (He et al. 2016)."""

    def __init__(self, inside: int, outside: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample: nn.Module | None = None
        if stride != 1 or inside != outside:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's output."""
        around = x if self.downsample is None else self.downsample(x)
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        return cast("Tensor", self.relu(out + around))


class ResNet18(nn.Module):
    """The standard ResNet-18: parameters and buffers are named as in torchvision, so its weight files load."""

    def __init__(self, shape: tuple[int, ...] = (3, 64, 64), classes: int = 1000) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        self.layer1 = nn.Sequential(BasicBlock(64, 64, 1), BasicBlock(64, 64, 1))
        self.layer2 = nn.Sequential(BasicBlock(64, 128, 2), BasicBlock(128, 128, 1))
        self.layer3 = nn.Sequential(BasicBlock(128, 256, 2), BasicBlock(256, 256, 1))
        self.layer4 = nn.Sequential(BasicBlock(256, 512, 2), BasicBlock(512, 512, 1))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(512, classes)
        for part in self.modules():
            if isinstance(part, nn.Conv2d):
                nn.init.kaiming_normal_(part.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, x: Tensor) -> Tensor:
        """Return the classes' scores."""
        x = self.maxpool(self.relu(self.bn1(self.conv1(x))))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return cast("Tensor", self.fc(self.avgpool(x).flatten(1)))


class TransformerBlock(nn.Module):
    """Causal self-attention and two dense layers, each behind a norm and with a way around it.

    The attention is written out: torch's fused one is no faster for short texts, and has no second derivative.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention_in, self.attention_out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.dense_in, self.dense_out = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Return the block's output; the mask is minus infinity where a place may not look."""
        per_head = self.attention_in(self.norm1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = per_head
        scores = query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5
        seen = (scores + mask).softmax(-1) @ value
        x = x + self.attention_out(seen.transpose(1, 2).flatten(2))
        result: Tensor = x + self.dense_out(gelu(self.dense_in(self.norm2(x))))
        return result


class Transformer(nn.Module):
    """A language model of characters, 817,727 parameters for 63 of them: 4 layers of width 128, 4 heads, no dropout."""

    def __init__(
        self, shape: tuple[int, ...] = (64,), classes: int = 63, width: int = 128, layers: int = 4, heads: int = 4
    ) -> None:
        super().__init__()
        self.characters = nn.Embedding(classes, width)
        self.places = nn.Parameter(0.02 * torch.randn(*shape, width))
        self.blocks = nn.ModuleList(TransformerBlock(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scores of the next character at every place, `(batch, context, characters)`."""
        found = self.characters(x) + self.places
        # Made every time: a buffer would count as state that training changes.
        mask = torch.full(2 * self.places.shape[:1], -torch.inf, dtype=found.dtype, device=found.device).triu(1)
        for block in self.blocks:
            found = block(found, mask)
        result: Tensor = self.out(self.norm(found))
        return result


def sequence_cross_entropy(output: Tensor, target: Tensor) -> Tensor:
    """Return the mean cross entropy over all places of all samples; the last dimension has the classes' scores."""
    return cross_entropy(output.flatten(0, -2), target.flatten())


@dataclass(frozen=True)
class Model:
    """A network by name."""

    make: Callable[[tuple[int, ...], int], nn.Module]
    """(shape of a sample, classes) -> the module."""
    summary: str
    head: tuple[str, ...]
    """The last layer's parameters: left at their start where a weight file has other classes."""
    takes: Literal["numbers", "images", "text"] = "images"
    """Numbers of any shape, images among them; images (channels, height, width); or windows of text."""


MODELS: Mapping[str, Model] = {
    "mlp": Model(MLP, "one hidden layer of 64 units", ("3.weight", "3.bias"), "numbers"),
    "cnn": Model(CNN, "the paper's CNN for MNIST, 431,080 parameters", ("9.weight", "9.bias")),
    "resnet18": Model(ResNet18, "ResNet-18, 11.2 million parameters", ("fc.weight", "fc.bias")),
    "transformer": Model(Transformer, "4 layers of width 128 for text", ("out.weight", "out.bias"), "text"),
}


def model(name: str, shape: tuple[int, ...], classes: int, seed: int, *, text: bool = False) -> nn.Module:
    """Return the network called `name` for samples of `shape`, its start drawn from the seed.

    Of text the shape is (characters,), and the classes are the different characters.
    """
    if name not in MODELS:
        raise LasgError(f"unknown model {name!r}.{did_you_mean(name, MODELS)} Known: {', '.join(MODELS)}")
    takes = MODELS[name].takes
    if text != (takes == "text"):
        fit = ", ".join(other for other, row in MODELS.items() if text == (row.takes == "text"))
        raise LasgError(
            f"model {name} takes {takes}, these samples are {'' if text else 'not '}text: set model to {fit}"
        )
    if len(shape) != 3 and takes == "images":
        raise LasgError(f"model {name} takes images (channels, height, width), these samples are {shape}")
    key = int(counter.keys(seed, counter.START, [0], [0])[0, 0] >> 1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(key)
        made = MODELS[name].make(shape, classes)
    # On CPUs and GPUs alike convolutions are quickest with the channels last (benchmarks/networks.py).
    return made.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def read_weights(path: Path | str) -> dict[str, Tensor]:
    """Read a weight file: safetensors, or torchvision's .pth through torch's reader of tensors alone.

    That reader (weights_only) runs no code from the file: anything but tensors in it is refused.
    """
    from safetensors.torch import load_file

    path = Path(path)
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file makes these readers raise nearly anything
        raise LasgError(f"cannot read the weights {path}: {first_line(error)}") from None
    if not isinstance(found, dict) or not all(isinstance(value, Tensor) for value in found.values()):
        raise LasgError(f"{path} does not hold weights by name: save a module's state_dict")
    return {str(name): value for name, value in found.items()}


def load_weights(module: nn.Module, weights: Mapping[str, Tensor], head: tuple[str, ...]) -> list[str]:
    """Copy weights into a module by name; return the names of the head's that did not fit and stay as they are.

    Everything else must fit: a missing name, an unknown one or another shape is an error.
    """
    own = module.state_dict()
    unknown = sorted(set(weights) - set(own))
    missing = sorted(name for name in set(own) - set(weights) if not name.endswith("num_batches_tracked"))
    if unknown or missing:
        what = f"it has {unknown[0]!r}, which the model has not" if unknown else f"it lacks {missing[0]!r}"
        raise LasgError(f"the weights are of another model: {what}")
    kept = [name for name in head if weights[name].shape != own[name].shape]
    wrong = [name for name, value in weights.items() if value.shape != own[name].shape and name not in kept]
    if wrong:
        found, wanted = tuple(weights[wrong[0]].shape), tuple(own[wrong[0]].shape)
        raise LasgError(f"the weights are of another model: {wrong[0]} is {found}, the model has {wanted}")
    with torch.no_grad():
        for name, value in weights.items():
            if name not in kept:
                own[name].copy_(value)
    return kept
