"""The examples do what they say, in the length that is promised."""

import os
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

from lasg.runs.runner import run
from lasg.runs.spec import Spec, read

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_under_25_lines_and_saves_uploads(path: Path, tmp_path: Path) -> None:
    assert len(path.read_text().splitlines()) < 25
    command = [sys.executable, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120, cwd=tmp_path)
    uploads = int(done.stdout.split()[0])
    assert 0 < uploads < 2500, "of the 3,000 that SGD sends"
    assert float(done.stdout.split()[-1]) < 1, "the loss after 300 rounds"


def test_the_scripts_for_torchrun_train_alike_and_the_lazy_ones_send_less() -> None:
    scripts = EXAMPLES[0].parent / "torchrun"
    found = {}
    for name in ("ddp", "lazy", "local_steps"):
        command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", str(scripts / f"{name}.py")]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=200, env=environment)
        line = re.fullmatch(r"([\d.]+) MB sent by rank 0; ([\d.]+) % right", done.stdout.strip())
        assert line is not None
        found[name] = float(line[1]), float(line[2])
    assert found["lazy"][0] < found["ddp"][0] / 3.8
    assert abs(found["lazy"][1] - found["ddp"][1]) < 1
    assert found["local_steps"][0] < found["ddp"][0] / 200
    assert found["local_steps"][1] > found["ddp"][1] - 1


def test_there_is_an_example_of_a_rule_a_codec_and_a_network() -> None:
    assert {path.stem for path in EXAMPLES} >= {"own_rule", "own_codec", "own_network"}


def test_every_key_of_a_spec_is_documented() -> None:
    documented = (EXAMPLES[0].parents[1] / "docs" / "spec.md").read_text()
    keys = [field.name for field in fields(Spec)]
    assert [key for key in keys if f"\n| `{key}` |" not in documented] == []


def test_the_example_spec_runs(tmp_path: Path) -> None:
    spec = read(EXAMPLES[0].parent / "spec.toml").but(iterations=20)
    done = run(spec, tmp_path)
    assert done.status == "done"
    assert done.trace["loss"][-1] < done.trace["loss"][0]
