"""What a server believes of a node's answer: every field and array is checked before anything is used."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from lasg.core.arrays import Array, all_finite, norms
from lasg.core.codecs import Codec, Dense
from lasg.errors import LasgError
from lasg.transports.nodes import FAILED, Parcel

if TYPE_CHECKING:
    from torch import Tensor

    from lasg.problems.buffers import Buffers

KINDS = ("upload", "silent", "broken", "lost", "stale")
NOTHING = np.zeros(0, np.uint8)
LONGEST_REASON = 300
"""Characters of a node's own words that are repeated: one line, whatever it sends."""


class Unfit(Exception):  # noqa: N818
    """Why an answer is refused."""


class Answer(NamedTuple):
    """An answer that may be used."""

    kind: str
    evaluations: int = 0
    left: float = math.nan
    estimate: float = 0.0
    message: bytes = b""
    decoded: Array | None = None
    buffers: Sequence[Tensor] | None = None
    """All of the worker's buffers, where the server keeps them."""


class Checker:
    """Turns a parcel into an answer, or says why not."""

    def __init__(
        self, codec: Codec, like: Array, *, local_steps: int, norm_bound: float, buffers: Buffers | None
    ) -> None:
        """Take what a contribution is decoded with, and a vector that it must be `like`."""
        self.codec, self.like, self.local_steps = codec, like, local_steps
        self.norm_bound, self.buffers = norm_bound, buffers

    def check(self, parcel: Parcel, run: str, k: int, key: str, *, must_upload: bool) -> Answer:
        """Return an answer of a worker in a round; refuse every other."""
        head, arrays = parcel
        kind = head.get("kind")
        if kind not in KINDS:
            raise Unfit("it is no answer")
        if (head.get("run"), head.get("round"), head.get("key")) != (run, k, key):
            raise Unfit(f"it is not of {key} in round {k}")
        wanted = {"contribution"} if kind == "upload" else set()
        if set(arrays) - ({"buffers"} if wanted and self.buffers is not None else set()) != wanted:
            raise Unfit("it has other arrays than an answer of its kind")
        if kind in ("lost", "stale"):
            return Answer(kind)
        evaluations, left = head.get("evaluations"), head.get("left", math.nan)
        if not whole(evaluations) or not 0 <= evaluations <= 2 * self.local_steps:
            raise Unfit("it does not say how many gradients it computed")
        if not isinstance(left, float):
            raise Unfit("its left side is no number")
        if kind == "silent" and must_upload:
            raise Unfit("it had to upload, and is silent")
        if kind != "upload":
            return Answer(kind, evaluations, left)
        estimate = head.get("estimate", 0.0)
        if not isinstance(estimate, float) or not 0 <= estimate < math.inf:
            raise Unfit("its estimate is no number >= 0")
        message, decoded = self._contribution(arrays["contribution"])
        return Answer(kind, evaluations, left, estimate, message, decoded, self._buffers(parcel))

    def _contribution(self, array: Any) -> tuple[bytes, Array]:
        """Return a contribution, if it is one."""
        p = self.like.shape[-1]
        length = (
            p * self.like.itemsize
            if isinstance(self.codec, Dense)
            else getattr(self.codec, "length", lambda _: None)(p)
        )
        if not isinstance(array, np.ndarray) or array.dtype != np.uint8 or array.ndim != 1:
            raise Unfit("its contribution is not bytes")
        if length is not None and len(array) != length:
            raise Unfit(f"its contribution has {len(array)} bytes, not {length}")
        message = array.tobytes()
        try:
            decoded = self.codec.decode([message], self.like)[0]
        except (LasgError, ValueError, IndexError, OverflowError) as error:
            raise Unfit(f"its contribution cannot be decoded: {error}") from None
        if not all_finite(decoded):
            raise Unfit("its contribution is not finite")
        with np.errstate(over="ignore"):
            size = float(norms(decoded[None])[0])
        if size == math.inf or size > self.norm_bound:
            raise Unfit(f"the norm of its contribution is {size:g}, above {self.norm_bound:g}")
        return message, decoded

    def _buffers(self, parcel: Parcel) -> Sequence[Tensor] | None:
        """Return the buffers that came with a contribution; those that did not come are as at the start."""
        if self.buffers is None:
            return None
        try:
            return self.buffers.unpack(parcel.head.get("buffers", []), parcel.arrays.get("buffers", NOTHING))
        except LasgError as error:
            raise Unfit(str(error)) from None


def failure(parcel: Parcel) -> str | None:
    """Return why a node failed, as one line, if that is what it says."""
    if parcel.head.get("kind") != FAILED:
        return None
    words = "".join(letter if letter.isprintable() else " " for letter in str(parcel.head.get("reason", "")))
    return " ".join(words.split())[:LONGEST_REASON] or "it does not say why"


def whole(number: Any) -> TypeGuard[int]:
    """Tell whether something that came is an integer."""
    return isinstance(number, int) and not isinstance(number, bool)
