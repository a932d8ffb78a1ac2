"""`lasg demo, run, resume, compare, tune`: what trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.analysis import link_time
from lasg.analysis.compare import Summary, shared_target, summarise
from lasg.analysis.link_model import LinkModel
from lasg.cli import catalog, live, options, pretrained, show, theory_note
from lasg.cli.options import RUNS
from lasg.cli.running import both, execute, resumable, writing
from lasg.cli.running import pretrain as train_weights
from lasg.cli.show import err, new_table, out, print_json
from lasg.cli.tune import points, rank
from lasg.core.algorithms import ALGORITHMS
from lasg.data.sources import TABLE_PREFIXES, is_own
from lasg.errors import LasgError
from lasg.report import page, plots, verdict
from lasg.report.formatting import plus_minus, seeds_of, short
from lasg.runs import runner
from lasg.runs import spec as specs
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.runs.tasks import TASKS
from lasg.runs.tasks import task as task_named

DEMO_TARGET = 0.2
WEIGHTS = next(iter(pretrained.RECIPES))


def register(app: typer.Typer) -> None:
    """Add the commands to the app."""
    for command in (demo, run, resume, compare, tune, pretrain):
        app.command()(command)


def demo(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the runs and the plot.", file_okay=False)] = Path(
        "lasg-demo"
    ),
    seeds: options.Seeds = 3,
    jobs: options.Jobs = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Train all twelve algorithms on embedded data (digits) to one loss, and compare what they sent."""
    found = [
        specs.with_budget(task_named("digits").spec(name, seed=seed), "loss", DEMO_TARGET)
        for seed in range(seeds)
        for name in ALGORITHMS
    ]
    plots.check(out_dir / "demo.png")
    runs = execute(found, out_dir, "12 algorithms on digits", jobs=jobs, fresh=True, track=track)
    title = f"digits, 10 workers with uneven shards: what it took to reach loss {DEMO_TARGET} ({seeds_of(seeds)})"
    summaries = _print_comparison(runs, DEMO_TARGET, title, json, None)
    named = f"digits, 10 workers with uneven shards, {seeds_of(seeds)}"
    plots.comparison(runs, out_dir / "demo.png", named)
    page.write(out_dir / "report.html", runs, title=named)
    if not json:
        for sentence in verdict.sentences(summaries, DEMO_TARGET):
            out.print(sentence, soft_wrap=True)
        out.print(f"Plot: {out_dir / 'demo.png'}. Runs: {out_dir}/. More: lasg compare --help", soft_wrap=True)
        out.print(f"Report, for your browser: {out_dir / 'report.html'}", soft_wrap=True)


