"""A comparison in sentences: who saved most, what it cost, and on which links it pays."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lasg.core.algorithms import ALGORITHMS
from lasg.experiments.compare import BASELINE, Summary
from lasg.experiments.series import LAZINESS, settings
from lasg.experiments.words import factor, seeds_of, short

PAYS = 1.1
"""A time so many times shorter counts as shorter: evaluations of the loss are up to 10 % apart."""


def name(row: Summary) -> str:
    """Write an algorithm as the paper does."""
    return row.label.upper() if row.label in ALGORITHMS else row.label


def best_of(rows: Sequence[Summary]) -> Summary | None:
    """Return who reached the loss with the fewest upload bits, other than the sgd that is compared with."""
    found = [row for row in rows if row.counts and row is not baseline_of(rows)]
    return min(found, key=lambda row: row.counts["bits_up"].mean, default=None)


def baseline_of(rows: Sequence[Summary]) -> Summary | None:
    """Return sgd's row, if it got there."""
    return next((row for row in rows if row.algorithm == BASELINE and row.counts), None)


def sentences(rows: Sequence[Summary], target: float) -> list[str]:
    """Say who reached the loss with the fewest upload bits, and what the others of its counts were."""
    best, baseline = best_of(rows), baseline_of(rows)
    if best is None:
        if baseline is None:
            return [f"Nobody reached loss {target:g} with every seed."]
        alone = f"{name(baseline)} reached loss {target:g}"
        return [f"{alone}; no other algorithm did with every seed." if len(rows) > 1 else f"{alone}."]
    if not best.counts["uploads"].mean:
        return [f"Loss {target:g} was there before the first upload: choose a lower one to compare at."]
    over = seeds_of(best.seeds)
    if baseline is None:
        spent = f"{short(best.counts['uploads'].mean)} uploads and {short(best.counts['bits_up'].mean)} upload bits"
        return [f"{name(best)} reached loss {target:g} with {spent}, the fewest bits ({over})."]
    said = f"{_than(best.fewer_uploads, 'uploads')} and {_than(best.fewer_bits, 'upload bits')} than"
    if said == "as many uploads and as many upload bits than":
        said = "as many uploads and upload bits as"
    total = _ratio(baseline, best, "bits_total")
    work = _ratio(baseline, best, "gradients")
    return [
        f"{name(best)} reached loss {target:g} with {said} {name(baseline)} ({over}).",
        f"In both directions together it sent {_than(total, 'bits')}; it computed {_than(work, 'gradients')}.",
    ]


def _ratio(baseline: Summary, best: Summary, key: str) -> float | None:
    mine = best.counts[key].mean
    return baseline.counts[key].mean / mine if mine else None


def _than(ratio: float | None, what: str) -> str:
    """Write a ratio of counts: 4.1x fewer uploads, 1.9x more gradients."""
    if ratio is None:
        return f"no {what}"
    if abs(ratio - 1) < 0.005:
        return f"as many {what}"
    return f"{factor(ratio)} fewer {what}" if ratio >= 1 else f"{factor(1 / ratio)} more {what}"


def links(timed: Mapping[str, Sequence[Summary]]) -> list[str]:
    """Say for each network whether laziness pays there in time.

    A lazy algorithm is compared with its twin that always uploads, in the same encoding: what quantising saves is
    not laziness.
    """
    said = []
    for network, rows in timed.items():
        gains = [(twin.counts["seconds"].mean / row.counts["seconds"].mean, row, twin) for row, twin in _twins(rows)]
        if not gains:
            return ["No lazy algorithm and its twin that always uploads both reached the loss."]
        gain, row, twin = max(gains, key=lambda found: found[0])
        if gain >= PAYS:
            slower = ", ".join(f"{name(other)} ({less:.2f}x)" for less, other, _ in gains if less <= 1 / PAYS)
            but = f"; slower than its twin: {slower}" if slower else ""
            said.append(f"{network}: laziness pays, {name(row)} is {factor(gain)} as fast as {name(twin)}{but}.")
        else:
            fastest = f"{name(row)}, is {gain:.2f}x as fast as {name(twin)}"
            said.append(f"{network}: laziness does not pay in time; the best lazy one, {fastest}.")
    return said


def _twins(rows: Sequence[Summary]) -> list[tuple[Summary, Summary]]:
    """Pair each lazy algorithm that took some time to get there with the one that differs from it in the rule alone."""
    timed = [row for row in rows if row.counts and row.counts["seconds"].mean > 0]
    always = {_but_the_rule(row): row for row in reversed(timed) if row.spec.composition.rule.left is None}
    lazy = [row for row in timed if row.spec.composition.rule.left is not None]
    return [(row, always[_but_the_rule(row)]) for row in lazy if _but_the_rule(row) in always]


def _but_the_rule(row: Summary) -> str:
    """Return all that decides a run's course besides the seed, the rule and its constants."""
    spec = row.spec
    kind = spec.composition
    of_the_rule = {"algorithm", "rule", *LAZINESS, "start", "smoothness", "bits", "bucket", "H"}
    kept = {key: value for key, value in settings(spec).items() if key not in of_the_rule}
    return repr((sorted(kept.items()), kind.codec(spec.bits, spec.bucket), kind.local_steps(spec.H)))
