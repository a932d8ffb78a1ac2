"""`lasg elastic`, `lasg replay`: ranks that come and go."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from lasg.cli.show import err, new_table, out
from lasg.errors import LasgError

if TYPE_CHECKING:
    from lasg.runs.elastic_demo import Demo, Progress

app = typer.Typer(help="Ranks that come and go, on torchft: its lighthouse, and a demo.", no_args_is_help=True)


@app.command("lighthouse")
def start_lighthouse(
    port: Annotated[int, typer.Option(help="The port that all ranks must reach.")] = 29510,
    heartbeat: Annotated[float, typer.Option(help="Seconds of silence after which a rank is taken for dead.")] = 3.0,
    join: Annotated[float, typer.Option(help="Seconds that a rank which is alive is waited for.")] = 3.0,
) -> None:
    """Run torchft's lighthouse, which knows who is there. One run has one lighthouse. Ctrl-C ends it."""
    from lasg.runs.elastic_demo import lighthouse, port_of

    try:
        started = lighthouse(port, heartbeat=heartbeat, join=join)
    except RuntimeError as error:
        raise LasgError(f"the lighthouse cannot listen on port {port}: {error}") from None
    out.print(f"The lighthouse listens on port {port_of(started)}. Its page: http://localhost:{port_of(started)}/")
    try:
        while True:
            time.sleep(3600)
    finally:
        started.shutdown()


@app.command("demo")
def demo(
    out_dir: Annotated[Path | None, typer.Option("--out", help="A new folder for the record.", file_okay=False)] = None,
    rounds: Annotated[int, typer.Option(help="Rounds to train for.", min=1)] = 40,
) -> None:
    """Train on four ranks of this machine, kill three of them, start them again; check the model from the record."""
    from lasg.runs.elastic_demo import Demo

    folder = out_dir or Path(tempfile.mkdtemp(prefix="lasg-elastic-")) / "record"
    began, running = time.monotonic(), Demo(folder, rounds)
    told = 0
    with Live(console=err, auto_refresh=False, transient=True) as live:
        for progress in running.run():
            if err.is_terminal:
                live.update(frame(progress), refresh=True)
            for event in progress.events[told:]:
                out.print(event)
            told = len(progress.events)
    report(running, time.monotonic() - began)


def frame(progress: Progress) -> Group:
    """Return what is shown while it runs: who is in, who spoke, the loss."""
    from lasg.runs.elastic_demo import NAMES

    table = new_table()
    for column in ("rank", "member", "spoke", "loss"):
        table.add_column(column)
    for name in NAMES:
        state = "dead" if name in progress.dead else "yes" if name in progress.members else "no"
        loss = progress.losses.get(name)
        table.add_row(name, state, "yes" if name in progress.spoke else "", "" if loss is None else f"{loss:.3f}")
    return Group(Text(f"round {progress.k}: {len(progress.members)} members", style="bold"), table)


def report(running: Demo, seconds: float) -> None:
    """Say how it went."""
    progress, checked = running.progress, running.check()
    gaps = sorted(b - a for a, b in zip(progress.times, progress.times[1:], strict=False))
    out.print(
        f"{checked.rounds} rounds recorded in {seconds:.0f} s, {checked.leaves} losses and {checked.joins} joins; a "
        f"round took {gaps[len(gaps) // 2]:.2f} s (median), {gaps[-1]:.2f} s at most",
        soft_wrap=True,
    )
    out.print(
        f"{progress.bytes_up / 1e3:.1f} kB of messages. After every round all members had one model: "
        f"{'yes' if progress.agreed else 'NO'}. Computed again from the record in one process: the same bits",
        soft_wrap=True,
    )
    out.print(f"Record: {running.folder}. Again: lasg replay {running.folder}", soft_wrap=True)


def replay(
    folder: Annotated[Path, typer.Argument(help="The folder of a record (lasg.elastic(record=...)).", metavar="RUN")],
) -> None:
    """Compute the model of an elastic run again from what its ranks said, and compare the bits in every round."""
    from lasg.runs.elastic_replay import replay as replay_record

    found = replay_record(folder)
    out.print(
        f"{found.rounds} rounds, {found.joins} joins, {found.leaves} losses; members were silent {found.silent} times. "
        f"The model is the same, bit for bit, after every round; at the end its checksum is {found.checksum:08x}",
        soft_wrap=True,
    )
