"""Random faults against simulation, ranks and federation in turn, for as long as you like.

    python -m tests.hostile.soak --minutes 60 --csv results/soak.csv

Every episode is one run that something happens to: a kill, a stop, a cut link, a full disk, a damaged file, a huge
gradient, a clock that jumps. It goes on until it ends, and its model must be the one that an undisturbed run gives, to
the bit; a federation's the one that is computed again from the answers that were taken. After a damaged file alone a
run may refuse to go on, if the one that starts again then gives that model. The table says what happened how often, and
is written after every episode; exit 1 if anything was wrong, lost, hung, or ended with a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lasg.report.paper_tables import to_csv
from lasg.runs.files import write_atomically
from tests.hostile import federation_soak, hooks
from tests.hostile.children import LONGEST, damage, forked, hurt, judged, patient, waited
from tests.runs.kills import contents, equal, ranks_of
from tests.runs.torchrun import launched, only_run

SIMULATED = ("kill", "stop", "full disk", "damaged file", "huge gradient", "clock jump")
ON_RANKS = ("kill", "stop", "cut link", "full disk", "damaged file", "huge gradient", "clock jump")
FAULTS = {"simulation": SIMULATED, "ranks": ON_RANKS, "federation": federation_soak.FAULTS}
GOOD = ("the same bits", "recomputed", "refused, then the same bits", "refused, then recomputed")
RANKS, ATTEMPTS = 2, 6
SPEC = """
task = "digits"
algorithm = "{algorithm}"
data = "digits"
workers = 6
partition = "sorted"
batch = 0.1
eta = 0.1
dtype = "float64"
robust = "median-clip3"
iterations = {rounds}
"""
ALGORITHMS = ("lasg-wk2", "always+qsgd8:512+difference")
MAIN = Path(hooks.__file__)


class Soak:
    """Episodes in a folder, each against an undisturbed run of the same spec."""

    def __init__(self, folder: Path, seed: int, rounds: int = 300) -> None:
        self.folder, self.chance, self.rounds = folder, random.Random(seed), rounds
        self.references: dict[tuple[str, str, str], dict[str, Any]] = {}
        self.count = 0

    def episode(self, engine: str, fault: str) -> str:
        """Do one run that a fault happens to; return how it ended."""
        self.count += 1
        out = self.folder / f"{self.count}"
        try:
            if engine == "federation":
                return federation_soak.episode(fault, self.chance, out)
            algorithm = self.chance.choice(ALGORITHMS)
            environment = {hooks.HUGE: "3:40"} if fault == "huge gradient" else {}
            reference = self._reference(engine, algorithm, environment)
            disturb = self._on_ranks if engine == "ranks" else self._simulated
            outcome = disturb(fault, algorithm, out, environment)
            if outcome not in ("", "refused"):
                return outcome
            if outcome and fault != "damaged file":
                return "LOST"
            same = equal(contents(only_run(out)), reference)
            return f"{outcome}, then the same bits".removeprefix(", then ") if same else "WRONG"
        finally:
            shutil.rmtree(out, ignore_errors=True)

    def _spec(self, algorithm: str) -> Path:
        path = self.folder / f"{algorithm.replace('+', '-').replace(':', '-')}.toml"
        path.write_text(SPEC.format(algorithm=algorithm, rounds=self.rounds))
        return path

    def _reference(self, engine: str, algorithm: str, environment: dict[str, Any]) -> dict[str, Any]:
        """Return what an undisturbed run ends with, once for each kind."""
        key = (engine, algorithm, str(environment))
        if key not in self.references:
            out, spec = self.folder / f"whole-{len(self.references)}", self._spec(algorithm)
            log = out.with_suffix(".log")
            if engine == "ranks":
                with log.open("w") as words:
                    process = launched(out, spec, ranks=RANKS, main=MAIN, output=words.fileno(), **environment)
                if not patient(lambda: process.poll() is not None, LONGEST):
                    os.killpg(process.pid, signal.SIGKILL)
            else:
                waited(forked(lambda: command_line("run", spec, "--out", out), log, environment))
            run = only_run(out) if out.is_dir() else None
            assert run is not None and run.status == "done", log.read_text()  # noqa: PT018
            losses = run.trace["loss"]
            assert losses[-1] < losses[0]  # a huge gradient is bounded
            self.references[key] = contents(run)
        return self.references[key]

    # -- one process ---------------------------------------------------------------------------------------------

    def _simulated(self, fault: str, algorithm: str, out: Path, environment: dict[str, str]) -> str:
        """Disturb a simulated run once or twice; return "" at its end, "refused" if it had to start again."""
        chance, spec, refused = self.chance, self._spec(algorithm), ""
        log = out.with_suffix(".log")
        for attempt in range(ATTEMPTS):
            begun = out.is_dir() and any((folder / "meta.json").is_file() for folder in out.iterdir())
            command = ["resume", only_run(out).folder] if begun and not refused else ["run", spec, "--out", out]
            command += ["--fresh"] if refused else []
            calm = attempt >= 2 or bool(refused)
            given = dict(environment)
            if not calm and fault == "clock jump":
                given[hooks.CLOCK] = str(chance.choice([-1, 1]) * chance.uniform(1e3, 1e7))
            if not calm and fault == "full disk":
                given[hooks.DISK] = str(chance.randrange(100, 20_000))
            child = forked(lambda command=command: command_line(*command), log, given)  # type: ignore[misc]
            if not calm and fault not in ("full disk", "clock jump"):
                time.sleep(chance.uniform(0.02, 1.5))
                hurt(child, signal.SIGTERM if fault == "stop" else signal.SIGKILL)
            status = waited(child)
            if (said := judged(status, log)) is not None:
                return said
            if status == 0:
                return refused
            if status and status > 0 and calm:
                refused = "refused"
            if fault == "damaged file" and not calm:
                damage(out, chance)
        return "GAVE UP"

    # -- ranks ---------------------------------------------------------------------------------------------------

    def _on_ranks(self, fault: str, algorithm: str, out: Path, environment: dict[str, str]) -> str:
        """Disturb a run of torchrun; return "" at its end, "refused" if it had to start again."""
        chance, spec, refused = self.chance, self._spec(algorithm), ""
        log = out.with_suffix(".log")
        for attempt in range(ATTEMPTS):
            given, calm = dict[str, Any](environment), attempt > 0
            if not calm and fault == "clock jump":
                given[hooks.CLOCK] = str(chance.uniform(1e3, 1e7))
            if not calm and fault == "cut link":
                given[hooks.CUT] = f"{chance.randrange(RANKS)}:{chance.randrange(5, self.rounds)}"
            more = ["--timeout", "20", *(["--fresh"] if refused else [])]
            with log.open("w") as words:
                process = launched(out, spec, *more, restarts=3, ranks=RANKS, main=MAIN, output=words.fileno(), **given)
            try:
                if not calm and fault in ("kill", "stop", "full disk", "damaged file", "huge gradient"):
                    self._hurt(fault, process)
                whole = patient(lambda process=process: process.poll() is not None, LONGEST)  # type: ignore[misc]
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
            if (said := judged(process.returncode if whole else None, log)) is not None:
                return said
            if process.returncode == 0:
                return refused
            if fault == "damaged file" and not calm:
                damage(out, chance)
            elif calm:
                refused = "refused"
        return "GAVE UP"

    def _hurt(self, fault: str, process: subprocess.Popen[str]) -> None:
        """Do to a rank what the fault is, at a random moment once there are any."""
        patient(lambda: bool(ranks_of(process)) or process.poll() is not None, 60)
        time.sleep(self.chance.uniform(0.0, 8.0))
        alive = ranks_of(process)
        if not alive:
            return
        victim = self.chance.choice(alive)
        if fault == "stop":
            hurt(victim, signal.SIGSTOP)
            time.sleep(self.chance.uniform(0.1, 3.0))
            hurt(victim, signal.SIGCONT)
        elif fault == "full disk":
            with contextlib.suppress(ProcessLookupError):
                resource.prlimit(victim, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
        elif fault == "damaged file":  # torchrun first: it would start its ranks again, and they outlive it
            for each in (process.pid, *alive):
                hurt(each, signal.SIGKILL)
        else:
            hurt(victim, signal.SIGKILL)


def command_line(*words: Any) -> int:
    """Do what lasg's command line does with these words."""
    from lasg.cli.main import main

    return main([str(word) for word in words])


