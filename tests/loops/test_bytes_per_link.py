"""What `lasg.lazy` says it sent over each link is what the kernel carried: real ranks in network namespaces."""

from __future__ import annotations

import csv
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEADER = 48
"""Bytes that gloo puts before every message, and sends alone to ask for room."""


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("ss") or not Path("/dev/net/tun").exists(),
    reason="network namespaces need root, the commands ip and ss (iproute2), and /dev/net/tun",
)
def test_bytes_counted_per_link_are_those_of_the_kernel_but_for_gloos_headers(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    command = [sys.executable, str(ROOT / "benchmarks" / "lazy_loop.py"), "bytes", "--csv", str(path)]
    subprocess.run([*command, "--turns", "3", "--algorithms", "lasg-local", "diloco"], check=True, capture_output=True)
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert len(rows) == 2 * 6, "each of three hosts to each other one"
    for row in rows:
        rounds, headers = int(row["rounds"]), (int(row["kernel"]) - int(row["counted"])) / HEADER
        assert headers == int(headers), row
        assert 2 * rounds <= headers <= 10 * rounds, row
        assert int(row["kernel"]) < int(row["on the device"]), "there are packets' headers, and the other link's bytes"
    dense = 4 * 431_080
    sent = {(row["algorithm"], row["from"]): int(row["counted to all"]) / int(row["rounds"]) for row in rows}
    for host in "012":
        assert sent["diloco", host] <= 1.001 * 2 * dense * 2 / 3, "no more than an all-reduce sends"
        assert sent["lasg-local", host] < dense / 50
