"""A fixed English text that ships with lasg: eight parts of the King James Version, whose copyright has expired."""

from __future__ import annotations

import functools
import gzip
import hashlib
from importlib import resources

from lasg.errors import LasgError

FILE = "king-james.txt.gz"
SHA256 = "3ab8929db37f18018219c1eb4c331e24cc8280a761eae6fe8fe1aae2d51ab934"
"""Of the text itself, whatever compressed it."""


@functools.cache
def king_james() -> dict[str, str]:
    """Return about 120,000 characters of each part, by its name: one domain per worker, for up to eight workers."""
    data = gzip.decompress(resources.files("lasg.data").joinpath(FILE).read_bytes())
    if hashlib.sha256(data).hexdigest() != SHA256:
        raise LasgError(f"{FILE} is not the text that lasg ships: install lasg again")
    parts = (part.partition("\n") for part in data.decode("ascii").split("\f"))
    return {name: text for name, _, text in parts}
