"""`lasg watch`: a run that goes on, in the terminal: loss, bytes saved, who uploads."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from lasg.cli.show import err, out
from lasg.report.formatting import duration, short
from lasg.runs import progress
from lasg.runs.progress import Progress

BARS = "▁▂▃▄▅▆▇█"
ROUNDS, WORKERS = 60, 24
"""How much of the uploads is shown."""


def watch(
    folder: Annotated[Path, typer.Argument(help="The folder of a run (lasg list runs).", metavar="RUN")],
    every: Annotated[float, typer.Option(help="Seconds between two looks.", min=0.1)] = 2.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, and do not wait for the end.")] = False,
) -> None:
    """Follow a run while it goes on, in any engine: loss, uploads and bytes saved, who uploads. Ends with the run.

    It only reads the run's checkpoints, so what it shows is as old as the last one.
    """
    found = progress.read(folder)
    if once or found.has_ended:
        out.print(frame(found))
        return
    with Live(frame(found), console=err, auto_refresh=False) as live:
        while not found.has_ended:
            time.sleep(every)
            found = progress.read(folder)
            live.update(frame(found), refresh=True)


def frame(found: Progress, now: float | None = None) -> Group:
    """Return what is shown of a run."""
    run, spec = found.run, found.run.spec
    lines = [Text(f"{spec.task}, {spec.algorithm}, seed {spec.seed}: {_state(found, now)}", style="bold")]
    if not found.has_begun:
        return Group(*lines, Text("no checkpoint yet: the first comes after ten seconds"))
    last = {name: run.trace[name][-1] for name in run.trace if run.trace[name].ndim == 1 and len(run.trace[name])}
    accuracy = "" if math.isnan(last["accuracy"]) else f", accuracy {100 * last['accuracy']:.1f} %"
    lines += [
        Text(f"loss      {curve(run.trace['loss'].tolist())} {last['loss']:.4g}{accuracy}"),
        Text(f"rounds    {last['rounds']}, {last['gradients']} gradients"),
        Text(f"uploads   {last['uploads']}, {100 * found.uploads_saved:.0f} % saved"),
        Text(
            f"up        {short(last['bits_up'] / 8)}B, {100 * found.bits_saved:.1f} % of dense uploads saved; "
            f"down {short(last['bits_down'] / 8)}B"
        ),
    ]
    return Group(*lines, *raster(found))


def _state(found: Progress, now: float | None) -> str:
    if found.has_ended:
        return found.run.status
    age = "" if not found.written else f", as of {duration(max(0.0, (now or time.time()) - found.written))} ago"
    return f"{'running' if found.is_live else 'stopped, or not on this machine'} ({found.run.meta['engine']}){age}"


def curve(values: list[float], width: int = 40) -> str:
    """Draw numbers as bars of eight heights, on a logarithmic scale where all are above 0."""
    known = [value for value in values if math.isfinite(value)]
    if not known:
        return "not measured"
    step = max(1.0, len(known) / width)
    picked = [known[min(len(known) - 1, int(i * step))] for i in range(min(width, len(known)))]
    heights = [math.log(value) for value in picked] if min(picked) > 0 else picked
    low, span = min(heights), (max(heights) - min(heights)) or 1.0
    return "".join(BARS[round((height - low) / span * (len(BARS) - 1))] for height in heights)


def _away(found: Progress, m: int) -> str:
    """Say for how long a member of a federation has not answered, if it has not."""
    rounds = found.unanswered[m] if found.unanswered else 0
    return f", no answer for {rounds} round{'s' if rounds > 1 else ''}" if rounds else ""


def raster(found: Progress) -> list[Text]:
    """Draw who uploaded in the last rounds: a row per worker, the newest round at the right."""
    uploaded, names = found.speaks(ROUNDS), found.names()
    if not len(uploaded):
        return []
    width = max(len(name) for name in names[:WORKERS])
    lines = [Text(f"who uploaded in the last {len(uploaded)} rounds")]
    for m, name in list(enumerate(names))[:WORKERS]:
        marks = "".join("●" if said else "·" for said in uploaded[:, m])
        lines.append(Text(f"{name:>{width}} {marks} {100 * uploaded[:, m].mean():.0f} %{_away(found, m)}"))
    return [*lines, *([Text(f"... and {len(names) - WORKERS} more")] if len(names) > WORKERS else [])]
