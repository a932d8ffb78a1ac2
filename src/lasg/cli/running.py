"""Runs for the command line: data first, then the runs, with progress, and with their numbers in files."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from lasg.cli import catalog, live, pretrained, theory_note
from lasg.cli.options import Ranks
from lasg.cli.show import err
from lasg.data import weights
from lasg.data.loaders import is_embedded, load
from lasg.data.suspicions import suspicions
from lasg.errors import CannotWrite, LasgError, Stopped
from lasg.report.sinks import Sinks, sink
from lasg.runs import pool, runner
from lasg.runs.spec import Spec
from lasg.runs.status import Report, Status
from lasg.runs.store import Run


def execute(
    listed: Sequence[Spec],
    out_dir: Path,
    what: str,
    *,
    jobs: int | None,
    fresh: bool = False,
    data_dir: Path | None = None,
    track: Sequence[str] = (),
    ranks: Ranks | None = None,
) -> list[Run]:
    """Fetch and prepare the data once, before processes share it; then run the specs. Shows progress for both.

    A spec that is listed twice runs once. Runs of one problem share its data, so they go one after another.
    With `ranks` this process is one of those that torchrun started; all but the first end here.
    """
    if ranks is not None:
        with resumable(lambda: "stopped. To go on, start the same torchrun command again"):
            return _run_on_ranks(listed, out_dir, what, ranks, fresh, data_dir, track)
    for name in dict.fromkeys(spec.weights for spec in listed if pretrained.missing(spec.weights, data_dir)):
        pretrain(str(name), out_dir, fresh=False, data_dir=data_dir)
    order = sorted(listed, key=lambda spec: (spec.data, repr(spec.reading), spec.partition, spec.seed))
    once = {spec.digest: spec for spec in order}
    with writing(track) as files:
        fetch(listed, data_dir)
        with live.following(len(once), what) as follow:
            report = both(follow, files)
            some = list(once.values())
            folders = [runner.folder_for(spec, out_dir) for spec in some]
            with resumable(lambda: catalog.how_to_go_on(folders, out_dir)):
                done = pool.obtain_all(
                    some, out_dir, jobs=jobs or pool.cores(), fresh=fresh, data_dir=data_dir, report=report
                )
    theory_note.annotate(done, data_dir)
    runs = dict(zip(once, done, strict=True))
    return [runs[spec.digest] for spec in listed]


@contextmanager
def resumable(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Say at a Ctrl-C, and where nothing can be written any more, which runs can be continued, and how."""
    try:
        yield
    except CannotWrite as error:
        _, there, todo = how_to_go_on().partition("To go on")
        more = f". Once it can be written again, to go on{todo}" if there else ""
        raise LasgError(f"{error}{more}") from None
    except KeyboardInterrupt:
        raise Stopped(how_to_go_on()) from None


def fetch(listed: Sequence[Spec], data_dir: Path | None) -> None:
    """Fetch and prepare data and weights; say what of a user's own data looks as if it were not meant."""
    lines = []
    with live.fetching() as progress:
        for name, reading in dict.fromkeys((spec.data, spec.reading) for spec in listed):
            if not is_embedded(name):
                loaded = load(name, data_dir=data_dir, progress=progress, reading=reading)
                lines += suspicions(loaded, reading)
        for name in sorted({spec.weights for spec in listed if spec.weights is not None}):
            weights.obtain(name, data_dir, progress=progress)
    for line in lines:
        err.print(f"lasg: note: {line}", soft_wrap=True)


def _run_on_ranks(
    listed: Sequence[Spec],
    out_dir: Path,
    what: str,
    how: Ranks,
    fresh: bool,
    data_dir: Path | None,
    track: Sequence[str],
) -> list[Run]:
    """Run the specs one after another, on all ranks; the first returns the runs, the others end."""
    from lasg.runs import on_ranks as ranks
    from lasg.transports.links import PATIENT, join, leave

    links = join(how.timeout)
    if os.environ.get("LOCAL_RANK", "0") == "0":  # once per host
        fetch(listed, data_dir)
    links.gather(b"", "the data", PATIENT)
    with ExitStack() as stack:
        report = None
        if links.rank == 0:
            files = stack.enter_context(writing(track))
            report = both(stack.enter_context(live.following(len(listed), f"{what}, {links.ranks} ranks")), files)
        found = [
            ranks.obtain(
                spec,
                out_dir,
                links,
                exchange=how.exchange,
                relay=how.relay,
                fresh=fresh,
                data_dir=data_dir,
                report=report,
            )
            for spec in listed
        ]
    leave()
    if links.rank:
        raise typer.Exit
    stored = [run for run in found if run is not None]
    theory_note.annotate(stored, data_dir)
    return stored


def pretrain(name: str, out_dir: Path, *, fresh: bool, data_dir: Path | None, track: Sequence[str] = ()) -> Path:
    """Train weights and keep them; return where."""
    spec = pretrained.recipe(name)
    (run,) = execute([spec], out_dir, f"pretraining {name}", jobs=1, fresh=fresh, data_dir=data_dir, track=track)
    return pretrained.install(run, name)


def both(first: Report, second: Report) -> Report:
    """Return a function that reports to two."""

    def report(status: Status) -> None:
        first(status)
        second(status)

    return report


def writing(track: Sequence[str]) -> Sinks:
    """Open what the option --track names."""
    return Sinks(*map(sink, track))
