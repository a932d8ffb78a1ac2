"""Runs of torchrun for tests: started on a small spec, waited for, and read."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from lasg.runs import store

MAIN = Path(__file__).with_name("rank_main.py")
RANKS = 2
SPEC = """
task = "digits"
algorithm = "{algorithm}"
data = "digits"
workers = 6
partition = "sorted"
batch = 0.1
eta = 0.1
dtype = "float64"
iterations = {rounds}
"""
ENVIRONMENT = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}


def launched(
    folder: Path,
    spec: Path,
    *more: str,
    restarts: int = 0,
    ranks: int = RANKS,
    output: int = subprocess.PIPE,
    main: Path = MAIN,
    **environment: str,
) -> subprocess.Popen[str]:
    """Start torchrun on a spec, in a process group of its own."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks)]
    command += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", str(restarts)]
    command += [str(main), "run", str(spec), "--engine", "distributed", "--out", str(folder), *more]
    return subprocess.Popen(
        command,
        env={**os.environ, **ENVIRONMENT, **environment},
        stdout=output,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def ended(process: subprocess.Popen[str], seconds: float = 120) -> str:
    """Wait for the end of it; return what it printed."""
    try:
        text, _ = process.communicate(timeout=seconds)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    return text or ""


def spec_file(folder: Path, algorithm: str, rounds: int = 900) -> Path:
    path = folder / f"{algorithm}.toml"
    path.write_text(SPEC.format(algorithm=algorithm, rounds=rounds))
    return path


def only_run(folder: Path) -> store.Run:
    (found,) = folder.iterdir()
    return store.read(found)


def model(run: store.Run) -> dict[str, Any]:
    return load_file(run.folder / store.MODEL)
