"""`lasg paper`: the paper's tables and figures, ours beside them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.cli import options
from lasg.cli.options import RUNS
from lasg.cli.running import execute
from lasg.cli.show import new_table, out, print_json, titled
from lasg.errors import LasgError
from lasg.report import figure_data, paper_tables, savings
from lasg.report import paper as papers
from lasg.report.formatting import seeds_of
from lasg.runs.files import write_atomically
from lasg.runs.spec import folder_name
from lasg.runs.store import Run


def paper(
    what: Annotated[
        str,
        typer.Argument(help="table1, table2, table3, table4, toy, gradients, savings, best or search.", metavar="WHAT"),
    ],
    tasks: Annotated[list[str], typer.Option("--task", help="Only this task; may be repeated.")] = [],  # noqa: B006
    algorithms: options.Algorithms = "all",
    seeds: options.Seeds = 5,
    first_seed: options.FirstSeed = 0,
    setting: options.OptionalSetting = None,
    changes: options.Changes = [],  # noqa: B006
    results: Annotated[Path, typer.Option(help="Folder for the CSV and Markdown files.", file_okay=False)] = Path(
        "lasg-paper"
    ),
    out_dir: options.Out = RUNS,
    data_dir: options.DataDir = None,
    jobs: options.Jobs = None,
    fresh: options.Fresh = False,
    csv: options.Csv = None,
    tensorboard: options.TensorBoard = None,
    track: options.Track = [],  # noqa: B006
    json: options.Json = False,
) -> None:
    """Print a table of the paper with ours beside it, or the data of a figure; write CSV and Markdown.

    toy: uploads per 10 iterations of LAG-WK and LASG-WK2. gradients: loss against gradient evaluations on covtype.
    savings: what LASG-WK2 spends on mnist-nn to SGD's final loss; search: the same for other c, D and quantisers;
    best: for the one of these that saves most.
    The tables leave mnist-nn out, which takes hours, unless --task names it; -a is for tables only.
    """
    chosen = range(first_seed, first_seed + seeds)
    files = options.trackers(csv, tensorboard, track)
    how: dict[str, Any] = {"jobs": jobs, "fresh": fresh, "data_dir": data_dir, "track": files}
    tables = {f"table{n}": n for n in range(1, 5)}
    if what in tables:
        named = options.split_algorithms(algorithms)
        cells = papers.cells(tables[what], tasks, named)
        changed = options.read_changes(changes)
        done = execute([cell.spec(seed, **changed) for cell in cells for seed in chosen], out_dir, what, **how)
        runs = {cell: done[i * seeds : (i + 1) * seeds] for i, cell in enumerate(cells)}
        only = "" if algorithms == "all" else f" -a {','.join(named)}"
        _print_table(what, papers.results(cells, runs), results, tasks, only, chosen, changes, json, done)
    elif algorithms != "all":
        raise LasgError(f"-a is for tables; {what} has algorithms of its own")
    elif what in savings.VARIANTS:
        _savings(what, tasks, chosen, setting, changes, results, out_dir, json, **how)
    elif changes:
        raise LasgError(f"--set is for tables, savings, best and search; {what} has settings of its own")
    elif what == "toy":
        _toy(tasks, chosen, results, out_dir, json, **how)
    elif what == "gradients":
        if tasks not in ([], ["covtype-lr"]):
            raise LasgError(f"gradients is about covtype-lr only, got --task {tasks[0]}")
        listed = figure_data.gradient_specs(chosen, 2000, "heterogeneous")
        rows = figure_data.gradient_rows(execute(listed, out_dir, what, **how))
        _write(results / "covtype-gradients.csv", paper_tables.to_csv(rows), rows, json)
    else:
        raise LasgError(
            f"unknown part of the paper {what!r}: {', '.join([*tables, 'toy', 'gradients', *savings.VARIANTS])}"
        )


def _savings(
    what: str,
    tasks: list[str],
    seeds: range,
    setting: str | None,
    changes: list[str],
    results: Path,
    out_dir: Path,
    json: bool,
    **how: Any,
) -> None:
    if tasks not in ([], [savings.TASK]):
        raise LasgError(f"{what} is about {savings.TASK} only, got --task {tasks[0]}")
    chosen = setting or "heterogeneous"
    listed = savings.specs(savings.VARIANTS[what], chosen, seeds, **options.read_changes(changes))
    done = iter(execute([spec for group in listed.values() for spec in group], out_dir, what, **how))
    rows = savings.rows({label: [next(done) for _ in group] for label, group in listed.items()})
    if not json:
        table = new_table()
        for column in ("variant", "uploads", "fewer uploads", "fewer upload bits", "test accuracy", "less SGD's"):
            table.add_column(column, justify="left" if column == "variant" else "right")
        for row in rows:
            table.add_row(
                row["variant"],
                "not reached" if row["uploads"] is None else f"{row['uploads']:,.0f}",
                *(_factor(row, kind) for kind in ("uploads", "bits_up")),
                f"{100 * row['accuracy']:.2f} %",
                f"{100 * row['accuracy_less_sgds']:+.2f} %",
            )
        named = ", ".join([savings.TASK, chosen, *changes])
        title = f"{named}: what each spends to SGD's loss after 10,000 uploads ({seeds_of(len(seeds))})"
        out.print(titled(title, table))
    name = "-".join([what, savings.TASK, chosen, *map(_in_names, changes)])
    _write(results / f"{name}.csv", paper_tables.to_csv(rows), rows, json)


def _in_names(change: str) -> str:
    """Return a change of a setting as a part of a file's name."""
    return folder_name(change.replace("=", ""))


