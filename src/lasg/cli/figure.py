"""`lasg figure`: the paper's figures and ours, from stored runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lasg.cli import options
from lasg.cli.options import RUNS
from lasg.cli.running import execute
from lasg.cli.show import err, out, print_json
from lasg.errors import LasgError
from lasg.report import paper_figures, plots


def figure(
    name: Annotated[
        str, typer.Argument(help="A figure (lasg list figures), a task for both its settings, or all.", metavar="NAME")
    ],
    folder: Annotated[Path, typer.Option("--to", help="Folder for the pictures.", file_okay=False)] = Path(
        "lasg-figures"
    ),
    formats: Annotated[
        str, typer.Option(help="Which files to write, separated by commas.", metavar="A,B")
    ] = "svg,png,pdf",
    seeds: Annotated[
        int | None, typer.Option(help="How many seeds; by default the figure's own number.", min=1)
    ] = None,
    first_seed: options.FirstSeed = 0,
    task: Annotated[str | None, typer.Option(help="Another task, for figures that do not belong to one.")] = None,
    setting: options.OptionalSetting = None,
    workers: Annotated[
        str | None,
        typer.Option(help="For sides: which workers, such as 0,9,19; by default the first three.", metavar="M,M"),
    ] = None,
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Draw a figure, or all, as SVG, PNG and PDF; runs first what is not stored."""
    kinds = _split_formats(formats)
    plots.check(Path(f"figure.{kinds[0]}"))
    whose = _split_workers(workers) if workers else None
    choice = paper_figures.Choice(seeds=seeds, first_seed=first_seed, task=task, setting=setting, workers=whose)
    wanted = paper_figures.figures(name, choice)
    done = execute(
        [spec for one in wanted for spec in one.specs],
        out_dir,
        f"figure {name}",
        jobs=jobs,
        fresh=fresh,
        data_dir=data_dir,
        track=options.trackers(csv, tensorboard, track),
    )
    runs = {run.spec.digest: run for run in done}
    written = []
    for one in wanted:
        picture = plots.draw(one.kind, [runs[spec.digest] for spec in one.specs], one.title, one.network)
        for kind in kinds:
            path = folder / f"{one.name}.{kind}"
            plots.save(picture, path)
            written.append(path)
        if not json:
            out.print(f"Figure: {folder / one.name}.{'|'.join(kinds)}", soft_wrap=True)
    if json:
        print_json([str(path) for path in written])
    elif diverged := [run for run in runs.values() if run.status == "diverged"]:
        err.print(f"{len(diverged)} of {len(runs)} runs diverged and are left out of the curves.", soft_wrap=True)


def _split_formats(text: str) -> list[str]:
    kinds = list(dict.fromkeys(kind.strip().lower() for kind in text.split(",") if kind.strip()))
    wrong = [kind for kind in kinds if kind not in plots.FORMATS]
    if wrong or not kinds:
        got = wrong[0] if wrong else "none"
        raise LasgError(f"--formats takes {', '.join(plots.FORMATS)}, separated by commas, got {got}")
    return kinds


def _split_workers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise LasgError(f"--workers takes numbers separated by commas, such as 0,9,19, got {text!r}") from None
