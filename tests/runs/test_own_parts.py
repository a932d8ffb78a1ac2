"""Rules and codecs of the caller's own: trained, stored, resumed, compared and reported like lasg's."""

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lasg
from lasg.analysis.compare import summarise
from lasg.cli.main import main
from lasg.core.codec_names import parse
from lasg.core.rules import RULES, WK2, Record, wk2
from lasg.errors import LasgError
from lasg.report import plots
from lasg.report.verdict import links
from lasg.runs import spec as specs
from lasg.runs import store
from lasg.runs.fingerprints import fingerprint
from tests.runs.samples import same_bytes, small, stop_after


def largest_change(now: Record, last: Record) -> Any:
    change = now.grad - now.probe
    return change.shape[-1] * (change * change).max(-1)


def half_of_it(now: Record, last: Record) -> Any:
    return largest_change(now, last) / 2


RULE = lasg.Rule(name="largest-change", left=largest_change, probe="last")


@dataclass(frozen=True)
class Rounded:
    """Sends every entry as an integer of so many bytes, scaled."""

    scale: float = 2.0**12

    def encode(self, rows: Any, noise: Any) -> list[bytes]:
        return [np.rint(row * self.scale).astype("<i4").tobytes() for row in rows]

    def decode(self, messages: Any, like: Any) -> Any:
        return np.stack([np.frombuffer(m, "<i4").astype(like.dtype) / like.dtype.type(self.scale) for m in messages])


def trained(folder: Path, algorithm: str | None = None, **more: Any) -> store.Run:
    return lasg.train(small("sgd", iterations=40, evaluate=10), algorithm, folder=folder, **more)


# -- what is trained --------------------------------------------------------------------------------------------------


def test_a_rule_that_is_wk2_by_another_name_gives_wk2s_run(tmp_path: Path) -> None:
    own = trained(tmp_path / "own", rule=replace(WK2, name="mine"))
    known = trained(tmp_path / "known", "lasg-wk2")
    assert own.spec.algorithm == "mine"
    for name in ("loss", "uploads", "bits_up", "gradients", "control_bits", "watched_left"):
        np.testing.assert_array_equal(own.trace[name], known.trace[name], name)


@pytest.mark.parametrize(
    ("algorithm", "more", "name"),
    [
        (None, {"rule": "wk2"}, "wk2+dense"),
        (None, {"rule": WK2, "codec": "qsgd8:512"}, "wk2+qsgd8:512"),
        ("lasg-wk2", {"codec": "qsgd8"}, "wk2+qsgd8"),
        ("qsgd", {"rule": "wk2", "bits": 6, "bucket": 16}, "wk2+qsgd6:16"),
        ("local-sgd", {"rule": "wk2", "H": 3}, "wk2+H3"),
        ("wk2+qsgd8+H2", {"rule": "lag"}, "lag+qsgd8+H2"),
        (None, {"rule": RULE}, "largest-change"),
        (None, {"rule": RULE, "H": 4}, "largest-change+H4"),
        ("local-sgd", {"rule": RULE, "codec": "qsgd4", "H": 2}, "largest-change+qsgd4+H2"),
        ("lasg-wk2", {"codec": Rounded()}, "wk2+Rounded"),
        ("local-sgd", {"codec": Rounded(), "H": 2}, "always+Rounded+H2"),
        (None, {"rule": RULE, "codec": Rounded()}, "largest-change+Rounded"),
    ],
)
def test_rule_and_codec_replace_the_algorithms_and_the_run_is_named_so(
    tmp_path: Path, algorithm: str | None, more: dict[str, Any], name: str
) -> None:
    run = trained(tmp_path / "run", algorithm, **more)
    assert run.spec.algorithm == name
    assert store.read(tmp_path / "run").spec == run.spec
    steps = int(name.rpartition("+H")[2]) if "+H" in name else 1
    assert run.trace["iterations"][-1] == steps * run.trace["rounds"][-1]


def test_a_codec_is_what_travels_and_is_counted(tmp_path: Path) -> None:
    run = trained(tmp_path / "run", codec=Rounded())
    dense = trained(tmp_path / "dense", codec="dense")
    p = run.trace["bits_down"][-1] / run.trace["downloads"][-1] / 32
    assert run.trace["bits_up"][-1] == 32 * p * run.trace["uploads"][-1]
    assert run.trace["loss"][-1] != dense.trace["loss"][-1]


