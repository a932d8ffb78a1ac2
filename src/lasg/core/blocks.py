"""Blocks of a model, each of which is news or not by itself: what a rule sees of them, and what the server knows.

||x||^2 is the sum over the blocks of ||x_b||^2, so a rule's inequality that holds for every block holds for the whole.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lasg.core.arrays import Array, FloatArray, IntArray, Mask, host, sq
from lasg.core.codecs import Shapes, State
from lasg.core.messages import Request
from lasg.core.rules import Record, Rule, Watch, left_sides
from lasg.errors import LasgError


@dataclass(frozen=True)
class Blocks:
    """Which entries of a vector are a block: a tensor each, or every tensor cut into pieces of at most `size`."""

    size: int | None = None
    shapes: Shapes = field(default=(), repr=False)
    """The tensors of a vector; empty: it is one."""

    def __post_init__(self) -> None:
        if self.size is not None and (not isinstance(self.size, int) or self.size < 1):
            raise LasgError(f"blocks have a number of entries >= 1, got {self.size!r}: blocks4096, or blocks alone")

    def for_shapes(self, shapes: Shapes) -> Blocks:
        """Return the same for these tensors."""
        return replace(self, shapes=shapes)

    def slices(self, p: int) -> tuple[slice, ...]:
        """Return where the blocks of a vector of p entries are, in their order."""
        return tuple(where for where, _ in _layout(self, p))

    def tensors(self, p: int) -> tuple[tuple[int, ...], ...]:
        """Return the shape of every block: its tensor's, or of a piece its length."""
        return tuple(shape for _, shape in _layout(self, p))

    def squares(self, vector: Array) -> FloatArray:
        """Return ||x_b||^2 of every block."""
        found = [sq(vector[where]) for where in self.slices(vector.shape[-1])]
        return np.array([float(square) for square in found])

    def nonzero(self, rows: Array) -> Mask:
        """Tell of every row `(n, p)` which blocks have an entry that is not 0, `(n, B)`."""
        found = [host((rows[:, where] != 0).any(-1)) for where in self.slices(rows.shape[-1])]
        return np.stack(found, -1)


@functools.lru_cache(maxsize=64)
def _layout(blocks: Blocks, p: int) -> tuple[tuple[slice, tuple[int, ...]], ...]:
    """Return place and shape of every block; a tensor without entries is none."""
    shapes = blocks.shapes or ((p,),)
    ends = list(itertools.accumulate(math.prod(shape) for shape in shapes))
    if ends[-1] != p:
        raise LasgError(f"tensors of {ends[-1]} entries in all, and a vector of {p}: they do not fit")
    found: list[tuple[slice, tuple[int, ...]]] = []
    for shape, end in zip(shapes, ends, strict=True):
        start = end - math.prod(shape)
        step = blocks.size or max(1, end - start)
        if start < end <= start + step:
            found.append((slice(start, end), shape))
            continue
        pieces = [slice(at, min(at + step, end)) for at in range(start, end, step)]
        found += [(piece, (piece.stop - piece.start,)) for piece in pieces]
    return tuple(found)


class BlockDecisions:
    """Whether each block of each worker in this process is news."""

    def __init__(self, rule: Rule, blocks: Blocks, p: int) -> None:
        self.rule, self.blocks, self.slices = rule, blocks, blocks.slices(p)
        self.watch = None if rule.watch is None else _WatchBlocks(rule.watch, self.slices)

    def decide(
        self, request: Request, now: Record, memory: Mapping[str, Array], rows: IntArray | None
    ) -> tuple[FloatArray, Mask, Mask]:
        """Return the sum of the left sides of a worker's blocks, who uploads, and which blocks."""
        terms, state = request.blocks, now.state or {}
        assert terms is not None
        left = []
        for b, where in enumerate(self.slices):
            last = {name: kept[:, where] for name, kept in memory.items()}
            left.append(left_sides(self.rule, block_of(now, where, part(state, b)), last, rows))
        who: Any = slice(None) if rows is None else rows
        saying: Mask = terms.due.copy()
        total = np.full(len(saying), np.nan)
        saying[who] |= np.stack(left, -1) > terms.thresholds
        total[who] = np.sum(left, 0)
        return total, saying.any(-1) & request.computes, saying

    def clear(self, rows: Array, saying: Mask | None, who: IntArray | slice) -> Mask:
        """Set what the workers `who` do not say to 0, in place; return which blocks have anything to say."""
        if saying is not None:
            for i, b in np.argwhere(~saying[who]).tolist():
                rows[i, self.slices[b]] = 0
        return self.blocks.nonzero(rows)

    def remember(self, memory: Mapping[str, Array], now: Record, who: IntArray, rows: IntArray, saying: Mask) -> None:
        """Keep what the uploaders `who`, at `rows` of the record, say now."""
        for name, kept in memory.items():
            new = getattr(now, name)
            for b, where in enumerate(self.slices):
                some = saying[who, b]
                kept[who[some], where] = new[rows[some], where]


class _WatchBlocks:
    """What a rule keeps of every round, of each block."""

    def __init__(self, watch: Watch, slices: tuple[slice, ...]) -> None:
        self.watch, self.slices = watch, slices

    def init(self, workers: int, theta: Array) -> State:
        """Return the state of every block before the first round."""
        return join(self.watch.init(workers, theta[where]) for where in self.slices)

    def update(self, now: Record, state: State) -> State:
        """Return the state of every block after a round."""
        slices = enumerate(self.slices)
        return join(self.watch.update(block_of(now, where), part(state, b)) for b, where in slices)


def block_of(record: Record, where: slice, state: State | None = None) -> Record:
    """Return what a record has of one block; `state` is what the rule's watch knows of it."""
    p = record.grad.shape[-1]
    vectors = ("theta", "grad", "probe", "estimate", "believed", "message", "error")
    cut = {name: value[..., where] for name in vectors if (value := getattr(record, name)) is not None}
    if record.previous is not None:
        models = isinstance(record.previous, list)
        cut["previous"] = [row[where] for row in record.previous] if models else record.previous[..., where]
    if record.estimator is not None:
        known = record.estimator.items()
        cut["estimator"] = {name: row[..., where] if row.shape[1:] == (p,) else row for name, row in known}
    return record._replace(**cut, state=state)


def join(states: Iterable[State]) -> State:
    """Return the states of all blocks as one, the number of the block before every name."""
    return {f"{b}.{name}": value for b, state in enumerate(states) for name, value in state.items()}


def part(state: State, b: int) -> State:
    """Return the state of one block out of a joined one."""
    prefix = f"{b}."
    return {name.removeprefix(prefix): value for name, value in state.items() if name.startswith(prefix)}
