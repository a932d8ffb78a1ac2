"""Federations on Flower: `lasg flower new`."""

from __future__ import annotations

import string
from pathlib import Path
from typing import Annotated

import typer

from lasg.cli.show import out
from lasg.errors import LasgError
from lasg.flower.new import create

ALLOWED = string.ascii_letters + string.digits + ".:_-"
app = typer.Typer(help="Federations on Flower.", no_args_is_help=True)


@app.command()
def new(
    folder: Annotated[Path, typer.Argument(help="The folder to make; its name is the app's.", metavar="DIR")],
) -> None:
    """Write a Flower app with lazy aggregation, which `flwr run` starts as it is."""
    for path in create(folder):
        out.print(str(path), highlight=False)
    out.print(f"\nflwr run {folder} --stream", highlight=False)


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(help="The folder to make.", metavar="DIR")],
    nodes: Annotated[str, typer.Option(help="The nodes' names, separated by commas.", metavar="A,B")],
    hosts: Annotated[
        str, typer.Option(help="Names and addresses of the SuperLink, separated by commas.", metavar="HOST,IP")
    ] = "localhost,127.0.0.1",
) -> None:
    """Make certificates and keys for a trial: a CA, the SuperLink's certificate, a key for every node."""
    try:
        from lasg.flower.keys import create as create_keys
    except ImportError:
        raise LasgError("this needs Flower: pip install 'lasg[flower]'") from None
    for path in create_keys(folder, _names(hosts), _names(nodes)):
        out.print(str(path), highlight=False)


def _names(text: str) -> list[str]:
    found = [name.strip() for name in text.split(",") if name.strip()]
    if not found or any(not set(name) <= set(ALLOWED) for name in found):
        raise LasgError(f"names are letters, digits and . : _ -, separated by commas, got {text!r}")
    return found
