"""`lasg theory`: what Section 4 of the paper allows, and whether what it promises is so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from lasg.cli import options
from lasg.cli.live import counting
from lasg.cli.show import new_table, out, print_json, titled
from lasg.report import plots, theory_plots
from lasg.report.formatting import counted
from lasg.report.paper_tables import to_csv
from lasg.runs.files import write_atomically
from lasg.theory import check as measured
from lasg.theory.bounds import Known, Nonconvex, Quantised, StronglyConvex
from lasg.theory.estimates import Claim
from lasg.theory.names import name_of

app = typer.Typer(help="What Section 4 of the paper allows and promises, and whether it is true.", no_args_is_help=True)

Seeds = Annotated[
    int | None, typer.Option(help="How many seeds of the strongly convex runs; the others follow from it.", min=3)
]
Results = Annotated[
    Path | None, typer.Option(help="Folder for claims.csv, curves.csv and the pictures.", file_okay=False)
]


@app.command()
def check(
    seeds: Seeds = None,
    quick: Annotated[bool, typer.Option("--quick", help="Shorter and fewer runs: wider intervals.")] = False,
    results: Results = None,
    json: options.Json = False,
) -> None:
    """Measure the lemmas and rates of Section 4 on problems with known constants.

    Every number has a 95 % confidence interval over seeds. A claim holds if the whole interval lies where it should.
    It is unclear if only the interval reaches out, which more seeds settle. Exit code 1 if one fails.
    """
    plan = measured.QUICK if quick else measured.Plan()
    plan = plan if seeds is None else replace(plan, seeds=seeds)
    if results is not None:
        plots.check(results / "figure.png")
        options.check_writable(results / "claims.csv")
    found = measured.judge(plan, _run(plan))
    if results is not None:
        _write(results, found)
    if json:
        print_json([_finite(claim.row()) for claim in found.claims])
    else:
        _print(found.claims)
        if results is not None:
            out.print(f"Wrote claims.csv, curves.csv and {counted(len(theory_plots.TITLES), 'picture')} to {results}")
    if any(claim.verdict == "fails" for claim in found.claims):
        raise typer.Exit(1)


def _run(plan: measured.Plan) -> measured.Traces:
    wanted = measured.jobs(plan)
    traces: dict[tuple[measured.Part, str, int], list[measured.Trace]] = {}
    with counting(sum(job.rounds for job in wanted), "theory check") as tell:
        for job in wanted:
            tell(0, f"{job.part}, {job.algorithm}, {job.rounds} rounds, seed {job.seed}")
            traces.setdefault(job[:3], []).append(measured.run(job, plan))
            tell(job.rounds, f"{job.part}, {job.algorithm}")
    return traces


def _write(folder: Path, found: measured.Findings) -> None:
    write_atomically(folder / "claims.csv", to_csv([claim.row() for claim in found.claims]).encode())
    rows = [row for curve in found.curves for row in curve.rows()]
    write_atomically(folder / "curves.csv", to_csv(rows).encode())
    for name in theory_plots.TITLES:
        plots.save(theory_plots.draw(name, found.curves), folder / f"{name}.png")


def _finite(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row for JSON, which has no infinity: where there is no end, None."""
    return {key: None if value in {float("inf"), float("-inf")} else value for key, value in row.items()}


def _print(claims: list[Claim]) -> None:
    for label in dict.fromkeys(claim.label for claim in claims):
        table = new_table()
        for column in ("what", "algorithm", "found", "95 % interval", "wanted", "uploads saved", "seeds", "verdict"):
            table.add_column(column, justify="left" if column in {"what", "algorithm", "verdict"} else "right")
        for claim in claims:
            if claim.label == label:
                table.add_row(
                    claim.what,
                    claim.algorithm,
                    f"{claim.found.value:.3f}",
                    f"{claim.found.low:.3f} to {claim.found.high:.3f}",
                    _wanted(claim),
                    f"{100 * claim.saved:.0f} %",
                    str(claim.seeds),
                    claim.verdict,
                )
        name = name_of(label)
        out.print(titled(name[:1].upper() + name[1:], table))
    held = sum(claim.verdict == "holds" for claim in claims)
    promised = sum(claim.promised for claim in claims)
    out.print(f"{held} of {promised} claims hold; {len(claims) - promised} more numbers are observations.")
    if any(claim.verdict == "unclear" for claim in claims):
        out.print("unclear: the number lies where it should, its interval reaches out. Take more --seeds.")


def _wanted(claim: Claim) -> str:
    if not claim.promised:
        return ""
    if claim.least == float("-inf"):
        return f"<= {claim.most:g}"
    return f">= {claim.least:g}" if claim.most == float("inf") else f"{claim.least:g} to {claim.most:g}"


@app.command()
def bounds(
    L: Annotated[float, typer.Option("--L", help="The smoothness of the loss.")],
    workers: Annotated[int, typer.Option(help="The number of workers, M.")],
    D: Annotated[int, typer.Option("--D", help="The largest staleness.")],
    rounds: Annotated[int, typer.Option(help="The number of rounds, K.", min=1)],
    variance: Annotated[float, typer.Option(help="The sum of the workers' gradient variances.")],
    gap: Annotated[float, typer.Option(help="The loss at the start, less its minimum.")],
    mu: Annotated[float | None, typer.Option(help="The strong convexity.")] = None,
    B: Annotated[float | None, typer.Option("--B", help="A bound on a worker's squared gradients.")] = None,
    p: Annotated[int | None, typer.Option(help="The length of the model; with --B and --bits.")] = None,
    bits: Annotated[int | None, typer.Option(help="Bits per entry of a quantised upload.")] = None,
    json: options.Json = False,
) -> None:
    """Print the steps and c_d that the theorems allow, and what they promise after K rounds."""
    known = Known(L=L, M=workers, D=D, variance=variance, gap=gap, mu=mu, B=B, p=p, bits=bits)
    rows = []
    for theorem in (Nonconvex, *([Quantised] if None not in {B, p, bits} else [])):
        best = theorem(known)
        eta = best.best_step(rounds)
        rows.append(_allowed(best.label, best.largest_step, eta, best.largest_c(eta), best.bound(rounds, eta)))
    if mu is not None:
        convex = StronglyConvex(known)
        first = convex.schedule()(0)
        rows.append(_allowed(convex.label, first, first, convex.largest_c(), convex.bound(rounds), convex.K0))
    if json:
        print_json(rows)
        return
    table = new_table()
    for column in rows[0]:
        table.add_column(column, justify="left" if column == "theorem" else "right")
    for row in rows:
        table.add_row(*map(_cell, {**row, "theorem": name_of(row["theorem"])}.values()))
    out.print(titled(f"What the theorems allow, and promise after {rounds:,} rounds", table))
    other = name_of(StronglyConvex.label)
    out.print(f"The bound is on the mean squared gradient; under the {other}, on the loss less its minimum.")


def _cell(value: str | float | None) -> str:
    return value if isinstance(value, str) else "" if value is None else f"{value:.6g}"


def _allowed(
    label: str, largest: float, eta: float, c_d: float, bound: float, K0: float | None = None
) -> dict[str, Any]:
    return {
        "theorem": label,
        "largest step": largest,
        "step (the first)": eta,
        "largest c_d": c_d,
        "K0": K0,
        "bound": bound,
    }
