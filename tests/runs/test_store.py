"""A stored run can be trusted: whole files, one format, nothing pickled, counts that agree with each other."""

import json
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lasg.core.algorithms import ALGORITHMS
from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.runs import runner, store
from lasg.runs.files import write_atomically
from lasg.runs.store import Run
from tests.runs.samples import P, made_up, same_bytes, small


@pytest.fixture
def stored(tmp_path: Path) -> Run:
    """Give a small finished run."""
    return runner.run(small("lasg-wk2"), tmp_path / "run")


# -- files ---------------------------------------------------------------------------------------------------


@contextmanager
def disk_full_after(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes: the kernel then fails a write, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_atomically(path, b"old")
    with disk_full_after(1 << 16), pytest.raises(LasgError, match=r"cannot write .*a\.bin"):
        write_atomically(path, bytes(1 << 20))
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_first_write_that_fails_leaves_nothing(tmp_path: Path) -> None:
    with disk_full_after(1 << 16), pytest.raises(LasgError):
        write_atomically(tmp_path / "a.bin", bytes(1 << 20))
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "folder").mkdir()
    for path in (tmp_path / "file" / "x", tmp_path / "folder"):
        with pytest.raises(LasgError, match=f"cannot write {path}"):
            write_atomically(path, b"x")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "folder"]


