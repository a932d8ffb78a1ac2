"""No damage to a stored file goes unseen: `python -m tests.hostile.files` does this thousands of times."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("sklearn", reason="the data is scikit-learn's")

from tests.hostile import files
from tests.hostile.victims import VICTIMS, Victim

TIMES = 15


@pytest.mark.parametrize("victim", VICTIMS, ids=lambda victim: victim.name)
def test_damage_is_harmless_healed_with_a_line_or_refused_by_name(victim: Victim, tmp_path: Path) -> None:
    if victim.name.startswith("federation"):
        pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
    found = files.torment(files.prepare(victim, tmp_path), TIMES, seed=1)
    assert found
    for counts in found.values():
        assert not {kind: count for kind, count in counts.items() if kind in files.BAD}
