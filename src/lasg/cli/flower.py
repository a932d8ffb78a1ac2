"""Federations on Flower: `lasg flower new`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lasg.cli.show import out
from lasg.flower.new import create

app = typer.Typer(help="Federations on Flower.", no_args_is_help=True)


@app.callback()
def _root() -> None:
    """Make `new` a command of its own, though it is the only one."""


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the app's.", metavar="DIR")],
) -> None:
    """Write a Flower app with lazy aggregation, which `flwr run` starts as it is."""
    for path in create(folder):
        out.print(str(path), highlight=False)
    out.print(f"\nflwr run {folder} --stream", highlight=False)
