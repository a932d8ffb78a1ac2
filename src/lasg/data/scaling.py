"""Standardise features: what plain SGD on a logistic regression needs, and a user's own data seldom have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lasg.data.tables import Parts, Table

SPARSE = 0.5
"""A column with more zeros than this share of its rows keeps them."""


def standardise(parts: Parts) -> Parts:
    """Scale every feature by numbers of the training rows alone, and add an intercept; docs/spec.md says how.

    - a column gets mean 0 and standard deviation 1;
    - one that is mostly zeros is divided by its largest magnitude, so that zeros stay zeros;
    - one that is constant becomes 1, or stays 0.

    Centred features cannot tell that one class is rarer, so a column of ones is added unless there is one.
    """
    columns = _measure(parts.train)
    shift, divisor, ones = _numbers(columns)
    tables = [_scaled(table, shift, divisor, add_ones=not ones) for table in (parts.train, parts.test) if table]
    return replace(parts, train=tables[0], test=tables[1] if len(tables) > 1 else None)


@dataclass(frozen=True)
class _Columns:
    """Of every column over the training rows."""

    least: NDArray[np.float64]
    most: NDArray[np.float64]
    zeros: NDArray[np.float64]
    """The share of zeros."""
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def _measure(table: Table) -> _Columns:
    """Measure the columns in two passes over blocks, so that no second whole copy is held."""
    least, most = np.full(table.columns, np.inf), np.full(table.columns, -np.inf)
    zeros, total = np.zeros(table.columns), np.zeros(table.columns)
    for block in _blocks(table):
        least, most = np.minimum(least, block.min(0)), np.maximum(most, block.max(0))
        zeros += (block == 0).sum(0)
        total += block.sum(0)
    rows = len(table.labels)
    mean = total / rows
    squares = np.zeros(table.columns)
    for block in _blocks(table):
        squares += ((block - mean) ** 2).sum(0)
    return _Columns(least, most, zeros / rows, mean, np.sqrt(squares / rows))


def _blocks(table: Table) -> Any:
    return (np.asarray(block, np.float64) for block in table.blocks())


def _numbers(columns: _Columns) -> tuple[NDArray[np.float64], NDArray[np.float64], bool]:
    """Return what is subtracted from each column, what it is divided by, and whether some column becomes ones."""
    constant = columns.least == columns.most
    sparse = (columns.zeros > SPARSE) & ~constant
    largest = np.maximum(abs(columns.least), abs(columns.most))
    shift = np.where(sparse | constant, 0.0, columns.mean)
    divisor = np.where(sparse, largest, np.where(constant, columns.most, columns.deviation))
    divisor[divisor == 0] = 1.0
    # Means depend on the order of summation in their last digits: rounded, they are the same on every machine.
    return _rounded(shift), _rounded(divisor), bool((constant & (columns.most != 0)).any())


def _rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([float(f"{value:.9g}") for value in values])


def _scaled(table: Table, shift: NDArray[np.float64], divisor: NDArray[np.float64], *, add_ones: bool) -> Table:
    dense = table.scale

    def scale(block: Any) -> NDArray[np.float32]:
        scaled = (dense(block).astype(np.float64) - shift) / divisor
        if add_ones:
            scaled = np.column_stack([scaled, np.ones(len(scaled))])
        return scaled.astype(np.float32)

    return replace(table, scale=scale, extra_columns=int(add_ones))
