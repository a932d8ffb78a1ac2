"""A fixed English text that ships with lasg: eight parts of the King James Version, whose copyright has expired."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib import resources

import numpy as np
from numpy.typing import NDArray

from lasg.errors import LasgError

FILE = "king-james.txt.gz"
SHA256 = "3ab8929db37f18018219c1eb4c331e24cc8280a761eae6fe8fe1aae2d51ab934"
"""Of the text itself, whatever compressed it."""
CONTEXT = 64
"""Characters that a window has before its last, which is only predicted."""
TRAIN, TEST = 1780, 92
"""Windows of every part: as many as the shortest has, the last 5 % held out."""


@functools.cache
def king_james() -> dict[str, str]:
    """Return about 120,000 characters of each part, by its name: one domain per worker, for up to eight workers."""
    data = gzip.decompress(resources.files("lasg.data").joinpath(FILE).read_bytes())
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise LasgError(f"{FILE} is not the text that lasg ships: install lasg again")
    parts = (part.partition("\n") for part in data.decode("ascii").split("\f"))
    return {name: text for name, _, text in parts}


def windows() -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Return windows to train on and held-out ones, `(parts, windows, CONTEXT + 1)`: characters by number.

    A window begins with the last character of the one before, so that every character is predicted once.
    """
    texts = king_james().values()
    number = {character: i for i, character in enumerate(sorted(set("".join(texts))))}
    length = (TRAIN + TEST) * CONTEXT + 1
    rows = np.array([[number[character] for character in text[:length]] for text in texts], dtype=np.uint8)
    cut = np.lib.stride_tricks.sliding_window_view(rows, CONTEXT + 1, axis=1)[:, ::CONTEXT]
    return cut[:, :TRAIN], cut[:, TRAIN:]
