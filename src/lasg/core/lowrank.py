"""Matrices as products of two thin ones, by one step of power iteration that goes on from message to message."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from lasg import counter
from lasg.core.arrays import Array, cast, check_decoded, check_entries, float64, host
from lasg.core.codecs import Codec, Noise, Shapes, State, StatefulCodec, bytes_of
from lasg.errors import LasgError

Matrix = npt.NDArray[np.float64]


@dataclass(frozen=True)
class LowRank(StatefulCodec):
    """PowerSGD's compressor (Vogels et al. 2019, algorithm 1): a matrix G becomes P Q', P = orthonormal(G Q), Q = G' P.

    Q starts where the worker's last message left it. A tensor of more than two dimensions is the matrix of its first
    one and the rest; vectors, and matrices that would not get shorter, are sent as they are. Here every worker has a P
    of its own, since there is one message per round; PowerSGD proper averages P among the workers before it computes Q.
    """

    rank: int = 2
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

    def length(self, p: int, itemsize: int = 4) -> int:  # noqa: ARG002
        """Bytes of a message: float32 throughout."""
        sizes = [rank * (rows + columns) if rank else rows * columns for _, rows, columns, rank in self._tensors(p)]
        return 4 * sum(sizes)

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
                parts += [P, Q]
                at += n * rank
            said = np.concatenate([part.reshape(-1) for part in parts])
            check_entries(said, "it has no low rank")  # Q has sums of entries
            messages.append(said.astype("<f4").tobytes())
            after.append(np.concatenate([part.reshape(-1) for part in kept]) if kept else q)
        return messages, {"q": np.stack(after)}

    def decode(self, messages: Sequence[bytes], like: Array) -> Array:
        """Turn messages into rows."""
        p = len(like)
        said = np.ascontiguousarray(bytes_of(messages, self.length(p))).view("<f4")
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
                P = values[at : at + m * rank].reshape(m, rank)
                Q = values[at + m * rank : at + (m + n) * rank].reshape(n, rank)
                row[start : start + m * n] = (P @ Q.T).reshape(-1)
                at += (m + n) * rank
        check_decoded(rows)
        return cast(rows, like)


def orthonormal(matrix: Matrix) -> Matrix:
    """Return an orthonormal basis of the columns, by Gram-Schmidt; a column that depends on others becomes 0."""
    basis = np.zeros_like(matrix)
    for j in range(matrix.shape[1]):
        column = matrix[:, j] - basis[:, :j] @ (basis[:, :j].T @ matrix[:, j])
        column -= basis[:, :j] @ (basis[:, :j].T @ column)  # once more: what is left may be small
        size, before = float(np.linalg.norm(column)), float(np.linalg.norm(matrix[:, j]))
        basis[:, j] = column / size if size > 1e-10 * before else 0.0
    return basis
