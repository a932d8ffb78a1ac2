"""Images for networks: bytes become normalised floats; training images are flipped and shifted at random."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from lasg import counter

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class ImageTransform:
    """What is done to a batch of images `(b, channels, height, width)` before the model sees it."""

    mean: tuple[float, ...] = ()
    """Subtracted, one per channel; () leaves the pixels as they are."""
    std: tuple[float, ...] = ()
    shift: int = 0
    """Training images are shifted by up to so many pixels each way, the edges filled with zeros."""
    flip: bool = False
    """Training images are mirrored half of the time."""

    def test(self, x: Tensor) -> Tensor:
        """Return images as the model takes them."""
        if not x.is_floating_point():
            x = x.float() / 255
        if not self.mean:
            return x
        mean, std = (x.new_tensor(values)[:, None, None] for values in (self.mean, self.std))
        return (x - mean) / std

    def train(self, x: Tensor, key: counter.UInt64) -> Tensor:
        """Return images as the model takes them, flipped and shifted as the key says."""
        x = self.test(x)
        if not self.shift and not self.flip:
            return x
        draws = counter.uniforms(key, 3 * len(x)).reshape(len(x), 3)
        images, (height, width) = [], x.shape[-2:]
        wide = pad(x, (self.shift,) * 4)
        for image, (down, right, turn) in zip(wide, draws, strict=True):
            top, left = int(down * (2 * self.shift + 1)), int(right * (2 * self.shift + 1))
            part = image[:, top : top + height, left : left + width]
            images.append(part.flip(-1) if self.flip and turn < 0.5 else part)
        return torch.stack(images)
