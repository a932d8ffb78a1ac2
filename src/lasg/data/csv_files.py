"""CSV files as data: a header, numbers, and one column with the class. Every fault names its line and column."""

from __future__ import annotations

import array
import csv
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lasg.data.raw_files import BROKEN_STREAM, open_plain, reason
from lasg.data.tables import Parts, Table, check_size, classes_of
from lasg.errors import LasgError, did_you_mean

LABEL_NAMES = ("target", "label", "y")
"""A column so called holds the classes, where no other is named."""
DELIMITERS = ",;\t"
SHOWN = 12
"""So many column names are listed in a message."""


def parse_csv(path: Path, label_column: str | None = None) -> Parts:
    """Read a CSV file: line 1 names the columns, one of them holds the classes, the others are numbers."""
    with _reading(path) as rows:
        header = _header(path, rows)
        place = _label_place(path, header, label_column)
        features, labels = _values(path, rows, header, place)
    width = len(header) - 1
    if not labels:
        raise LasgError(f"{path} has no samples: below line 1, which names the columns, there must be lines of numbers")
    raw = np.frombuffer(features, np.float32).reshape(len(labels), width)
    classes, numbers = classes_of(_as_numbers(labels), path, f"column {header[place]!r}")
    return Parts(Table(raw, numbers, lambda block: np.asarray(block, np.float32)), None, classes)


def feature_names(path: Path, label_column: str | None = None) -> list[str]:
    """Return the names of the feature columns, in order."""
    with _reading(path) as rows:
        header = _header(path, rows)
    place = _label_place(path, header, label_column)
    return [name for i, name in enumerate(header) if i != place]


@contextmanager
def _reading(path: Path) -> Iterator[Any]:
    """Give the rows of a CSV file, compressed or not; what cannot be read is one line."""
    try:
        with open_plain(path) as stream, io.TextIOWrapper(stream, "utf-8-sig", newline="") as text:
            first = text.readline()
            text.seek(0)
            delimiter = max(DELIMITERS, key=first.count)
            yield csv.reader(text, delimiter=delimiter, skipinitialspace=True, strict=True)
    except BROKEN_STREAM as error:
        raise LasgError(f"{path} cannot be read: {reason(error)}; replace the file") from error
    except UnicodeDecodeError as error:
        raise LasgError(f"{path} is not UTF-8 text (byte {error.start}): save it as UTF-8") from None
    except csv.Error as error:
        raise LasgError(f"{path} is not a sound CSV file: {reason(error)}; correct it") from None


def _header(path: Path, rows: Any) -> list[str]:
    """Read the columns' names."""
    header = [name.strip() for name in next(rows, [])]
    if not any(header):
        raise LasgError(f"{path} is empty: line 1 must name the columns, one of them the target")
    if all(_number(name) is not None for name in header):
        raise LasgError(f"{path} has no header: line 1 must name the columns, but it holds numbers; put names above it")
    for i, name in enumerate(header):
        if not name:
            raise LasgError(f"{path} has no name for column {i + 1} in line 1: give it one")
        if name in header[:i]:
            raise LasgError(f"{path} has two columns called {name!r}: rename one")
    if len(header) == 1:
        raise LasgError(
            f"{path} has the column {header[0]!r} alone: features and a target, separated by commas, are needed"
        )
    return header


def _label_place(path: Path, header: Sequence[str], wanted: str | None) -> int:
    """Return which column holds the classes."""
    columns = ", ".join(header[:SHOWN]) + (f", ... ({len(header)} in all)" if len(header) > SHOWN else "")
    if wanted is not None:
        if wanted not in header:
            raise LasgError(f"{path} has no column {wanted!r}.{did_you_mean(wanted, header)} Its columns: {columns}")
        return header.index(wanted)
    found = [i for i, name in enumerate(header) if name.lower() in LABEL_NAMES]
    if len(found) == 1:
        return found[0]
    several = f"{len(found)} of its columns are called so" if found else "none of its columns is called so"
    raise LasgError(
        f"{path}: the classes are expected in a column called {' or '.join(LABEL_NAMES)}, but {several}; name it with "
        f"--set label_column=NAME. Its columns: {columns}"
    )


def _values(path: Path, rows: Any, header: Sequence[str], place: int) -> tuple[array.array[float], list[str]]:
    """Read all lines below the header: the features one after another, and the labels as they are written."""
    features, labels = array.array("f"), []
    for row in rows:
        if not row:
            continue  # an empty line
        if len(row) != len(header):
            raise LasgError(
                f"{path}, line {rows.line_num}: expected {len(header)} cells as in line 1, got {len(row)}; correct it"
            )
        label = row.pop(place).strip()
        try:
            numbers = array.array("f", map(float, row))
        except (ValueError, OverflowError):
            numbers = array.array("f")
        if not label or len(numbers) < len(row) or not all(map(math.isfinite, numbers)):
            row.insert(place, label)
            raise _cell_error(path, rows.line_num, header, row, place)
        features.extend(numbers)
        labels.append(label)
        if len(labels) % 65536 == 0:
            check_size(path, len(labels), len(header) - 1)
    check_size(path, len(labels), len(header) - 1)
    return features, labels


def _cell_error(path: Path, line: int, header: Sequence[str], row: Sequence[str], place: int) -> LasgError:
    """Build the error for the first cell of a line that is not what it should be."""
    for i, (name, cell) in enumerate(zip(header, row, strict=True)):
        where = f"{path}, line {line}, column {name!r}"
        if not cell.strip():
            return LasgError(f"{where} is empty: fill it in, or leave out the line or the column")
        if i == place:
            continue
        value = _number(cell)
        shown = cell if len(cell) <= 30 else f"{cell[:27]}..."
        if value is None:
            return LasgError(
                f"{where} holds {shown!r}, not a number: write the column in numbers (a 0/1 column per kind), or leave"
                " it out"
            )
        with np.errstate(over="ignore"):
            if not np.isfinite(np.float32(value)):
                return LasgError(
                    f"{where} holds {shown}: a finite number within float32 is needed; replace or remove it"
                )
    raise AssertionError("a cell of this line is wrong")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _as_numbers(labels: Sequence[str]) -> NDArray[Any]:
    """Return labels as numbers where all of them are, so that 1 and 1.0 are one class; else as text."""
    numbers = [_number(label) for label in labels]
    return np.array(labels) if None in numbers else np.array(numbers, np.float64)
