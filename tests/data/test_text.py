"""The text that ships with lasg."""

import pytest

from lasg.data import text
from lasg.errors import LasgError


def test_the_text_has_eight_parts_of_one_size_in_one_alphabet() -> None:
    parts = text.king_james()
    assert list(parts) == ["genesis", "numbers", "samuel", "psalms", "wisdom", "isaiah", "matthew", "letters"]
    assert all(119_000 < len(part) <= 120_000 for part in parts.values())
    assert len(set("".join(parts.values()))) == 63
    assert parts["genesis"].startswith("In the beginning")


def test_a_text_that_was_changed_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SHA256", "0" * 64)
    with pytest.raises(LasgError, match="install lasg again"):
        text.king_james.__wrapped__()