def test_a_codec_that_loses_rows_is_told_so(tmp_path: Path) -> None:
    class First(Rounded):
        def decode(self, messages: Any, like: Any) -> Any:
            return super().decode(messages, like)[0]

    with pytest.raises(LasgError, match=r"First\.decode must give back rows \(6, 30\), one per message, got \(30,\)"):
        trained(tmp_path / "run", codec=First())


def test_a_rule_that_does_not_give_a_number_per_worker_is_told_so(tmp_path: Path) -> None:
    whole = lasg.Rule(name="whole", left=lambda now, _: now.grad - now.probe, probe="last")
    with pytest.raises(LasgError, match=r"rule whole: .* one number per worker, \(6,\), got an array \(6, 30\)"):
        trained(tmp_path / "run", rule=whole)


def test_a_module_of_ones_own_trains_with_both_too(tmp_path: Path) -> None:
    from tests.problems.test_module_more import linear, problem

    class Half:
        def encode(self, rows: Any, noise: Any) -> list[bytes]:
            return [row.numpy().astype("<f2").tobytes() for row in rows]

        def decode(self, messages: Any, like: Any) -> Any:
            return np.stack([np.frombuffer(m, "<f2") for m in messages])

    largest = lasg.Rule(name="amax", left=lambda now, _: (now.grad - now.probe).abs().amax(-1), probe="last")
    run = lasg.train(problem(linear()), rule=largest, codec=Half(), folder=str(tmp_path / "run"), iterations=6)
    assert run.spec.algorithm == "amax+Half"
    assert run.spec.own_parts == ("problem", "rule", "codec")


def test_a_simulation_takes_names_too() -> None:
    spec = small("sgd")
    named = lasg.training(spec, rule="wk2", codec="qsgd8")
    given = lasg.training(spec, rule=RULES["wk2"], codec=parse("qsgd8"))
    for _ in range(10):
        named.step(), given.step()
    assert named.ledger == given.ledger
    assert named.ledger.uploads < 10 * spec.workers


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"rule": "wk3"}, r"unknown rule 'wk3'\. Did you mean wk2\? .*of your own, lasg\.Rule"),
        ({"rule": largest_change}, "unknown rule <function largest_change"),
        ({"codec": "gzip"}, "unknown codec 'gzip'"),
        ({"codec": Rounded}, "a class: give an object of it"),
        ({"codec": object()}, "without encode"),
        ({"rule": replace(RULE, name="wk2")}, "'wk2' is a name of lasg's own: give your rule another"),
        ({"rule": replace(RULE, name="sgd")}, "'sgd' is a name of lasg's own"),
        ({"rule": replace(RULE, name="a+b")}, r"one word of at most 60 characters without \+, got 'a\+b'"),
        ({"rule": RULE, "algorithm": "wk2+qsgd8+H2", "H": 3}, "2 local steps, and H = 3: leave one of them out"),
        ({"rule": RULE, "H": 0}, "H must be an integer >= 1"),
    ],
)
def test_what_is_no_rule_or_codec_is_refused_in_one_line(tmp_path: Path, more: dict[str, Any], message: str) -> None:
    with pytest.raises(LasgError, match=message) as refused:
        trained(tmp_path / "run", **more)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


# -- stored and resumed -----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("eager")
def test_a_stopped_run_goes_on_bit_for_bit_by_the_same_call(tmp_path: Path) -> None:
    parts: dict[str, Any] = {"rule": RULE, "codec": Rounded()}
    whole = trained(tmp_path / "whole", **parts)
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path / "parts", report=stop_after(8, error=KeyboardInterrupt), **parts)
    assert store.read(tmp_path / "parts").status == "running"
    resumed = trained(tmp_path / "parts", **parts)
    assert same_bytes(whole.trace, resumed.trace)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"rule": replace(RULE, left=half_of_it)},
            "own_rule: largest-change with fingerprint .* there, largest-change",
        ),
        ({"rule": "wk2"}, "own_rule: largest-change with fingerprint .* there, none here"),
        ({"codec": Rounded(scale=2.0**10)}, "own_codec: Rounded with fingerprint .* there, Rounded"),
        ({"eta": 0.25}, "eta: .* there, 0.25 here"),
    ],
)
@pytest.mark.parametrize("ended", [True, False])
def test_a_run_of_another_rule_codec_or_setting_is_refused(
    tmp_path: Path, changed: dict[str, Any], message: str, ended: bool
) -> None:
    parts: dict[str, Any] = {"rule": RULE, "codec": Rounded()}
    if ended:
        trained(tmp_path, **parts)
    else:
        with pytest.raises(KeyboardInterrupt):
            trained(tmp_path, report=stop_after(8, error=KeyboardInterrupt), **parts)
    with pytest.raises(LasgError, match=message) as refused:
        trained(tmp_path, **{**parts, **changed})
    assert "\n" not in str(refused.value)
    assert "fresh=True" in str(refused.value)


