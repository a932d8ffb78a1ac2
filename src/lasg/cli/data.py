"""`lasg data`: data files, where they are and whether they are whole."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from lasg.cli import options
from lasg.cli.live import fetching
from lasg.cli.show import new_table, out, print_json
from lasg.data import manage

app = typer.Typer(help="List, fetch and check data sets.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="A data set (lasg data list).", metavar="NAME")]
OptionalName = Annotated[str | None, typer.Argument(help="A data set; by default all.", metavar="[NAME]")]


@app.command("list")
def list_files(data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """List the data sets, their files, and where each was found."""
    rows = manage.status(data_dir)
    if json:
        print_json([asdict(row) for row in rows])
        return
    table = new_table()
    for column in ("data set", "file", "where", "MB", "prepared"):
        table.add_column(column, overflow="fold", justify="right" if column == "MB" else "left")
    for row in rows:
        size = f"{row.size / 1e6:.1f}" if row.size is not None else ""
        table.add_row(row.dataset, row.file, row.where, size, "yes" if row.prepared else "no")
    out.print(table)
    out.print("Missing files are downloaded when needed, or now: lasg data fetch NAME")


@app.command()
def fetch(
    name: Name,
    force: Annotated[bool, typer.Option("--force", help="Download even what is in the cache.")] = False,
    data_dir: options.DataDir = None,
) -> None:
    """Download what a data set lacks, verify and prepare it."""
    with fetching() as progress:
        paths = manage.fetch(name, force=force, data_dir=data_dir, progress=progress)
    out.print(f"{name} is ready" + (": " + ", ".join(map(str, paths)) if paths else "."), soft_wrap=True)


@app.command()
def check(name: OptionalName = None, data_dir: options.DataDir = None, json: options.Json = False) -> None:
    """Verify the checksums of files and prepared arrays; exit 1 if something is damaged."""
    found = manage.check(name, data_dir)
    if json:
        print_json([asdict(r) for r in found])
    else:
        for r in found:
            line = f"{r.state:8} {r.dataset:14} {r.item}" + (f": {r.reason}" if r.reason else "")
            mend = f" -> {r.mend}" if r.mend else ""
            out.print(line + mend, soft_wrap=True, style="red" if r.state == "damaged" else None)
    if any(r.state == "damaged" for r in found):
        raise typer.Exit(1)
