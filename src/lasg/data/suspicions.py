"""What of a user's own data looks as if it were not meant: said before a run, never acted upon."""

from __future__ import annotations

import numpy as np

from lasg.data.csv_files import feature_names
from lasg.data.loaders import Dataset, checked_path
from lasg.data.sources import AS_IT_IS, CSV_PREFIX, TABLE_PREFIXES, Reading

LARGE = 5.0
"""A column whose root mean square is above this is unscaled: it is 1 of a standardised one, at most 1 in [-1, 1]."""
MANY_CLASSES, FEW_SAMPLES = 20, 50
"""More classes than the first with fewer samples each, on average, than the second look like a quantity."""
_ROWS = 65_536


def suspicions(data: Dataset, reading: Reading = AS_IT_IS) -> list[str]:
    """Return a line for each: what was found, and what to do."""
    if not data.name.startswith(TABLE_PREFIXES):
        return []
    found = [_quantity(data), "" if reading.scale else _unscaled(data, reading)]
    return [f"{checked_path(data.name)}: {line}" for line in found if line]


def _quantity(data: Dataset) -> str:
    samples = len(data.labels)
    if data.classes <= MANY_CLASSES or samples >= FEW_SAMPLES * data.classes:
        return ""
    return (
        f"{data.classes:,} classes in {samples:,} samples look like a quantity, and lasg trains classifiers; if the"
        " target is a number to predict, group its values into few classes first"
    )


def _unscaled(data: Dataset, reading: Reading) -> str:
    columns = data.features.shape[1]
    squares, least, most = np.zeros(columns), np.full(columns, np.inf), np.full(columns, -np.inf)
    for start in range(0, len(data.features), _ROWS):
        block = np.asarray(data.features[start : start + _ROWS], np.float64)
        squares += (block**2).sum(0)
        least, most = np.minimum(least, block.min(0)), np.maximum(most, block.max(0))
    large = int((squares > LARGE**2 * len(data.features)).sum())
    if not large:
        return ""
    widest = int(np.argmax(squares))
    named = f"feature {widest + 1}"
    if data.name.startswith(CSV_PREFIX):
        named = f"column {feature_names(checked_path(data.name), reading.label_column)[widest]!r}"
    return (
        f"{large} of {columns} features are not scaled ({named} runs from {least[widest]:g} to {most[widest]:g}), which"
        " can make training slow or diverge; --scale standardises them"
    )
