"""How this machine computes: recorded bits are another's where it computes otherwise. Knows nothing of lasg."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
from threadpoolctl import threadpool_limits


@contextmanager
def alike() -> Iterator[None]:
    """Compute as lasg's own runs do, wherever it is: with one thread, and without warnings of what is not finite."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
            yield
    finally:
        torch.set_num_threads(threads)


def arithmetic() -> bytes:
    """Return what this machine computes where machines differ in the last digits: products and exponentials."""
    with alike():
        found = []
        for dtype in (np.float32, np.float64):
            x = np.modf(np.arange(45 * 65) * 0.6180339887498949)[0].reshape(45, 65).astype(dtype)
            y = x @ x[:10].T
            z = torch.tensor(x) @ torch.tensor(x[:10]).T
            found += [y, np.exp(-y), np.log1p(y), x.T @ y, x.sum(0), z.numpy(), z.softmax(1).numpy(), z.tanh().numpy()]
        return b"".join(part.tobytes() for part in found)


def machine() -> str:
    """Return a checksum of how this machine computes."""
    return hashlib.sha256(arithmetic()).hexdigest()
