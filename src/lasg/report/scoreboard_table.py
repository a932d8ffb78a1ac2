"""The scoreboard as a table's cells, as JSON, and as a section of the report's page."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lasg.analysis import scoreboard
from lasg.analysis.compare import Spread
from lasg.analysis.link_model import PRESETS
from lasg.analysis.races import RACES, Race
from lasg.analysis.scoreboard import Row, Standing
from lasg.errors import LasgError
from lasg.report import scoreboard_plots
from lasg.report.formatting import counted, duration, factor, short

CAPTION = (
    "* no method that arrived needs both fewer upload bits and fewer rounds than this one. Bits down: what all workers "
    "receive, every message of the others or the model, whichever is less. A method that did not arrive is shown with "
    "what it had spent by the end."
)
LINKS = ("cross-region", "home", "mobile")
"""Links whose simulated time is in the table; the results have all."""


def title(race: Race, rows: Sequence[Standing]) -> str:
    """Name a race and the loss that it goes to."""
    seeds = max(row.seeds for row in rows)
    end = ", ".join(f"{value:g} {key}" for key, value in race.until.items())
    goal = f"the loss of {race.reference} after {end} ({_pm(rows[0].target)})"
    return f"{race.name}: to {goal}, {counted(seeds, 'seed')}"


def head() -> list[str]:
    """Return the columns' names."""
    names = ["", "method", "arrived", "bits up", "fewer", "bits down", "rounds", "gradients", "loss", "accuracy"]
    return [*names, *LINKS]


def cells(rows: Sequence[Standing], reference: str) -> list[list[str]]:
    """Return the table's cells, row by row; `fewer` is against the reference."""
    base = next((row.counts["bits_up"].mean for row in rows if row.contender == reference), None)
    return [_line(row, base) for row in rows]


def _line(row: Standing, base: float | None) -> list[str]:
    counts = row.counts
    fewer = base / counts["bits_up"].mean if base and row.arrived and counts["bits_up"].mean else None
    return [
        "*" if row.front else "",
        row.contender,
        f"{row.reached} of {row.seeds}",
        _count(counts["bits_up"], row.seeds),
        factor(fewer),
        short(counts["bits_down"].mean),
        _count(counts["rounds"], row.seeds),
        short(counts["gradients"].mean),
        "diverged" if row.loss is None else f"{row.loss.mean:.4f}",
        "-" if row.accuracy is None else f"{100 * row.accuracy.mean:.2f} %",
        *(duration(counts[f"seconds_{link}"].mean) for link in LINKS),
    ]


def _count(value: Spread, seeds: int) -> str:
    return short(value.mean) + (f" ± {short(value.std)}" if seeds > 1 else "")


def _pm(value: Spread) -> str:
    return f"{value.mean:.4f} ± {value.std:.4f}" if value.std else f"{value.mean:.4f}"


def json_rows(rows: Sequence[Standing]) -> list[dict[str, Any]]:
    """Return the standings as JSON values: every count's mean and spread."""
    found = []
    for row in rows:
        names = ("contender", "algorithm", "settings", "seeds", "reached", "front")
        values: dict[str, Any] = {name: getattr(row, name) for name in names}
        spreads = {"target": row.target, "loss": row.loss, "accuracy": row.accuracy, **row.counts}
        for name, spread in spreads.items():
            values[name] = None if spread is None else spread.mean
            values[f"{name}_spread"] = None if spread is None else spread.std
        found.append(values)
    return found


def missing(chosen: Sequence[Race], there: Mapping[str, Sequence[Row]]) -> list[str]:
    """Say in a line each what of the chosen races has no results yet."""
    lines = []
    for race in chosen:
        have = {row["contender"] for row in there.get(race.name, ())}
        lacking = [one.name for one in race.contenders if one.name not in have]
        if race.name not in there:
            lines.append(f"{race.name}: no results yet")
        elif lacking:
            lines.append(f"{race.name}: not run yet: {'; '.join(lacking)}")
    return lines


def hours(folder: Path, there: Mapping[str, Sequence[Row]]) -> str:
    """Say how long it took, results and trials together."""
    trials = [row for name in there for row in scoreboard.read(folder / f"{name}-trials.csv")]
    seconds = sum(float(row["core_seconds"]) for rows in (*there.values(), trials) for row in rows)
    return f"Core hours: {seconds / 3600:.2f}. Simulated links: {', '.join(PRESETS)}. Results: {folder}"


def section(folder: Path) -> dict[str, Any]:
    """Return what the report's page shows of a folder of results: tables, and the picture as SVG."""
    found = {name: scoreboard.standings(rows) for name, rows in scoreboard.read_all(folder).items()}
    if not found:
        raise LasgError(f"{folder} holds no scoreboard results: lasg scoreboard --results {folder} makes them")
    boards = [
        {"title": title(RACES[name], rows), "rows": cells(rows, RACES[name].reference)} for name, rows in found.items()
    ]
    picture = base64.b64encode(scoreboard_plots.svg(found)).decode()
    return {"head": head(), "boards": boards, "caption": CAPTION, "picture": picture}
