"""The scoreboard: tune every contender equally, then measure what each spends to one loss. Races: `races.py`.

1. Trials, on a seed of their own: every contender has as many.
2. The reference's run on each reported seed: its last loss is that seed's target.
3. Every contender's best trial on each reported seed, until it is at the target.

Results are rows of CSV files, which a later run adds to and never shortens.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import lasg
from lasg.analysis import link_time
from lasg.analysis.compare import Spread, spent_at
from lasg.analysis.link_model import PRESETS
from lasg.analysis.races import RACES, TUNING_SEED, Contender, Race
from lasg.errors import LasgError
from lasg.runs.files import write_atomically
from lasg.runs.spec import Spec
from lasg.runs.store import Run

Execute = Callable[[Sequence[Spec], str], Sequence[Run]]
"""Runs specs, or reads those that are stored; the text says what for."""
Row = dict[str, str]
COUNTED = ("rounds", "gradients", "uploads", "bits_up", "bits_down")
TIMES = tuple(f"seconds_{name}" for name in PRESETS)
RESULT = (
    *("race", "contender", "seed", "algorithm", "settings", "target", "reached", "loss", "accuracy"),
    *(*COUNTED, *TIMES, "core_seconds", "version"),
)
TRIAL = ("race", "contender", "trial", "seed", "reached", "loss", "bits_up", "best", "core_seconds", "version")


@dataclass(frozen=True)
class Results:
    """What a race gave: its results and its trials, as rows."""

    race: str
    rows: Sequence[Row]
    trials: Sequence[Row]


def run(race: Race, contenders: Sequence[str], seeds: int, execute: Execute) -> Results:
    """Run a race, or read what is stored of it. The reference always runs: it sets the target."""
    chosen = [race.contender(name) for name in dict.fromkeys([race.reference, *contenders])]
    best, trials = _tune(race, chosen, execute)
    # A reference that is no contender's equal (settings of a paper) has one trial written several times.
    first = [race.reference_spec(seed, best[race.reference]) for seed in range(seeds)]
    references = execute(first, f"{race.name}: the loss to reach")
    targets = [_last_loss(race, run) for run in references]
    listed = [
        one.spec(race, seed, best[one.name], iterations=race.limit, until={"loss": target})
        for one in chosen
        for seed, target in enumerate(targets)
        if one.name != race.reference
    ]
    runs = [*references, *execute(listed, f"{race.name}: to the loss")]
    names = [one.name for one in chosen for _ in range(seeds)]
    rows = [_result(race, name, run, targets[run.spec.seed]) for name, run in zip(names, runs, strict=True)]
    return Results(race.name, rows, trials)


def _last_loss(race: Race, run: Run) -> float:
    loss = float(run.trace["loss"][-1])
    if run.status == "diverged" or not math.isfinite(loss):
        raise LasgError(
            f"{race.name}: the reference {race.reference} diverged with seed {run.spec.seed}: no loss to reach"
        )
    return loss


def _tune(race: Race, chosen: Sequence[Contender], execute: Execute) -> tuple[dict[str, Mapping[str, Any]], list[Row]]:
    """Return the best trial of every contender, and the rows of all trials."""
    ends: dict[str, Any] = {"iterations": race.trial or race.limit}
    if race.trial is None:
        (reference,) = execute([race.reference_spec(TUNING_SEED, {})], f"{race.name}: the trials' loss to reach")
        ends["until"] = {"loss": _last_loss(race, reference)}
    flat = [(one, trial) for one in chosen for trial in one.trials]
    runs = execute([one.spec(race, TUNING_SEED, trial, **ends) for one, trial in flat], f"{race.name}: trials")
    best: dict[str, Mapping[str, Any]] = {}
    scores: dict[str, tuple[bool, float]] = {}
    for (one, trial), run in zip(flat, runs, strict=True):
        score = _score(run)
        if one.name not in scores or score < scores[one.name]:
            best[one.name], scores[one.name] = trial, score
    rows = [
        {
            "race": race.name,
            "contender": one.name,
            "trial": _compact(trial),
            "seed": str(TUNING_SEED),
            "reached": str("loss" in run.spec.until and not _score(run)[0]),
            "loss": f"{run.trace['loss'][-1]:.6g}",
            "bits_up": str(run.trace["bits_up"][-1]),
            "best": str(best[one.name] is trial),
            **_made(run),
        }
        for (one, trial), run in zip(flat, runs, strict=True)
    ]
    return best, rows


def _score(run: Run) -> tuple[bool, float]:
    """What is smallest for the best trial: bits to the target, where there is one and it was reached, else the loss."""
    loss = float(run.trace["loss"][-1])
    if run.status == "diverged" or not math.isfinite(loss):
        return True, math.inf
    target = run.spec.until.get("loss")
    if target is None:
        return False, loss
    return (False, float(run.trace["bits_up"][-1])) if loss <= target else (True, loss)


def _compact(settings: Mapping[str, Any]) -> str:
    return json.dumps(dict(settings), sort_keys=True)


def _made(run: Run) -> Row:
    return {
        "core_seconds": f"{float(run.meta['seconds']) + float(run.meta.get('evaluation_seconds', 0)):.1f}",
        "version": str(run.meta["versions"]["lasg"]),
    }


def _result(race: Race, name: str, run: Run, target: float) -> Row:
    """Return what a run spent when it reached the target first, or at its end where it did not."""
    spent = None if run.status == "diverged" else spent_at(run, target, None)
    at_end = {count: float(run.trace[count][-1]) for count in COUNTED}
    counts = at_end if spent is None else {count: spent[count] for count in COUNTED}
    accuracy, workers = float(run.trace["accuracy"][-1]), run.spec.workers
    share = counts["rounds"] / max(1.0, at_end["rounds"])
    times = {
        f"seconds_{link}": link_time.seconds(run, model, relayed=True)[-1] * share for link, model in PRESETS.items()
    }
    counts["bits_down"] = min(counts["bits_down"], (workers - 1) * counts["bits_up"])
    return {
        "race": race.name,
        "contender": name,
        "seed": str(run.spec.seed),
        "algorithm": run.spec.algorithm,
        "settings": _compact({key: value for key, value in run.spec.to_dict().items() if key in STEPS}),
        "target": f"{target:.6g}",
        "reached": str(spent is not None),
        "loss": "diverged" if run.status == "diverged" else f"{run.trace['loss'][-1]:.6g}",
        "accuracy": "" if math.isnan(accuracy) else f"{accuracy:.4f}",
        **{count: f"{value:.0f}" for count, value in counts.items()},
        **{name: f"{value:.6g}" for name, value in times.items()},
        **_made(run),
    }


STEPS = ("eta", "optimizer", "optimizer_options", "outer", "outer_eta", "outer_options", "H")
"""Settings that a row shows."""


# -- files: what is there is never overwritten by less ---------------------------------------------------------------


def write(results: Results, folder: Path) -> None:
    """Add a race's rows to its two files; rows of the same contender and seed are replaced."""
    keys = {"": ("contender", "seed"), "-trials": ("contender", "trial")}
    for suffix, rows, columns in (("", results.rows, RESULT), ("-trials", results.trials, TRIAL)):
        path = folder / f"{results.race}{suffix}.csv"
        named = {tuple(row[key] for key in keys[suffix]): row for row in (*read(path), *rows)}
        check_versions(named.values(), path)
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows(named.values())
        write_atomically(path, text.getvalue().encode())


