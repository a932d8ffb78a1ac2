"""The command `lasg`."""

from __future__ import annotations

import signal
import sys
from itertools import zip_longest
from typing import Annotated

import typer

import lasg
from lasg.analysis.link_time import EVERY
from lasg.cli import advise, data, elastic, figure, flower, lists, paper, report, scoreboard, theory, training, watch
from lasg.cli.show import err
from lasg.errors import LasgError, RemoteFailure, Stopped

try:
    from typer.exceptions import TyperException as UsageProblem  # type: ignore[import-not-found, unused-ignore]
except ImportError:  # typer before 0.24 stands on click
    from click.exceptions import ClickException as UsageProblem  # type: ignore[import-not-found, no-redef, unused-ignore]

app = typer.Typer(
    help="Lazily aggregated stochastic gradients: train with a fraction of the uploads.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
training.register(app)
app.command()(paper.paper)
app.command()(figure.figure)
app.command()(report.report)
app.command()(watch.watch)
app.command()(elastic.replay)
app.command("scoreboard")(scoreboard.show_scoreboard)
app.command()(advise.advise)
app.add_typer(lists.app, name="list")
app.add_typer(data.app, name="data")
app.add_typer(flower.app, name="flower")
app.add_typer(theory.app, name="theory")
app.add_typer(elastic.app, name="elastic")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"lasg {lasg.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Hold the options that stand before any command."""


STOPPED = "stopped"


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; return the exit code: 0 done, 1 the run failed, 2 the input was wrong, 130 stopped."""
    try:
        given = arguments if arguments is not None else sys.argv[1:]
        result = app(_with_values(given), standalone_mode=False)
    except LasgError as error:
        return 2 if isinstance(error, RemoteFailure) else _fail(str(error), 130 if isinstance(error, Stopped) else 2)
    except UsageProblem as error:
        # Without a message it is the help of a command that wants another word, and stands there already.
        return _fail(error.format_message(), 2) if error.format_message().strip() else 2
    except (KeyboardInterrupt, typer.Abort):
        return _fail(STOPPED, 130)
    except BrokenPipeError:
        return 1
    if result == 130:  # what typer makes of Ctrl-C
        return _fail(STOPPED, 130)
    return result if isinstance(result, int) else 0


def _with_values(arguments: list[str]) -> list[str]:
    """Give `--network` without a name the value that means all: typer has no options whose value is optional."""
    found = []
    for word, after in zip_longest(arguments, arguments[1:], fillvalue="-"):
        found.append(f"{word}={EVERY}" if word == "--network" and after.startswith("-") else word)
    return found


def _fail(message: str, code: int) -> int:
    err.print(f"lasg: {message}", style="red", soft_wrap=True)
    return code


def entry() -> None:
    """Run as the installed command. SIGTERM ends it as Ctrl-C does: children first, in one line."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    sys.exit(main())
