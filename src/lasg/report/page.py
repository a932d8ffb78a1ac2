"""The report: one HTML file with everything in it, read from stored runs. docs/report.md says what it shows."""

from __future__ import annotations

import base64
import functools
import importlib.resources
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import lasg
from lasg.analysis.compare import Summary, shared_target, spent, summarise
from lasg.analysis.link_model import NUMBERS, PRESETS, LinkModel
from lasg.analysis.series import Series, check_one_problem, series
from lasg.errors import LasgError
from lasg.report import verdict
from lasg.report.commands import command
from lasg.report.curves import LABELS, mean_curve, thin
from lasg.report.formatting import duration, factor, measure, short, small
from lasg.report.scoreboard_table import section
from lasg.report.style import SVG_DASHES, SVG_MARKERS, Style, sort_series, styles
from lasg.runs.files import write_atomically
from lasg.runs.store import Run

if TYPE_CHECKING:
    from jinja2 import Template

AXES = {name: LABELS[name] for name in ("iterations", "uploads", "bits_up", "bits_total", "gradients", "seconds")}
"""What a curve can be drawn against."""
POINTS, FEWEST = 120, 12
"""Of one seed, at most and at least; many runs get fewer each."""
ALL_POINTS = 9_000
MEAN_POINTS = 200
RASTER_ROUNDS, RASTER_WORKERS = 4_000, 64
"""How much of the uploads of one run is shown."""
DEFAULT_NETWORK = "home"
PLOTLY_VERSION = re.compile(r"v(\d+\.\d+\.\d+)")


def write(
    path: Path | str,
    runs: Sequence[Run],
    *,
    target: float | None = None,
    network: LinkModel | None = None,
    title: str = "",
    scoreboard: Path | None = None,
) -> None:
    """Write the report of runs of one problem. An existing file is replaced only when all went well."""
    # A folder's name need not be Unicode: what is not becomes a question mark.
    text = build(runs, target=target, network=network, title=title, scoreboard=scoreboard)
    write_atomically(Path(path), text.encode(errors="replace"))


def build(
    runs: Sequence[Run],
    *,
    target: float | None = None,
    network: LinkModel | None = None,
    title: str = "",
    scoreboard: Path | None = None,
    under_way: bool = False,
) -> str:
    """Return the report as HTML; `scoreboard` is a folder of its results, for a section of their own.

    `under_way`: runs that have not ended are shown as far as they are.
    """
    check_one_problem(runs)
    for run in runs:
        if run.status == "running" and not under_way:
            raise LasgError(f"{run.folder} has not ended: {run.how_to_resume} goes on with it")
    first = runs[0].spec
    shown = sort_series(series(runs))
    runs = [run for one in shown for run in one.runs]
    goal = shared_target(runs) if target is None else target
    content = _Content(
        runs=runs,
        shown=shown,
        target=goal,
        networks=_with_presets(network),
        chosen=network or PRESETS[DEFAULT_NETWORK],
    )
    page, text = _template()
    return page.render(
        title=title or f"{first.task}, {first.partition}, {first.workers} workers",
        css=text["page.css"],
        js=text["page.js"],
        plotly=text["plotly-basic.min.js"],
        data=_json(content.data()),
        content=content,
        scoreboard=None if scoreboard is None else section(scoreboard),
        plotly_version=PLOTLY_VERSION.findall(text["plotly-basic.min.js"][:200])[0],
        **content.page(),
    )


@functools.cache
def _template() -> tuple[Template, dict[str, str]]:
    """Return the page's template and the files that it takes in, read and compiled once: that takes longest."""
    from jinja2 import Environment

    files = importlib.resources.files("lasg.report") / "page"
    names = ("page.html", "page.css", "page.js", "plotly-basic.min.js")
    text = {name: (files / name).read_text(encoding="utf-8") for name in names}
    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(text["page.html"]), text


def _with_presets(network: LinkModel | None) -> list[LinkModel]:
    """Return the presets; one of the user's comes first, or in the place of the preset that it is named after."""
    if network is None:
        return list(PRESETS.values())
    known = PRESETS if network.name in PRESETS else {network.name: network, **PRESETS}
    return list({**known, network.name: network}.values())


