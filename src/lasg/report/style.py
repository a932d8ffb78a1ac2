"""How an algorithm looks: the same colour, line and marker in every figure and in the report.

Colours are Okabe and Ito's, told apart by colour-blind readers, one per rule. Markers differ too, so that curves can be
told apart in black and white. Quantised algorithms are dashed, their markers hollow.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lasg.analysis.series import Series
from lasg.core.algorithms import ALGORITHMS, Algorithm, algorithm
from lasg.core.codecs import Dense

DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
"""Lines by Plotly's names."""
LINES = {
    "solid": "-",
    "dash": (0, (4, 2)),
    "dot": (0, (1, 1.5)),
    "dashdot": (0, (4, 1.5, 1, 1.5)),
    "longdash": (0, (8, 2)),
    "longdashdot": (0, (8, 2, 1, 2)),
}
"""The same lines for matplotlib."""
SVG_DASHES = {
    "solid": "",
    "dash": "5 3",
    "dot": "2 2",
    "dashdot": "5 2 2 2",
    "longdash": "8 3",
    "longdashdot": "8 2 2 2",
}
"""The same lines for SVG."""


@dataclass(frozen=True)
class Style:
    """The look of one curve."""

    colour: str
    """On white."""
    dark: str
    """On black."""
    marker: str
    """Plotly's name."""
    hollow: bool
    dash: str
    """A key of `LINES`."""


MARKERS = {
    "circle": "o",
    "square": "s",
    "triangle-up": "^",
    "diamond": "D",
    "triangle-down": "v",
    "cross": "P",
    "star": "*",
    "x": "X",
}
"""Markers by Plotly's names, and matplotlib's."""

SVG_MARKERS = {
    "circle": "M4 0A4 4 0 1 1 -4 0A4 4 0 1 1 4 0Z",
    "square": "M-3.5 -3.5H3.5V3.5H-3.5Z",
    "triangle-up": "M0 -4.5L4.5 3.5H-4.5Z",
    "triangle-down": "M0 4.5L4.5 -3.5H-4.5Z",
    "diamond": "M0 -5L4 0L0 5L-4 0Z",
    "cross": "M-1.5 -4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5V-1.5H-1.5Z",
    "star": "M0 -5L1.2 -1.6H4.8L1.9 0.6L3 4L0 1.9L-3 4L-1.9 0.6L-4.8 -1.6H-1.2Z",
    "x": "M-4 -4L4 4M4 -4L-4 4",
}
"""The same markers as SVG paths, about the origin."""

_RULES = {
    "always": ("#000000", "#ffffff", "circle"),
    "lag": ("#808080", "#a8a8a8", "square"),
    "wk1": ("#c98500", "#f0b429", "triangle-up"),
    "wk2": ("#0072B2", "#4db4ee", "diamond"),
    "ps": ("#009E73", "#2fd0a3", "triangle-down"),
    "pse": ("#D55E00", "#ff8a3d", "cross"),
}
_LOCAL = ("#b0508a", "#e79ac6", "star")
_OTHER = ("#3a9ad1", "#7cc8f2", "x")


def style(known: Algorithm | str, variant: int = 0) -> Style:
    """Return the look of an algorithm; `variant` tells several settings of one apart, by line and then by marker."""
    known = algorithm(known) if isinstance(known, str) else known
    colour, dark, marker = _LOCAL if known.local else _RULES.get(known.rule.name, _OTHER)
    quantised = known.quantised or not isinstance(known.own_codec or Dense(), Dense)
    first = (1 if quantised else 0) if known.name in ALGORITHMS else 3
    turns, dash = divmod(first + variant, len(DASHES))
    markers = list(MARKERS)
    marker = markers[(markers.index(marker) + turns) % len(markers)]
    return Style(colour, dark, marker, quantised, DASHES[dash])


def styles(shown: Sequence[Series]) -> list[Style]:
    """Return the look of each series: no two alike; settings of one algorithm share its colour."""
    found: list[Style] = []
    for one in shown:
        kind = one.runs[0].spec.composition
        variants = (style(kind, variant) for variant in range(len(DASHES) * len(MARKERS)))
        taken = {(look.colour, look.dash, look.marker) for look in found}
        free = (look for look in variants if (look.colour, look.dash, look.marker) not in taken)
        found.append(next(free, style(kind)))
    return found


def sort_series(shown: Iterable[Series]) -> list[Series]:
    """Sort series as the twelve algorithms are listed everywhere, others after them; settings by their numbers."""
    listed = list(shown)
    place = {name: i for i, name in enumerate(dict.fromkeys([*ALGORITHMS, *(one.algorithm for one in listed)]))}
    return sorted(listed, key=lambda one: (place[one.algorithm], _by_numbers(one.label)))


def _by_numbers(label: str) -> list[tuple[float, str]]:
    """Return a key that sorts c=4 before c=10."""
    parts = re.split(r"(?<==)([-+\d.e]+)", label)
    return [(_number(part), part) for part in parts]


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0
