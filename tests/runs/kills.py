"""Kill ranks at random moments, many times, and see that the run ends with the bits of an undisturbed one.

    python -m tests.runs.kills --csv results/kills.csv        # 50 kills, a quarter of an hour

Every run is `torchrun --max-restarts` on three ranks, with a checkpoint every 0.2 s. A random rank gets kill -9 at a
random moment: while it starts, in a round, or while it writes a checkpoint. After the last kill the run may end.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from lasg.report.paper_tables import to_csv
from lasg.runs import store
from tests.runs.torchrun import ended, launched, model, only_run, spec_file

RANKS, LONGEST = 3, 3600.0
ALGORITHMS = ("lasg-wk2", "laqsg-pse")


def ranks_of(process: subprocess.Popen[str]) -> list[int]:
    """Return the processes that torchrun has started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], check=False, capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def killed(spec: Path, out: Path, kills: int, chance: random.Random) -> list[dict[str, Any]]:
    """Kill ranks of a run so often, and let it end; return when each of them died, and what there was to go on from."""
    process = launched(out, spec, "--timeout", "60", restarts=1000, ranks=RANKS, output=subprocess.DEVNULL)
    found: list[dict[str, Any]] = []
    try:
        while len(found) < kills and process.poll() is None:
            waited = chance.uniform(1.0, 16.0)
            time.sleep(waited)
            alive = ranks_of(process)
            if not alive:
                continue
            writing = bool(list(out.glob("*/*.part")))
            checkpoint = max((path.stat().st_mtime_ns for path in out.glob("*/checkpoint.json")), default=None)
            victim = chance.choice(alive)
            try:
                os.kill(victim, signal.SIGKILL)
            except ProcessLookupError:
                continue
            seconds = None if checkpoint is None else round((time.time_ns() - checkpoint) / 1e9, 2)
            found.append(
                {
                    "kill": len(found) + 1,
                    "after_seconds": round(waited, 2),
                    "ranks_alive": len(alive),
                    "a_file_half_written": writing,
                    "seconds_since_checkpoint": seconds,
                }
            )
            print(found[-1], flush=True)
        ended(process, LONGEST)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return found


def contents(run: store.Run) -> dict[str, Any]:
    """Return the arrays that a run ended with."""
    return {**model(run), **run.trace, "uploads": run.uploads}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Tell whether two sets of arrays have the same bits."""
    return one.keys() == other.keys() and all(one[name].tobytes() == other[name].tobytes() for name in one)


def main() -> None:
    """Kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=20_000)
    parser.add_argument("--csv", type=Path, help="also write the table to this file")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that torchrun does not go on without us
    chance = random.Random(0)
    rows: list[dict[str, Any]] = []
    for algorithm in ALGORITHMS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            spec = spec_file(folder, algorithm, options.rounds)
            ended(launched(folder / "whole", spec, ranks=RANKS), LONGEST)
            kills = killed(spec, folder / "torn", options.kills // len(ALGORITHMS), chance)
            whole, torn = only_run(folder / "whole"), only_run(folder / "torn")
            same = torn.status == "done" and equal(contents(torn), contents(whole))
            print(f"{algorithm}: {len(kills)} kills, {'the same' if same else 'OTHER'} bits at the end", flush=True)
            rows += [{"algorithm": algorithm, **kill, "same_bits_at_the_end": same} for kill in kills]
    if len(rows) < options.kills // len(ALGORITHMS) * len(ALGORITHMS):
        sys.exit(f"{len(rows)} kills only: the runs ended before there were more, take more --rounds")
    if options.csv:
        options.csv.write_text(to_csv(rows))
    sys.exit(0 if all(row["same_bits_at_the_end"] for row in rows) else 1)


if __name__ == "__main__":
    main()
