"""Downloads against a real server: whole and verified, or nothing at all."""

import gzip
import os
import time
from pathlib import Path

import pytest

from lasg.data import cache
from lasg.data.loaders import load
from lasg.data.manage import fetch
from lasg.data.sources import FILES
from lasg.errors import LasgError

from .conftest import COVTYPE, Serve, Small, left_behind


def test_a_download_is_verified_stored_and_told_of(small: Small, serve: Serve, cache_dir: Path) -> None:
    serve((len(small.compressed), small.compressed))
    told: list[tuple[str, int, int | None]] = []
    data = load("covtype", progress=lambda what, done, total: told.append((what, done, total)))
    assert data.features.shape == (40, 54)
    assert (cache_dir / "raw" / COVTYPE).read_bytes() == small.compressed
    assert told[0] == (COVTYPE, len(small.compressed), len(small.compressed))
    assert told[-1] == ("preparing covtype", 4 * 40 * 54, 4 * 40 * 54)
    assert not list(cache_dir.rglob(".*"))


def test_a_server_that_names_no_length_is_fine_and_the_total_is_unknown(small: Small, serve: Serve) -> None:
    serve((None, small.compressed))
    told: list[int | None] = []
    fetch("covtype", progress=lambda what, _, total: told.append(total) if what == COVTYPE else None)
    assert set(told) == {None}


def test_a_mirror_that_compresses_differently_or_not_at_all_is_accepted(small: Small, serve: Serve) -> None:
    for body in (gzip.compress(small.content, compresslevel=1), small.content):
        serve((len(body), body))
        [path] = fetch("covtype", force=True)
        assert path.read_bytes() == body


def test_wrong_content_is_refused_and_nothing_is_left(small: Small, serve: Serve, cache_dir: Path) -> None:
    wrong = gzip.compress(b"<html>please log in</html>")
    serve((len(wrong), wrong))
    with pytest.raises(LasgError, match=f"expected sha256 {small.sha256[:12]}, found [0-9a-f]{{12}}"):
        load("covtype")
    assert left_behind(cache_dir) == []


def test_a_connection_cut_half_way_is_refused_and_nothing_is_left(small: Small, serve: Serve, cache_dir: Path) -> None:
    half = small.compressed[: len(small.compressed) // 2]
    serve((len(small.compressed), half))
    with pytest.raises(LasgError, match=rf"{COVTYPE}.*(ended after|IncompleteRead|more expected)"):
        load("covtype")
    assert left_behind(cache_dir) == []


def test_a_cut_connection_without_a_length_is_refused_by_its_checksum(
    small: Small, serve: Serve, cache_dir: Path
) -> None:
    serve((None, small.compressed[:-20]))
    with pytest.raises(LasgError, match="cannot be read"):
        load("covtype")
    assert left_behind(cache_dir) == []


def test_404_names_the_file_the_folders_and_the_ways_out(
    small: Small, serve: Serve, cache_dir: Path, tmp_path: Path
) -> None:
    serve(None)
    with pytest.raises(LasgError) as caught:
        load("covtype", data_dir=tmp_path)
    message = str(caught.value)
    words = (COVTYPE, "404", str(tmp_path), str(cache_dir), "lasg data fetch covtype", "--data-dir", "LASG_DATA")
    for word in words:
        assert word in message
    assert "\n" not in message
    assert left_behind(cache_dir) == []


def test_no_network_is_one_line_that_says_so(cache_dir: Path) -> None:
    with pytest.raises(LasgError, match=r"Connection refused.*lasg data fetch mnist") as caught:
        load("mnist")
    assert "\n" not in str(caught.value)


def test_a_server_that_says_nothing_times_out(small: Small, serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    serve((len(small.compressed) + 10, small.compressed))
    monkeypatch.setattr("tests.data.conftest.Handler.do_GET", lambda _: time.sleep(0.6))
    monkeypatch.setattr("lasg.data.download.TIMEOUT", 0.2)
    with pytest.raises(LasgError, match="timed out"):
        load("covtype")


def test_the_second_address_helps_out(small: Small, serve: Serve) -> None:
    serve((5, b"wrong"), (len(small.compressed), small.compressed))
    assert len(load("covtype").labels) == 40


def test_ctrl_c_leaves_nothing_behind(small: Small, serve: Serve, cache_dir: Path) -> None:
    serve((len(small.compressed), small.compressed))

    def interrupt(what: str, done: int, total: int | None) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        load("covtype", progress=interrupt)
    assert left_behind(cache_dir) == []


def test_an_address_that_is_not_of_the_web_is_not_opened(
    small: Small, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    path = small.put(tmp_path)
    monkeypatch.setitem(FILES, COVTYPE, replace(FILES[COVTYPE], urls=(path.as_uri(),)))
    with pytest.raises(LasgError, match="not a web address"):
        load("covtype")


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(
    small: Small, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve((len(small.compressed), small.compressed))
    (tmp_path / "file").touch()
    blocked = tmp_path / "file" / "cache"
    monkeypatch.setenv("LASG_CACHE", str(blocked))
    with pytest.raises(LasgError, match=f"{blocked}.*LASG_CACHE"):
        load("covtype")


def test_what_a_killed_process_left_is_swept_away_after_a_day(cache_dir: Path) -> None:
    raw = cache_dir / "raw"
    raw.mkdir()
    old, fresh = raw / ".old.part", raw / ".fresh.part"
    for path in (old, fresh):
        path.touch()
    two_days_ago = time.time() - 2 * 24 * 3600
    os.utime(old, (two_days_ago, two_days_ago))
    with cache.writing(raw):
        pass
    assert not old.exists()
    assert fresh.exists()