def _factor(row: dict[str, Any], kind: str) -> str:
    mean, spread = row[f"fewer_{kind}"], row[f"fewer_{kind}_spread"]
    return "-" if mean is None else f"{mean:.2f}x" + ("" if spread is None else f" ± {spread:.2f}")


def _toy(tasks: list[str], seeds: range, results: Path, out_dir: Path, json: bool, **how: Any) -> None:
    listed = {name: figure_data.toy_specs(name, seeds, 2000, "homogeneous") for name in tasks or figure_data.TOY_TASKS}
    flat = [spec for groups in listed.values() for group in groups.values() for spec in group]
    done = iter(execute(flat, out_dir, "toy", **how))
    rows = []
    for name, groups in listed.items():
        found = figure_data.toy_rows({label: [next(done) for _ in group] for label, group in groups.items()})
        rows += [{"task": name, **row} for row in found]
    _write(results / "toy.csv", paper_tables.to_csv(rows), rows, json)


def _write(path: Path, text: str, rows: list[dict[str, Any]], json: bool) -> None:
    write_atomically(path, text.encode())
    if json:
        print_json(rows)
    else:
        out.print(f"Wrote {path}: {len(rows)} rows, columns {', '.join(rows[0])}", soft_wrap=True)


def _print_table(
    what: str,
    found: list[papers.Result],
    results: Path,
    tasks: list[str],
    only: str,
    seeds: range,
    changes: list[str],
    json: bool,
    runs: list[Run],
) -> None:
    """Write a table's files and print it."""
    verdict = papers.judge(found, papers.cells(found[0].cell.table, tasks))
    rows = [paper_tables.to_row(result) for result in found]
    command = f"lasg paper {what} --seeds {len(seeds)} --first-seed {seeds.start}"
    command += "".join(f" --task {name}" for name in tasks) + only + "".join(f" --set {change}" for change in changes)
    once = {run.folder: run for run in runs}.values()
    seconds = sum(float(run.meta["seconds"]) for run in once)
    apart = sum(float(run.meta.get("evaluation_seconds", 0)) for run in once)
    evaluated = f", and {apart:.0f} s to evaluate" if apart else ""
    took = f"Its {len(once)} runs took {seconds:.0f} s of one core{evaluated}."
    head = f"# The paper's {what}, ours beside it\n\nPrinted by `{command}`. {took}\n"
    said = "\n".join(f"- {line}" for line in paper_tables.sentences(verdict))
    name = "-".join([what, *tasks, *map(_in_names, changes)])
    write_atomically(results / f"{name}.csv", paper_tables.to_csv(rows).encode())
    write_atomically(results / f"{name}.md", f"{head}\n{said}\n\n{paper_tables.to_markdown(found)}".encode())
    if json:
        print_json(rows)
        return
    for name_ in dict.fromkeys(result.cell.task for result in found):
        group = [result for result in found if result.cell.task == name_]
        table = new_table()
        for column in ("algorithm", "ours", "spread", "paper", "deviation"):
            table.add_column(column, justify="left" if column == "algorithm" else "right")
        for result in group:
            loss, off = paper_tables.printed_and_off(result)
            table.add_row(
                result.cell.algorithm,
                f"{result.ours.mean:.4f}",
                paper_tables.spread_of(result),
                loss,
                off,
            )
        out.print(titled(paper_tables.heading(group[0].cell, len(seeds)), table))
    for line in paper_tables.sentences(verdict):
        out.print(line)
    out.print(f"Wrote {results / name}.csv and .md", soft_wrap=True)
