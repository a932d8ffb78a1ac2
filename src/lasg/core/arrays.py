"""The few things NumPy arrays and torch tensors spell differently.

Everything of length p may be either; the small control arrays (who uploaded, tau) are always NumPy.
torch is imported only once a tensor turns up, so that NumPy-only runs start without it.
"""

from __future__ import annotations

import functools
import itertools
import math
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from lasg.errors import Diverged, LasgError

if TYPE_CHECKING:
    from types import ModuleType

# A NumPy array or a torch tensor: the operators used on it mean the same for both.
Array: TypeAlias = Any
FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
IntArray: TypeAlias = npt.NDArray[np.integer[Any]]
Mask: TypeAlias = npt.NDArray[np.bool_]
# Unsigned integers of few bits.
Codes: TypeAlias = npt.NDArray[Any]


# Up to so many entries the vectors of many workers are treated at once; more in pieces, without temporaries for all.
AT_ONCE = 1 << 18
# Of longer vectors so many entries at a time: temporaries as long as the model would cost more than its gradient.
BLOCK = 1 << 16
# Of longer vectors, a large model's, everything of their length is kept in the run's precision, and few copies of it.
LONG = 1 << 20
# What is computed from them entry by entry, in several steps, stays in the cache so. A multiple of 8.
CACHED = 1 << 15
# Up to so many flags are counted as bytes.
FEW = 256


