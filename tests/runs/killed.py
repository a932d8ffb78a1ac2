"""Run specs, kill each run several times, let it end. Prints how often each was killed, as JSON.

Usage: python killed.py FOLDER SEED KILLS, where FOLDER holds NAME.toml; runs go to FOLDER/NAME. A parent that has
loaded everything forks the runs, so that a kill costs milliseconds; a checkpoint is written after every round.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

from lasg.runs import factories, runner
from lasg.runs import spec as specs


def main() -> None:
    folder, seed, kills = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    rng = random.Random(seed)
    told = {}
    for path in sorted(folder.glob("*.toml")):
        spec = specs.read(path)
        factories.training(spec, factories.problem(spec))
        told[path.stem] = torment(spec, folder / path.stem, rng, kills)
    print(json.dumps(told))


def torment(spec: specs.Spec, folder: Path, rng: random.Random, kills: int) -> dict[str, int]:
    """Begin or continue a run until it is left alone and ends."""
    checkpoint = folder / "checkpoint.safetensors"
    killed = from_checkpoint = 0
    while True:
        from_checkpoint += checkpoint.is_file()
        before = version(checkpoint)
        # Nobody waits for checkpoints once the killing is over.
        runner.CHECKPOINT_SECONDS = 0.0 if killed < kills else 60.0
        child = os.fork()
        if child == 0:
            begin_or_continue(spec, folder)
        ended, status = 0, 0
        if killed < kills:
            # The first kill may come before any checkpoint, the others come some rounds after a new one.
            while killed and version(checkpoint) == before and not ended:
                ended, status = os.waitpid(child, os.WNOHANG)
                time.sleep(0.001)
            if not ended:
                time.sleep(rng.uniform(0, 0.04))
                os.kill(child, signal.SIGKILL)
        if not ended:
            _, status = os.waitpid(child, 0)
        if not os.WIFSIGNALED(status):
            code = os.waitstatus_to_exitcode(status)
            return {"killed": killed, "from_checkpoint": from_checkpoint, "exit": code}
        killed += 1


def begin_or_continue(spec: specs.Spec, folder: Path) -> None:
    """Do in a child what `lasg run` or `lasg resume` does, and end the child."""
    try:
        if (folder / "meta.json").is_file():
            runner.resume(folder)
        else:
            runner.run(spec, folder)
        os._exit(0)
    finally:
        os._exit(1)


def version(path: Path) -> tuple[int, int] | None:
    """Tell one version of a file from the next."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns


if __name__ == "__main__":
    main()
