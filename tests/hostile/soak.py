"""Random faults against simulation, ranks and federation in turn, for as long as you like.

    python -m tests.hostile.soak --minutes 60 --csv results/soak.csv

Every episode is one run that something happens to: a kill, a stop, a cut link, a full disk, a damaged file, a huge
gradient, a clock that jumps. It goes on until it ends, and its model must be the one that an undisturbed run gives, to
the bit; a federation's the one that is computed again from the answers that were taken. A line of lasg's that refuses
to go on is no fault of it, where a run that starts again then gives that model. The table says what happened how often;
exit 1 if anything was wrong, hung, or ended with a traceback.
"""

from __future__ import annotations

import argparse
import contextlib
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
from tests.hostile import federation_soak, hooks
from tests.runs.kills import contents, equal, ranks_of
from tests.runs.torchrun import ended, launched, only_run

SIMULATED = ("kill", "stop", "full disk", "damaged file", "huge gradient", "clock jump")
ON_RANKS = ("kill", "stop", "cut link", "full disk", "damaged file", "huge gradient", "clock jump")
FAULTS = {"simulation": SIMULATED, "ranks": ON_RANKS, "federation": federation_soak.FAULTS}
GOOD = ("the same bits", "recomputed", "refused, then the same bits")
RANKS, LONGEST, ATTEMPTS = 2, 180.0, 6
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
        if engine == "federation":
            return federation_soak.episode(fault, self.chance, self.folder / f"{self.count}")
        algorithm, out = self.chance.choice(ALGORITHMS), self.folder / f"{self.count}"
        environment = {hooks.HUGE: "3:40"} if fault == "huge gradient" else {}
        reference = self._reference(engine, algorithm, environment)
        disturb = self._on_ranks if engine == "ranks" else self._simulated
        try:
            outcome = disturb(fault, algorithm, out, environment)
            if outcome == "" or outcome == "refused":
                same = equal(contents(only_run(out)), reference)
                outcome = f"{outcome}, then the same bits" if outcome and same else "the same bits" if same else "WRONG"
        finally:
            shutil.rmtree(out, ignore_errors=True)
        return outcome

    def _spec(self, algorithm: str) -> Path:
        path = self.folder / f"{algorithm.replace('+', '-').replace(':', '-')}.toml"
        path.write_text(SPEC.format(algorithm=algorithm, rounds=self.rounds))
        return path

    def _reference(self, engine: str, algorithm: str, environment: dict[str, Any]) -> dict[str, Any]:
        """Return what an undisturbed run ends with, once for each kind."""
        key = (engine, algorithm, str(environment))
        if key not in self.references:
            out = self.folder / f"whole-{len(self.references)}"
            if engine == "ranks":
                ended(launched(out, self._spec(algorithm), main=MAIN, **environment), LONGEST)
            else:
                child, log = forked(["run", str(self._spec(algorithm)), "--out", str(out)], out, environment)
                waited(child, LONGEST)
                assert only_run(out).status == "done", log.read_text()
            run = only_run(out)
            assert run.status == "done"
            losses = run.trace["loss"]
            assert losses[-1] < losses[0]  # a huge gradient is bounded
            self.references[key] = contents(run)
        return self.references[key]

    # -- one process ---------------------------------------------------------------------------------------------

    def _simulated(self, fault: str, algorithm: str, out: Path, environment: dict[str, str]) -> str:
        """Disturb a simulated run once or twice; return "" at its end, "refused" if it had to start again."""
        chance, spec, refused = self.chance, str(self._spec(algorithm)), ""
        for attempt in range(ATTEMPTS):
            begun = out.is_dir() and any((folder / "meta.json").is_file() for folder in out.iterdir())
            command = ["resume", str(only_run(out).folder)] if begun and refused != "refused" else []
            command = command or ["run", spec, "--out", str(out), *(["--fresh"] if refused else [])]
            calm = attempt >= 2 or bool(refused)
            given = dict(environment)
            if not calm and fault == "clock jump":
                given[hooks.CLOCK] = str(chance.choice([-1, 1]) * chance.uniform(1e3, 1e7))
            if not calm and fault == "full disk":
                given[hooks.DISK] = str(chance.randrange(100, 20_000))
            child, log = forked(command, out, given)
            if not calm and fault not in ("full disk", "clock jump"):
                time.sleep(chance.uniform(0.02, 1.5))
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGTERM if fault == "stop" else signal.SIGKILL)
            status = waited(child, LONGEST)
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
        for attempt in range(ATTEMPTS):
            given, calm = dict[str, Any](environment), attempt > 0
            if not calm and fault == "clock jump":
                given[hooks.CLOCK] = str(chance.uniform(1e3, 1e7))
            if not calm and fault == "cut link":
                given[hooks.CUT] = f"{chance.randrange(RANKS)}:{chance.randrange(5, self.rounds)}"
            more = ["--fresh"] if refused else []
            process = launched(out, spec, "--timeout", "20", *more, restarts=3, ranks=RANKS, main=MAIN, **given)
            try:
                if not calm and fault in ("kill", "stop", "full disk", "damaged file", "huge gradient"):
                    self._hurt(fault, process)
                text = ended(process, LONGEST)
            except subprocess.TimeoutExpired:
                return "HUNG"
            if process.returncode == 0:
                return refused
            if "Traceback" in text.replace("Traceback : ", "") and not expected_traceback(text):
                print(text, file=sys.stderr)
                return "TRACEBACK"
            if fault == "damaged file" and not calm:
                damage(out, chance)
            elif calm:
                refused = "refused"
        return "GAVE UP"

    def _hurt(self, fault: str, process: subprocess.Popen[str]) -> None:
        """Do to a rank what the fault is, at a random moment once there are any."""
        end = time.monotonic() + 60
        while not ranks_of(process) and process.poll() is None and time.monotonic() < end:
            time.sleep(0.05)
        time.sleep(self.chance.uniform(0.0, 8.0))
        alive = ranks_of(process)
        if not alive:
            return
        victim = self.chance.choice(alive)
        with contextlib.suppress(ProcessLookupError):
            if fault == "stop":
                os.kill(victim, signal.SIGSTOP)
                time.sleep(self.chance.uniform(0.1, 3.0))
                os.kill(victim, signal.SIGCONT)
            elif fault == "full disk":
                resource.prlimit(victim, resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            elif fault == "damaged file":  # torchrun first: it would start its ranks again, and they outlive it
                os.kill(process.pid, signal.SIGKILL)
                for rank in alive:
                    os.kill(rank, signal.SIGKILL)
            else:
                os.kill(victim, signal.SIGKILL)


def forked(command: list[str], out: Path, environment: dict[str, str]) -> tuple[int, Path]:
    """Start lasg's command line in a child, which has loaded all; return it and the file that it writes to."""
    from lasg.cli.main import main

    out.mkdir(parents=True, exist_ok=True)
    log = out.with_suffix(".log")
    child = os.fork()
    if child:
        return child, log
    code = 1
    try:
        handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1), os.dup2(handle, 2)
        os.environ.update(environment)
        hooks.apply()
        code = main(command)
    except BaseException:  # what a user would see
        import traceback

        os.write(2, traceback.format_exc().encode())
    finally:
        os._exit(code)


