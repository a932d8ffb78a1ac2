"""Wrong input gives one clear line and exit code 2; no traceback, nothing half-written."""

from pathlib import Path

import pytest

from .conftest import Done, Lasg, said, spawn

OUT = Path("runs")
RUN = ("run", "breast-cancer", "-a", "sgd", "--until", "iterations=3", "--out", OUT)
COMPARE = ("compare", "breast-cancer", "-a", "sgd,qsgd", "--seeds", 1, "-j", 1, "--until", "iterations=3", "--out", OUT)


def refused(done: Done) -> str:
    """Return the one line, after looking that the exit code is 2 and that nothing was written."""
    line = said(done)
    assert done.code == 2
    assert not done.out
    assert not OUT.exists()
    assert not Path("lasg-paper").exists()
    return line


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["compare", "digist", "--out", OUT], ["unknown task 'digist'", "Did you mean digits?"]),
        (["run", "nonsense", "-a", "sgd", "--out", OUT], ["unknown task", "digits", "covtype-lr"]),
        (["run", "digits", "--out", OUT], ["-a"]),
        (["run", "digits", "-a", "sgdd", "--out", OUT], ["unknown algorithm 'sgdd'", "Did you mean sgd?"]),
        (["compare", "digits", "-a", "sgd,nope", "--out", OUT], ["unknown algorithm 'nope'", "laqsg-pse"]),
        (["compare", "digits", "-a", ",", "--out", OUT], ["-a sgd"]),
        (["compare", "digits", "-a", "sgd,qsgd,sgd", "--out", OUT], ["-a names sgd twice", "once"]),
        (["run", "digits", "-a", "wk2+H0", "--out", OUT], ["'wk2+H0' has H0", "at least one local step"]),
        (["run", "digits", "-a", "wk2+Hx", "--out", OUT], ["unknown codec 'Hx'"]),
        (["figure", "digits", "--formats", "gif", "--out", OUT], ["--formats takes svg, png, pdf", "got gif"]),
        (["figure", "digits", "--formats", "png,gif", "--out", OUT], ["--formats takes svg, png, pdf", "got gif"]),
        (["figure", "digits", "--formats", ",", "--out", OUT], ["--formats takes svg, png, pdf", "got none"]),
        ([*RUN, "--set", "eta=-1"], ["eta", "-1"]),
        ([*RUN, "--set", "eta=0"], ["eta"]),
        ([*RUN, "--set", "eta=nan"], ["eta", "nan"]),
        ([*RUN, "--set", "D=0"], ["D must be an integer >= 1, or inf, got 0"]),
        ([*RUN, "--set", "workers=457"], ["457 workers", "456 samples"]),
        ([*COMPARE, "--set", "workers=457"], ["457 workers", "456 samples"]),
        ([*RUN, "--set", "eta"], ["--set takes KEY=VALUE", "'eta'"]),
        ([*RUN, "--set", "=3"], ["--set takes KEY=VALUE"]),
        ([*RUN, "--set", "etta=3"], ["unknown key 'etta'", "Did you mean eta?"]),
        ([*RUN, "--set", "eta=fast"], ["eta must be a number", "fast"]),
        ([*RUN, "--set", "lam=inf"], ["lam"]),
        ([*RUN, "--set", "partition=foo"], ["unknown partition 'foo'", "dirichlet"]),
        ([*RUN, "--set", "optimizer=Foo"], ["unknown optimizer 'Foo'", "Adam"]),
        ([*RUN, "--set", "optimizer=LBFGS"], ["LBFGS"]),
        ([*RUN, "--set", "schedule=Foo"], ["unknown schedule 'Foo'", "StepLR"]),
        ([*RUN, "--set", "schedule=ReduceLROnPlateau"], ["ReduceLROnPlateau"]),
        ([*RUN, "--set", "self=1"], ["self"]),
        ([*RUN, "--set", "setting=homogeneous"], ["setting"]),
        ([*RUN, "--until", "uploads"], ["--until takes", "uploads"]),
        ([*RUN, "--until", "seconds=3"], ["unknown budget 'seconds'", "gradients"]),
        ([*RUN, "--until", "uploads=-3"], ["uploads", "-3"]),
        ([*RUN, "--until", "loss=low"], ["loss", "low"]),
        ([*RUN, "--until", "iterations=0"], ["iterations"]),
        ([*RUN, "--until", "iterations=2.5"], ["iterations"]),
        ([*RUN, "--seed", "-1"], ["--seed"]),
        ([*COMPARE, "--setting", "mixed"], ["unknown setting 'mixed'", "homogeneous"]),
        ([*COMPARE, "--engine", "flower"], ["unknown engine 'flower'", "simulation"]),
        ([*RUN, "--engine", "gpu"], ["unknown engine 'gpu'"]),
        ([*COMPARE, "--seeds", "0"], ["--seeds"]),
        ([*COMPARE, "--seeds", "many"], ["--seeds"]),
        ([*COMPARE, "-j", "0"], ["--jobs"]),
        ([*COMPARE, "--first-seed", "-1"], ["--first-seed"]),
        ([*COMPARE, "--plot", "plot.nonsense"], ["plot.nonsense"]),
        ([*RUN, "--nonsense"], ["--nonsense"]),
        (["nonsense"], ["nonsense"]),
        (["run"], ["SPEC.toml|TASK"]),
        (["run", "absent.toml", "--out", OUT], ["absent.toml"]),
        (["run", "libsvm:absent", "-a", "sgd", "--out", OUT], ["absent"]),
        (["run", "libsvm:.", "-a", "sgd", "--out", OUT], ["a folder"]),
        (["tune", "digits", "-a", "sgd", "--grid", "eta", "--out", OUT], ["--grid eta="]),
        (["tune", "digits", "-a", "sgd", "--grid", "foo=1,2", "--out", OUT], ["unknown key 'foo'"]),
        (["tune", "digits", "-a", "sgd", "--grid", "eta=1,-1", "--out", OUT], ["eta", "-1"]),
        (["tune", "digits", "-a", "sgd", "--grid", "seed=1,2", "--out", OUT], ["seed"]),
        (["tune", "digits", "-a", "sgd", "--out", OUT], ["--grid"]),
        (["paper", "table9", "--out", OUT], ["unknown part of the paper 'table9'", "table1"]),
        (["paper", "table1", "--task", "digits", "--out", OUT], ["digits", "mnist-lr"]),
        (["paper", "toy", "--task", "nope", "--out", OUT], ["unknown task 'nope'"]),
        (["paper", "gradients", "--task", "digits", "--seeds", 1, "--out", OUT], ["digits"]),
        (["resume", "."], ["not a stored run"]),
        (["resume", "absent"], ["not a stored run"]),
        (["list", "nonsense"], ["nonsense"]),
        (["data", "check", "nonsense"], ["unknown data set 'nonsense'"]),
        (["data", "fetch", "nonsense"], ["unknown data set 'nonsense'"]),
        (["data", "list", "--data-dir", "absent"], ["absent"]),
    ],
    ids=lambda value: " ".join(map(str, value))[-50:],
)
def test_wrong_input_is_one_line_and_exit_code_2(lasg: Lasg, arguments: list[object], words: list[str]) -> None:
    line = refused(lasg(*arguments))
    for word in words:
        assert word in line


