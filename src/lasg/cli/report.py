"""`lasg report`: one HTML file from stored runs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.analysis import link_time
from lasg.cli import options
from lasg.cli.show import out, print_json
from lasg.errors import LasgError
from lasg.report import page, serve
from lasg.report.formatting import counted
from lasg.runs import progress, store


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
    live: Annotated[
        bool,
        typer.Option("--live", help="Also show runs that still go on, on a local page that reloads itself."),
    ] = False,
    port: Annotated[int, typer.Option(help="--live: the page's port; 0 finds a free one.", min=0)] = 0,
    every: Annotated[float, typer.Option(help="--live: seconds between two reloads.", min=1)] = 5.0,
    json: options.Json = False,
) -> None:
    """Write a report of stored runs: one HTML file that works offline, with table, curves and uploads.

    With --live nothing is written: the page is served on this machine's loopback until Ctrl-C.
    """
    if target is not None and not 0 < target < float("inf"):
        raise LasgError(f"--target must be a loss > 0 and finite, got {target!r}")
    # Every report has all the presets, so --network without a name adds nothing.
    links = None if network in {None, link_time.EVERY} else link_time.read_link_model(str(network))

    def build_now() -> str:
        known = [progress.read(run.folder) for run in store.read_runs(*runs, task=task, partition=partition)]
        shown = [one.run for one in known if one.has_begun]
        if not shown:
            raise LasgError("no run has a checkpoint yet: the first comes after ten seconds")
        more: dict[str, Any] = {"title": title, "scoreboard": scoreboard}
        return page.build(shown, target=target, network=links, under_way=True, **more)

    if live:
        _serve(build_now, port, every)
        return
    found = store.read_runs(*runs, task=task, partition=partition)
    page.write(path, found, target=target, network=links, title=title, scoreboard=scoreboard)
    if json:
        print_json({"report": str(path), "runs": len(found), "bytes": path.stat().st_size})
    else:
        out.print(f"Report: {path} ({path.stat().st_size / 1e6:.1f} MB, {counted(len(found), 'run')})", soft_wrap=True)


def _serve(make: Callable[[], str], port: int, every: float) -> None:
    """Serve the page until the user stops it."""
    with serve.LivePage(make, port, every) as server:
        out.print(f"Report, while the runs go on: {server.url} (Ctrl-C ends it)", soft_wrap=True)
        server.serve_forever()
