"""What each worker last contributed, as the server sees it: an upload changes the aggregate by the difference."""

from __future__ import annotations

from collections.abc import Sequence

from lasg.core.arrays import Array, IntArray, change, float64, zeros
from lasg.core.codecs import Codec

# Up to so many entries the workers' vectors are treated at once; more in pieces, without temporaries for all of them.
AT_ONCE = 1 << 18
# Of longer vectors so many entries at a time.
BLOCK = 1 << 16


class Contributions:
    """The last decoded contribution of each of some workers, `(n, p)`: zeros before the first."""

    def __init__(self, workers: int, theta: Array) -> None:
        self.rows = zeros((workers, theta.shape[-1]), theta)

    def nothing(self) -> Array:
        """Return an innovation to add to, in double precision."""
        return float64(zeros(self.rows.shape[1:], self.rows))

    def replace(self, decoded: Array, who: IntArray | slice) -> Array:
        """Take new contributions; return the sum of what they change."""
        innovation = change(decoded, self.rows[who]).sum(0)
        self.rows[who] = decoded
        return innovation

    def add(self, innovation: Array, decoded: Array, who: IntArray) -> None:
        """Take new contributions one after the other, and add what they change, block by block.

        Temporaries as long as the model would cost more than its gradient.
        """
        for row, m in zip(decoded, who.tolist(), strict=True):
            mine = self.rows[m]
            for start in range(0, len(row), BLOCK):
                block = slice(start, start + BLOCK)
                innovation[block] += change(row[block], mine[block])
                mine[block] = row[block]

    def total(self) -> Array:
        """Return the sum of all contributions; of a single worker its own, not a copy."""
        return self.rows[0] if len(self.rows) == 1 else float64(self.rows).sum(0)

    def take(self, codec: Codec, messages: Sequence[bytes], who: IntArray) -> Array:
        """Take encoded contributions, in the order of the workers; return the sum of what they change."""
        innovation = self.nothing()
        for some in pieces(len(messages), len(innovation)):
            self.add(innovation, codec.decode(messages[some], self.rows[0]), who[some])
        return innovation


def pieces(rows: int, p: int) -> list[slice]:
    """Cut rows of length p into pieces of at most `AT_ONCE` entries, or one row."""
    step = max(1, AT_ONCE // p)
    return [slice(start, start + step) for start in range(0, rows, step)]
