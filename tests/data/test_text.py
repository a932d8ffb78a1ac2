"""The text that ships with lasg."""

import numpy as np
import pytest

from lasg.data import text
from lasg.data.loaders import load
from lasg.data.manage import CheckResult, check, status
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


def test_every_window_continues_the_one_before_and_the_end_of_each_part_is_held_out() -> None:
    train, test = text.windows()
    assert train.shape == (8, text.TRAIN, text.CONTEXT + 1)
    assert test.shape == (8, text.TEST, text.CONTEXT + 1)
    alphabet = np.array(sorted(set("".join(text.king_james().values()))))
    for part, rows in zip(text.king_james().values(), np.concatenate([train, test], axis=1), strict=True):
        again = alphabet[rows[0, 0]] + "".join(alphabet[rows[:, 1:]].ravel())
        assert part.startswith(again)
        assert len(part) - len(again) < 3 * text.CONTEXT, "hardly anything is left out"


def test_the_data_set_has_the_part_as_class_and_one_checksum() -> None:
    data = load("king-james")
    assert (data.classes, data.vocabulary, data.shape) == (8, 63, (65,))
    assert data.features.dtype == np.uint8
    assert data.features.max() == data.vocabulary - 1
    assert np.bincount(data.labels).tolist() == [text.TRAIN] * 8
    assert data.test_labels is not None
    assert np.bincount(data.test_labels).tolist() == [text.TEST] * 8
    assert data.sha256.startswith("0bce9d7cc69b")
    assert load("king-james").sha256 == data.sha256


@pytest.mark.parametrize(("count", "kept"), [(1, 1), (3, 3), (8, 8), (20, 8)])
def test_the_first_parts_can_be_had_alone(count: int, kept: int) -> None:
    data = load("king-james").first_classes(count)
    assert data.classes == kept
    assert data.test_features is not None
    assert data.test_labels is not None
    assert np.unique(data.labels).tolist() == np.unique(data.test_labels).tolist() == list(range(kept))
    assert (len(data.features), len(data.test_features)) == (kept * text.TRAIN, kept * text.TEST)


def test_the_text_needs_no_scikit_learn(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lasg.data.manage._has_sklearn", lambda: False)
    assert check("king-james") == [CheckResult("king-james", "(embedded)", None, "ok", "in lasg", "")]
    assert [line.where for line in status() if line.dataset == "king-james"] == ["in lasg"]


def test_check_names_a_text_that_was_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "SHA256", "0" * 64)
    monkeypatch.setattr(text, "king_james", text.king_james.__wrapped__)
    [result] = check("king-james")
    assert (result.state, result.mend) == ("damaged", "pip install --force-reinstall lasg")
