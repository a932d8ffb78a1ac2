"""The prepared cache: made once, memory-mapped, mended by itself, never half-written."""

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from lasg.data import cache
from lasg.data.loaders import Dataset, load
from lasg.data.tables import Parts, Table
from lasg.errors import LasgError

from .conftest import Small, left_behind


@pytest.fixture
def folder(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's data folder with a small covtype, already loaded once; returns its prepared folder."""
    small.put(tmp_path)
    monkeypatch.setenv("LASG_DATA", str(tmp_path))
    load("covtype")
    [prepared] = (cache.root() / "prepared").iterdir()
    return prepared


def assert_same(one: Dataset, other: Dataset) -> None:
    assert one.sha256 == other.sha256
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.labels, other.labels)


def test_the_folder_is_named_by_set_source_and_version(folder: Path, small: Small) -> None:
    assert folder.name == f"covtype-{small.sha256[:12]}-v1"
    assert sorted(path.name for path in folder.iterdir()) == ["features.npy", "info.json", "labels.npy"]


def test_a_prepared_set_needs_no_raw_file_and_is_memory_mapped(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LASG_DATA")
    data = load("covtype")
    assert data.features.dtype == np.float32
    assert isinstance(data.features.base, np.memmap)
    assert not data.features.flags.writeable


def test_float64_is_a_copy_of_the_stored_float32(folder: Path) -> None:
    single, double = load("covtype"), load("covtype", dtype=np.float64)
    assert double.features.dtype == np.float64
    np.testing.assert_array_equal(single.features, double.features)
    assert single.sha256 == double.sha256


@pytest.mark.parametrize("dtype", ["int64", "float16"])
def test_another_dtype_is_refused(dtype: str) -> None:
    with pytest.raises(LasgError, match=f"float32 or float64, got {dtype}"):
        load("digits", dtype=dtype)


@pytest.mark.parametrize("name", ["features.npy", "labels.npy", "info.json"])
@pytest.mark.parametrize("damage", ["cut short", "emptied", "garbled", "removed", "a folder"])
def test_a_damaged_prepared_file_is_made_again(folder: Path, name: str, damage: str) -> None:
    before = load("covtype")
    before = Dataset(**{**vars(before), "features": np.array(before.features)})
    path = folder / name
    content = path.read_bytes()
    path.unlink()
    if damage == "cut short":
        path.write_bytes(content[:-7])
    elif damage == "emptied":
        path.write_bytes(b"")
    elif damage == "garbled":
        path.write_bytes(b"\x93NUMPY\x01\x00\x76\x00{'descr': (((" + b"x" * len(content))
    elif damage == "a folder":
        path.mkdir()
    assert_same(load("covtype"), before)
    assert cache.verify(folder, json.loads((folder / "info.json").read_text())["source_sha256"])
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_a_pickle_in_the_place_of_an_array_is_never_opened(folder: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return pytest.fail, ("the pickle was opened",)

    np.save(folder / "labels.npy", np.array([Trap()] * 40, dtype=object), allow_pickle=True)
    assert load("covtype").labels.dtype == np.int64


def test_an_info_of_another_source_is_not_believed(folder: Path) -> None:
    info = json.loads((folder / "info.json").read_text())
    info["source_sha256"] = info["source_sha256"][:12] + "0" * 52
    (folder / "info.json").write_text(json.dumps(info))
    load("covtype")
    assert json.loads((folder / "info.json").read_text()) != info


def test_damage_that_cannot_be_mended_names_the_file_and_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LASG_DATA")
    (folder / "features.npy").write_bytes(b"")
    with pytest.raises(LasgError, match=r"features\.npy is damaged.*lasg data fetch covtype") as caught:
        load("covtype")
    assert "\n" not in str(caught.value)


def test_ctrl_c_while_preparing_leaves_nothing_behind(small: Small, tmp_path: Path, cache_dir: Path) -> None:
    small.put(tmp_path)

    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("covtype", data_dir=tmp_path, progress=interrupt)
    assert left_behind(cache_dir) == []


def test_a_cache_that_cannot_be_written_is_named(small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small.put(tmp_path)
    (tmp_path / "file").touch()
    monkeypatch.setenv("LASG_CACHE", str(tmp_path / "file"))
    with pytest.raises(LasgError, match=f"{tmp_path / 'file'}.*LASG_CACHE"):
        load("covtype", data_dir=tmp_path)


def test_a_full_disk_is_one_line_and_leaves_nothing(
    small: Small, tmp_path: Path, cache_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.put(tmp_path)

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("lasg.data.cache.os.fsync", full)
    with pytest.raises(LasgError, match=r"No space left on device.*LASG_CACHE"):
        load("covtype", data_dir=tmp_path)
    assert left_behind(cache_dir) == []


def test_many_may_prepare_at_once(cache_dir: Path) -> None:
    rows = np.arange(3000.0, dtype=np.float32).reshape(1000, 3)
    parts = Parts(Table(rows, np.arange(1000) % 2, lambda block: block), None, 2)
    target = cache.prepared_folder("race", "0" * 64)
    start = threading.Barrier(6)
    failures: list[BaseException] = []

    def prepare() -> None:
        start.wait()
        try:
            for _ in range(5):
                cache.store(target, parts, "0" * 64, title="race")
                assert cache.verify(target, "0" * 64)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=prepare) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert [path.name for path in target.parent.iterdir()] == [target.name]


def test_the_cache_is_the_users_unless_a_variable_names_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LASG_CACHE")
    assert cache.root().name == "lasg"
    monkeypatch.setenv("LASG_CACHE", "~/elsewhere")
    assert cache.root() == Path.home() / "elsewhere"


def test_a_disk_that_loses_what_it_is_given_is_an_error_and_not_an_endless_loop(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small.put(tmp_path)
    monkeypatch.setattr("lasg.data.cache.store", lambda *_, **__: None)
    with pytest.raises(LasgError, match=r"cannot be read back.*LASG_CACHE"):
        load("covtype", data_dir=tmp_path)