def soak(
    engines: list[str],
    seconds: float,
    seed: int,
    say: Callable[[str], None],
    keep: Callable[[list[dict[str, Any]]], None],
    rounds: int = 300,
) -> list[dict[str, Any]]:
    """Do episodes until the time is over; return a row per engine, fault and outcome, and keep them on the way."""
    counts: Counter[tuple[str, str, str]] = Counter()
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as name:
        state, end, turn = Soak(Path(name), seed, rounds), time.monotonic() + seconds, 0
        queues: dict[str, list[str]] = {engine: [] for engine in engines}
        while time.monotonic() < end or turn < len(engines):
            engine = engines[turn % len(engines)]
            queue = queues[engine]
            if not queue:  # every fault comes before any comes again
                queue += state.chance.sample(FAULTS[engine], len(FAULTS[engine]))
            fault, began = queue.pop(), time.monotonic()
            outcome = state.episode(engine, fault)
            counts[engine, fault, outcome] += 1
            say(f"{engine}, {fault}: {outcome} ({time.monotonic() - began:.1f} s)")
            turn += 1
            rows = [
                {"engine": engine, "fault": fault, "outcome": outcome, "episodes": count}
                for (engine, fault, outcome), count in sorted(counts.items())
            ]
            keep(rows)
    return rows


def main() -> None:
    """Soak, print the table, and exit 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", default=",".join(FAULTS), help="which of them, with commas")
    parser.add_argument("--csv", type=Path, help="also write the table to this file, after every episode")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that torchrun does not go on without us

    def keep(rows: list[dict[str, Any]]) -> None:
        if options.csv:
            write_atomically(options.csv, to_csv(rows).encode())

    say = functools.partial(print, flush=True)
    rows = soak(options.engines.split(","), 60 * options.minutes, options.seed, say, keep)
    print(to_csv(rows))
    sys.exit(0 if all(row["outcome"] in GOOD for row in rows) else 1)


if __name__ == "__main__":
    main()
