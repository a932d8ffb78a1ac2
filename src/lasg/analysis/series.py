"""Runs that belong together: the seeds of one algorithm under one setting are one series, one curve, one row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lasg.errors import LasgError
from lasg.runs.spec import OWN, Spec
from lasg.runs.store import Run

PROBLEM = (
    *("task", "data", "label_column", "scale", "workers", "partition", "alpha", "classes", "sizes", "cut", "lam"),
    "model",
)
"""What two runs must share for their losses to be comparable."""
LAZINESS = {"D", "c", "window", "c_d", "rho", "guard", "variance_bound"}
"""How lazy the workers are: of no use to an algorithm that always uploads."""


@dataclass(frozen=True)
class Series:
    """One algorithm under one setting, over its seeds."""

    label: str
    runs: tuple[Run, ...]

    @property
    def algorithm(self) -> str:
        """The algorithm's name."""
        return self.runs[0].spec.algorithm

    @property
    def diverged(self) -> int:
        """How many seeds diverged."""
        return sum(run.status == "diverged" for run in self.runs)


def series(runs: Iterable[Run]) -> list[Series]:
    """Group runs by algorithm and `settings`, in order of appearance.

    The label is the algorithm's name; where one algorithm has several settings, what differs is added to it. Of runs
    that differ in when they stop alone, the one that went furthest stands for all: the others are its beginning. A
    copy of a run is the same run.
    """
    groups: dict[str, dict[int, Run]] = {}
    for run in runs:
        if run.meta.get("engine") == "flower" and np.isnan(run.trace["loss"]).all():
            raise LasgError(
                f"{run.folder} has no loss to compare: its server measured nothing. Give server_app a measure; "
                "trace.csv there has the uploads and bytes of every round"
            )
        seeds = groups.setdefault(repr(sorted(settings(run.spec).items())), {})
        known = seeds.get(run.spec.seed)
        if known is None or (known.spec != run.spec and _length(run) > _length(known)):
            seeds[run.spec.seed] = run
    grouped = [tuple(seeds.values()) for seeds in groups.values()]
    return [Series(_label(group[0], [other[0] for other in grouped]), group) for group in grouped]


def settings(spec: Spec) -> dict[str, Any]:
    """Return what decides the course of a run, besides the seed: not when it stops, nor what its algorithm ignores."""
    kind = spec.composition
    unused = {"seed", "until", "iterations", "watch", "marks", "patience", "own_rule", "own_codec"}
    if kind.rule.left is None:
        unused |= LAZINESS
    elif kind.rule.where == "all":
        unused |= LAZINESS - {"D", "variance_bound"}
    else:
        unused |= {"variance_bound"}
    if kind.rule.estimate is None:
        unused |= {"start"}
    if kind.rule.where != "server" or kind.rule.estimate is not None:
        unused |= {"smoothness"}
    if kind.own_steps is not None or not kind.local:
        unused |= {"H"}
    if kind.own_codec is not None or not kind.quantised:
        unused |= {"bits", "bucket"}
    return {key: value for key, value in spec.to_dict().items() if key not in unused} | _own_parts(spec)


def _own_parts(spec: Spec) -> dict[str, Any]:
    """Return what tells a rule or codec of the caller's own from another of its name: settings, and the rest."""
    rule, codec = spec.own_rule, spec.own_codec
    found = {f"codec.{key}": value for key, value in (codec or {}).get("settings", {}).items()}
    return found | {key: table["fingerprint"] for key, table in (("rule", rule), ("codec", codec)) if table is not None}


def _length(run: Run) -> int:
    return len(run.trace["threshold"])


def _label(run: Run, firsts: Sequence[Run]) -> str:
    rivals = [settings(other.spec) for other in firsts if other.spec.algorithm == run.spec.algorithm]
    own = settings(run.spec)
    keys = dict.fromkeys(key for values in rivals for key in values)
    differing = [key for key in keys if any(other.get(key) != own.get(key) for other in rivals)]
    for least in ("evaluate", "codec", "rule"):  # how often it was looked at, and fingerprints, say least of all
        if len(differing) > 1:
            differing = [key for key in differing if key != least]
    return " ".join([run.spec.algorithm, *(f"{key}={_shown(own.get(key))}" for key in differing)])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ",".join(f"{key}:{_shown(part)}" for key, part in value.items()) or "-"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return "-" if value is None else str(value)


def check_one_problem(runs: Sequence[Run]) -> None:
    """Refuse runs whose losses cannot be compared."""
    if not runs:
        raise LasgError("there are no runs to compare")
    kinds: dict[tuple[Any, ...], list[Run]] = {}
    for run in runs:
        # What a caller's own problem is known by differs from seed to seed.
        data = "" if run.spec.data == OWN else run.meta["data_sha256"]
        key = (*(getattr(run.spec, name) for name in PROBLEM), data)
        kinds.setdefault(key, []).append(run)
    if len(kinds) == 1:
        return
    one, other = (group[0].spec for group in list(kinds.values())[:2])
    differing = [name for name in PROBLEM if getattr(one, name) != getattr(other, name)]
    parts = [f"{name}: {_brief(getattr(one, name))} and {_brief(getattr(other, name))}" for name in differing]
    counts = [f"{len(group)} x {group[0].spec.task}, {group[0].spec.partition}" for group in kinds.values()]
    advice = "Name the folders of one of them"
    if {"task", "partition"} & set(differing):
        where = runs[0].folder.parent / f"{runs[0].spec.family}-*"
        advice = f"Choose one with --task and --partition, or by name, such as {where}"
    shown = "; ".join(parts) or "the data file: two versions of it"
    raise LasgError(
        f"these runs are of {len(kinds)} different problems ({shown}) "
        f"and cannot be compared: {'; '.join(counts[:5])}{'; ...' if len(counts) > 5 else ''}. {advice}"
    )


def _brief(value: Any) -> str:
    text = "none" if value is None else str(value)
    return text if len(text) <= 40 else f"{text[:37]}..."
