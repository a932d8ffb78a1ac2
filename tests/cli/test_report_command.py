"""`lasg report`, `lasg figure`, and what `lasg compare` writes: good input gives files, bad input one line."""

import csv
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lasg.analysis import link_time
from lasg.analysis.compare import shared_target, summarise
from lasg.analysis.link_model import PRESETS
from lasg.core.ledger import COUNTS
from lasg.report import paper_figures as figures
from lasg.runs import store
from lasg.runs.runner import run
from lasg.runs.store import Run
from lasg.runs.tasks import task
from lasg.runs.trace import EVALUATED, ROUNDS

from .conftest import Done, Lasg, complaints, said

RUNS, REPORT = Path("runs"), Path("report.html")
NAMES = ("sgd", "lasg-wk2", "qsgd")
QUICK = ("breast-cancer", "-a", "sgd,lasg-wk2", "--until", "iterations=20", "--seeds", 1, "-j", 1, "--out", RUNS)
COMPARE = ("compare", *QUICK)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder of three real runs, 20 iterations each."""
    folder = tmp_path_factory.mktemp("made")
    for name in NAMES:
        spec = task("breast-cancer").spec(name, iterations=20)
        run(spec, folder / spec.label)
    return folder


@pytest.fixture
def runs(made: Path, tmp_path: Path) -> list[Path]:
    """Put the runs under runs/ in the folder of the test."""
    shutil.copytree(made, tmp_path / RUNS)
    return sorted((tmp_path / RUNS).iterdir())


@pytest.fixture
def bad(runs: list[Path]) -> Path:
    """Return the run that a test damages."""
    return next(folder for folder in runs if "lasg-wk2" in folder.name)


def fine(done: Done) -> str:
    """Return what a command printed, after looking that all went well."""
    assert done.code == 0, done.err
    assert not complaints(done)
    return done.out


def ok(done: Done) -> Any:
    return json.loads(fine(done))


def files(folder: Path = Path()) -> set[str]:
    """Return every file below a folder; none is a leftover."""
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert not [name for name in found if ".part" in name]
    return found


def refused(done: Done) -> str:
    """Return the one line of a refusal."""
    line = said(done)
    assert done.code == 2, line
    return line


@pytest.fixture
def kept() -> Iterator[Path]:
    """Put an older report in the way; it must stay as it is, and nothing may stand beside it."""
    folder = Path("out")
    folder.mkdir()
    path = folder / "report.html"
    path.write_text("old")
    yield path
    assert path.read_text() == "old"
    assert files(folder) == {"report.html"}


def embedded(path: Path) -> Any:
    """Return the data of a report."""
    text = path.read_text(encoding="utf-8")
    return json.loads(text.split('id="data">')[1].split("</script>")[0])


def chosen(path: Path) -> str:
    """Return the network that is selected at first in a report."""
    menu = path.read_text(encoding="utf-8").split('<select id="network">')[1].split("</select>")[0]
    (name,) = re.findall(r'<option value="([^"]*)" selected>', menu)
    return str(name)


# -- report ------------------------------------------------------------------------------------------------


def test_report_writes_one_file_and_says_where(lasg: Lasg, runs: list[Path]) -> None:
    before = files()
    text = fine(lasg("report", RUNS))
    assert text.startswith("Report: report.html (")
    assert text.endswith("MB, 3 runs)\n")
    assert files() - before == {"report.html"}
    assert REPORT.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert [one["label"] for one in embedded(REPORT)["series"]] == list(NAMES)


def test_report_as_json_has_path_runs_and_bytes(lasg: Lasg, runs: list[Path]) -> None:
    values = ok(lasg("report", RUNS, "-o", "new/folder/page.html", "--json"))
    path = Path("new/folder/page.html")
    assert values == {"report": str(path), "runs": 3, "bytes": path.stat().st_size}


def test_one_run_is_not_called_runs(lasg: Lasg, runs: list[Path]) -> None:
    assert "1 runs" not in fine(lasg("report", runs[0]))


def test_runs_are_named_by_their_folders_or_by_a_folder_of_them(lasg: Lasg, runs: list[Path]) -> None:
    (RUNS / "notes.txt").write_text("beside the runs")
    (RUNS / "empty").mkdir()
    assert ok(lasg("report", runs[0], "--json"))["runs"] == 1
    assert ok(lasg("report", runs[0], runs[2], "--json"))["runs"] == 2
    assert ok(lasg("report", RUNS, "--json"))["runs"] == 3


def test_a_run_that_is_named_twice_counts_once(lasg: Lasg, runs: list[Path]) -> None:
    first = RUNS / runs[0].name
    Path("link").symlink_to(runs[0])
    again = (first, first, f"{first}/", runs[0], RUNS / "." / first.name, "link", RUNS)
    assert ok(lasg("report", *again, "--json"))["runs"] == 3
    assert all(len(one["seeds"]) == 1 for one in embedded(REPORT)["series"])


def test_copies_of_a_run_are_not_seeds_of_it(lasg: Lasg, runs: list[Path]) -> None:
    """Two folders with the same runs, as after two experiments that share their baseline."""
    shutil.copytree(RUNS, "copy")
    done = lasg("report", RUNS, "copy")
    if done.code:
        refused(done)
    else:
        assert all(len(one["seeds"]) == 1 for one in embedded(REPORT)["series"])


def test_the_same_runs_give_the_same_report(lasg: Lasg, runs: list[Path]) -> None:
    for name in ("one.html", "two.html"):
        fine(lasg("report", RUNS, "-o", name))
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


def test_a_new_report_takes_the_place_of_the_old_one(lasg: Lasg, runs: list[Path]) -> None:
    Path("out").mkdir()
    path = Path("out/report.html")
    path.write_text("old")
    fine(lasg("report", RUNS, "-o", path))
    assert path.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert files(Path("out")) == {"report.html"}


def test_task_and_partition_choose_among_the_runs(lasg: Lasg, runs: list[Path]) -> None:
    other = task("digits").spec("sgd", iterations=5)
    run(other, RUNS / other.label)
    even = task("breast-cancer").spec("sgd", iterations=5, setting="homogeneous")
    run(even, RUNS / even.label)
    assert "different problems" in refused(lasg("report", RUNS))
    assert ok(lasg("report", RUNS, "--task", "digits", "--json"))["runs"] == 1
    assert "different problems" in refused(lasg("report", RUNS, "--task", "breast-cancer"))
    assert ok(lasg("report", RUNS, "--task", "breast-cancer", "--partition", "sorted", "--json"))["runs"] == 3
    assert ok(lasg("report", RUNS, "--partition", "homogeneous", "--json"))["runs"] == 1


def test_target_title_and_network_reach_the_page(lasg: Lasg, runs: list[Path]) -> None:
    Path("sites.toml").write_text("latency = 0.1\nup = [1,2,3,4,5,6,7,8,9,10]\ndown = 1e6\ngradient = 0\n")
    fine(lasg("report", RUNS, "--target", 0.4, "--title", "A <b> & [bold]", "--network", "sites.toml"))
    text, data = REPORT.read_text(encoding="utf-8"), embedded(REPORT)
    assert "<h1>A &lt;b&gt; &amp; [bold]</h1>" in text
    assert "What it took to reach loss 0.4" in text
    assert (data["target"], chosen(REPORT)) == (0.4, "sites")
    assert list(data["series"][0]["mean"]["seconds"]) == ["sites", *PRESETS]
    found = store.read(next(folder for folder in runs if "-sgd-" in folder.name))
    seconds = link_time.seconds(found, link_time.read_link_model("sites.toml"))
    assert data["series"][0]["seeds"][0]["seconds"]["sites"][-1] == pytest.approx(seconds[-1], rel=1e-5)


def test_a_network_file_that_is_called_as_a_preset_is_used(lasg: Lasg, runs: list[Path]) -> None:
    Path("home.toml").write_text("latency = 1000\nup = 1\ndown = 1\ngradient = 1\n")
    done = lasg("report", RUNS, "--network", "home.toml")
    if done.code:
        assert "home" in refused(done)
    else:
        data = embedded(REPORT)
        assert data["series"][0]["seeds"][0]["seconds"][chosen(REPORT)][-1] > 20_000


def test_a_report_from_within_the_runs_folder(lasg: Lasg, runs: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(runs[0])
    assert ok(lasg("report", ".", "-o", "../../report.html", "--json"))["runs"] == 1


def test_a_network_without_a_name_is_not_told_to_be_called_all(lasg: Lasg, runs: list[Path]) -> None:
    """`all` is for lasg compare; a line that suggests what was just refused helps nobody."""
    done = lasg("report", RUNS, "--network")
    if done.code:
        line = refused(done)
        assert "Did you mean all" not in line
        assert "all for every one" not in line


# -- report: what it refuses -------------------------------------------------------------------------------


def test_an_empty_folder_is_refused(lasg: Lasg, kept: Path) -> None:
    Path("empty").mkdir()
    line = refused(lasg("report", "empty", "-o", kept))
    assert "no stored runs in empty" in line


def test_a_folder_of_other_things_is_refused(lasg: Lasg, kept: Path) -> None:
    Path("photos/2020").mkdir(parents=True)
    Path("photos/cat.jpg").write_bytes(b"cat")
    assert "no stored runs in photos" in refused(lasg("report", "photos", "-o", kept))


def test_runs_that_do_not_exist_are_refused_by_name(lasg: Lasg, runs: list[Path], kept: Path) -> None:
    assert "nowhere does not exist" in refused(lasg("report", "nowhere", "-o", kept))
    assert "nowhere does not exist" in refused(lasg("report", RUNS, "nowhere", "-o", kept))


def test_a_path_that_is_too_long_is_refused(lasg: Lasg, kept: Path) -> None:
    refused(lasg("report", "a" * 300, "-o", kept))


def test_a_folder_that_may_not_be_read_is_refused(
    lasg: Lasg, runs: list[Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "iterdir", denied)
        done = lasg("report", RUNS, "-o", kept)
    assert "runs" in refused(done)


def test_a_file_is_not_a_run(lasg: Lasg, runs: list[Path], kept: Path) -> None:
    line = refused(lasg("report", runs[0] / "meta.json", "-o", kept))
    assert "meta.json is not a stored run" in line


def test_no_runs_at_all_is_wrong_usage(lasg: Lasg) -> None:
    assert "RUNS" in refused(lasg("report"))


@pytest.mark.parametrize(
    "given",
    [("--task", "digits"), ("--partition", "homogeneous"), ("--task", "breast-cancer", "--partition", "Sorted")],
)
def test_filters_that_match_nothing_say_what_there_is(
    lasg: Lasg, runs: list[Path], kept: Path, given: tuple[str, ...]
) -> None:
    line = refused(lasg("report", RUNS, "-o", kept, *given))
    assert "none of the 3 runs" in line
    assert "breast-cancer (sorted)" in line


@pytest.mark.parametrize("target", ["-1", "0", "nan", "inf", "-inf", "low", ""])
def test_a_target_that_is_no_loss_is_refused(lasg: Lasg, runs: list[Path], kept: Path, target: str) -> None:
    assert "--target" in refused(lasg("report", RUNS, "-o", kept, "--target", target))


@pytest.mark.parametrize("target", ["1e-9", "0.6", "0.7", "5", "1e300"])
def test_any_loss_is_a_target(lasg: Lasg, runs: list[Path], target: str) -> None:
    done = lasg("report", RUNS, "--target", target)
    if done.code:
        assert "--target" in refused(done)
    else:
        assert f"{float(target):g}" in REPORT.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("network", "words"),
    [
        ("moblie", "Did you mean mobile?"),
        ("", "unknown network ''"),
        ("mobile:", ""),
        ("mobile:up", "KEY=VALUE"),
        ("mobile:up=-3", "up must be a number > 0"),
        ("mobile:up=inf", "up must be a number > 0"),
        ("mobile:up=nan", "up must be a number > 0"),
        ("mobile:latency=-1", "latency must be a number >= 0"),
        ("mobile:speed=3", "unknown key 'speed'"),
        ("absent.toml", "cannot read the network absent.toml"),
        ("three.toml", "lists 3 workers, the run has 10"),
        ("broken.toml", "cannot read the network broken.toml"),
        ("bytes.toml", "cannot read the network bytes.toml"),
        ("folder.toml", "cannot read the network folder.toml"),
        ("part.toml", "is missing"),
        ("nested.toml", "up must be a number"),
        ("none.toml", "up must be a number"),
        ("flag.toml", "up must be a number"),
    ],
)
@pytest.mark.parametrize("command", [("report", RUNS), ("compare", *QUICK[:-1], "fresh")], ids=["report", "compare"])
def test_a_network_that_makes_no_sense_is_refused(
    lasg: Lasg, runs: list[Path], command: tuple[object, ...], network: str, words: str
) -> None:
    good = "latency = 0.1\ndown = 1e6\ngradient = 0\n"
    Path("three.toml").write_text("latency = [0.1, 0.2, 0.3]\nup = 1e6\ndown = 1e6\ngradient = 0\n")
    Path("broken.toml").write_text("latency = ")
    Path("bytes.toml").write_bytes(b"\xff\xfe")
    Path("folder.toml").mkdir()
    Path("part.toml").write_text("latency = 0.1\n")
    Path("nested.toml").write_text(f"{good}up = [[1, 2]]\n")
    Path("none.toml").write_text(f"{good}up = []\n")
    Path("flag.toml").write_text(f"{good}up = true\n")
    before = files()
    done = lasg(*command, "--network", network)
    if network == "mobile:":
        fine(done)
        return
    assert words in refused(done)
    assert not done.out
    assert files() == before


# Damages of a run, each with what the line names.

Damage = Callable[[Path], None]


def without(name: str) -> Damage:
    return lambda folder: (folder / name).unlink()


def content(name: str, content: bytes) -> Damage:
    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


def cut(share: float) -> Damage:
    def write(folder: Path) -> None:
        whole = (folder / "trace.npz").read_bytes()
        (folder / "trace.npz").write_bytes(whole[: round(share * (len(whole) - 1))])

    return write


def arrays(change: Callable[[dict[str, Any]], None]) -> Damage:
    def write(folder: Path) -> None:
        with np.load(folder / "trace.npz") as stored:
            found = {name: stored[name] for name in stored.files}
        change(found)
        np.savez_compressed(folder / "trace.npz", **found)

    return write


def less(*names: str, by: int = 1) -> Damage:
    def change(found: dict[str, Any]) -> None:
        for name in names:
            found[name] = found[name][:-by]

    return arrays(change)


def lacking(name: str) -> Damage:
    def change(found: dict[str, Any]) -> None:
        del found[name]

    return arrays(change)


def turned(name: str, into: Callable[[Any], Any]) -> Damage:
    def change(found: dict[str, Any]) -> None:
        found[name] = into(found[name])

    return arrays(change)


def meta(**changes: Any) -> Damage:
    """Change the meta data; None takes a key away."""

    def write(folder: Path) -> None:
        values = {**json.loads((folder / "meta.json").read_text()), **changes}
        (folder / "meta.json").write_text(json.dumps({k: v for k, v in values.items() if v is not None}))

    return write


def spec(more: str) -> Damage:
    def write(folder: Path) -> None:
        with (folder / "spec.toml").open("a") as file:
            file.write(f"\n{more}\n")

    return write


def flipped(after: bytes, offset: int, bit: int) -> Damage:
    """Turn a bit round in the last header of the zip file's directory."""

    def write(folder: Path) -> None:
        whole = bytearray((folder / "trace.npz").read_bytes())
        whole[whole.rindex(after) + offset] ^= bit
        (folder / "trace.npz").write_bytes(whole)

    return write