@pytest.mark.parametrize("change", ["seed=3", "algorithm=qsgd"])
def test_set_of_what_has_its_own_option_works_or_is_refused(lasg: Lasg, change: str) -> None:
    done = lasg(*RUN, "--set", change)
    if done.code:
        assert change.split("=", maxsplit=1)[0] in refused(done)


@pytest.mark.parametrize("change", ["seed=3", "algorithm=qsgd"])
def test_set_and_option_together_for_a_spec_file_work_or_are_refused(lasg: Lasg, change: str) -> None:
    Path("spec.toml").write_text('task = "a"\nalgorithm = "sgd"\ndata = "breast-cancer"\niterations = 3\n')
    done = lasg("run", "spec.toml", "-a", "lag-wk", "--seed", 1, "--set", change, "--out", OUT)
    if done.code:
        assert change.split("=", maxsplit=1)[0] in refused(done)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"task = ", "TOML"),
        (b"\xff\xfe", "spec.toml"),
        (b"task = 'a'\n", "algorithm"),
        (b"task = 'a'\nalgorithm = 'sgd'\ndata = 'digits'\netta = 3\n", "Did you mean eta?"),
        (b"task = 'a'\nalgorithm = 'sgd'\ndata = 'digits'\nD = 1.5\n", "D must be an integer"),
    ],
)
def test_a_spec_file_with_a_fault_is_named_with_the_fault(lasg: Lasg, content: bytes, word: str) -> None:
    Path("spec.toml").write_bytes(content)
    line = refused(lasg("run", "spec.toml", "--out", OUT))
    assert "spec.toml" in line
    assert word in line


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("1 1:0.5\n-1 1:nan\n1 1:0\n", "line 2"),
        ("1 1:0.5\nhello\n", "line 2"),
        ("", "no samples"),
        ("1 1:0.5\n1 1:0.7\n", "2 classes"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare"])
def test_a_libsvm_file_with_a_fault_is_named_with_the_fault(lasg: Lasg, command: str, content: str, word: str) -> None:
    Path("bad.libsvm").write_text(content)
    line = refused(lasg(command, "libsvm:bad.libsvm", "-a", "sgd", "--out", OUT))
    assert "bad.libsvm" in line
    assert word in line


def test_a_damaged_data_file_is_named_and_not_used(lasg: Lasg) -> None:
    Path("ijcnn1.t.bz2").write_bytes(b"junk")
    line = refused(lasg("run", "ijcnn1-lr", "-a", "sgd", "--data-dir", ".", "--out", OUT))
    assert "ijcnn1.t.bz2" in line
    assert "replace or delete" in line


def test_data_that_are_nowhere_name_the_file_and_the_command_that_fetches_it(
    lasg: Lasg, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LASG_CACHE", "empty-cache")
    line = refused(lasg("run", "covtype-lr", "-a", "sgd", "--out", OUT))
    assert "covtype.data.gz" in line
    assert "lasg data fetch covtype" in line
    assert not [path for path in Path("empty-cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("arguments", [RUN, COMPARE, ("demo", "--seeds", 1, "-j", 1)], ids=["run", "compare", "demo"])
@pytest.mark.parametrize("out", ["file", "file/below"])
def test_an_out_folder_that_is_a_file_is_refused(lasg: Lasg, arguments: tuple[object, ...], out: str) -> None:
    Path("file").write_text("kept")
    line = refused(lasg(*(a for a in arguments if a not in {"--out", OUT}), "--out", out))
    assert "file" in line
    assert Path("file").read_text() == "kept"


def test_wrong_input_in_processes_is_one_line_too() -> None:
    done = spawn("compare", "breast-cancer", "-a", "sgd,qsgd", "-j", 2, "--set", "workers=457", "--out", OUT)
    assert "457 workers" in refused(done)


WITHOUT = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == {name!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Absent())
from lasg.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("package", "extra", "arguments"),
    [
        ("sklearn", "data", RUN),
        ("sklearn", "data", ("demo", "--seeds", 1, "-j", 1, "--out", OUT)),
        ("matplotlib", "plot", ("demo", "--seeds", 1, "-j", 1, "--out", OUT)),
        ("matplotlib", "plot", (*COMPARE, "--plot", "plot.png")),
    ],
)
def test_a_missing_optional_package_gives_the_line_that_installs_it(
    package: str, extra: str, arguments: tuple[object, ...]
) -> None:
    line = refused(spawn(*arguments, code=WITHOUT.format(name=package)))
    assert f"pip install 'lasg[{extra}]'" in line
