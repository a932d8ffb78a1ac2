"""KEY=VALUE texts, as the command line and the names of networks have them."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from typing import Any

from lasg.errors import LasgError


def parse_value(text: str) -> Any:
    """Read the right side of --set KEY=VALUE: a TOML value, or a bare word as a string."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return text


def parse_pairs(texts: Iterable[str], what: str) -> dict[str, Any]:
    """Read KEY=VALUE texts; values are TOML, or bare words."""
    pairs = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key.strip() or not value.strip():
            raise LasgError(f"{what} takes KEY=VALUE, got {text!r}")
        pairs[key.strip()] = parse_value(value.strip())
    return pairs