def npy(folder: Path) -> None:
    with (folder / "trace.npz").open("wb") as file:
        np.save(file, np.arange(3))


def folder_instead(name: str) -> Damage:
    def write(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return write


DIRECTORY = b"PK\x01\x02"
TRACES: dict[str, Damage] = {
    "no trace": without("trace.npz"),
    "empty": content("trace.npz", b""),
    "one byte": content("trace.npz", b"P"),
    "text": content("trace.npz", b"not a trace\n" * 50),
    "zeros": content("trace.npz", bytes(4000)),
    "a folder": folder_instead("trace.npz"),
    "one array as npy": npy,
    "a zip of nothing": content("trace.npz", b"PK\x05\x06" + bytes(18)),
    "zip that wants a password": flipped(DIRECTORY, 8, 1),
    "zip of a later version": flipped(DIRECTORY, 6, 0x80),
    "unknown compression": flipped(DIRECTORY, 10, 0x40),
    "wrong checksum": flipped(DIRECTORY, 16, 0xFF),
    **{f"cut at {share:.2f}": cut(share) for share in (0.001, 0.01, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99, 0.995, 1)},
    **{f"no {name}": lacking(name) for name in (*EVALUATED, *ROUNDS)},
    **{f"{name} one shorter": less(name) for name in (*EVALUATED, *ROUNDS)},
    "all rounds one shorter": less(*ROUNDS),
    "all evaluations one shorter": less(*EVALUATED),
    "no evaluation left": arrays(lambda found: found.update({name: found[name][:0] for name in EVALUATED})),
    "uploads of fewer workers": turned("uploaded", lambda found: found[:, :1]),
    "uploads as a number": turned("uploaded", lambda found: np.array(1)),
    "uploads as floats": turned("uploaded", lambda found: found.astype(float)),
    "rounds as floats": turned("rounds", lambda found: found.astype(float)),
    "negative rounds": turned("rounds", lambda found: -found),
    "loss as text": turned("loss", lambda found: found.astype(str)),
    "loss not a number": turned("loss", lambda found: found * np.nan),
    "loss as a table": turned("loss", lambda found: found[:, None]),
}
METAS: dict[str, Damage] = {
    "no meta": without("meta.json"),
    "empty": content("meta.json", b""),
    "cut short": content("meta.json", b'{"format": 1, "status": "do'),
    "not text": content("meta.json", b"\xff\xfe\x00"),
    "a list": content("meta.json", b"[1, 2]"),
    "nothing": content("meta.json", b"null"),
    "very deep": content("meta.json", b"[" * 100_000),
    "a folder": folder_instead("meta.json"),
    "format 2": meta(format=2),
    **{f"no {key}": meta(**{key: None}) for key in ("format", "status", "data_sha256", "versions", "seconds")},
    "unknown status": meta(status="lost"),
    "status as a list": meta(status=["done"]),
    "sha as a list": meta(data_sha256=["0"]),
    "versions as a list": meta(versions=["1"]),
    "seconds as text": meta(seconds="fast"),
}
SPECS: dict[str, Damage] = {
    "no spec": without("spec.toml"),
    "empty": content("spec.toml", b""),
    "cut short": content("spec.toml", b'task = "breast-can'),
    "not text": content("spec.toml", b"\xff\xfe\x00"),
    "a folder": folder_instead("spec.toml"),
    "unknown key": spec("etta = 3"),
    "twice": spec('task = "other"'),
    "unknown algorithm": content("spec.toml", b'task = "a"\nalgorithm = "nope"\ndata = "digits"\n'),
    "wrong type": content("spec.toml", b'task = "a"\nalgorithm = "sgd"\ndata = "digits"\nworkers = "ten"\n'),
    "other workers": content(
        "spec.toml", b'task = "breast-cancer"\nalgorithm = "sgd"\ndata = "digits"\nworkers = 40\n'
    ),
}


def stays_refused(lasg: Lasg, bad: Path, kept: Path) -> str:
    """Return the line for a folder in which one run of three is damaged."""
    before = files()
    done = lasg("report", RUNS, "-o", kept)
    line = refused(done)
    assert not done.out
    assert files() == before
    return line


@pytest.mark.parametrize("damage", TRACES.values(), ids=TRACES)
def test_a_trace_that_is_not_whole_is_refused_by_name(lasg: Lasg, bad: Path, kept: Path, damage: Damage) -> None:
    damage(bad)
    assert bad.name in stays_refused(lasg, bad, kept)


def test_a_trace_that_is_cut_at_any_byte_is_refused(lasg: Lasg, bad: Path, kept: Path) -> None:
    path = bad / "trace.npz"
    whole = path.read_bytes()
    for length in [*range(40), *range(40, len(whole), 131), *range(len(whole) - 40, len(whole))]:
        path.write_bytes(whole[:length])
        assert bad.name in refused(lasg("report", bad, "-o", kept))


@pytest.mark.parametrize("damage", METAS.values(), ids=METAS)
def test_meta_data_that_are_not_whole_are_refused_by_name(lasg: Lasg, bad: Path, kept: Path, damage: Damage) -> None:
    damage(bad)
    assert bad.name in stays_refused(lasg, bad, kept)


@pytest.mark.parametrize("damage", SPECS.values(), ids=SPECS)
def test_a_spec_that_is_not_whole_is_refused_by_name(lasg: Lasg, bad: Path, kept: Path, damage: Damage) -> None:
    damage(bad)
    line = stays_refused(lasg, bad, kept)
    assert bad.name in line or "different problems" in line


def test_a_run_that_has_not_ended_is_refused_with_the_command_that_ends_it(lasg: Lasg, bad: Path, kept: Path) -> None:
    store.write_meta(bad, {**store.read(bad).meta, "status": "running"})
    line = stays_refused(lasg, bad, kept)
    assert "has not ended" in line
    assert f"lasg resume {RUNS / bad.name}" in line
    (bad / "trace.npz").unlink()
    assert "lasg resume" in stays_refused(lasg, bad, kept)


def test_what_the_line_says_mends_the_trace(lasg: Lasg, bad: Path) -> None:
    cut(0.5)(bad)
    assert f"lasg resume {RUNS / bad.name}" in refused(lasg("report", RUNS))
    (line,) = complaints(lasg("resume", bad))
    assert line.endswith("written again from checkpoint.safetensors")
    fine(lasg("report", RUNS))


def test_a_task_filter_leaves_a_damaged_run_of_another_task_aside_or_names_it(
    lasg: Lasg, bad: Path, kept: Path
) -> None:
    other = task("digits").spec("sgd", iterations=5)
    run(other, RUNS / other.label)
    content("trace.npz", b"")(bad)
    assert ok(lasg("report", RUNS, "--task", "digits", "--json"))["runs"] == 1


@pytest.mark.parametrize("path", ["folder", "file/report.html", "file/below/report.html", "/dev/null/report.html"])
def test_a_report_that_cannot_be_written_is_one_line(lasg: Lasg, runs: list[Path], path: str) -> None:
    Path("folder").mkdir()
    Path("file").write_text("kept")
    before = files()
    line = refused(lasg("report", RUNS, "-o", path))
    assert path.split("/", maxsplit=1)[0] in line or "/dev/null" in line
    assert files() == before
    assert Path("file").read_text() == "kept"


def test_a_name_that_is_too_long_for_a_file_is_one_line(lasg: Lasg, runs: list[Path]) -> None:
    before = files()
    refused(lasg("report", RUNS, "-o", "a" * 300 + ".html"))
    assert files() == before


def test_a_disk_that_is_full_leaves_the_old_report(
    lasg: Lasg, runs: list[Path], kept: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "No space left on device" in refused(lasg("report", RUNS, "-o", kept))


@pytest.mark.parametrize("name", ["a run", "it's", "$(x)", "[bold]", "é 数", "</script>".replace("/", "")])
def test_folders_may_have_any_name(lasg: Lasg, runs: list[Path], name: str) -> None:
    runs[0].rename(RUNS / name)
    assert ok(lasg("report", RUNS / name, "--json"))["runs"] == 1
    (RUNS / name / "trace.npz").write_bytes(b"")
    assert name in refused(lasg("report", RUNS))


# -- compare: seconds and megabytes ------------------------------------------------------------------------


def stored() -> list[Run]:
    """Return the runs that a comparison left, in the order of its table."""
    found = [store.read(folder) for folder in RUNS.iterdir()]
    return sorted(found, key=lambda one: (one.spec.seed, one.spec.algorithm != "sgd"))


def test_a_network_adds_seconds_and_megabytes_to_the_json(lasg: Lasg) -> None:
    rows = ok(lasg(*COMPARE, "--network", "mobile", "--json"))
    for row, one in zip(rows, stored(), strict=True):
        bits = sum(int(one.trace[name][-1]) for name in ("bits_up", "bits_down", "control_bits"))
        assert row["algorithm"] == one.spec.algorithm
        assert row["megabytes"] == bits / 8e6
        assert row["seconds"] == pytest.approx(link_time.seconds(one, PRESETS["mobile"])[-1])
        assert row["faster"] == rows[0]["seconds_to_savings_loss"] / row["seconds_to_savings_loss"]
    assert not {"seconds", "megabytes", "faster"} & set(ok(lasg(*COMPARE, "--json"))[0])


def test_who_did_not_get_there_has_no_seconds_but_the_keys(lasg: Lasg) -> None:
    rows = ok(lasg(*COMPARE, "--until", "loss=0.001", "--network", "mobile", "--json"))
    assert [row["reached"] for row in rows] == [0, 0]
    for row in rows:
        assert {row["seconds"], row["megabytes"], row["faster"], row["uploads"]} == {None}


def test_a_network_adds_seconds_and_megabytes_to_the_table(lasg: Lasg) -> None:
    plain, timed = fine(lasg(*COMPARE)), fine(lasg(*COMPARE, "--network", "mobile"))
    assert "MB" in timed
    assert "MB" not in plain
    assert "mobile" in timed
    (row,) = [line for line in timed.splitlines() if line.startswith("sgd")]
    assert row.rstrip().endswith("1.0x")
    assert " s " in row


@pytest.mark.parametrize(
    "given",
    [[*COMPARE, "--network"], ["compare", "breast-cancer", "--network", *QUICK[1:]], [*COMPARE, "--network", "all"]],
    ids=["last", "before an option", "all"],
)
def test_a_network_without_a_name_says_for_which_links_laziness_pays(lasg: Lasg, given: list[object]) -> None:
    lines = fine(lasg(*given)).splitlines()
    for name in PRESETS:
        (line,) = [line for line in lines if line.startswith(f"{name}: ")]
        assert "Laziness" in line
        assert any(name in line for line in lines[:3])
    assert [line.split()[0] for line in lines if line.startswith(("sgd", "lasg-wk2"))] == ["sgd", "lasg-wk2"]


def test_a_network_without_a_name_as_json_is_every_network(lasg: Lasg) -> None:
    rows = ok(lasg(*COMPARE, "--network", "--json"))
    assert list(rows) == list(PRESETS)
    goal = shared_target(stored())
    for name, found in rows.items():
        assert found == [row.to_dict() for row in summarise(stored(), goal, PRESETS[name])]


def test_a_network_without_a_name_and_nobody_there_is_no_crash(lasg: Lasg) -> None:
    text = fine(lasg(*COMPARE, "--until", "loss=0.001", "--network"))
    assert "reached the loss" in text


@pytest.mark.parametrize("more", [["--network"], ["--report", REPORT], ["--plot", "plot.png"], ["--network", "mobile"]])
@pytest.mark.parametrize("json_", [[], ["--json"]], ids=["table", "json"])
def test_runs_that_all_diverged_end_alike_whatever_was_asked_for(
    lasg: Lasg, more: list[object], json_: list[str]
) -> None:
    """The plain comparison shows that they diverged, and exits 1 with a line."""
    done = lasg(*COMPARE, "--set", "eta=1e30", *more, *json_)
    assert done.code == 1, done.err
    assert "every run diverged" in said(done)
    if json_:
        json.loads(done.out)
    else:
        assert "diverged" in done.out


def test_two_iterations_are_enough_for_every_link(lasg: Lasg) -> None:
    """So early the loss that all reached is, rounded up, the one they began with."""
    quick = ("compare", "breast-cancer", "-a", "sgd,lasg-wk2", "--seeds", 1, "-j", 1, "--out", RUNS)
    fine(lasg(*quick, "--set", "eta=1e-4", "--until", "iterations=2", "--network"))


# -- compare: files ----------------------------------------------------------------------------------------


def test_compare_writes_report_plot_csv_and_tensorboard_together(lasg: Lasg) -> None:
    pytest.importorskip("tensorboard")
    given = ("--report", "new/r.html", "--plot", "new/p.svg", "--csv", "new/e.csv", "--tensorboard", "new/tb")
    text = fine(lasg(*COMPARE, *given, "--network", "mobile"))
    assert "Report: new/r.html" in text
    assert "Plot: new/p.svg" in text
    assert chosen(Path("new/r.html")) == "mobile"
    assert Path("new/p.svg").read_bytes().startswith(b"<?xml")
    with Path("new/e.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for one in stored():
        mine = [row for row in rows if row["run"] == one.spec.label]
        for name in (*COUNTS, "loss", "accuracy"):
            assert [float(row[name]) for row in mine] == one.trace[name].tolist()
        assert len(list(Path("new/tb", one.spec.label).glob("events.*"))) == 1
    assert len(rows) == sum(len(one.trace["loss"]) for one in stored())


def test_tensorboard_has_the_loss_of_every_evaluation(lasg: Lasg) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    for _ in range(2):  # the second time the runs are read from disk, and nothing stands there twice
        fine(lasg(*COMPARE, "--tensorboard", "tb"))
        for one in stored():
            events = accumulator.EventAccumulator(str(Path("tb") / one.spec.label)).Reload()
            found = events.Scalars("loss")
            assert [event.step for event in found] == one.trace["iterations"].tolist()
            np.testing.assert_allclose([event.value for event in found], one.trace["loss"], rtol=1e-6)


def test_the_report_of_a_comparison_is_that_of_its_runs(lasg: Lasg) -> None:
    fine(lasg(*COMPARE, "--report", "one.html"))
    fine(lasg("report", *[one.folder for one in stored()], "-o", "two.html", "--title", "breast-cancer, heterogeneous"))
    assert Path("one.html").read_bytes() == Path("two.html").read_bytes()


def test_json_of_a_comparison_stays_json_beside_files(lasg: Lasg) -> None:
    rows = ok(lasg(*COMPARE, "--report", REPORT, "--plot", "plot.pdf", "--csv", "e.csv", "--json"))
    assert len(rows) == 2
    assert Path("plot.pdf").read_bytes().startswith(b"%PDF")
    assert REPORT.is_file()


@pytest.mark.parametrize(
    ("option", "path"),
    [
        ("--report", "folder"),
        ("--report", "file/r.html"),
        ("--plot", "file/p.png"),
        ("--plot", "folder.png"),
        ("--csv", "folder"),
        ("--csv", "file/e.csv"),
        ("--tensorboard", "file"),
        ("--tensorboard", "file/tb"),
    ],
)
def test_a_file_of_a_comparison_that_cannot_be_written_is_one_line(lasg: Lasg, option: str, path: str) -> None:
    Path("folder").mkdir()
    Path("folder.png").mkdir()
    Path("file").write_text("kept")
    line = refused(lasg(*COMPARE, option, path))
    assert path.split("/", maxsplit=1)[0] in line
    assert Path("file").read_text() == "kept"
    assert not [name for name in files() if not name.startswith("runs/") and name != "file"]


@pytest.mark.parametrize("option", ["--report", "--csv"])
def test_a_comparison_that_is_refused_leaves_the_old_file(lasg: Lasg, option: str) -> None:
    Path("old").write_text("old")
    refused(lasg(*COMPARE, option, "old", "--set", "workers=100000"))
    assert Path("old").read_text() == "old"


# -- figure ------------------------------------------------------------------------------------------------

FIGURE = ("figure", "raster", "--task", "breast-cancer", "-j", 1)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the runs of the figures 20 iterations long."""
    for name in ("digits", "breast-cancer"):
        monkeypatch.setitem(figures.ITERATIONS, name, 20)


@pytest.mark.usefixtures("short")
def test_figure_draws_in_three_formats_and_says_where(lasg: Lasg) -> None:
    text = fine(lasg(*FIGURE))
    assert "Figure: lasg-figures/raster.svg|png|pdf" in text
    assert files(Path("lasg-figures")) == {"raster.svg", "raster.png", "raster.pdf"}
    assert len(list(RUNS.iterdir())) == 6


@pytest.mark.usefixtures("short")
def test_figure_as_json_lists_the_files(lasg: Lasg) -> None:
    found = ok(lasg(*FIGURE, "--to", "new/pictures", "--formats", " png , svg", "--json"))
    assert found == ["new/pictures/raster.png", "new/pictures/raster.svg"]
    assert all(Path(path).is_file() for path in found)


@pytest.mark.usefixtures("short")
def test_figures_of_stored_runs_are_the_same_bytes(lasg: Lasg) -> None:
    for folder in ("one", "two"):
        fine(lasg("figure", "breast-cancer-homogeneous", "--seeds", 2, "-j", 1, "--to", folder))
    names = files(Path("one"))
    assert names == {f"breast-cancer-homogeneous.{kind}" for kind in ("svg", "png", "pdf")}
    for name in names:
        assert Path("one", name).read_bytes() == Path("two", name).read_bytes()


@pytest.mark.usefixtures("short")
def test_a_png_alone_is_the_one_that_is_drawn_with_the_others(lasg: Lasg) -> None:
    fine(lasg(*FIGURE, "--to", "all"))
    fine(lasg(*FIGURE, "--to", "alone", "--formats", "png"))
    assert Path("all/raster.png").read_bytes() == Path("alone/raster.png").read_bytes()


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("name", ["staleness", "sides", "networks", "trials"])
def test_every_figure_takes_a_task(lasg: Lasg, name: str) -> None:
    found = ok(lasg("figure", name, "--task", "breast-cancer", "--seeds", 1, "-j", 1, "--formats", "svg", "--json"))
    assert found == [f"lasg-figures/{name}.svg"]


@pytest.mark.usefixtures("short")
def test_a_task_draws_both_settings_from_stored_runs(lasg: Lasg) -> None:
    found = ok(lasg("figure", "breast-cancer", "--seeds", 1, "-j", 1, "--formats", "png", "--json"))
    assert found == [f"lasg-figures/breast-cancer-{setting}.png" for setting in ("homogeneous", "heterogeneous")]
    assert len(list(RUNS.iterdir())) == 24


def test_figures_of_a_libsvm_file_stay_in_their_folder(lasg: Lasg, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("data").mkdir()
    lines = [f"{'+1' if i % 2 else '-1'} 1:{i % 7 / 7:.3f} 2:{i % 2}" for i in range(60)]
    Path("data/my.libsvm").write_text("\n".join(lines) + "\n")
    name = "libsvm:data/my.libsvm"
    monkeypatch.setitem(figures.ITERATIONS, name, 5)
    given = ("--seeds", 1, "-j", 1, "--formats", "png", "--setting", "homogeneous", "--json")
    (path,) = ok(lasg("figure", name, *given))
    assert Path(path).parent == Path("lasg-figures")


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["figure", "rastr"], ["unknown figure 'rastr'", "Did you mean raster?"]),
        (["figure"], ["NAME"]),
        (["figure", ""], ["unknown figure ''"]),
        ([*FIGURE, "--formats", "svg,exe"], ["exe"]),
        ([*FIGURE, "--formats", ","], ["--formats"]),
        ([*FIGURE, "--formats", ""], ["--formats"]),
        ([*FIGURE, "--seeds", "0"], ["--seeds"]),
        ([*FIGURE, "--setting", "mixed"], ["unknown setting 'mixed'"]),
        (["figure", "digits", "--setting", "mixed"], ["unknown setting 'mixed'"]),
        (["figure", "digits-homogeneous", "--setting", "mixed"], ["mixed"]),
        (["figure", "toy", "--task", "breast-cancr"], ["breast-cancr"]),
        (["figure", "gradients", "--task", "digits"], ["digits"]),
        (["figure", "raster", "--task", "digist"], ["unknown task 'digist'", "Did you mean digits?"]),
        (["figure", "sides", "--task", "digits", "--workers", "a,b"], ["--workers", "a,b"]),
        (["figure", "sides", "--task", "digits", "--workers", "0,99"], ["99"]),
        (["figure", "sides", "--task", "digits", "--workers", "-1"], ["-1"]),
        ([*FIGURE, "--to", "file"], ["file"]),
        (["figure", "all"], ["lasg data fetch"]),
        (["figure", "covtype-lr"], ["covtype.data.gz"]),
    ],
    ids=lambda value: " ".join(map(str, value))[-40:],
)
def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_runs(
    lasg: Lasg, given: list[object], words: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASG_CACHE", "empty-cache")
    Path("file").write_text("kept")
    done = lasg(*given, *(() if {"--seeds", ""} & set(map(str, given)) else ("--seeds", 1)), "-j", 2)
    line = refused(done)
    assert not done.out
    assert files() == {"file"}
    for word in words:
        assert word in line


@pytest.mark.usefixtures("short")
def test_a_folder_that_cannot_be_made_is_one_line(lasg: Lasg) -> None:
    Path("file").write_text("kept")
    assert "file" in refused(lasg(*FIGURE, "--to", "file/below"))
    assert Path("file").read_text() == "kept"


@pytest.mark.usefixtures("short")
def test_a_stored_run_that_is_damaged_is_one_line(lasg: Lasg) -> None:
    fine(lasg(*FIGURE))
    before = files(Path("lasg-figures"))
    broken = next(RUNS.iterdir())
    cut(0.5)(broken)
    done = lasg(*FIGURE)
    if done.code:
        assert broken.name in refused(done)
    assert files(Path("lasg-figures")) == before


# -- lists -------------------------------------------------------------------------------------------------


def test_the_names_that_are_listed_are_the_ones_that_are_taken(lasg: Lasg) -> None:
    names = [row["figure"] for row in ok(lasg("list", "figures", "--json"))]
    assert names == list(figures.listed())
    text = fine(lasg("list", "figures"))
    assert all(name in text for name in names)
    rows = ok(lasg("list", "networks", "--json"))
    assert [row["name"] for row in rows] == list(PRESETS)
    assert all(name in fine(lasg("list", "networks")) for name in PRESETS)


def test_runs_are_found_with_and_without_a_filter(runs: list[Path]) -> None:
    found = store.read_runs(RUNS)
    assert {one.spec.algorithm for one in found} == set(NAMES)
    assert store.read_runs(RUNS, task="breast-cancer", partition="sorted") == found