def run(
    what: Annotated[str, typer.Argument(help="A spec in TOML, or a task with -a.", metavar="SPEC.toml|TASK")],
    algorithm: Annotated[
        str | None, typer.Option("-a", "--algorithm", help="One algorithm (lasg list algorithms).")
    ] = None,
    setting: options.OptionalSetting = None,
    seed: Annotated[int | None, typer.Option(help="The seed.", min=0)] = None,
    changes: options.Changes = [],  # noqa: B006
    scale: options.Scale = False,
    until: options.Until = [],  # noqa: B006
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    engine: options.Engine = "simulation",
    exchange: options.Exchange = "auto",
    relay: options.Relay = 0,
    timeout: options.Timeout = 300.0,
    fresh: options.Fresh = False,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Run one spec, or one algorithm on a task, and store it."""
    ranks = options.on_ranks(engine, exchange, relay, timeout)
    values = options.read_changes(changes, scale=scale)
    spec = options.limited(_spec_of(what, algorithm, setting, seed, values), until, values)
    files = {"track": options.trackers(csv, tensorboard, track)}
    (found,) = execute([spec], out_dir, spec.algorithm, jobs=1, fresh=fresh, data_dir=data_dir, ranks=ranks, **files)
    _print_run(found, json)


def _spec_of(what: str, algorithm: str | None, setting: str | None, seed: int | None, changes: dict[str, Any]) -> Spec:
    """Read a spec file or take a task's defaults, with the changes of the command line."""
    path = Path(what)
    if what not in TASKS and not is_own(what) and (path.suffix == ".toml" or path.is_file()):
        if setting is not None:
            raise LasgError("a spec file has its own partition: leave --setting out, or --set partition=homogeneous")
        given = {"algorithm": algorithm, "seed": seed}
        return specs.read(path).but(**{**{k: v for k, v in given.items() if v is not None}, **changes})
    named = task_named(what)
    if algorithm is None:
        raise LasgError(f"name an algorithm for the task {what}: -a lasg-wk2 (lasg list algorithms)")
    return named.changed(algorithm, setting or "heterogeneous", seed or 0, changes)


def resume(
    folder: Annotated[
        Path | None,
        typer.Argument(help="The folder of a stored run; without one, those that can be continued.", metavar="[RUN]"),
    ] = None,
    out_dir: Annotated[
        Path, typer.Option("--out", help="Without RUN: the folder in which to look for runs.", file_okay=False)
    ] = RUNS,
    data_dir: options.DataDir = None,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Continue a run that was stopped; the result is as if it had never been stopped.

    Without RUN it continues nothing: it lists the unfinished runs, with the command for each, and exits with 2.
    """
    if folder is None:
        _offer(out_dir, json)
        return
    with (
        writing(options.trackers(csv, tensorboard, track)) as files,
        live.following(1, "resume") as follow,
        resumable(lambda: catalog.how_to_go_on([folder], folder.parent)),
    ):
        found = runner.resume(folder, data_dir=data_dir, report=both(follow, files))
    theory_note.annotate([found], data_dir)
    _print_run(found, json)


def _offer(out_dir: Path, json: bool) -> None:
    """List the runs that can be continued; exit 2 if there are some, since none was named."""
    found, skipped = catalog.find([out_dir] if out_dir.is_dir() else [])
    for line in skipped:
        err.print(line, soft_wrap=True)
    unfinished = [entry for entry in found if entry.status == catalog.UNFINISHED]
    if json:
        print_json([{**entry.row(), "command": entry.command} for entry in unfinished])
    elif unfinished:
        out.print(show.runs_table(unfinished))
        out.print("To go on with one:")
        for entry in unfinished:
            out.print(f"  {entry.command}", soft_wrap=True)
    else:
        out.print(f"Nothing to resume: no unfinished run in {out_dir}. Runs elsewhere: lasg resume --out FOLDER")
    if unfinished:
        raise typer.Exit(2)


def compare(
    task: options.TaskName = "digits",
    algorithms: options.Algorithms = "all",
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    setting: options.Setting = "heterogeneous",
    until: options.Until = [],  # noqa: B006
    changes: options.Changes = [],  # noqa: B006
    scale: options.Scale = False,
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    engine: options.Engine = "simulation",
    exchange: options.Exchange = "auto",
    relay: options.Relay = 0,
    timeout: options.Timeout = 300.0,
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    network: options.Links = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw loss against uploads and bits into this file.")] = None,
    report: Annotated[
        Path | None, typer.Option(help="Also write a report (HTML) to this file.", dir_okay=False)
    ] = None,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Compare algorithms on a task: what they spend to a loss, or reach within a budget."""
    ranks, chosen = options.on_ranks(engine, exchange, relay, timeout), task_named(task)
    values = options.read_changes(changes, scale=scale)
    specs = [
        options.limited(chosen.changed(name, setting, seed, values), until, values)
        for seed in range(first_seed, first_seed + seeds)
        for name in options.split_algorithms(algorithms)
    ]
    target, name = specs[0].until.get("loss"), _name(task, setting, values)
    links = [] if network is None else link_time.read_link_models(network)
    for known in links:
        known.per_worker(specs[0].workers)
    options.check_pictures([plot])
    if report:
        options.check_writable(report)
    files = {"track": options.trackers(csv, tensorboard, track)}
    runs = execute(specs, out_dir, task, jobs=jobs, fresh=fresh, data_dir=data_dir, ranks=ranks, **files)
    goal = f"to reach loss {target:g}" if target else f"until {', '.join(until) or f'iterations={specs[0].iterations}'}"
    titled = f"{name}, {goal} ({seeds_of(seeds)})"
    lost, link = all(run.status == "diverged" for run in runs), links[0] if len(links) == 1 else None
    if len(links) > 1 and not lost:
        _print_links(runs, target, titled, json, links)
    else:
        _print_comparison(runs, target, titled, json, link)
    written = _draw_comparison(runs, plot, report, target, link, name)
    if not json:
        for line in (*_ended_above(runs), *_given_up(runs), *theory_note.lines(runs), *written, f"Runs: {out_dir}/"):
            out.print(line, soft_wrap=True)
    if lost:
        raise _fail(
            f"every run diverged: take a smaller step, such as --set eta={specs[0].eta / 10:g}{_or_scale(specs[0])}"
        )


def _draw_comparison(
    runs: list[Run], plot: Path | None, report: Path | None, target: float | None, link: LinkModel | None, name: str
) -> list[str]:
    """Write the plot and the report that are asked for; return a line about each."""
    lines = []
    if plot:
        drawn = plots.comparison(runs, plot, name, link)
        lines.append(f"Plot: {plot}" if drawn else "No plot: every run diverged.")
    if report and all(run.status == "diverged" for run in runs):
        lines.append("No report: every run diverged.")
    elif report:
        page.write(report, runs, target=target, network=link, title=name)
        lines.append(f"Report: {report}")
    return lines


def _ended_above(runs: list[Run]) -> list[str]:
    """Say in a line whose loss ended above the one it began with."""
    worse = [run for run in runs if run.status == "done" and run.trace["loss"][-1] > run.trace["loss"][0]]
    if not worse:
        return []
    loss, spec = worse[0].trace["loss"], worse[0].spec
    names = ", ".join(dict.fromkeys(run.spec.algorithm for run in worse))
    what = f"{names}: the loss ended above where it began ({loss[0]:.4g}, then {loss[-1]:.4g})"
    return [f"{what}: take a smaller step, such as --set eta={spec.eta / 10:g}{_or_scale(spec)}."]


def _given_up(runs: list[Run]) -> list[str]:
    """Say in a line in whose runs the guard switched laziness off, and why in the first of them."""
    ended = [run for run in runs if run.meta.get("laziness_given_up")]
    if not ended:
        return []
    names = ", ".join(dict.fromkeys(run.spec.algorithm for run in ended))
    return [f"{names}: {ended[0].meta['laziness_given_up']}. --set guard=false keeps the rule."]


def _or_scale(spec: Spec) -> str:
    """Add what else may help a run of the user's own data that diverged."""
    return ", or add --scale" if spec.data.startswith(TABLE_PREFIXES) and not spec.scale else ""


def _fail(message: str) -> typer.Exit:
    """Print why a command that did its work has no result; return the exit with code 1."""
    err.print(f"lasg: {message}", style="red", soft_wrap=True)
    return typer.Exit(1)


def tune(
    task: options.TaskName,
    algorithm: Annotated[str, typer.Option("-a", "--algorithm", help="The algorithm to tune.")],
    grid: Annotated[
        list[str], typer.Option("--grid", help="Values to try: eta=0.05,0.1,c=0.1,1,H=5,10", metavar="KEY=V,V,...")
    ],
    seeds: options.Seeds = 3,
    first_seed: options.FirstSeed = 0,
    setting: options.Setting = "heterogeneous",
    until: options.Until = [],  # noqa: B006
    changes: options.Changes = [],  # noqa: B006
    scale: options.Scale = False,
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = None,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Try every combination of a grid; best first. With --until loss=X the fewest uploads win, else the lowest loss."""
    values = options.read_changes(changes, scale=scale)
    base = options.limited(task_named(task).changed(algorithm, setting, first_seed, values), until, values)
    tried = points(base, options.parse_grid(grid), range(first_seed, first_seed + seeds))
    flat = [spec for _, group in tried for spec in group]
    files = options.trackers(csv, tensorboard, track)
    done = execute(flat, out_dir, f"{len(tried)} settings", jobs=jobs, data_dir=data_dir, track=files)
    groups = [(values, done[i * seeds : (i + 1) * seeds]) for i, (values, _) in enumerate(tried)]
    ranked = rank(groups, base.until.get("loss"))
    if json:
        print_json([{"settings": dict(point.values), **point.summary.to_dict()} for point in ranked])
        return
    table = new_table()
    for column in (*ranked[0].values, "loss", "uploads", "bits up"):
        table.add_column(column, justify="right")
    for point in ranked:
        counts, row = point.summary.counts, point.summary
        spent = [short(counts[name].mean) if counts else "-" for name in ("uploads", "bits_up")]
        loss = "diverged" if row.diverged else plus_minus(row.loss)
        table.add_row(*(str(value) for value in point.values.values()), loss, *spent)
    out.print(show.titled(f"{algorithm} on {_name(task, setting, values)}, best first", table))
    if all(point.summary.diverged for point in ranked):
        out.print("Every setting diverged: try smaller steps.")
        raise typer.Exit(1)
    best = " ".join(f"--set {key}={value}" for key, value in ranked[0].values.items())
    out.print(f"Best: {best}", soft_wrap=True)


def _print_comparison(
    runs: list[Run], target: float | None, title: str, json: bool, network: LinkModel | None
) -> list[Summary]:
    """Print what each algorithm spent, and return it."""
    summaries = summarise(runs, target, network)
    if json:
        print_json([summary.to_dict() for summary in summaries])
    else:
        out.print(show.comparison(summaries, title, target, network))
    return summaries


def _print_links(runs: list[Run], target: float | None, title: str, json: bool, links: list[LinkModel]) -> None:
    """Print the simulated times on every network, and for which of them laziness pays."""
    goal = shared_target(runs) if target is None else target
    timed = {link.name: summarise(runs, goal, link) for link in links}
    if json:
        print_json({name: [summary.to_dict() for summary in rows] for name, rows in timed.items()})
        return
    out.print(show.times(timed, f"{title}: simulated time to loss {goal:g}, and how many times faster than sgd"))
    for line in verdict.links(timed):
        out.print(line, soft_wrap=True)


def _name(task: str, setting: str, changes: dict[str, Any]) -> str:
    """Name what is compared: the task, the setting, and what was changed."""
    shown = [] if "partition" in changes else [setting]
    return ", ".join([task, *shown, *(f"{key}={value}" for key, value in changes.items())])


def _print_run(found: Run, json: bool) -> None:
    """Print how a run ended; exit 1 if it diverged."""
    trace = found.trace
    if json:
        last = {name: trace[name][-1].item() for name in trace if trace[name].ndim == 1 and name != "threshold"}
        last["accuracy"] = None if last["accuracy"] != last["accuracy"] else last["accuracy"]
        print_json({"folder": str(found.folder), "status": found.status, "seconds": found.meta["seconds"], **last})
    else:
        out.print(show.outcome(found))
        for line in (*_ended_above([found]), *_given_up([found]), *theory_note.lines([found]), f"Run: {found.folder}"):
            out.print(line, soft_wrap=True)
    if found.status == "diverged":
        raise _fail(found.meta.get("message", "the run diverged") + _or_scale(found.spec))


def pretrain(
    name: Annotated[str, typer.Argument(help=f"What to make: {WEIGHTS}.", metavar="NAME")] = WEIGHTS,
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    fresh: options.Fresh = False,
    track: options.Track = [],  # noqa: B006
) -> None:
    """Train weights for runs to start from, centrally (one worker), and keep them in the cache.

    Commands that need such weights make them first by themselves. A stopped pretraining goes on where it was.
    """
    path = train_weights(name, out_dir, fresh=fresh, data_dir=data_dir, track=track)
    out.print(f"Weights: {path}. Start from them with --set weights={name}", soft_wrap=True)
