"""The examples do what they say, in the length that is promised."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).resolve().parents[1] / "examples").glob("*.py"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_has_under_25_lines_and_saves_uploads(path: Path) -> None:
    assert len(path.read_text().splitlines()) < 25
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True, timeout=120)
    uploads = int(done.stdout.split()[0])
    assert 0 < uploads < 2000, "of the 3,000 that SGD sends"
    assert float(done.stdout.split()[-1]) < 1, "the loss after 300 rounds"


def test_there_is_an_example_of_a_rule_and_of_a_codec() -> None:
    assert {path.stem for path in EXAMPLES} >= {"own_rule", "own_codec"}