def waited(child: int, seconds: float) -> int | None:
    """Return a child's exit code, below 0 for a signal; None: it hung, and was killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None


def judged(status: int | None, log: Path) -> str | None:
    """Say what was wrong with a child's end, if anything was."""
    if status is None:
        return "HUNG"
    if "Traceback" in log.read_text(errors="replace"):
        print(log.read_text(errors="replace"), file=sys.stderr)
        return "TRACEBACK"
    return None


def expected_traceback(text: str) -> bool:
    """Tell whether the only traceback is torchrun's own, which says that a rank failed."""
    parts = text.split("Traceback (most recent call last):")[1:]
    return all("ChildFailedError" in part or "SignalException" in part for part in parts)


def damage(out: Path, chance: random.Random) -> None:
    """Flip bits of one file of a run, or cut it short."""
    files = [path for path in out.glob("*/checkpoint*") if path.is_file() and path.stat().st_size]
    if not files:
        return
    path = chance.choice(sorted(files))
    data = bytearray(path.read_bytes())
    if chance.random() < 0.3:
        data = data[: chance.randrange(len(data))]
    else:
        for _ in range(chance.choice([1, 1, 8])):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)


def soak(engines: list[str], seconds: float, seed: int, say: Callable[[str], None], rounds: int = 300) -> list[Any]:
    """Do episodes until the time is over; return a row per engine, fault and outcome."""
    counts: Counter[tuple[str, str, str]] = Counter()
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
    return [
        {"engine": engine, "fault": fault, "outcome": outcome, "episodes": count}
        for (engine, fault, outcome), count in sorted(counts.items())
    ]


def main() -> None:
    """Soak, print the table, and exit 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--engines", default=",".join(FAULTS), help="which of them, with commas")
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    rows = soak(options.engines.split(","), 60 * options.minutes, options.seed, lambda line: print(line, flush=True))
    print(to_csv(rows))
    if options.csv:
        options.csv.write_text(to_csv(rows))
    sys.exit(0 if all(row["outcome"] in GOOD for row in rows) else 1)


if __name__ == "__main__":
    main()
