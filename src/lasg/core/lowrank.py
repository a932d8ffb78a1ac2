"""Matrices as products of two thin ones, by one step of power iteration that goes on from message to message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core import entropy
from lasg.core.arrays import Array, cast, check_decoded, check_entries, float64, host
from lasg.core.codecs import Codec, Noise, Shapes, State, StatefulCodec, bytes_of
from lasg.core.sparse import from_bfloat16, to_bfloat16
from lasg.errors import LasgError

Matrix = npt.NDArray[np.float64]
STEP = 0.5
"""Numbers are rounded to multiples of so much of their root mean square: 2 % of their energy is lost."""
LIMIT = 1 << 24
"""No integer is larger: one of n numbers is at most sqrt(n) times their root mean square."""


@dataclass(frozen=True)
class LowRank(StatefulCodec):
    """PowerSGD's compressor (Vogels et al. 2019, algorithm 1): a matrix G becomes P Q', P = orthonormal(G Q), Q = G' P.

    Q starts where the worker's last message left it. A tensor of more than two dimensions is the matrix of its first
    one and the rest; vectors, and matrices that would not get shorter, are sent as they are. Here every worker has a P
    of its own, since there is one message per round; PowerSGD proper averages P among the workers before it computes Q.

    Rounded, the columns of P and Q, and the tensors that are sent as they are, are integers: each is rounded to
    multiples of half its root mean square, and coded, with about 3 bits per number. Say it with `residual`, which keeps
    what rounding leaves out.
    """

    rank: int = 2
    rounded: bool = False
    """Whether numbers are rounded and entropy-coded, instead of float32."""
    shapes: Shapes = field(default=(), repr=False)

    def __post_init__(self) -> None:
        if not isinstance(self.rank, int) or self.rank < 1:
            raise LasgError(f"lowrank takes a rank >= 1, got {self.rank!r}")

    def for_shapes(self, shapes: Shapes) -> Codec:
        """Return the codec for these tensors."""
        return replace(self, shapes=shapes)

    def _tensors(self, p: int) -> list[tuple[int, int, int, int]]:
        """Return start, rows, columns and rank of every tensor; rank 0: as it is."""
        found, start = [], 0
        for shape in self.shapes or ((p,),):
            size = math.prod(shape)
            rows = shape[0] if len(shape) > 1 else 1
            columns = size // max(1, rows)
            rank = min(self.rank, rows, columns)
            shorter = len(shape) > 1 and rank * (rows + columns) < size
            found.append((start, rows, columns, rank if shorter else 0))
            start += size
        if start != p:
            raise LasgError(f"tensors of {start} entries in all, and a vector of {p}: they do not fit")
        return found

    def init(self, workers: int, like: Array) -> State:
        """Return the Q of every worker: the same random numbers for all."""
        size = sum(columns * rank for _, _, columns, rank in self._tensors(like.shape[-1]))
        draws = counter.uniforms(counter.keys(0, counter.START, [0], 0)[0, 0], size) - 0.5
        return {"q": np.tile(draws, (workers, 1))}

    def length(self, p: int, itemsize: int = 4) -> int | None:  # noqa: ARG002
        """Bytes of a message: float32 throughout; rounded, nobody knows before."""
        return None if self.rounded else 4 * self._numbers(p)

    def _numbers(self, p: int) -> int:
        """Return how many numbers a message has."""
        return sum(rank * (rows + columns) if rank else rows * columns for _, rows, columns, rank in self._tensors(p))

    def _sizes(self, p: int) -> npt.NDArray[np.int64]:
        """Return the sizes of what has a scale of its own: columns of P and of Q, and tensors as they are."""
        sizes: list[int] = []
        for _, rows, columns, rank in self._tensors(p):
            sizes += [rows] * rank + [columns] * rank if rank else [rows * columns]
        return np.array(sizes, np.int64)

    def update(self, rows: Array, noise: Noise, state: State) -> tuple[list[bytes], State]:  # noqa: ARG002
        """Turn rows into messages; return them, and every worker's new Q."""
        values = host(float64(rows))
        check_entries(values, "it has no low rank")
        messages, after = [], []
        for row, q in zip(values, host(state["q"]), strict=True):
            parts, kept, at = [], [], 0
            for start, m, n, rank in self._tensors(len(row)):
                G = row[start : start + m * n].reshape(m, n)
                if not rank:
                    parts.append(G)
                    continue
                P = orthonormal(G @ q[at : at + n * rank].reshape(n, rank))
                Q = G.T @ P
                # A matrix of zeros has no direction: the next one starts from where this one did.
                kept.append(Q if Q.any() else q[at : at + n * rank].reshape(n, rank))
                parts += [P.T, Q.T] if self.rounded else [P, Q]
                at += n * rank
            said = np.concatenate([part.reshape(-1) for part in parts])
            check_entries(said, "it has no low rank")  # Q has sums of entries
            messages.append(_pack(said, self._sizes(len(row))) if self.rounded else said.astype("<f4").tobytes())
            after.append(np.concatenate([part.reshape(-1) for part in kept]) if kept else q)
        return messages, {"q": np.stack(after)}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        if self.rounded:
            data = np.stack([_unpack(message, self._sizes(p)) for message in messages])
        else:
            said = np.ascontiguousarray(bytes_of(messages, 4 * self._numbers(p))).view("<f4")
            check_decoded(said)
            data = said.astype(np.float64)
        rows = np.empty((len(messages), p))
        for row, values in zip(rows, data, strict=True):
            at = 0
            for start, m, n, rank in self._tensors(p):
                if not rank:
                    row[start : start + m * n] = values[at : at + m * n]
                    at += m * n
                    continue
                shapes = ((rank, m), (rank, n)) if self.rounded else ((m, rank), (n, rank))
                P = values[at : at + m * rank].reshape(shapes[0])
                Q = values[at + m * rank : at + (m + n) * rank].reshape(shapes[1])
                P, Q = (P.T, Q.T) if self.rounded else (P, Q)
                row[start : start + m * n] = (P @ Q.T).reshape(-1)
                at += (m + n) * rank
        check_decoded(rows)
        return cast(rows, like)


