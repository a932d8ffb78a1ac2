"""The samples of a torch problem: read in batches, dealt to workers, and whether their classes were found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import default_collate

from lasg import counter
from lasg.core.arrays import IntArray
from lasg.errors import LasgError, first_line


class Samples(Protocol):
    """A map-style dataset, such as torch's: `(input, target)` by number."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class Transform(Protocol):
    """What is done to a batch of inputs before the module sees it."""

    def train(self, x: Any, key: counter.UInt64) -> Any:
        """Return the inputs to train on; whatever is random in it comes from the key."""
        ...

    def test(self, x: Any) -> Any:
        """Return the inputs to evaluate."""
        ...


@contextmanager
def wrap_module_errors(where: str) -> Iterator[None]:
    """Say in one line where a module, loss or dataset failed; what they raised stays the cause."""
    try:
        yield
    except LasgError:
        raise
    except (RuntimeError, ValueError, TypeError, AttributeError, LookupError, NotImplementedError) as error:
        raise LasgError(f"the module failed on {where}: {type(error).__name__}: {first_line(error)}") from error


class SampleReader:
    """Rows of a dataset as batches: of a pair of arrays by indexing, of a map-style dataset one by one."""

    def __init__(self, dataset: Samples | tuple[Any, Any]) -> None:
        self.dataset = dataset
        self.pair = None
        if isinstance(dataset, tuple):
            if len(dataset) != 2 or len(dataset[0]) != len(dataset[1]):
                raise LasgError("a dataset of arrays is a pair, inputs and targets, with as many of each")
            self.pair = tuple(part if isinstance(part, np.ndarray | Tensor) else np.asarray(part) for part in dataset)

    def __len__(self) -> int:
        return len(self.dataset if self.pair is None else self.pair[0])

    def arrays(self) -> list[npt.NDArray[Any]]:
        """Return the samples, where they are arrays."""
        return [np.asarray(part.cpu() if isinstance(part, Tensor) else part) for part in self.pair or ()]

    def read(self, rows: IntArray) -> tuple[Any, Any]:
        """Return inputs and targets of some rows."""
        if self.pair is not None:
            x, y = (_take(part, rows) for part in self.pair)
            return x, y
        with wrap_module_errors("the dataset, whose items must be pairs (input, target)"):
            x, y = default_collate([self.dataset[int(i)] for i in rows])
        return x, y


def _take(part: Any, rows: IntArray) -> Any:
    return torch.from_numpy(np.asarray(part[rows])) if isinstance(part, np.ndarray) else part[torch.as_tensor(rows)]


def join_shards(shards: Sequence[IntArray], samples: int) -> IntArray:
    """Return the row numbers of all shards, one after another; refuse those outside the dataset, or dealt twice."""
    shards = [np.asarray(shard) for shard in shards]
    if not all(np.issubdtype(shard.dtype, np.integer) for shard in shards):
        raise LasgError("shards must be row numbers, integers, one array per worker")
    order = np.concatenate([shard.astype(np.int64) for shard in shards])
    if order.min() < 0 or order.max() >= samples:
        raise LasgError(f"the shards name samples outside the dataset's 0 to {samples - 1}")
    first = np.unique(order, return_index=True)[1]
    if len(first) < len(order):
        owner = np.repeat(np.arange(len(shards)), [len(shard) for shard in shards])
        again = int(np.setdiff1d(np.arange(len(order)), first)[0])
        before, m = owner[np.flatnonzero(order == order[again])[0]], owner[again]
        both = f"of workers {before} and {m}" if before != m else f"twice of worker {m}"
        raise LasgError(f"the shards overlap: sample {order[again]} is {both}. Deal every sample to one worker")
    return order


def right(output: Tensor, target: Tensor) -> Tensor:
    """Whether the largest of the outputs is the target's class, for each sample; of a sequence, at what share of it."""
    correct = output.argmax(-1) == target
    return correct if correct.ndim < 2 else correct.flatten(1).double().mean(1)


def are_classes(output: Any, target: Any) -> bool:
    """Tell whether outputs are scores of classes, and targets their numbers."""
    tensors = isinstance(output, Tensor) and isinstance(target, Tensor)
    return tensors and output.ndim == target.ndim + 1 and not (target.is_floating_point() or target.is_complex())
