"""What `lasg data list`, `fetch` and `check` rest on."""

from pathlib import Path

import pytest

from lasg.data import cache
from lasg.data.loaders import load
from lasg.data.manage import CheckResult, check, fetch, status
from lasg.data.sources import DATASETS, FILES
from lasg.errors import LasgError

from .conftest import COVTYPE, Serve, Small


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how == "cut short":
        path.write_bytes(content[: len(content) // 2])
    elif how == "emptied":
        path.write_bytes(b"")
    elif how == "other content":
        path.write_bytes(b"1,2,3\n")
    else:
        path.write_bytes(content[:40] + bytes([content[40] ^ 0xFF]) + content[41:])


def test_status_names_every_file_and_where_it_lies(small: Small, tmp_path: Path) -> None:
    path = small.put(tmp_path)
    lines = status(tmp_path)
    assert {line.dataset for line in lines} == set(DATASETS)
    [here] = [line for line in lines if line.path is not None]
    assert (here.dataset, here.file, here.path, here.where) == ("covtype", COVTYPE, path, str(path))
    assert here.size == len(small.compressed)
    assert not here.prepared
    absent = [line for line in lines if line.where == "not here"]
    assert len(absent) == 2 + 2 + 4 + 4 + 4
    assert all(line.size == FILES[line.file].size for line in absent)
    load("covtype", data_dir=tmp_path)
    assert all(line.prepared for line in status() if line.dataset == "covtype")


def test_fetch_downloads_what_is_missing_once(small: Small, serve: Serve, cache_dir: Path) -> None:
    serve((len(small.compressed), small.compressed))
    [path] = fetch("covtype")
    assert path == cache_dir / "raw" / COVTYPE
    serve(None)  # a second download would fail
    assert fetch("covtype") == [path]
    assert len(load("covtype").labels) == 40


def test_fetch_of_an_embedded_set_needs_no_file() -> None:
    assert fetch("digits") == []


def test_fetch_prepares_a_libsvm_file(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n2 1:2\n")
    assert fetch(f"libsvm:{path}") == [path]
    assert fetch(f"libsvm:{path}") == [path]
    assert [result.state for result in check(f"libsvm:{path}")] == ["ok", "ok"]


@pytest.mark.parametrize("how", ["cut short", "emptied", "other content", "one bit"])
def test_a_damaged_download_is_named_and_mended_by_force(how: str, small: Small, serve: Serve, cache_dir: Path) -> None:
    serve((len(small.compressed), small.compressed))
    path = small.put(cache_dir / "raw")
    damage(path, how)
    command = "lasg data fetch covtype --force"
    for act in (load, fetch):
        with pytest.raises(
            LasgError, match=rf"{path} is damaged: expected sha256 {small.sha256[:12]}, found .*{command}"
        ) as caught:
            act("covtype")
        assert "\n" not in str(caught.value)
    assert [(each.state, each.mend) for each in check("covtype")] == [("damaged", command), ("absent", "")]
    assert fetch("covtype", force=True) == [path]
    assert [each.state for each in check("covtype")] == ["ok", "ok"]


@pytest.mark.parametrize("force", [False, True])
def test_a_damaged_file_of_the_users_own_is_never_replaced(
    force: bool, small: Small, serve: Serve, tmp_path: Path
) -> None:
    serve((len(small.compressed), small.compressed))
    path = small.put(tmp_path)
    damage(path, "cut short")
    before = path.read_bytes()
    with pytest.raises(LasgError, match=f"{path} is damaged.*replace or delete this file"):
        fetch("covtype", force=force, data_dir=tmp_path)
    assert path.read_bytes() == before
    assert check("covtype", tmp_path)[0].mend == "replace or delete this file"


def test_check_finds_one_flipped_bit_in_a_prepared_array_and_force_mends_it(
    small: Small, serve: Serve, cache_dir: Path
) -> None:
    serve((len(small.compressed), small.compressed))
    fetch("covtype")
    [folder] = (cache_dir / "prepared").iterdir()
    path = folder / "features.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    raw, prepared = check("covtype")
    assert raw.state == "ok"
    assert prepared.state == "damaged"
    assert str(path) in prepared.reason
    assert prepared.mend == "lasg data fetch covtype --force"
    fetch("covtype", force=True)
    assert path.read_bytes() == content


def test_check_of_all_says_what_is_absent_and_how_to_get_it() -> None:
    results = check()
    assert {result.dataset for result in results} == set(DATASETS)
    assert CheckResult("covtype", COVTYPE, None, "absent", "not here", "lasg data fetch covtype") in results
    assert CheckResult("digits", "(embedded)", None, "ok", "in scikit-learn", "") in results
    assert list(cache.root().iterdir()) == []


def test_without_scikit_learn_list_and_check_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lasg.data.manage._has_sklearn", lambda: False)
    [digits] = [line for line in status() if line.dataset == "digits"]
    assert "not installed" in digits.where
    [result] = check("digits")
    assert (result.state, result.mend) == ("absent", "pip install 'lasg[data]'")


def test_check_names_the_fault_of_a_libsvm_file(tmp_path: Path) -> None:
    path = tmp_path / "a.svm"
    path.write_text("1 1:1\n")
    result = check(f"libsvm:{path}")[0]
    assert result.state == "damaged"
    assert "only the class 1" in result.reason


@pytest.mark.parametrize("act", [fetch, check, load])
def test_an_unknown_name_is_refused_everywhere(act: object) -> None:
    assert callable(act)
    with pytest.raises(LasgError, match="unknown data set 'covtyp': did you mean 'covtype'"):
        act("covtyp")
