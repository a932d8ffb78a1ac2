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
from collections.abc import Sequence
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


# Up to so many entries the vectors of many workers are treated at once; more in pieces, without temporaries for all.
AT_ONCE = 1 << 18
# Of longer vectors so many entries at a time: temporaries as long as the model would cost more than its gradient.
BLOCK = 1 << 16
# Up to so many flags are counted as bytes.
FEW = 256


def pieces(rows: int, p: int) -> list[slice]:
    """Cut rows of length p into pieces of at most `AT_ONCE` entries, or one row."""
    step = max(1, AT_ONCE // p)
    return [slice(start, start + step) for start in range(0, rows, step)]


@functools.cache
def runs_of_buckets(p: int, bucket: int | None) -> tuple[tuple[slice, slice], ...]:
    """Cut p entries into runs of whole buckets that stay in the cache, and what is left: the entries, the buckets."""
    size = bucket or p
    whole, step = p // size, max(1, BLOCK // size)
    ends = [*range(0, whole, step), whole, *([whole + 1] if whole * size < p else [])]
    return tuple((slice(a * size, min(b * size, p)), slice(a, b)) for a, b in itertools.pairwise(ends))


def count_set(flags: Mask) -> int:
    """Return how many flags are set; of a few workers without NumPy, whose count takes three times as long."""
    return flags.tobytes().count(1) if len(flags) <= FEW else int(np.count_nonzero(flags))


def namespace(x: Array) -> ModuleType:
    """Return the module whose functions work on `x`: numpy or torch."""
    return np if isinstance(x, np.ndarray) else sys.modules["torch"]


def sq(x: Array) -> Array:
    """Squared Euclidean norm over the last dimension."""
    if isinstance(x, np.ndarray):
        return np.vecdot(x, x)
    return namespace(x).linalg.vecdot(x, x)  # unlike (x * x).sum(), of one vector without a temporary as large as x


def sq_distance(x: Array, y: Array) -> Array:
    """||x - y||^2 over the last dimension: `sq(x - y)` to the bit, without its temporary beside the difference."""
    difference = x - y
    if isinstance(difference, np.ndarray) or difference.ndim == 1:
        return sq(difference)
    return difference.mul_(difference).sum(-1)


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


def add_to(total: Array, part: Array) -> None:
    """Add a vector to one in double precision, block by block: torch would make a widened copy of all of it."""
    for start in range(0, len(total), BLOCK):
        block = total[start : start + BLOCK]  # by a name: `total[...] += part` would copy it to itself
        block += part[start : start + BLOCK]


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


def check_entries(values: npt.NDArray[Any], so: str) -> None:
    """Refuse to say what is not finite, or so large that float32 has no number for it."""
    if not np.abs(values).max(initial=0) <= LARGEST_ENTRY:
        raise Diverged(
            f"a gradient is not finite, or beyond 2^126 in an entry, so {so}: the run diverged, take a smaller eta"
        )


def check_decoded(values: npt.NDArray[Any]) -> None:
    """Refuse what no message says: what is not finite, or would not be in float32."""
    if not np.abs(values).max(initial=0) <= _FLOAT32_END:
        raise LasgError("a message decodes to numbers that are not finite: it is damaged")