@pytest.mark.usefixtures("eager")
@pytest.mark.parametrize(("parts", "what"), [({"rule": RULE}, "rule"), ({"codec": Rounded()}, "codec")])
def test_lasg_resume_says_that_lasg_train_goes_on_with_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], parts: dict[str, Any], what: str
) -> None:
    with pytest.raises(KeyboardInterrupt):
        trained(tmp_path, report=stop_after(8, error=KeyboardInterrupt), **parts)
    assert main(["resume", str(tmp_path)]) == 2
    said = capsys.readouterr().err.strip()
    assert (
        said == f"lasg: the {what} of this run is a program's own: go on with it there, by the same call of lasg.train"
    )


def test_a_spec_of_before_is_the_same_run_as_before() -> None:
    spec = small("lasg-wk2")
    assert "own" not in spec.to_toml()
    assert spec.own_parts == ()
    assert specs.from_toml(spec.to_toml()).digest == spec.digest


@pytest.mark.parametrize(
    ("key", "table", "message"),
    [
        ("own_rule", {"name": "x"}, "own_rule: 'lazy' is unknown, missing or of the wrong type"),
        ("own_codec", {"name": "Half", "fingerprint": 3}, "own_codec: 'fingerprint' is unknown"),
        ("own_codec", {"name": "Half", "fingerprint": "a", "more": 1}, "own_codec: 'more' is unknown"),
        (
            "own_codec",
            {"name": "Half", "fingerprint": "a"},
            "describes 'Half', which is no part of the algorithm 'sgd'",
        ),
        ("own_codec", {"name": "dense", "fingerprint": "a"}, "a name of lasg's own"),
    ],
)
def test_a_spec_with_a_damaged_table_of_own_parts_is_refused(key: str, table: dict[str, Any], message: str) -> None:
    with pytest.raises(LasgError, match=message):
        small("sgd").but(**{key: table})


# -- compared and reported --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("own") / "runs"
    for seed in (0, 1):
        base = small("sgd", iterations=60, evaluate=5, seed=seed)
        lasg.train(base, folder=folder / f"sgd-{seed}")
        lasg.train(base, rule=RULE, folder=folder / f"rule-{seed}")
        lasg.train(base, rule=replace(RULE, left=half_of_it), folder=folder / f"half-{seed}")
        for scale in (2.0**10, 2.0**12):
            lasg.train(base, rule="always", codec=Rounded(scale), folder=folder / f"codec-{scale}-{seed}")
            lasg.train(base, rule=RULE, codec=Rounded(scale), folder=folder / f"both-{scale}-{seed}")
    return folder


def test_own_rules_and_codecs_are_series_of_their_own_with_savings(runs: Path) -> None:
    rows = {row.label: row for row in summarise(store.read_runs(runs), None)}
    marked = [label for label in rows if label.startswith("largest-change rule=")]
    assert len(marked) == 2
    assert {"sgd", "always+Rounded codec.scale=1024", "largest-change+Rounded codec.scale=4096"} < set(rows)
    assert len(rows) == 7
    assert all(row.seeds == 2 for row in rows.values())
    assert all((rows[label].fewer_uploads or 0) > 1 for label in marked)
    assert rows[marked[0]].counts["gradients"].mean > 1.9 * rows["sgd"].counts["gradients"].mean
    assert rows["sgd"].counts["control_bits"].mean == 0 < rows[marked[0]].counts["control_bits"].mean


