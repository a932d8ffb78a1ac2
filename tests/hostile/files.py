"""Damage every kind of stored file many times, go on with it as a user does, and see what comes of it.

    python -m tests.hostile.files --csv results/hostile-files.csv        # each file 2,000 times: half an hour

A damage is harmless (the same result), healed (the same, and a line was said) or refused (one line that names the
file). It must never be wrong (another result), a traceback, a hang, or a refusal that does not name the file.
"""

from __future__ import annotations

import argparse
import collections
import random
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NamedTuple

from lasg.errors import LasgError
from lasg.report.paper_tables import to_csv
from tests.hostile.mutations import MUTATIONS
from tests.hostile.victims import VICTIMS, Victim, copy, good_files, quiet
from tests.runs.samples import same_bytes

SECONDS = 20
"""After so long it hangs; seconds in which this process stood still do not count."""
FINE, BAD = ("harmless", "healed", "refused"), ("wrong", "unnamed", "traceback", "hang")


class Hang(BaseException):
    """Not to be caught by what catches exceptions."""


class Outcome(NamedTuple):
    """What came of a damage, and the line or traceback that shows it."""

    kind: str
    said: str = ""


class Target(NamedTuple):
    """A victim's folder as it was made, another run's, and what an undisturbed one comes to."""

    victim: Victim
    good: Path
    other: Path
    expected: tuple[dict[str, Any], ...]
    """What it comes to; then, what it may come to where a line is said."""


def prepare(victim: Victim, folder: Path) -> Target:
    """Make a victim and the folder of another run, and go on with the victim undisturbed."""
    quiet()
    for number, name in enumerate(("good", "other")):
        victim.make(folder / name, number)
    expected, said = victim.use(copy(folder / "good", folder / "place"))
    assert not said, said
    results = [expected]
    if victim.newest:
        place = copy(folder / "good", folder / "place")
        (place / victim.newest).unlink()
        results.append(victim.use(place)[0])
    return Target(victim, folder / "good", folder / "other", tuple(results))


def attempt(target: Target, file: Path, mutation: str, chance: random.Random) -> Outcome:
    """Damage one file, once."""
    place = copy(target.good, target.good.parent / "place")
    content = (place / file).read_bytes()
    others = [path.read_bytes() for path in (target.other / other_name(target, file), *_siblings(target, file))]
    damaged = MUTATIONS[mutation](content, chance, others)
    if damaged == content:
        return Outcome("harmless")
    (place / file).write_bytes(damaged)
    left = [SECONDS]

    def tick(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            raise Hang

    signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, 1, 1)
    try:
        found, said = target.victim.use(place)
    except LasgError as error:
        named = file.name in str(error) and "\n" not in str(error)
        return Outcome("refused" if named else "unnamed", str(error))
    except Hang:
        return Outcome("hang")
    except Exception:
        return Outcome("traceback", traceback.format_exc())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return judge(target, found, said)


def judge(target: Target, found: dict[str, Any], said: list[str]) -> Outcome:
    """Compare what came with what an undisturbed run came to; what is None is what the line is about."""
    if said:
        found = {name: value for name, value in found.items() if value is not None}
    for expected in target.expected if said else target.expected[:1]:
        if same(found, {name: expected[name] for name in found if name in expected}) and (
            said or len(found) == len(expected)
        ):
            return Outcome("healed" if said else "harmless", " | ".join(said))
    differing = [name for name in found if not same(found[name], target.expected[0].get(name))]
    return Outcome("wrong", f"{differing} {said}")


def same(left: Any, right: Any) -> bool:
    """Tell whether two results are equal, but for the time that they took."""
    return same_bytes(_timeless(left), _timeless(right))


def _timeless(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: _timeless(value) for key, value in node.items() if key not in {"seconds", "evaluation_seconds"}}
    return node


def other_name(target: Target, file: Path) -> Path:
    """Return the file of the other run that is what this one is here: names of parts have numbers in them."""
    if (target.other / file).exists():
        return file
    stem = file.name.partition("-")[0]
    return min(p.relative_to(target.other) for p in (target.other / file.parent).glob(f"{stem}-*{file.suffix}"))


def _siblings(target: Target, file: Path) -> list[Path]:
    """Return other files of the same run that look alike; an older checkpoint of it is no damage, but what was."""
    folder = (target.good / file).parent
    found = [path for path in sorted(folder.glob(f"*{file.suffix}")) if path.name != file.name]
    return [path for path in found if path.stem.removesuffix("-previous") != file.stem.removesuffix("-previous")]


def torment(target: Target, times: int, seed: int = 0) -> dict[tuple[str, str], collections.Counter[str]]:
    """Damage every file of a victim so often; return how often each outcome came, per file and mutation."""
    found: dict[tuple[str, str], collections.Counter[str]] = collections.defaultdict(collections.Counter)
    for file in good_files(target.victim, target.good):
        for i in range(times):
            mutation = list(MUTATIONS)[i % len(MUTATIONS)]
            outcome = attempt(target, file, mutation, random.Random(f"{seed} {file} {i}"))
            found[_kind(file), mutation][outcome.kind] += 1
            if outcome.kind in BAD:
                print(f"{target.victim.name}: {file}, {mutation} {i}: {outcome.kind}: {outcome.said}", flush=True)
    return found


def _kind(file: Path) -> str:
    """Return a file's name without the numbers of rounds and checksums."""
    return "part of a rank" if "-rank-" in file.name else file.name


def main() -> None:
    """Damage, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=2000, help="how often each file is damaged")
    parser.add_argument("--only", default="", help="victims whose names begin so")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="also write the table to this file, after every kind of run")
    options = parser.parse_args()
    rows: list[dict[str, Any]] = []
    for victim in VICTIMS:
        if not victim.name.startswith(options.only):
            continue
        with tempfile.TemporaryDirectory() as name:
            found = torment(prepare(victim, Path(name)), options.times, options.seed)
        for (file, mutation), counts in found.items():
            outcomes = {kind: counts[kind] for kind in (*FINE, *BAD)}
            rows.append({"what": victim.name, "file": file, "damage": mutation, **outcomes})
            print(
                ", ".join(
                    f"{key} {value}" if value in outcomes.values() else str(value) for key, value in rows[-1].items()
                )
            )
        if options.csv:  # also of the kinds so far
            options.csv.write_text(to_csv(rows))
    totals = {kind: sum(row[kind] for row in rows) for kind in (*FINE, *BAD)}
    print(f"{sum(totals.values())} damages: " + ", ".join(f"{count} {kind}" for kind, count in totals.items()))
    sys.exit(1 if any(totals[kind] for kind in BAD) else 0)


if __name__ == "__main__":
    main()
