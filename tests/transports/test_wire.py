"""The bytes that are reported are the bytes that travelled."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.transports.wire_main import CASES

MAIN = Path(__file__).with_name("wire_main.py")
OVERHEAD = 0.05
"""Of TCP and IP headers, acknowledgements and gloo's preambles."""


def unshared() -> list[str]:
    """Return the command that runs another in a network namespace of its own, which root or a user may have."""
    for options in (["--net"], ["--user", "--map-root-user", "--net"]):
        try:
            if subprocess.run(["unshare", *options, "true"], check=False, capture_output=True).returncode == 0:
                return ["unshare", *options]
        except FileNotFoundError:
            break
    pytest.skip("this machine allows no network namespace (unshare --net), so its counters cannot be had apart")


def test_the_bytes_of_the_ranks_are_what_the_kernel_counted_on_the_interface() -> None:
    command = [*unshared(), sys.executable, "-m", "tests.transports.wire_main"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=150, cwd=MAIN.parents[2])
    for case, (kernel, counted) in zip(CASES, json.loads(done.stdout.splitlines()[-1]), strict=True):
        assert counted > 0
        assert 0 <= kernel / counted - 1 < OVERHEAD, f"{case}: the kernel {kernel:,}, the ranks {counted:,}"
