"""Options that several commands share."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.core.algorithms import ALGORITHMS, algorithm
from lasg.errors import LasgError, wrap_write_errors
from lasg.report import plots
from lasg.report.paper import CAP
from lasg.runs.pairs import parse_pairs, parse_value
from lasg.runs.spec import Spec, with_budget

RUNS = Path("runs")
"""Where runs are stored if nobody says otherwise."""
TaskName = Annotated[
    str, typer.Argument(help="A task (lasg list tasks), libsvm:PATH, csv:PATH or images:PATH.", metavar="TASK")
]
Algorithms = Annotated[
    str,
    typer.Option(
        "-a",
        "--algorithms",
        help="Names, separated by commas (lasg list algorithms); all for every one.",
        metavar="A,B",
    ),
]
Setting = Annotated[
    str,
    typer.Option(help="How samples are dealt: homogeneous, or heterogeneous (sorted by label, uneven shards)."),
]
OptionalSetting = Annotated[
    str | None,
    typer.Option("--setting", help="How samples are dealt: homogeneous, or heterogeneous (the default)."),
]
Changes = Annotated[
    list[str],
    typer.Option("--set", help="Change a setting of the task, such as eta=0.05; may be repeated.", metavar="KEY=VALUE"),
]
Scale = Annotated[
    bool,
    typer.Option(
        "--scale", help="Standardise the features of libsvm:PATH or csv:PATH and add an intercept (--set scale=true)."
    ),
]
Until = Annotated[
    list[str],
    typer.Option(
        "--until",
        help="When to stop: uploads=, bits=, iterations=, gradients= or loss=; may be repeated.",
        metavar="KIND=N",
    ),
]
Seeds = Annotated[int, typer.Option(help="How many seeds.", min=1)]
FirstSeed = Annotated[int, typer.Option("--first-seed", help="The first of the seeds.", min=0)]
Out = Annotated[Path, typer.Option("--out", help="Folder in which runs are stored.", file_okay=False)]
DataDir = Annotated[
    Path | None,
    typer.Option(
        "--data-dir",
        help="Look for data files here first (then $LASG_DATA, then the cache).",
        exists=True,
        file_okay=False,
    ),
]
Jobs = Annotated[int | None, typer.Option("-j", "--jobs", help="Processes at once; by default one per core.", min=1)]
Fresh = Annotated[bool, typer.Option("--fresh", help="Run again, even if the run is stored.")]
Json = Annotated[bool, typer.Option("--json", help="Print machine-readable results instead of tables.")]
NETWORKS = "datacenter, cross-region, home, mobile, lora, one with changes such as mobile:up=2e6, or a .toml file"
Links = Annotated[
    str | None,
    typer.Option(
        "--network",
        help=f"Add simulated seconds and megabytes: {NETWORKS}. Without a name, all: for which links laziness pays.",
        metavar="[NAME]",
    ),
]
Csv = Annotated[
    Path | None, typer.Option("--csv", help="Also write every evaluation to this file as it comes.", dir_okay=False)
]
TensorBoard = Annotated[
    Path | None,
    typer.Option("--tensorboard", help="Also write scalars for TensorBoard into this folder.", file_okay=False),
]
Track = Annotated[
    list[str],
    typer.Option(
        "--track",
        help="Send the numbers as they come to wandb[=PROJECT], mlflow[=EXPERIMENT], trackio[=PROJECT], "
        "tensorboard=FOLDER or csv=FILE; may be repeated.",
        metavar="NAME[=WHERE]",
    ),
]
Engine = Annotated[
    str,
    typer.Option(help="What carries the messages: simulation (one process) or distributed (the ranks of torchrun)."),
]
Exchange = Annotated[
    str,
    typer.Option(help="How ranks send uploads: auto, collective, direct, scatter or hub (over one rank, the --relay)."),
]
Relay = Annotated[int, typer.Option(help="The rank that forwards uploads under --exchange hub.", min=0)]
Timeout = Annotated[float, typer.Option(help="Seconds that a rank waits for another one.", min=0.1)]


def trackers(csv: Path | None, tensorboard: Path | None, track: list[str]) -> list[str]:
    """Return all that is to be told the numbers: --csv and --tensorboard are older names for two of them."""
    older = {"tensorboard": tensorboard, "csv": csv}
    return [*(f"{kind}={where}" for kind, where in older.items() if where is not None), *track]


def split_algorithms(text: str) -> list[str]:
    """Read names separated by commas; `all` is every one of the twelve."""
    if text == "all":
        return list(ALGORITHMS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise LasgError("name at least one algorithm: -a sgd,lasg-wk2")
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise LasgError(f"-a names {twice} twice: name each algorithm once; to compare settings, lasg tune")
    return [algorithm(name).name for name in names]


def parse_grid(texts: list[str]) -> dict[str, list[Any]]:
    """Read `eta=0.1,0.2,c=0.1,1`: a key starts at every `name=`, its values follow, separated by commas."""
    grid: dict[str, list[Any]] = {}
    key = None
    for part in ",".join(texts).split(","):
        name, equals, value = part.rpartition("=")
        if equals:
            key = name.strip()
            if not key or key in grid:
                raise LasgError(f"the grid names {key!r} twice or not at all: write --grid eta=0.05,0.1,c=0.1,1")
            grid[key] = []
        if key is None or not value.strip():
            raise LasgError(f"cannot read the grid at {part!r}: write --grid eta=0.05,0.1,c=0.1,1")
        grid[key].append(parse_value(value.strip()))
    return grid


def read_changes(texts: list[str], *, scale: bool = False) -> dict[str, Any]:
    """Read --set KEY=VALUE, with --scale as one of them; what has an option of its own is refused."""
    changes = parse_pairs(texts, "--set")
    if scale:
        if changes.get("scale") is False:
            raise LasgError("--scale and --set scale=false contradict each other: leave one out")
        changes["scale"] = True
    for key, instead in (("seed", "--seed or --first-seed"), ("algorithm", "-a"), ("task", "another task")):
        if key in changes:
            raise LasgError(f"--set {key}=... has no place here: give {instead}")
    path = changes.get("weights")
    if isinstance(path, str) and Path(path).is_file():
        changes["weights"] = str(Path(path).absolute())  # a run must find it again from any folder
    return changes


def limited(spec: Spec, until: list[str], changes: dict[str, Any]) -> Spec:
    """Return the spec with the budgets of --until; the cap on iterations gives way to a budget that needs more."""
    budgets = parse_pairs(until, "--until")
    if {"uploads", "bits", "gradients"} & set(budgets) and "iterations" not in {*budgets, *changes}:
        spec = with_budget(spec, "iterations", CAP)
    for kind, value in budgets.items():
        spec = with_budget(spec, kind, value)
    return spec


@dataclass(frozen=True)
class Ranks:
    """How the ranks of torchrun share a run."""

    exchange: str
    relay: int
    timeout: float


def on_ranks(engine: str, exchange: str, relay: int, timeout: float) -> Ranks | None:
    """Return how ranks share a run; None for the simulation. Refuse an engine that is not there."""
    if engine == "distributed":
        return Ranks(exchange, relay, timeout)
    if engine != "simulation":
        raise LasgError(f"unknown engine {engine!r}: choose simulation or distributed")
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise LasgError("torchrun started several ranks, and each would simulate the same: add --engine distributed")
    return None


def check_pictures(paths: Iterable[Path | None]) -> None:
    """Refuse, before the work is done, pictures that cannot be drawn, or written, after it."""
    for path in paths:
        if path:
            plots.check(path)
            check_writable(path)


def check_writable(path: Path) -> None:
    """Refuse, before the work is done, a path at which nothing can be written after it."""
    with wrap_write_errors(path):
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, "it is a folder")
        if path.exists() and not path.is_file():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
