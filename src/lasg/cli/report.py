"""`lasg report`: one HTML file from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lasg.analysis import link_time
from lasg.cli import options
from lasg.cli.show import out, print_json
from lasg.errors import LasgError
from lasg.report import page
from lasg.report.formatting import counted
from lasg.runs import store


def report(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of stored runs, or folders that hold some.", metavar="RUNS...")
    ],
    path: Annotated[Path, typer.Option("-o", "--output", help="The file to write.", dir_okay=False)] = Path(
        "report.html"
    ),
    task: Annotated[str | None, typer.Option(help="Only the runs of this task.")] = None,
    partition: Annotated[
        str | None, typer.Option(help="Only the runs with this partition (homogeneous, sorted, ...).")
    ] = None,
    target: Annotated[
        float | None, typer.Option(help="Compare at this loss; by default one that the runs reached.")
    ] = None,
    network: Annotated[
        str | None, typer.Option(help=f"The network of the simulated seconds: {options.NETWORKS}.", metavar="NAME")
    ] = None,
    scoreboard: Annotated[
        Path | None, typer.Option(help="Add a section on these results of lasg scoreboard.", file_okay=False)
    ] = None,
    title: Annotated[str, typer.Option(help="The page's title; by default task, partition and workers.")] = "",
    json: options.Json = False,
) -> None:
    """Write a report of stored runs: one HTML file that works offline, with table, curves and uploads."""
    if target is not None and not 0 < target < float("inf"):
        raise LasgError(f"--target must be a loss > 0 and finite, got {target!r}")
    # Every report has all the presets, so --network without a name adds nothing.
    links = None if network in {None, link_time.EVERY} else link_time.read_link_model(str(network))
    found = store.read_runs(*runs, task=task, partition=partition)
    page.write(path, found, target=target, network=links, title=title, scoreboard=scoreboard)
    if json:
        print_json({"report": str(path), "runs": len(found), "bytes": path.stat().st_size})
    else:
        out.print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB, {counted(len(found), 'run')})", soft_wrap=True)
