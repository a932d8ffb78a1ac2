"""`lasg advise`: what to set, and what each choice gives up."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.cli import options, theory_note
from lasg.cli.live import counting
from lasg.cli.running import fetch
from lasg.cli.show import new_table, out, print_json, titled
from lasg.core.algorithms import algorithm as named
from lasg.core.codecs import QSGD
from lasg.errors import LasgError
from lasg.runs import factories
from lasg.runs.files import write_atomically
from lasg.runs.runner import deterministic_threads
from lasg.runs.spec import Spec
from lasg.runs.tasks import task as task_named
from lasg.theory import advice
from lasg.theory.advice import Column
from lasg.theory.measures import Measures, measure, pieces
from lasg.theory.names import name_of

COLUMNS = {"safe": "theory-safe", "paper": "the task's (the paper's)", "practical": "practical"}
NEEDED = {
    "L": ("assump:smoothness", "every theorem"),
    "L_start": ("", "the practical step"),
    "L_m": ("assump:localsmoothness", "the rule of LASG-PS"),
    "mu": ("assump:strongconvexity", f"the {name_of('thm:stronglyconvex')}"),
    "variances": ("assump:gradientestimator", "every bound"),
    "variances_start": ("", "to compare: the same at theta^0"),
    "B": ("assump:boundedgradient", f"the bound of the {name_of('thm:LAQSG')}"),
    "gap": ("", "every bound: L(theta^0) - 0"),
}
"""Which assumption gives a number, and what takes it."""
FOR_NETWORKS = (
    "On networks other methods save more than laziness: lasg run {task} -a lasg-local --set H=20 --set optimizer=SGD "
    "(local steps), or -a lasg-sparse (one gradient per step). lasg scoreboard --task {task} compares them."
)
"""What docs/choosing.md recommends."""
WORDS = {"L_start": "L at theta^0", "variances": "sum of sigma_m^2", "variances_start": "sum of sigma_m^2 at theta^0"}


def advise(
    task: options.TaskName,
    algorithm: Annotated[
        str, typer.Option("-a", "--algorithm", help="The algorithm (lasg list algorithms).")
    ] = "lasg-wk2",
    setting: options.Setting = "heterogeneous",
    seed: Annotated[int, typer.Option(help="The seed.", min=0)] = 0,
    changes: options.Changes = [],  # noqa: B006
    scale: options.Scale = False,
    column: Annotated[str, typer.Option(help="Which to write: safe, paper or practical.")] = "practical",
    out_file: Annotated[
        Path, typer.Option("--out", help="Where to write its spec, for lasg run.", dir_okay=False)
    ] = Path("advice.toml"),
    data_dir: options.DataDir = None,
    json: options.Json = False,
) -> None:
    """Measure L, L_m, mu and sigma_m^2 of a task, print settings in three columns, and write one of them as a spec.

    Exact or a bound for regressions; for networks an estimate at the start, from products with the Hessian.
    """
    if column not in COLUMNS:
        raise LasgError(f"unknown column {column!r}: {', '.join(COLUMNS)}")
    spec = task_named(task).changed(algorithm, setting, seed, options.read_changes(changes, scale=scale))
    why = theory_note.unfit(spec)
    if why:
        raise LasgError(f"there is no advice for this: {why}")
    options.check_writable(out_file)
    fetch([spec], data_dir)
    with deterministic_threads(spec):
        problem = factories.problem(spec, data_dir)
        with counting(pieces(problem), "measuring") as tell:
            found = measure(problem, tell)
    columns = advice.advise(found, theory_note.settings_of(spec), _run(spec))
    chosen = next(one for one in columns if one.name == column)
    write_atomically(out_file, _spec(spec, chosen).to_toml().encode())
    if json:
        print_json({"task": task, "algorithm": algorithm, **_rows(found, columns), "spec": str(out_file)})
        return
    _print_numbers(found, spec)
    _print_columns(columns, spec)
    if spec.neural:
        out.print(FOR_NETWORKS.format(task=task), soft_wrap=True)
    out.print(f"Spec: {out_file} ({column}). Run it: lasg run {out_file}", soft_wrap=True)


def _run(spec: Spec) -> advice.Run:
    chosen = named(spec.algorithm)
    codec = chosen.codec(spec.bits, spec.bucket)
    bits = {"bits": codec.bits, "bucket": codec.bucket} if isinstance(codec, QSGD) else {}
    return advice.Run(rule=chosen.rule.name, rounds=spec.iterations, neural=spec.neural, **bits)


def _spec(spec: Spec, column: Column) -> Spec:
    return spec if column.name == "paper" else spec.but(**column.settings.changes())


def _rows(found: Measures, columns: tuple[Column, ...]) -> dict[str, Any]:
    shown = [
        {
            "column": one.name,
            "settings": one.settings.changes(),
            "standing": one.applicability.row(),
            "bound": one.bound,
            "gives_up": one.gives_up,
        }
        for one in columns
    ]
    return {"measures": asdict(found), "columns": shown}


def _print_numbers(found: Measures, spec: Spec) -> None:
    table = new_table()
    for heading in ("number", "value", "known", "assumption", "who needs it"):
        table.add_column(heading, justify="right" if heading == "value" else "left")
    for name, (assumption, who) in NEEDED.items():
        value = getattr(found, name)
        known = found.how[name] if value is not None else ""
        table.add_row(WORDS.get(name, name), _value(name, value), known, name_of(assumption), who)
    samples = ", estimated at theta^0 only: a network's L may be larger elsewhere" if spec.neural else ""
    out.print(titled(f"{spec.task}, {spec.workers} workers, {found.p:,} parameters{samples}", table))


def _value(name: str, value: Any) -> str:
    if value is None:
        return "none"
    if name == "L_m":
        return f"{min(value):.3g} to {max(value):.3g}"
    return f"{sum(value) if isinstance(value, tuple) else value:.4g}"


def _print_columns(columns: tuple[Column, ...], spec: Spec) -> None:
    table = new_table()
    table.add_column(spec.algorithm)
    for one in columns:
        table.add_column(COLUMNS[one.name], justify="right")
    rows = [_cells(one) for one in columns]
    for name in rows[0]:
        table.add_row(name, *(row[name] for row in rows))
    out.print(titled(f"Settings for {spec.iterations:,} rounds", table))
    for one in columns:
        out.print(f"{COLUMNS[one.name]}: {one.gives_up}.", soft_wrap=True)


def _cells(one: Column) -> dict[str, str]:
    settings, applies = one.settings, one.applicability
    constant = settings.changes()["schedule"] == "constant"
    bound = "" if one.bound is None else f"{one.bound:.4g} on {_bounded(applies.theorem)}"
    return {
        "step": f"{settings.schedule(0):.4g}" + ("" if constant else ", falling as 2 / (mu (k + K0))"),
        "c_d, the weight of a move": f"{settings.c:g} / eta^2" if settings.c_d is None else f"{settings.c_d:.4g}",
        "moves summed": f"{min(settings.window, settings.D)}",
        "D, the largest staleness": f"{settings.D}",
        "theorem": name_of(applies.theorem or "none"),
        "within it": "yes" if applies.inside else "no",
        "bound at the end": bound,
    }


def _bounded(theorem: str | None) -> str:
    return "the gap" if theorem == "thm:stronglyconvex" else "||grad||^2"
