"""Kill ranks at random moments, many times, and see that the model at the end is that of an undisturbed run.

    python benchmarks/kills.py --kills 50

Every launch is `torchrun --max-restarts 1000` on three ranks; a random rank gets kill -9 after a random time, also
while it starts or writes a checkpoint, until so many were killed; then the run may end.
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

import numpy as np
from safetensors.numpy import load_file

RANKS = 3
MAIN = Path(__file__).resolve().parents[1] / "tests" / "experiments" / "rank_main.py"
ALGORITHMS = ("lasg-wk2", "laqsg-pse")
SPEC = """
task = "digits"
algorithm = "{algorithm}"
data = "digits"
workers = 6
partition = "sorted"
batch = 0.1
eta = 0.1
iterations = {rounds}
"""


def started(spec: Path, out: Path) -> subprocess.Popen[bytes]:
    """Start torchrun on a spec."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(RANKS), "--max-restarts", "1000"]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--monitor-interval", "0.1"]
    command += [str(MAIN), "run", str(spec), "--engine", "distributed", "--out", str(out), "--timeout", "60"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "EVERY": "0.2"}
    return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ranks_of(process: subprocess.Popen[bytes]) -> list[int]:
    """Return the processes that torchrun has started."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], check=False, capture_output=True, text=True)
    return [int(word) for word in found.stdout.split()]


def model(out: Path) -> dict[str, np.ndarray]:
    """Return the model that a run ended with."""
    (path,) = out.glob("*/model.safetensors")
    return load_file(path)


def main() -> None:
    """Kill, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--rounds", type=int, default=6000)
    options = parser.parse_args()
    chance, killed, checkpoints = random.Random(0), 0, 0
    for algorithm in ALGORITHMS:
        with tempfile.TemporaryDirectory() as folder:
            spec = Path(folder) / "spec.toml"
            spec.write_text(SPEC.format(algorithm=algorithm, rounds=options.rounds))
            whole, torn = Path(folder) / "whole", Path(folder) / "torn"
            started(spec, whole).wait()
            process, mine = started(spec, torn), 0
            while mine < options.kills // len(ALGORITHMS) and process.poll() is None:
                time.sleep(chance.uniform(3.0, 9.0))
                ranks = ranks_of(process)
                if ranks and process.poll() is None:
                    checkpoints += bool(list(torn.glob("*/checkpoint.json")))
                    os.kill(chance.choice(ranks), signal.SIGKILL)
                    mine += 1
            process.wait()
            one, other = model(whole), model(torn)
            same = all(np.array_equal(one[name], other[name]) for name in one)
            killed += mine
            print(f"{algorithm}: {mine} kills, the model at the end is {'the same' if same else 'ANOTHER'}", flush=True)
            if not same:
                sys.exit(1)
    print(f"{killed} kills, {checkpoints} of them with a checkpoint to go on from")


if __name__ == "__main__":
    main()
