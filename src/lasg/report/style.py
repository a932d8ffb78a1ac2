"""How an algorithm looks: the same colour, line and marker in every figure and in the report.

Colours are Okabe and Ito's, told apart by colour-blind readers, one a rule. Markers differ too, so that curves can be
told apart in black and white. Quantised algorithms are dashed, their markers hollow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.core.codecs import Dense
from lasg.experiments.series import Series

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


def style(name: str, variant: int = 0) -> Style:
    """Return the look of an algorithm; `variant` tells several settings of one apart."""
    known = algorithm(name)
    colour, dark, marker = _LOCAL if known.local else _RULES.get(known.rule.name, _OTHER)
    quantised = known.quantised or not isinstance(known.own_codec or Dense(), Dense)
    first = (1 if quantised else 0) if name in ALGORITHMS else 3
    return Style(colour, dark, marker, quantised, DASHES[(first + 2 * variant) % len(DASHES)])


def styles(shown: Sequence[Series]) -> list[Style]:
    """Return the look of each series; settings of one algorithm share its colour and differ in their lines."""
    seen: dict[tuple[str, str], int] = {}
    found = []
    for one in shown:
        look = style(one.algorithm)
        variant = seen.get((look.colour, look.dash), 0)
        seen[look.colour, look.dash] = variant + 1
        found.append(style(one.algorithm, variant))
    return found
