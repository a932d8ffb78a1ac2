"""A comparison in sentences: who saved most, what it cost, and on which links it pays."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from lasg.analysis.compare import BASELINE, Summary
from lasg.analysis.series import LAZINESS, settings
from lasg.core.algorithms import ALGORITHMS
from lasg.report.formatting import duration, factor, seeds_of, short

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


def why_no_savings(rows: Sequence[Summary]) -> str:
    """Say why nobody has a saving; nothing where somebody has one."""
    if any(row.fewer_uploads is not None or row.fewer_bits is not None for row in rows):
        return ""
    of_sgd = [row for row in rows if row.algorithm == BASELINE]
    if not of_sgd:
        return "they are against sgd, which is not among the algorithms"
    if all(row.diverged for row in of_sgd):
        return "they are against sgd, which diverged"
    if not any(row.to_savings_loss for row in of_sgd):
        return f"they are against sgd, which did not reach loss {of_sgd[0].savings_loss:g}"
    return f"loss {of_sgd[0].savings_loss:g}, the lowest that all reached, was there before the first upload"


def links(timed: Mapping[str, Sequence[Summary]]) -> list[str]:
    """Say for each network which algorithm is the fastest there, and whether laziness pays.

    A lazy algorithm is compared with its twin that always uploads, in the same encoding: what quantising saves is
    not laziness.
    """
    if not any(_took_time(rows) for rows in timed.values()):
        return ["Nobody reached the loss after some time on these links: there is nothing to compare."]
    return [f"{network}: {' '.join([_fastest(rows), *_laziness(rows)])}" for network, rows in timed.items()]


def _took_time(rows: Sequence[Summary]) -> list[Summary]:
    """Return who got there with every seed, after some time."""
    return [row for row in rows if row.counts and row.counts["seconds"].mean > 0]


def _fastest(rows: Sequence[Summary]) -> str:
    """Name the algorithm to take on a link."""
    timed = _took_time(rows)
    if not timed:
        return "nobody reached the loss after some time."
    best, baseline = min(timed, key=_seconds), baseline_of(timed)
    gain = _seconds(baseline) / _seconds(best) if baseline else 1.0
    if baseline and best is not baseline and gain < PAYS:
        return f"nothing is clearly faster than {name(baseline)}, {duration(_seconds(baseline))}."
    near = [name(row) for row in timed if row not in (best, baseline) and _seconds(row) < PAYS * _seconds(best)]
    than = f", {factor(gain)} as fast as {name(baseline)}" if baseline and best is not baseline else ""
    also = f" (about as fast: {', '.join(near)})" if near and best is not baseline else ""
    return f"{name(best)} is the fastest, {duration(_seconds(best))}{than}{also}."


def _laziness(rows: Sequence[Summary]) -> list[str]:
    """Say whether a lazy algorithm is faster than its twin that always uploads; nothing where there is no pair."""
    gains = [(_seconds(twin) / _seconds(row), row, twin) for row, twin in _twins(rows)]
    if not gains:
        return ["No lazy algorithm and its twin that always uploads both reached the loss."]
    gain, row, twin = max(gains, key=lambda found: found[0])
    if gain >= PAYS:
        slower = ", ".join(f"{name(other)} ({1 / less:.2g}x as long)" for less, other, _ in gains if less <= 1 / PAYS)
        but = f", not with {slower}" if slower else ""
        fastest = min(rows, key=lambda one: _seconds(one) if one.counts else math.inf)
        expected = row is fastest and twin is baseline_of(rows)
        how = "" if expected else f", {factor(gain)} as fast as {name(twin)}"
        return [f"Laziness pays with {name(row)}{how}{but}."]
    if gain > 1 / PAYS:
        return [
            f"Laziness neither saves nor costs time: {name(row)}, its best case, takes about as long as {name(twin)}."
        ]
    return [f"Laziness costs time: {name(row)}, its best case, takes {1 / gain:.2g}x as long as {name(twin)}."]


def _seconds(row: Summary) -> float:
    return row.counts["seconds"].mean


def _twins(rows: Sequence[Summary]) -> list[tuple[Summary, Summary]]:
    """Pair each lazy algorithm that took some time to get there with the one that differs from it in the rule alone."""
    timed = _took_time(rows)
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
