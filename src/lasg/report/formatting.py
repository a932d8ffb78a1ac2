"""Numbers as people read them: the same in tables, pages and sentences."""

from __future__ import annotations

import math

from lasg.analysis.compare import Spread


def short(value: float) -> str:
    """Write a count in at most four digits: 950, 12.3k, 4.56M."""
    if not math.isfinite(value):
        return str(value)
    for size, unit in ((999.5e9, "T"), (999.5e6, "G"), (999.5e3, "M"), (9999.5, "k")):
        if abs(value) >= size:
            scaled = value / {"T": 1e12, "G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.{max(0, 2 - int(math.log10(abs(scaled))))}f}{unit}"
    return f"{value:.0f}"


def prefixed(value: float) -> tuple[float, str]:
    """Return a number and the prefix of its unit: (45.7, "M")."""
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    return next(((value / size, unit) for size, unit in units if value >= size), (value, ""))


def small(value: float) -> str:
    """Write a measure in three digits: 0.0120, 1.20, 456, 12.3k."""
    return short(value) if abs(value) >= 999.5 else f"{value:#.3g}".removesuffix(".")


def duration(seconds: float) -> str:
    """Write a time in three digits: 8.00 s, 1.53 min, 12.0 d."""
    size, unit = _unit(seconds)
    return f"{small(seconds / size)} {unit}"


def about(seconds: float) -> str:
    """Write a time in whole numbers: 8 s, 2 min, 12 d."""
    size, unit = _unit(seconds)
    return f"{seconds / size:.0f} {unit}"


def _unit(seconds: float) -> tuple[int, str]:
    units = ((172_800, 86_400, "d"), (5400, 3600, "h"), (90, 60, "min"))
    return next(((size, unit) for least, size, unit in units if seconds >= least), (1, "s"))


def seeds_of(count: int) -> str:
    """Write over how many seeds a mean was taken."""
    return "1 seed" if count == 1 else f"mean of {count} seeds"


def counted(number: int, what: str) -> str:
    """Write a number of things: 1 run, 12 runs."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def factor(value: float | None) -> str:
    """Write a saving: 4.3x, 41x; below one 0.85x."""
    if value is None:
        return "-"
    if value >= 9.95:
        return f"{value:.0f}x"
    return f"{value:.1f}x" if value >= 0.995 else f"{value:.2f}x"


def plus_minus(value: Spread, digits: int = 4) -> str:
    """Write a mean and its spread."""
    return f"{value.mean:.{digits}f} ± {value.std:.{digits}f}"


def measure(name: str, value: float | tuple[float, ...]) -> str:
    """Write a number of a network with its unit; the range, where workers differ."""
    if isinstance(value, tuple):
        low, high = measure(name, min(value)), measure(name, max(value))
        return low if low == high else f"{low} to {high}"
    if name in {"up", "down"}:
        scaled, unit = prefixed(value)
        return f"{scaled:g} {unit}bit/s"
    return f"{1000 * value:g} ms" if value < 1 else f"{value:g} s"