def _pack(numbers: npt.NDArray[np.float64], sizes: npt.NDArray[np.int64]) -> bytes:
    """Return the message of some pieces, one after the other: their steps as bfloat16, their integers, coded."""
    which = np.repeat(np.arange(len(sizes)), sizes)
    squares = np.bincount(which, numbers * numbers, len(sizes)) / np.maximum(sizes, 1)
    steps = to_bfloat16(STEP * np.sqrt(squares))
    wide = from_bfloat16(steps).astype(np.float64)[which]
    symbols = np.rint(np.divide(numbers, wide, out=np.zeros_like(numbers), where=wide > 0)).astype(np.int32)
    return steps.astype("<u2").tobytes() + entropy.encode_symbols(symbols)


def _unpack(message: bytes, sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Undo `_pack`; refuse what is none."""
    head = 2 * len(sizes)
    if len(message) < head:
        raise LasgError(f"a message of low rank has {head} bytes of steps at least, {len(message)} came: refused")
    steps = from_bfloat16(np.frombuffer(message[:head], "<u2")).astype(np.float64)
    symbols = entropy.decode_symbols(message[head:], int(sizes.sum()), -LIMIT, LIMIT)
    return symbols.astype(np.float64) * np.repeat(steps, sizes)


def orthonormal(matrix: Matrix) -> Matrix:
    """Return an orthonormal basis of the columns, by Gram-Schmidt; a column that depends on others becomes 0."""
    basis = np.zeros_like(matrix)
    for j in range(matrix.shape[1]):
        column = matrix[:, j] - basis[:, :j] @ (basis[:, :j].T @ matrix[:, j])
        column -= basis[:, :j] @ (basis[:, :j].T @ column)  # once more: what is left may be small
        size, before = float(np.linalg.norm(column)), float(np.linalg.norm(matrix[:, j]))
        basis[:, j] = column / size if size > 1e-10 * before else 0.0
    return basis
