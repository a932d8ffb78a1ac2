"""`lasg scoreboard`: one fair race per task, and what each method spends to one loss."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group

from lasg.analysis import races, scoreboard
from lasg.analysis.races import Race
from lasg.analysis.scoreboard import Standing
from lasg.cli import options
from lasg.cli.running import execute
from lasg.cli.show import new_table, out, print_json, titled
from lasg.errors import LasgError
from lasg.report import overview_plot, scoreboard_plots
from lasg.report.scoreboard_table import CAPTION, cells, head, hours, json_rows, missing, title
from lasg.runs.spec import Spec
from lasg.runs.store import Run

RESULTS = Path("results/scoreboard")


def show_scoreboard(
    task: Annotated[
        str, typer.Option("--task", help="Races or tasks, separated by commas; all for every race.", metavar="A,B")
    ] = "digits",
    methods: Annotated[
        str, typer.Option("--methods", help="Contenders, separated by commas; all for every one.", metavar="A,B")
    ] = "all",
    seeds: options.Seeds = 3,
    show: Annotated[bool, typer.Option("--show", help="Run nothing: show the results that are there.")] = False,
    results: Annotated[
        Path, typer.Option("--results", help="Folder of the results (CSV), which are added to.", file_okay=False)
    ] = RESULTS,
    out_dir: options.Out = options.RUNS,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = None,
    track: options.Track = [],  # noqa: B006
    plot: Annotated[
        Path | None, typer.Option(help="Also draw upload bits against rounds into this file.", dir_okay=False)
    ] = None,
    picture: Annotated[
        Path | None, typer.Option(help="Also draw megabytes against loss of one race into this file.", dir_okay=False)
    ] = None,
    json: options.Json = False,
) -> None:
    """Tune every method equally, then race them to one loss: bytes both ways, rounds, gradients, time per link.

    Trials and reports have different seeds. A stopped scoreboard goes on where it was; results are only added to.
    """
    chosen = races.races(task)
    if picture and len(chosen) > 1:
        raise LasgError("--picture draws one race: name it with --task")
    options.check_pictures((plot, picture))
    if not show:
        names = {race.name: _named(race, methods) for race in chosen}
        for race in chosen:
            _check_readable(race, results)
        for race in chosen:
            _run(race, names[race.name], seeds, results, out_dir, data_dir, jobs, track)
    known = {race.name: scoreboard.read(results / f"{race.name}.csv") for race in chosen}
    there = {name: rows for name, rows in known.items() if rows}
    if not there:
        raise LasgError(
            f"there are no results of {task} in {results}: run lasg scoreboard --task {task} without --show"
        )
    found = {name: scoreboard.standings(rows) for name, rows in there.items()}
    if plot:
        scoreboard_plots.draw(found, plot)
    if picture:
        _draw_picture(chosen[0], there, methods, picture)
    if json:
        print_json({name: json_rows(listed) for name, listed in found.items()})
        return
    for name, listed in found.items():
        out.print(_table(races.RACES[name], listed))
    notes = (*missing(chosen, there), CAPTION, hours(results, there))
    for line in (*notes, *(f"Plot: {path}" for path in (plot, picture) if path)):
        out.print(line, soft_wrap=True)


def _draw_picture(race: Race, there: Mapping[str, Sequence[scoreboard.Row]], methods: str, path: Path) -> None:
    """Draw megabytes against loss of one race, of the methods that are named."""
    rows, names = there[race.name], _named(race, methods)
    drawn = [row for row in rows if row["contender"] in names]
    overview_plot.draw(drawn, race.reference, overview_plot.heading(race), path)


def _table(race: Race, rows: Sequence[Standing]) -> Group:
    """Return a race's table for the terminal."""
    shown = new_table()
    for name in head():
        left = name in {"", "method"}
        shown.add_column(name, justify="left" if left else "right", no_wrap=name != "method")
    for line in cells(rows, race.reference):
        shown.add_row(*line)
    return titled(title(race, rows), shown)


def _named(race: Race, methods: str) -> list[str]:
    """Return the contenders that the option names; refuse one that is in no such race."""
    if methods == "all":
        return [one.name for one in race.contenders]
    # A contender's name may have a comma of its own.
    rest, found = methods, []
    known = sorted((one.name for one in race.contenders), key=len, reverse=True)
    while rest := rest.strip(" ,"):
        name = next((one for one in known if rest == one or rest.startswith(f"{one},")), None)
        found.append(race.contender(name or rest.partition(",")[0]).name)
        rest = rest[len(found[-1]) :]
    return found


def _check_readable(race: Race, results: Path) -> None:
    """Refuse results that cannot be added to, before the work is done."""
    for path in (results / f"{race.name}.csv", results / f"{race.name}-trials.csv"):
        scoreboard.check_versions(scoreboard.read(path), path)
        options.check_writable(path)


def _run(
    race: Race,
    names: list[str],
    seeds: int,
    results: Path,
    out_dir: Path,
    data_dir: Path | None,
    jobs: int | None,
    track: Sequence[str],
) -> None:
    """Run a race with progress, and add its rows to the results."""

    def run_all(specs: Sequence[Spec], what: str) -> list[Run]:
        return execute(specs, out_dir, what, jobs=jobs, data_dir=data_dir, track=track)

    scoreboard.write(scoreboard.run(race, names, seeds, run_all), results)
