"""The command line on a rank of torchrun, with quick checkpoints, and perhaps a kill at a chosen moment.

KILL is RANK:WHAT:COUNT: rank RANK of the first attempt kills itself, as kill -9 does, in its COUNT-th writing of a file
whose name begins with WHAT, when half of it is written; or, with WHAT = round, in round COUNT. HANG is RANK:ROUND, and
PAUSE is, too: there the rank waits for a few seconds.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from lasg.cli.main import main
from lasg.core.training import Training
from lasg.runs import files, runner
from lasg.runs import on_ranks as ranks

runner.CHECKPOINT_SECONDS = float(os.environ.get("EVERY", "0.2"))
runner.CHECKPOINT_SHARE = 1.0
FOR_EVER = 3600.0


def die() -> None:
    print(f"rank {os.environ['RANK']} dies", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def arm(what: str, count: int) -> None:
    write, step, seen = files.write_atomically, Training.step, []

    def writing(path: Path, content: bytes) -> None:
        if path.name.startswith(what):
            seen.append(path)
            if len(seen) == count:
                path.with_suffix(".part").write_bytes(content[: len(content) // 2])
                die()
        write(path, content)

    def stepping(self: Training) -> Any:
        if what == "round" and self.server.k == count:
            die()
        return step(self)

    ranks.write_atomically = writing  # type: ignore[attr-defined]
    Training.step = stepping  # type: ignore[method-assign]


def hang(at: int, seconds: float) -> None:
    step = Training.step

    def stepping(self: Training) -> Any:
        if self.server.k == at:
            if seconds == FOR_EVER:
                signal.signal(signal.SIGTERM, signal.SIG_DFL)  # or torchrun would wait half a minute before it kills
            time.sleep(seconds)
        return step(self)

    Training.step = stepping  # type: ignore[method-assign]


if __name__ == "__main__":
    rank = os.environ.get("RANK")
    if "KILL" in os.environ and os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0":
        who, what, count = os.environ["KILL"].split(":")
        if who == rank:
            arm(what, int(count))
    for name, seconds in (("HANG", FOR_EVER), ("PAUSE", 3.0)):
        who, _, at = os.environ.get(name, "").partition(":")
        if who == rank:
            hang(int(at), seconds)
    sys.exit(main())