def read(path: Path) -> list[Row]:
    """Return the rows of a file; none where it is not there."""
    if not path.exists():
        return []
    columns = TRIAL if path.stem.endswith("-trials") else RESULT
    try:
        with path.open(newline="", encoding="utf-8") as lines:
            head, *cells = csv.reader(lines, strict=True)
        rows = [dict(zip(columns, line, strict=True)) for line in cells]
        whole = tuple(head) == columns and all(_is_number(row[name]) for row in rows for name in row if name in COUNTED)
    except (OSError, UnicodeDecodeError, csv.Error, ValueError) as error:
        raise LasgError(f"cannot read the scoreboard {path}: {error}") from None
    if not whole:
        raise LasgError(f"{path} is no scoreboard of this version: move it away, or name another folder with --results")
    return rows


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit()


def check_versions(rows: Iterable[Row], path: Path) -> None:
    """Refuse rows that different versions of lasg made: their numbers may not be comparable."""
    versions = sorted({row["version"] for row in rows} | {lasg.__version__})
    if len(versions) > 1:
        raise LasgError(
            f"{path} has rows of lasg {' and '.join(versions)}, which may not be compared: move it away to begin "
            "again, or name another folder with --results"
        )


# -- what is shown ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """A contender's line on the scoreboard: means over its seeds."""

    contender: str
    algorithm: str
    settings: str
    seeds: int
    reached: int
    target: Spread
    loss: Spread | None
    """At the end; None where a seed diverged."""
    accuracy: Spread | None
    counts: Mapping[str, Spread]
    """`COUNTED` and `TIMES`, to the target; of who did not arrive, at the end."""
    front: bool = False
    """Whether nobody who arrived needs both fewer upload bits and fewer rounds."""

    @property
    def arrived(self) -> bool:
        """Whether every seed reached its target."""
        return self.reached == self.seeds


def standings(rows: Sequence[Row]) -> list[Standing]:
    """Return a race's contenders, those that arrived first, by their upload bits."""
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(row["contender"], []).append(row)
    found = [_standing(name, members) for name, members in groups.items()]
    arrived = [one for one in found if one.arrived]
    marked = [_marked(one, arrived) for one in found]
    return sorted(marked, key=lambda one: (not one.arrived, one.counts["bits_up"].mean))


def _standing(name: str, rows: Sequence[Row]) -> Standing:
    def spread(column: str) -> Spread | None:
        texts = [row[column] for row in rows]
        return None if "" in texts or "diverged" in texts else Spread.from_values([float(text) for text in texts])

    counts = {count: known for count in (*COUNTED, *TIMES) if (known := spread(count)) is not None}
    target = spread("target")
    assert target is not None
    reached = sum(row["reached"] == "True" for row in rows)
    first = rows[0]
    described = (first["algorithm"], first["settings"], len(rows), reached, target)
    return Standing(name, *described, spread("loss"), spread("accuracy"), counts)


def _marked(one: Standing, arrived: Sequence[Standing]) -> Standing:
    """Mark who is on the Pareto front of upload bits and rounds."""
    if not one.arrived:
        return one
    own = [one.counts[name].mean for name in ("bits_up", "rounds")]
    better = (
        all(theirs <= mine for theirs, mine in zip(others, own, strict=True)) and others != own
        for others in ([rival.counts[name].mean for name in ("bits_up", "rounds")] for rival in arrived)
    )
    return replace(one, front=not any(better))


def read_all(folder: Path) -> dict[str, list[Row]]:
    """Return the results of a folder by race, in the order of the table of races; races that are gone are left out."""
    if not folder.is_dir():
        raise LasgError(f"{folder} is no folder of scoreboard results: lasg scoreboard --results {folder} makes them")
    found = {name: read(folder / f"{name}.csv") for name in RACES}
    return {name: rows for name, rows in found.items() if rows}