def _json(value: Any) -> str:
    """Write JSON that can stand in a script element: no `<` in it."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")


@dataclass(frozen=True)
class _Content:
    """All that a report shows, computed from the runs."""

    runs: Sequence[Run]
    shown: Sequence[Series]
    target: float
    networks: Sequence[LinkModel]
    chosen: LinkModel

    # -- the page's own text ---------------------------------------------------------------------------

    def page(self) -> dict[str, Any]:
        """Return what the template fills in."""
        timed = {network.name: summarise(self.runs, self.target, network) for network in self.networks}
        rows = timed[self.chosen.name]
        return {
            "target": f"{self.target:g}",
            "sentences": verdict.sentences(rows, self.target),
            "links": verdict.links(timed),
            "table": _table(rows, self.chosen),
            "times": _times(timed),
            "network_rows": [_network_row(network) for network in self.networks],
            "axes": AXES,
            "keys": [
                {"label": one.label, "style": look, "dashes": SVG_DASHES[look.dash], "symbol": SVG_MARKERS[look.marker]}
                for one, look in zip(self.shown, styles(self.shown), strict=True)
            ],
            "has_accuracy": self.has_accuracy,
            "first_raster": self._first_raster(),
            "settings": _settings(self.runs),
            "runs": [_run_row(run, one.label) for one in self.shown for run in one.runs],
            "versions": _versions(self.runs),
            "lasg": lasg.__version__,
            "diverged": sum(one.diverged for one in self.shown),
        }

    @property
    def has_accuracy(self) -> bool:
        """Whether every run has a test set."""
        good = [run for run in self.runs if run.status != "diverged"]
        return bool(good) and all(np.isfinite(run.trace["accuracy"]).all() for run in good)

    def _first_raster(self) -> int:
        """Return whose uploads are shown first: lasg-wk2's, or those of the first that did not diverge."""
        good = [i for i, one in enumerate(self.shown) if not one.diverged] or [0]
        return next((i for i in good if self.shown[i].algorithm == "lasg-wk2"), good[0])

    # -- the curves ------------------------------------------------------------------------------------

    def data(self) -> dict[str, Any]:
        """Return what the page's script draws."""
        most = max(FEWEST, min(POINTS, ALL_POINTS // max(1, len(self.runs))))
        return {
            "axes": AXES,
            "target": self.target,
            "series": [self._series(one, look, most) for one, look in zip(self.shown, styles(self.shown), strict=True)],
        }

    def _series(self, one: Series, look: Style, most: int) -> dict[str, Any]:
        good = [run for run in one.runs if run.status != "diverged"]
        return {
            "label": one.label,
            "style": asdict(look),
            "mean": self._mean(one),
            "seeds": [{"seed": run.spec.seed, **self._seed(run, most)} for run in good],
            "raster": _raster(one.runs[0]),
        }

    def _mean(self, one: Series) -> dict[str, Any]:
        curve = mean_curve(one, "iterations")
        rows = thin(len(curve.x), MEAN_POINTS)
        found: dict[str, Any] = {"loss": _numbers(curve.y[rows]), "loss_spread": _numbers(curve.spread[rows])}
        if self.has_accuracy:
            accuracy = mean_curve(one, "iterations", "accuracy")
            found |= {"accuracy": _numbers(accuracy.y[rows]), "accuracy_spread": _numbers(accuracy.spread[rows])}
        for name in AXES:
            if name != "seconds":
                found[name] = _numbers(mean_curve(one, name).x[rows])
        found["seconds"] = {
            network.name: _numbers(mean_curve(one, "seconds", network=network).x[rows]) for network in self.networks
        }
        return found

    def _seed(self, run: Run, most: int) -> dict[str, Any]:
        rows = thin(len(run.trace["loss"]), most)
        columns = spent(run, None)
        found = {name: _numbers(columns[name][rows]) for name in AXES if name != "seconds"}
        found |= {"loss": _numbers(run.trace["loss"][rows])}
        if self.has_accuracy:
            found["accuracy"] = _numbers(run.trace["accuracy"][rows])
        seconds = {network.name: _numbers(spent(run, network)["seconds"][rows]) for network in self.networks}
        return {**found, "seconds": seconds}


def _numbers(values: Any) -> list[float | int | None]:
    """Return JSON numbers of six digits; null where there is none."""
    return [_number(float(value)) for value in values]


def _number(value: float) -> float | int | None:
    if not math.isfinite(value):
        return None
    short_ = float(f"{value:.6g}")
    return int(short_) if short_ == int(short_) and abs(short_) < 1e15 else short_


def _raster(run: Run) -> dict[str, Any]:
    """Return who uploaded in the first rounds of a run, as packed bits."""
    uploaded = run.uploads[:RASTER_ROUNDS]
    workers = run.spec.workers
    who = np.unique(np.linspace(0, workers - 1, min(workers, RASTER_WORKERS)).round().astype(int))
    packed = np.packbits(uploaded[:, who], axis=None)
    return {
        "seed": run.spec.seed,
        "rounds": len(uploaded),
        "all_rounds": len(run.trace["uploaded"]),
        "workers": who.tolist(),
        "all_workers": workers,
        "bits": base64.b64encode(packed.tobytes()).decode(),
    }


# -- tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Column:
    """A column of the table of savings."""

    head: str
    value: Callable[[Summary], float | None]
    shown: Callable[[float], str]
    most: bool = False
    """Whether the largest value is the best, not the least."""
    spread: Callable[[Summary], float] | None = None
    """Written behind the value, where there are several seeds."""

    def text(self, row: Summary) -> str:
        """Return a cell's text."""
        value = self.value(row)
        if value is None:
            return "-"
        spread = f" ± {self.spread(row):.4f}" if self.spread and row.seeds > 1 else ""
        return self.shown(value) + spread

    def best(self, rows: Sequence[Summary]) -> float | None:
        """Return the best value of several rows; of one row none is."""
        known = [value for value in map(self.value, rows) if value is not None]
        return (max if self.most else min)(known) if known and len(rows) > 1 else None


def _columns(network: LinkModel) -> list[_Column]:
    def count(name: str) -> Callable[[Summary], float | None]:
        return lambda row: row.counts[name].mean if row.counts else None

    return [
        _Column("iterations", count("iterations"), short),
        _Column("uploads", count("uploads"), short),
        _Column("bits up", count("bits_up"), short),
        _Column("bits both ways", count("bits_total"), short),
        _Column("MB", count("megabytes"), small),
        _Column("gradient evaluations", count("gradients"), short),
        _Column(f"simulated time ({network.name})", count("seconds"), duration),
        _Column("fewer uploads", lambda row: row.fewer_uploads, factor, most=True),
        _Column("fewer bits up", lambda row: row.fewer_bits, factor, most=True),
        _Column(
            "final loss",
            lambda row: row.loss.mean if math.isfinite(row.loss.mean) else None,
            _four,
            spread=lambda row: row.loss.std,
        ),
        _Column("test accuracy", lambda row: row.accuracy.mean if row.accuracy else None, _percent, most=True),
    ]


def _four(value: float) -> str:
    return f"{value:.4f}" if abs(value) >= 1e-3 else f"{value:.3g}"


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _table(rows: Sequence[Summary], network: LinkModel) -> dict[str, Any]:
    """Return the table of savings, the best of each column marked; columns without any number are left out."""
    columns = [one for one in _columns(network) if any(one.value(row) is not None for row in rows)]
    best = [one.best(rows) for one in columns]
    body = [
        {
            "label": row.label,
            "note": row.remark,
            "cells": [
                {"text": one.text(row), "best": _is(one.value(row), least)}
                for one, least in zip(columns, best, strict=True)
            ],
        }
        for row in rows
    ]
    return {"head": ["algorithm", *(one.head for one in columns)], "rows": body}


def _is(value: float | None, best: float | None) -> bool:
    """Tell whether a value is the best one, but for rounding."""
    return value is not None and best is not None and math.isclose(value, best, rel_tol=1e-9)


def _times(timed: dict[str, list[Summary]]) -> dict[str, Any]:
    """Return the table of simulated times: a row per algorithm, a column per network."""
    best = {
        name: min((row.counts["seconds"].mean for row in rows if row.counts), default=None)
        for name, rows in timed.items()
    }
    body: list[dict[str, Any]] = []
    for i, row in enumerate(next(iter(timed.values()))):
        cells = []
        for name, rows in timed.items():
            seconds = rows[i].counts["seconds"].mean if rows[i].counts else None
            text = "-" if seconds is None else duration(seconds)
            ratio = factor(rows[i].faster) if seconds is not None else ""
            cells.append({"text": text, "ratio": ratio, "best": len(rows) > 1 and _is(seconds, best[name])})
        body.append({"label": row.label, "cells": cells})
    # Of each network the fastest; of a single row none is.
    winners = [", ".join(row["label"] for row in body if row["cells"][i]["best"]) for i in range(len(timed))]
    return {"head": list(timed), "rows": body, "winners": winners if any(winners) else []}


def _network_row(network: LinkModel) -> dict[str, str]:
    return {"name": network.name, **{name: measure(name, getattr(network, name)) for name in NUMBERS}}


def _settings(runs: Sequence[Run]) -> dict[str, Any]:
    """Return the settings: what all runs share, and what differs, a row a setting."""
    specs = [run.spec.to_dict() for run in runs]
    keys = list(dict.fromkeys(key for spec in specs for key in spec))
    shared, differing = [], []
    for key in keys:
        values = [json.dumps(spec.get(key), default=str) for spec in specs]
        if len(set(values)) == 1:
            if specs[0].get(key) not in ({}, None):
                shared.append((key, _setting(specs[0][key])))
        elif key not in {"algorithm", "seed"}:
            differing.append(key)
    return {"shared": shared, "differing": differing}


def _setting(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _run_row(run: Run, label: str) -> dict[str, Any]:
    toml = run.spec.to_toml()
    return {
        "label": label,
        "seed": run.spec.seed,
        "status": run.status,
        "seconds": f"{float(run.meta['seconds']):.1f}",
        "file": f"{run.spec.label}.toml",
        "command": command(run.spec),
        "own_parts": " and ".join(run.spec.own_parts),
        "toml": toml,
        "href": "data:application/toml;base64," + base64.b64encode(toml.encode()).decode(),
    }


def _versions(runs: Sequence[Run]) -> list[str]:
    """Return the versions that made the runs, one line a combination, and what they ran on."""
    made = dict.fromkeys(", ".join(f"{name} {v}" for name, v in run.meta["versions"].items()) for run in runs)
    engines = sorted({str(run.meta.get("engine", "")) for run in runs})
    data = sorted({run.meta["data_sha256"][:12] for run in runs})
    lines = [f"Runs made by {line}" for line in made if line]
    return [*lines, f"Engine: {', '.join(engines)}; data sha256 {', '.join(data)}…"]
