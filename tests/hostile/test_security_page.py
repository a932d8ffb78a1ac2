"""Every line of docs/security.md names tests that exist."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
PAGE = TESTS.parent / "docs" / "security.md"


def test_every_test_that_the_security_page_names_exists() -> None:
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    for file, name in named:
        text = (TESTS / file).read_text(encoding="utf-8")
        assert re.search(rf"^(def {name}\(|{name} = )", text, re.MULTILINE), f"{file}::{name}"


def test_every_row_of_its_tables_of_nodes_and_ranks_names_one() -> None:
    text = PAGE.read_text(encoding="utf-8").partition("\n## Files\n")[0]  # whose rows are held by all of tests/hostile
    rows = [
        line
        for line in text.splitlines()
        if line.startswith("| ") and not line.endswith("| test |") and not line.startswith("| ---")
    ]
    about = [row for row in rows if row.count("|") == 4 and "%" not in row]
    assert len(about) > 10
    assert all("::test_" in row for row in about), [row for row in about if "::test_" not in row]
