"""`lasg list`: what there is."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated

import typer

from lasg.analysis.link_model import NUMBERS, PRESETS
from lasg.cli import catalog, data, options
from lasg.cli.show import err, new_table, out, print_json, runs_table
from lasg.core.algorithms import KNOWN, PAPER
from lasg.core.codec_names import name_of
from lasg.report.formatting import measure
from lasg.report.paper_figures import listed as figure_names
from lasg.runs.tasks import TASKS

app = typer.Typer(
    help="List tasks with their defaults, algorithms, stored runs, figures, networks, or data sets.",
    no_args_is_help=True,
)

SHOWN = ("workers", "D", "eta", "batch", "lam", "H", "bits", "iterations", "evaluate")


@app.command()
def tasks(json: options.Json = False) -> None:
    """List the tasks and every default."""
    specs = {name: task.spec("sgd") for name, task in TASKS.items()}
    if json:
        hidden = {"algorithm", "seed"}
        print_json(
            [
                {"summary": TASKS[n].summary} | {k: v for k, v in s.to_dict().items() if k not in hidden}
                for n, s in specs.items()
            ]
        )
        return
    table = new_table()
    for column in ("task", *SHOWN):
        table.add_column(column, justify="left" if column == "task" else "right", no_wrap=True)
    for name, spec in specs.items():
        table.add_row(name, *(f"{getattr(spec, key)}" for key in SHOWN))
    out.print(table)
    for name, task in TASKS.items():
        out.print(f"  {name}: {task.summary}")
    shown = set(SHOWN) | {"task", "algorithm", "data", "seed", "partition"}
    first, *others = specs.values()
    names = [f.name for f in fields(first) if f.name not in shown]
    same = {
        name: getattr(first, name) for name in names if all(getattr(s, name) == getattr(first, name) for s in others)
    }
    rest = ", ".join(f"{key}={value}" for key, value in same.items() if value not in (None, {}))
    out.print(f"\nFor all: {rest}. Samples are dealt by label in uneven shards, or --setting homogeneous.")
    out.print("H serves local-sgd, bits the quantised algorithms. Change any with --set KEY=VALUE.")
    out.print("Your own data: libsvm:PATH, csv:PATH with --set label_column=NAME, images:PATH; --scale standardises.")


@app.command()
def algorithms(json: options.Json = False) -> None:
    """List the algorithms: the paper's twelve, others' and lasg's own."""
    rows = [
        {
            "algorithm": a.name,
            "rule": a.rule.name,
            "codec": "qsgd" if a.quantised else name_of(a.codec(8, None)) or "",
            "local_steps": "H" if a.local else "1",
            "summary": a.summary,
            "reference": a.reference or PAPER,
        }
        for a in KNOWN.values()
    ]
    if json:
        print_json(rows)
        return
    table = new_table()
    for column in rows[0]:
        table.add_column(column.replace("_", " "))
    for row in rows:
        table.add_row(*row.values())
    out.print(table)
    out.print("Others by composition: rule+codec+local steps, such as wk2+qsgd8:512+H4.")


@app.command()
def runs(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders that hold runs, or runs; by default runs.", metavar="[FOLDER]..."),
    ] = None,
    json: options.Json = False,
) -> None:
    """List the stored runs, the newest last: how far each is, and which can be continued."""
    found, skipped = catalog.find(folders or [path for path in [options.RUNS] if path.is_dir()])
    for line in skipped:
        err.print(line, soft_wrap=True)
    if json:
        print_json([entry.row() for entry in found])
        return
    if not found:
        out.print("No runs are stored here. lasg run and lasg compare store them, in runs unless --out says otherwise.")
        return
    out.print(runs_table(found))
    unfinished = [entry for entry in found if entry.status == catalog.UNFINISHED]
    if unfinished:
        out.print(f"An unfinished run goes on with, for example: {unfinished[-1].command}", soft_wrap=True)


@app.command()
def figures(json: options.Json = False) -> None:
    """List the figures that lasg figure draws."""
    found = figure_names()
    if json:
        print_json([{"figure": name, "summary": summary} for name, summary in found.items()])
        return
    table = new_table()
    for column in ("figure", "shows"):
        table.add_column(column)
    for name, summary in found.items():
        table.add_row(name, summary)
    out.print(table)
    out.print("A task's name draws both its settings; all draws the paper's.")


@app.command()
def networks(json: options.Json = False) -> None:
    """List the networks that turn a ledger into seconds (docs/links.md has their sources)."""
    if json:
        print_json([asdict(network) for network in PRESETS.values()])
        return
    table = new_table()
    for column in ("network", "latency, one way", "up", "down", "a gradient"):
        table.add_column(column, justify="left" if column == "network" else "right")
    for network in PRESETS.values():
        shared = " (shared)" if network.shared else ""
        table.add_row(network.name + shared, *(measure(name, getattr(network, name)) for name in NUMBERS))
    out.print(table)
    out.print("Change one with mobile:up=2e6,latency=0.1, or give a .toml file with these keys: " + ", ".join(NUMBERS))
    out.print("A shared channel is a radio cell: the model is broadcast once, uploads go one after another.")


@app.command("data")
def data_sets(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the data sets and where their files are (as lasg data list)."""
    data.list_files(data_dir, json)
