# mypy: ignore-errors
"""Make the fixtures of lasg 0.1: `python -m tests.runs.make_fixtures`, with a Python that has lasg 0.1 and its extras.

In the folder of this repository, with 0.1 (commit 5086df3) installed elsewhere: this version cannot make them.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

import lasg
from tests.golden.machine import alike, machine
from tests.runs import old_runs
from tests.runs.old_runs import ARCHIVE, ENDED, MACHINE, STOPPED, UNFINISHED
from tests.transports.ranks import on_ranks

KEPT = ("trace.npz", "model.safetensors")
"""What of an ended run is compared."""


def keep(source: Path, target: Path, *names: str) -> None:
    """Copy files of a folder, or all but locks."""
    target.mkdir(parents=True)
    for path in source.iterdir():
        if path.name in names or (not names and not path.name.startswith(".") and path.suffix != ".lock"):
            shutil.copy(path, target / path.name)


def finished(work: Path, out: Path) -> None:
    """Make runs that ended."""
    from lasg.experiments import runner

    for name, more in old_runs.FINISHED.items():
        keep(runner.run(old_runs.spec(more), work / name).folder, out / name)


def simulated(work: Path, out: Path) -> None:
    """Make runs that were killed, with a checkpoint after every round, and let 0.1 go on with them."""
    from lasg.engines.rounds import Rounds
    from lasg.experiments import runner

    runner.CHECKPOINT_SECONDS = -1.0
    step = Rounds.step

    def killed(self: Rounds) -> Any:
        if self.server.k == STOPPED:
            raise KeyboardInterrupt
        return step(self)

    for name, more in old_runs.SIMULATED.items():
        spec, folder, kept = old_runs.spec(more), work / name, out / name
        Rounds.step = killed
        try:
            runner.run(spec, folder)
        except KeyboardInterrupt:
            keep(folder, kept / UNFINISHED)
        Rounds.step = step
        run = runner.resume(folder)
        print(name, run.status, run.trace["uploads"][-1], "uploads", run.meta.get("laziness_given_up", ""))
        keep(folder, kept / ENDED, *KEPT)


def run_on_rank(name: str, out: Path, stop: bool) -> None:
    """Run on this rank, to the end or to a Ctrl-C."""
    from lasg.engines.links import Links
    from lasg.engines.rounds import Rounds
    from lasg.experiments import ranks

    spec, _, how = old_runs.spec_on_ranks(name)
    step = Rounds.step

    def stopped(self: Rounds) -> Any:
        if self.server.k == STOPPED - 1:
            self.wish = 2
        return step(self)

    Rounds.step = stopped if stop else step
    try:
        ranks.run_or_read(spec, out, Links(), **how)
    except KeyboardInterrupt:
        if not stop:
            raise


def ranks(work: Path, out: Path) -> None:
    """Make runs on ranks that were stopped by a Ctrl-C, and let 0.1 go on with them."""
    for name in old_runs.ON_RANKS:
        count, runs, kept = old_runs.spec_on_ranks(name)[1], work / name, out / name
        on_ranks(count, run_on_rank, name, runs, True)
        (folder,) = runs.iterdir()
        keep(folder, kept / UNFINISHED / folder.name)
        on_ranks(count, run_on_rank, name, runs, False)
        run = lasg.read(folder)
        print(name, run.status, run.trace["uploads"][-1], "uploads")
        keep(folder, kept / ENDED, *KEPT)


def loop_on_rank(name: str) -> Any:
    """Train to the stop and on: what a state dict does not hold is none of a run's bits."""
    import torch.distributed as dist

    rank = dist.get_rank() if dist.is_initialized() else 0
    state, _ = old_runs.loop(name, rank, rounds=STOPPED)
    return state, old_runs.loop(name, rank, state)[1]


def loops(_: Path, out: Path) -> None:
    """Make state dicts of LazyOptimizer in the middle of a training, and let 0.1 go on with them."""
    for name, case in old_runs.LOOPS.items():
        found = [loop_on_rank(name)] if case["ranks"] == 1 else on_ranks(case["ranks"], loop_on_rank, name)
        kept = out / name
        kept.mkdir(parents=True)
        for rank, (state, _) in enumerate(found):
            torch.save(state, kept / f"rank-{rank}.pt")
        print(name, found[0][0]["of"], found[0][1]["ledger"])
        np.savez_compressed(kept / "ended.npz", **found[0][1])


def federations(work: Path, out: Path) -> None:
    """Make servers that were killed in a round's end, and let 0.1 go on with them and nodes without a memory."""
    from lasg.flower import Settings

    for name, case in old_runs.FEDERATIONS.items():
        folder, kept, times = work / name, out / name, []

        def killed(model: Any, times: list[int] = times) -> Any:
            times.append(len(times))
            if len(times) > STOPPED:
                raise KeyboardInterrupt
            return old_runs.measured(model)

        memories = old_runs.federate(name, folder, Settings.of, killed)
        keep(folder, kept / UNFINISHED)
        if name != "lazy":  # one is enough to go on from where the last is damaged
            (kept / UNFINISHED / "server-previous.safetensors").unlink()
        for m, memory in enumerate(memories):
            (kept / f"node-{m}.memory").write_bytes(memory)
        old_runs.federate(name, folder, Settings.of, resume=True)
        keep(folder, kept / ENDED, "trace.csv", "model.safetensors")
        if case["rule"] == "always":  # what nodes remember is of no matter there
            old_runs.federate(name, work / "whole", Settings.of)
            whole, ended = (path / "model.safetensors" for path in (work / "whole", folder))
            assert whole.read_bytes() == ended.read_bytes()
        print(name, (folder / "trace.csv").read_text().splitlines()[-1])


def main() -> None:
    """Make them all again."""
    if not lasg.__version__.startswith("0.1."):
        sys.exit(f"these are fixtures of lasg 0.1, and here is {lasg.__version__}: see the first lines of this file")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder, alike():
        work, out = Path(folder) / "work", Path(folder) / "out"
        for make in (finished, simulated, ranks, loops, federations):
            make(work / make.__name__, out / make.__name__)
        (out / MACHINE).write_text(machine() + "\n")
        with zipfile.ZipFile(ARCHIVE, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
            for path in sorted(path for path in out.rglob("*") if path.is_file()):
                archive.writestr(zipfile.ZipInfo(str(path.relative_to(out))), path.read_bytes(), zipfile.ZIP_DEFLATED)
    print(f"{ARCHIVE}: {ARCHIVE.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