def pieces(rows: int, p: int) -> list[slice]:
    """Cut rows of length p into pieces of at most `AT_ONCE` entries, or one row."""
    step = max(1, AT_ONCE // p)
    return [slice(start, start + step) for start in range(0, rows, step)]


@functools.cache
def runs_of_buckets(p: int, bucket: int | None) -> tuple[tuple[slice, slice], ...]:
    """Cut p entries into runs that stay in the cache, of whole buckets or pieces of one: the entries, the buckets."""
    size = bucket or p
    if size > CACHED:
        starts = [(b, i) for b in range(-(-p // size)) for i in range(b * size, min((b + 1) * size, p), CACHED)]
        return tuple((slice(i, min(i + CACHED, (b + 1) * size, p)), slice(b, b + 1)) for b, i in starts)
    whole, step = p // size, CACHED // size
    ends = [*range(0, whole, step), whole, *([whole + 1] if whole * size < p else [])]
    return tuple((slice(a * size, min(b * size, p)), slice(a, b)) for a, b in itertools.pairwise(ends))


Tile: TypeAlias = tuple[tuple[slice, slice], slice]


def tiles(shape: tuple[int, ...], bucket: int | None = None) -> Iterator[Tile]:
    """Cut rows `(n, p)` into tiles that stay in the cache: which rows and entries, and which buckets these are.

    A tile has whole buckets, or a piece of one.
    """
    n, p = shape
    few = max(1, CACHED // max(p, 1))
    for i in range(0, n, few):
        for entries, buckets in runs_of_buckets(p, bucket):
            yield (slice(i, i + few), entries), buckets


def code_type(bits: int) -> type[np.integer[Any]]:
    """Return the smallest unsigned integers that have so many bits; beyond 32 int64, as positions are."""
    return np.uint8 if bits <= 8 else np.uint16 if bits <= 16 else np.uint32 if bits <= 32 else np.int64


def count_set(flags: Mask) -> int:
    """Return how many flags are set; of a few workers without NumPy, whose count takes three times as long."""
    return flags.tobytes().count(1) if len(flags) <= FEW else int(np.count_nonzero(flags))


def namespace(x: Array) -> ModuleType:
    """Return the module whose functions work on `x`: numpy or torch."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def sq(x: Array) -> Array:
    """Squared Euclidean norm over the last dimension."""
    if x.shape[-1] > LONG:
        return _by_block(_square, x)
    if isinstance(x, np.ndarray):
        return np.vecdot(x, x)
    return namespace(x).linalg.vecdot(x, x)  # unlike (x * x).sum(), of one vector without a temporary as large as x


def sq_distance(x: Array, y: Array) -> Array:
    """||x - y||^2 over the last dimension: `sq(x - y)` to the bit, without its temporary beside the difference."""
    if x.shape[-1] > LONG:
        return _by_block(_square_of_difference, *_alike(x, y))
    difference = x - y
    if isinstance(difference, np.ndarray) or difference.ndim == 1:
        return sq(difference)
    return difference.mul_(difference).sum(-1)


def sq_sum(x: Array, y: Array) -> Array:
    """||x + y||^2 over the last dimension: `sq(x + y)` to the bit, of long vectors without the sum."""
    return _by_block(lambda one, other: _square(one + other), x, y) if x.shape[-1] > LONG else sq(x + y)


def _by_block(square: Callable[..., Any], x: Array, *others: Array) -> Array:
    """Return a number per row of long vectors: the sum over their blocks, in double precision."""
    lead, p = x.shape[:-1], x.shape[-1]
    rows = [each.reshape(-1, p) for each in (x, *others)]
    totals = np.zeros(len(rows[0]))
    for start in range(0, p, BLOCK):
        for i, parts in enumerate(zip(*rows, strict=True)):
            totals[i] += square(*(part[start : start + BLOCK] for part in parts))
    return cast(totals.reshape(lead), namespace(x).zeros(0, dtype=namespace(x).float64))


def _square(x: Array) -> float:
    return float(namespace(x).dot(x, x))


def _square_of_difference(x: Array, y: Array) -> float:
    return _square(x - y)


def _alike(x: Array, y: Array) -> tuple[Array, Array]:
    """Return two arrays of one shape: one vector may stand for as many as there are of the other."""
    if isinstance(y, list):
        y = stacked(y)
    shape = x.shape if x.ndim >= y.ndim else y.shape
    if isinstance(x, np.ndarray):
        return np.broadcast_to(x, shape), np.broadcast_to(y, shape)
    return x.expand(shape), y.expand(shape)


def norms(x: Array) -> FloatArray:
    """Euclidean norms over the last dimension, in float64: what is too large to be squared in float32 has one too."""
    if isinstance(x, np.ndarray):
        found: FloatArray = np.sqrt(np.vecdot(x, x, dtype=np.float64))
        return found
    torch = namespace(x)
    wide = None if x.device.type in SINGLE_ONLY else torch.float64
    return host(torch.linalg.vector_norm(x, dim=-1, dtype=wide)).astype(np.float64)


def copy(x: Array) -> Array:
    """Return a copy that shares no memory with `x`."""
    return x.copy() if isinstance(x, np.ndarray) else x.detach().clone()


def copies(node: Any, like: Array = None) -> Any:
    """Return nested dicts and lists with every array in them copied; tensors go to the device of `like`."""
    if isinstance(node, dict):
        return {key: copies(value, like) for key, value in node.items()}
    if isinstance(node, list | tuple):
        return type(node)(copies(value, like) for value in node)
    if hasattr(node, "detach"):
        return copy(node if like is None or isinstance(like, np.ndarray) else node.to(like.device))
    return copy(node) if isinstance(node, np.ndarray) else node


def stacked(x: Array | Sequence[Array]) -> Array:
    """Return models that are given one by one as rows `(n, p)`; an array stays as it is."""
    return namespace(x[0]).stack(x) if isinstance(x, list) else x


def zeros(shape: tuple[int, ...], like: Array) -> Array:
    """Return zeros of the kind, dtype and device of `like`."""
    if isinstance(like, np.ndarray):
        return np.zeros(shape, like.dtype)
    return like.new_zeros(shape)


def stand_in(theta: Array) -> Array:
    """Return zeros that say how a vector is made, its length, dtype and device, without memory of that length."""
    zero = zeros((1,), theta)
    if isinstance(zero, np.ndarray):  # unlike what broadcast_to returns, torch takes it without a warning
        return np.lib.stride_tricks.as_strided(zero, theta.shape, (0,))
    return zero.expand(theta.shape)


def maximum(x: Array, least: Array) -> Array:
    """Return the larger of two, entry by entry; `least` may be a number."""
    return np.maximum(x, least) if isinstance(x, np.ndarray) else x.clamp(min=least)


def minimum(x: Array, most: Array) -> Array:
    """Return the smaller of two, entry by entry; `most` may be a number."""
    return np.minimum(x, most) if isinstance(x, np.ndarray) else x.clamp(max=most)


SINGLE_ONLY = {"mps"}
"""Devices without double precision: what needs it is computed on the CPU."""


def float64(x: Array) -> Array:
    """Cast to double precision."""
    if isinstance(x, np.ndarray):
        return x.astype(np.float64)
    return (x.cpu() if x.device.type in SINGLE_ONLY else x).double()


def for_sums(x: Array) -> Array:
    """Cast to the precision of what is added up over the rounds: double, of long vectors the run's own.

    A sum of K uploads in float32 is then off by about sqrt(K) 2^-25 of the largest that it was.
    """
    return x if x.shape[-1] > LONG else float64(x)


def add_up(parts: Sequence[Array], total: Any) -> Any:
    """Return the sum of vectors, in double precision until it is rounded, in `total`, which may be one of them."""
    if len(parts) == 2:  # of two, the rounded sum is the sum rounded
        return namespace(total).add(*parts, out=total)
    for start in range(0, len(total), BLOCK):
        block = slice(start, start + BLOCK)
        wide = float64(parts[0][block])
        for part in parts[1:]:
            wide += part[block]
        total[block] = wide
    return total


def add_to(total: Array, part: Array) -> None:
    """Add a vector to one in double precision, block by block: torch would make a widened copy of all of it."""
    if total.dtype == part.dtype:
        total += part
        return
    for start in range(0, len(total), BLOCK):
        block = total[start : start + BLOCK]  # by a name: `total[...] += part` would copy it to itself
        block += part[start : start + BLOCK]


class Remainder:
    """What rounding to a run's dtype has taken away so far; it goes along with what is rounded next."""

    def __init__(self, room: Array, p: int, *, exact: bool) -> None:
        """Take an empty tensor of the dtype. What is `exact` owes nothing: it stands for itself, or is precise."""
        exact = exact or room.itemsize == 8 or p > LONG
        self.owed = None if exact else float64(zeros((p,), room))
        self._rounded = room

    def round(self, values: Array, where: slice = slice(None)) -> Any:
        """Return values in the run's dtype, good until the next call; what that takes away is owed, and then paid."""
        if self.owed is None:
            return values.to(self._rounded.dtype)
        owed = self.owed[where]
        rounded = self._rounded.resize_(len(owed))
        blocks = (vector.split(BLOCK) for vector in (owed, values, rounded))
        for wanted, value, short in zip(*blocks, strict=True):
            wanted += value
            wanted -= short.copy_(wanted)
        return rounded


def change(new: Array, old: Array) -> Array:
    """Return new - old in double precision."""
    if isinstance(new, np.ndarray):
        return new.astype(np.float64) - old
    wide = float64(new)
    return wide - old.to(wide.device)  # old as it is: to widen it, too, would take a third longer


def cast(x: Array, like: Array) -> Array:
    """Cast or move `x` to the kind, dtype and device of `like`; a NumPy array may become a tensor."""
    if isinstance(like, np.ndarray):
        return np.asarray(x, like.dtype)
    torch = namespace(like)
    return torch.as_tensor(x, dtype=like.dtype, device=like.device)


def host(x: Array) -> npt.NDArray[Any]:
    """Return `x` as a NumPy array on the host."""
    return x if isinstance(x, np.ndarray) else x.detach().cpu().numpy()


def finite_rows(x: Array) -> Mask:
    """Tell of each row whether all its entries are finite."""
    return host(namespace(x).isfinite(x).all(-1))


def all_finite(x: Array) -> bool:
    """Tell whether every entry is finite; a sum that overflows says no to huge entries too."""
    # What x.sum() does, without its detour through Python, in every round.
    return math.isfinite(np.add.reduce(x, None) if isinstance(x, np.ndarray) else x.sum())


def checksum(x: Array) -> int:
    """Return a checksum of a vector's bits."""
    return zlib.crc32(np.ascontiguousarray(host(x)).data)


def bits_per_entry(x: Array) -> int:
    """Bits of one entry on the wire when sent as it is: 32 in float32, 64 in float64."""
    return 8 * int(x.itemsize)


def pick(state: dict[str, Array], who: IntArray | slice) -> dict[str, Array]:
    """Return some workers' rows of a stage's state."""
    return {name: value[who] for name, value in state.items()}


def put(state: dict[str, Array], who: IntArray | slice, changed: dict[str, Array]) -> None:
    """Set some workers' rows of a stage's state."""
    for name, value in changed.items():
        state[name][who] = value


def add_rows(rows: Array, who: IntArray | slice, part: Array, *, sign: int = 1, decay: float = 1.0) -> None:
    """Add to some workers' rows, or subtract; of a slice without a vector as long as they are."""
    some = rows[who]  # a view, of a slice
    if decay != 1:
        some *= decay
    if sign > 0:
        some += part
    else:
        some -= part
    if not isinstance(who, slice):
        rows[who] = some


def places_of(who: IntArray, rows: IntArray | None, uploads: int, count: int) -> IntArray | slice:
    """Return where, among the rows of those that computed, the uploaders stand."""
    if uploads == count:
        return slice(None)
    return who if rows is None else np.searchsorted(rows, who)


def view_of(rows: IntArray) -> IntArray | slice:
    """Return a slice for a single row, since a list of rows would be copied."""
    return slice(int(rows[0]), int(rows[0]) + 1) if len(rows) == 1 else rows


LARGEST_ENTRY = 2.0**126
"""Entries of a gradient may be as large: what stands for them, a step or a mean, is then below float32's end."""
_FLOAT32_END = float(np.finfo(np.float32).max)


def largest_magnitude(values: npt.NDArray[Any], axis: int | None = None) -> Any:
    """Return max |x|, 0 of nothing, without a temporary; NaN where there is one."""
    return np.maximum(values.max(axis, initial=0), -values.min(axis, initial=0))


def check_entries(values: npt.NDArray[Any], so: str) -> None:
    """Refuse to say what is not finite, or so large that float32 has no number for it."""
    if not largest_magnitude(values) <= LARGEST_ENTRY:
        raise Diverged(
            f"a gradient is not finite, or beyond 2^126 in an entry, so {so}: the run diverged, take a smaller eta"
        )


def check_decoded(values: npt.NDArray[Any]) -> None:
    """Refuse what no message says: what is not finite, or would not be in float32."""
    if not largest_magnitude(values) <= _FLOAT32_END:
        raise LasgError("a message decodes to numbers that are not finite: it is damaged")