def test_a_run_cannot_begin_below_a_file_and_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("kept")
    with pytest.raises(LasgError, match="file"):
        runner.run(small("sgd"), tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "kept"


def test_a_written_file_is_the_new_content(tmp_path: Path) -> None:
    for content in (b"one", b"", b"three"):
        write_atomically(tmp_path / "deep" / "a.bin", content)
        assert (tmp_path / "deep" / "a.bin").read_bytes() == content


# -- format --------------------------------------------------------------------------------------------------


def test_a_stored_run_is_five_files(stored: Run) -> None:
    assert sorted(path.name for path in stored.folder.iterdir()) == [
        "checkpoint.safetensors",
        "meta.json",
        "model.safetensors",
        "spec.toml",
        "trace.npz",
    ]


def test_what_is_read_is_what_was_returned(stored: Run) -> None:
    again = store.read(stored.folder)
    assert again.spec == stored.spec == small("lasg-wk2")
    assert again.meta == stored.meta
    assert same_bytes(again.trace, stored.trace)


def test_meta_holds_format_status_seed_seconds_and_versions(stored: Run) -> None:
    meta = json.loads((stored.folder / "meta.json").read_text())
    assert (meta["format"], meta["status"], meta["seed"], meta["engine"]) == (1, "done", 0, "simulation")
    assert meta["seconds"] > 0
    assert {"lasg", "python", "numpy"} <= set(meta["versions"])
    assert len(meta["data_sha256"]) == 64


@pytest.mark.parametrize("found", [0, 2, "1", None])
def test_another_format_version_is_refused(stored: Run, found: Any) -> None:
    store.write_meta(stored.folder, {**stored.meta, "format": found})
    with pytest.raises(LasgError, match=r"run format .*reads format 1"):
        store.read(stored.folder)


@pytest.mark.parametrize("content", ["", "{", "[]", "null", '{"format": 1}', '{"format": 1, "status": 3}', "\xff"])
def test_meta_data_that_make_no_sense_are_refused(stored: Run, content: str) -> None:
    (stored.folder / "meta.json").write_bytes(content.encode("latin-1"))
    with pytest.raises(LasgError):
        runner.resume(stored.folder)


def test_a_folder_that_is_no_run_is_named(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "absent"):
        with pytest.raises(LasgError, match=f"{folder} is not a stored run"):
            store.read(folder)


# -- nothing pickled -----------------------------------------------------------------------------------------


def test_a_trace_opens_without_pickle(stored: Run) -> None:
    with np.load(stored.folder / "trace.npz", allow_pickle=False) as arrays:
        names = {*COUNTS, "loss", "accuracy", "uploaded", "threshold", "watched_tau", "watched_left"}
        assert set(arrays.files) == names
        assert all(arrays[name].dtype != object for name in arrays.files)


def test_a_trace_that_carries_a_pickle_is_refused(stored: Run) -> None:
    with (stored.folder / "trace.npz").open("wb") as file:
        np.savez(file, loss=np.array([{"evil": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(LasgError, match=r"trace\.npz"):
        store.read(stored.folder).trace["loss"]


@pytest.mark.parametrize("size", [None, 0, 10, 500])
def test_a_trace_cut_short_or_gone_is_an_error_that_names_it(stored: Run, size: int | None) -> None:
    path = stored.folder / "trace.npz"
    content = path.read_bytes()
    path.unlink()
    if size is not None:
        path.write_bytes(content[:size])
    with pytest.raises(LasgError, match=r"trace\.npz") as error:
        store.read(stored.folder).trace["loss"]
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("size", [None, 0, 500])
def test_resume_writes_a_lost_trace_anew_as_the_error_promises(stored: Run, size: int | None) -> None:
    before, path = stored.trace, stored.folder / "trace.npz"
    content = path.read_bytes()
    path.unlink()
    if size is not None:
        path.write_bytes(content[:size])
    assert same_bytes(runner.resume(stored.folder).trace, before)
    assert same_bytes(store.read(stored.folder).trace, before)


@pytest.mark.parametrize("size", [0, 5, 100, 1000])
def test_a_checkpoint_cut_short_is_an_error_that_names_it(stored: Run, size: int) -> None:
    path = stored.folder / "checkpoint.safetensors"
    path.write_bytes(path.read_bytes()[:size])
    with pytest.raises(LasgError, match=r"checkpoint\.safetensors") as error:
        store.read_checkpoint(stored.folder)
    assert "\n" not in str(error.value)


def test_no_checkpoint_is_none(tmp_path: Path) -> None:
    assert store.read_checkpoint(tmp_path) is None


# -- checkpoints ---------------------------------------------------------------------------------------------

arrays = hnp.arrays(
    st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
    hnp.array_shapes(min_dims=0, max_dims=2, min_side=0, max_side=3),
)
leaves = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text("ab/1", max_size=3), arrays, arrays.map(torch.tensor)
)
keys = st.text("ab/01", max_size=3) | st.integers(0, 3)
states = st.dictionaries(
    keys,
    st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.lists(inner, max_size=3).map(tuple)
            | st.dictionaries(keys, inner, max_size=3)
        ),
        max_leaves=8,
    ),
    max_size=4,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(states)
def test_any_nested_state_survives_a_checkpoint(tmp_path: Path, state: dict[Any, Any]) -> None:
    store.write_checkpoint(tmp_path, state)
    assert same_bytes(store.read_checkpoint(tmp_path), state)


@pytest.mark.parametrize(
    "state", [{0: 1.0, "0": 2.0}, {"a/b": 1.0, "a": {"b": 2.0}}, {"a": [1.0], "a/0": 2.0}], ids=str
)
def test_keys_that_look_alike_are_kept_apart(tmp_path: Path, state: dict[Any, Any]) -> None:
    def filled(node: Any) -> Any:
        if isinstance(node, dict):
            return {key: filled(value) for key, value in node.items()}
        return [filled(value) for value in node] if isinstance(node, list) else np.array([node])

    store.write_checkpoint(tmp_path, filled(state))
    assert same_bytes(store.read_checkpoint(tmp_path), filled(state))


def test_what_is_read_from_a_checkpoint_can_be_written_to(tmp_path: Path) -> None:
    store.write_checkpoint(tmp_path, {"a": np.zeros(3), "b": torch.zeros(3)})
    state = store.read_checkpoint(tmp_path)
    assert state is not None
    state["a"] += 1
    state["b"] += 1
    again = store.read_checkpoint(tmp_path)
    assert again is not None
    assert again["a"].sum() == again["b"].sum() == 0


def test_what_a_checkpoint_cannot_hold_is_an_error_and_leaves_the_old_one(tmp_path: Path) -> None:
    store.write_checkpoint(tmp_path, {"a": 1})
    with pytest.raises(LasgError, match="/deep/0"):
        store.write_checkpoint(tmp_path, {"deep": [object()]})
    assert store.read_checkpoint(tmp_path) == {"a": 1}


# -- the trace's columns agree -------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=list(ALGORITHMS))
def run_of(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Give a run of each algorithm, evaluated every seventh round, every worker watched."""
    spec = small(request.param, iterations=300, evaluate=7, watch=list(range(6)), D=9, bits=5)
    return runner.run(spec, tmp_path_factory.mktemp("runs") / request.param)


def rule_of(run: Run) -> Any:
    return ALGORITHMS[run.spec.algorithm].rule


def test_evaluations_are_at_the_start_every_seventh_round_and_the_end(run_of: Run) -> None:
    rounds = run_of.trace["rounds"].tolist()
    last = len(run_of.uploads)
    assert rounds == sorted({*range(0, last + 1, 7), last})
    H = run_of.spec.H if run_of.spec.algorithm == "local-sgd" else 1
    assert (run_of.trace["iterations"] == H * run_of.trace["rounds"]).all()
    assert np.isfinite(run_of.trace["loss"]).all()
    assert ((run_of.trace["accuracy"] > 0) & (run_of.trace["accuracy"] <= 1)).all()


def test_uploads_are_the_sum_of_the_upload_bits(run_of: Run) -> None:
    total = np.concatenate([[0], run_of.uploads.sum(1).cumsum()])
    assert (run_of.trace["uploads"] == total[run_of.trace["rounds"]]).all()
    assert run_of.uploads.shape == (run_of.trace["rounds"][-1], run_of.spec.workers)


def test_bits_are_messages_times_their_length(run_of: Run) -> None:
    quantised = ALGORITHMS[run_of.spec.algorithm].quantised
    length = 32 + 8 * -(-5 * P // 8) if quantised else 32 * P
    assert (run_of.trace["bits_up"] == length * run_of.trace["uploads"]).all()
    assert (run_of.trace["bits_down"] == 32 * P * run_of.trace["downloads"]).all()


def test_downloads_go_to_all_under_a_worker_rule_and_to_the_asked_under_a_server_rule(run_of: Run) -> None:
    everybody = run_of.spec.workers * run_of.trace["rounds"]
    expected = run_of.trace["uploads"] if rule_of(run_of).where == "server" else everybody
    assert (run_of.trace["downloads"] == expected).all()


def test_gradient_evaluations_are_as_the_ledger_defines_them(run_of: Run) -> None:
    M, D, rounds = run_of.spec.workers, run_of.spec.D, run_of.trace["rounds"]
    expected = {
        "always": M * run_of.trace["iterations"],
        "lag": M * rounds,
        "wk1": 2 * M * rounds - M * -(-rounds // D),
        "wk2": np.maximum(0, 2 * M * rounds - M),
        "ps": run_of.trace["uploads"],
        "pse": np.maximum(0, 2 * run_of.trace["uploads"] - M),
    }[rule_of(run_of).name]
    assert (run_of.trace["gradients"] == expected).all()


def test_the_watched_tau_is_what_the_upload_bits_imply(run_of: Run) -> None:
    tau = np.ones(run_of.spec.workers, np.int64)
    for k, uploaded in enumerate(run_of.uploads):
        assert (run_of.trace["watched_tau"][k] == tau).all(), k
        tau = np.where(uploaded, 1, tau + 1)
    assert run_of.trace["watched_tau"].max() <= run_of.spec.D


def test_a_worker_uploads_exactly_when_the_rule_is_violated_or_it_is_due(run_of: Run) -> None:
    uploads, left = run_of.uploads, run_of.trace["watched_left"]
    threshold = run_of.trace["threshold"][:, None]
    known = ~np.isnan(left)
    assert uploads[~known].all()
    assert uploads[known & (left > threshold)].all()
    due = run_of.trace["watched_tau"] >= run_of.spec.D
    if not rule_of(run_of).periodic:
        assert uploads[due].all()
    silent = ~uploads
    assert (known & (left <= threshold))[silent].all()
    forced = uploads & known & (left <= threshold)
    assert (due | rule_of(run_of).periodic)[forced].all()


def test_lazy_rules_are_silent_somewhere_and_the_others_never(run_of: Run) -> None:
    assert run_of.uploads.all() == (rule_of(run_of).name == "always")


def test_made_up_runs_read_as_stored_ones(tmp_path: Path) -> None:
    run = made_up(tmp_path, small("sgd"), [(0, 0, 1.0), (3, 9, 0.5)])
    assert run.trace["loss"].tolist() == [1.0, 0.5]