def test_a_lazy_own_rule_is_timed_against_its_twin_in_the_same_codec(runs: Path) -> None:
    from lasg.analysis.link_model import PRESETS
    from lasg.report.verdict import _twins

    found = summarise(store.read_runs(runs), None, PRESETS["mobile"])
    twins = {row.label: twin.label for row, twin in _twins(found)}
    assert twins["largest-change+Rounded codec.scale=1024"] == "always+Rounded codec.scale=1024"
    assert [twin for label, twin in twins.items() if label.startswith("largest-change rule=")] == ["sgd", "sgd"]
    assert len(links({"mobile": found})) == 1


def test_a_report_and_figures_show_them(runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(runs), "-o", str(tmp_path / "report.html")]) == 0
    text = (tmp_path / "report.html").read_text()
    assert "largest-change+Rounded codec.scale=1024" in text
    assert "call <code>lasg.train</code> in the program that has its rule and codec" in text
    assert "lasg run " not in text.split("largest-change+Rounded codec.scale=1024</th>")[1].split("</tr>")[0]
    found = store.read_runs(runs)
    for kind in ("curves", "gradients", "raster", "staleness", "sides"):
        plots.draw(kind, found[:6], "own")


# -- fingerprints -----------------------------------------------------------------------------------------------------

SOURCE = '''
import numpy as np
SCALE = 3
def helper(x):
    return (x * x).max(-1)
def rule(now, last, p=2):
    """What it does."""
    # why
    return p * SCALE * helper(now.grad - now.probe) + (np.abs(now.grad).sum(-1) in {"a", "b"})
'''


def made(source: str) -> Callable[..., Any]:
    found: dict[str, Any] = {"__name__": "somewhere"}
    exec(source, found)
    rule: Callable[..., Any] = found["rule"]
    return rule


@pytest.mark.parametrize("old, new", [("# why", "# because"), ("What it does", "Words"), ("\nSCALE", "\n\n\nSCALE")])  # noqa: PT006
def test_a_comment_a_docstrings_words_and_line_numbers_do_not_change_a_fingerprint(old: str, new: str) -> None:
    assert old in SOURCE
    assert fingerprint(made(SOURCE.replace(old, new))) == fingerprint(made(SOURCE))


@pytest.mark.parametrize(
    ("old", "new"), [("SCALE = 3", "SCALE = 4"), ("max(-1)", "min(-1)"), ("p=2", "p=3"), ("now.probe", "now.theta")]
)
def test_a_constant_a_helper_a_default_and_the_code_do(old: str, new: str) -> None:
    assert old in SOURCE
    assert fingerprint(made(SOURCE.replace(old, new))) != fingerprint(made(SOURCE))


def test_a_fingerprint_is_the_same_in_another_process() -> None:
    code = f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
    code += "from tests.runs.test_own_parts import *; print(fingerprint(made(SOURCE)), fingerprint(Rounded()))"
    here = [fingerprint(made(SOURCE)), fingerprint(Rounded())]
    environment = {**os.environ, "PYTHONHASHSEED": "7"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == here


class Stateful:
    """Has all that an object can hold."""

    __slots__ = ("__dict__", "weights")

    def __init__(self, value: Any) -> None:
        self.weights, self.itself, self.of_torch = value, self, [len, np.sqrt, {"a": {1, 2}}]

    def encode(self) -> Any:
        return self.weights


def test_an_objects_attributes_and_closures_count_and_may_refer_to_it() -> None:
    one, same, other = (fingerprint(Stateful(np.arange(n))) for n in (3, 3, 4))
    assert one == same != other
    assert fingerprint(lambda: one) == fingerprint(lambda: same) != fingerprint(lambda: other)
    assert fingerprint(wk2) != fingerprint(largest_change)


def test_an_object_may_say_itself_what_counts() -> None:
    class Counting(Stateful):
        def fingerprint(self) -> str:
            return "version 1"

    assert fingerprint(Counting(1)) == fingerprint(Counting(2))


def test_a_rule_whose_left_side_is_no_array_is_told_so(tmp_path: Path) -> None:
    rule = lasg.Rule(name="pair", left=lambda now, last: (now.grad.sum(-1), now.grad.sum(-1)), probe="last")
    with pytest.raises(LasgError, match="rule pair: its left side must be an array, one number per worker, got tuple"):
        lasg.train(lasg.task("digits").spec("sgd", iterations=5), rule=rule, folder=tmp_path / "run")
