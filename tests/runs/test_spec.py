"""A spec says everything about a run, survives a trip through TOML, and refuses nonsense in one line."""

import dataclasses
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lasg.core.algorithms import ALGORITHMS
from lasg.errors import LasgError
from lasg.runs import factories
from lasg.runs import spec as specs
from lasg.runs.pairs import parse_value
from lasg.runs.spec import Spec, from_dict, from_toml, with_budget
from lasg.runs.tasks import task
from tests.runs.samples import SMALL, small

KEYS = [field.name for field in dataclasses.fields(Spec)]

words = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
positive = st.floats(1e-100, 1e100)
options = st.dictionaries(
    words,
    st.one_of(st.booleans(), st.integers(-(2**60), 2**60), st.floats(allow_nan=False), words, st.lists(positive)),
    max_size=3,
)


OWN_RULE = {
    "name": "mine",
    "lazy": True,
    "where": "worker",
    "probe": "snapshot",
    "remembers": ["grad", "probe"],
    "estimates": False,
    "fingerprint": "0123456789abcdef",
}


@st.composite
def all_specs(draw: st.DrawFn) -> Spec:
    workers, network, own = draw(st.integers(1, 40)), draw(st.booleans()), draw(st.booleans())
    table, by_rho, local = draw(st.booleans()), draw(st.booleans()), not own and draw(st.booleans())
    grows = local and draw(st.booleans())
    simple = [*ALGORITHMS, "wk2+qsgd8+H4", "pse+dense", "lag+qsgd3:7", "lasg-vr", "wk2+topk0.02:2bit+ec"]
    with_outer = ["diloco", "sparseloco", "always+topk0.01:warm9+ec+residual0.9+H3+inner"]
    values: dict[str, st.SearchStrategy[Any]] = {
        "task": words,
        "algorithm": st.sampled_from(["mine+Half", "mine+Half+H4"] if own else with_outer if local else simple),
        "data": st.just("csv:a.csv") if table else words,
        "label_column": st.none() | words if table else st.none(),
        "scale": st.none() | st.booleans() if table else st.none(),
        "seed": st.integers(0, 2**62),
        "workers": st.just(workers),
        "partition": st.sampled_from(["homogeneous", "sorted", "dirichlet", "classes", "sizes"]),
        "alpha": st.none() | positive,
        "classes": st.none() | st.integers(1, 9),
        "sizes": st.none() | st.lists(st.integers(1, 99), max_size=5).map(tuple),
        "cut": st.none() | st.integers(1, 2000),
        "batch": st.floats(0, 1, exclude_min=True),
        "lam": st.floats(0, 1e10),
        "eta": positive,
        "schedule": st.sampled_from(["constant", "decreasing", "CosineAnnealingLR"]),
        "schedule_options": options,
        "optimizer": st.sampled_from(["sgd", "SGD", "Adam"]),
        "optimizer_options": options,
        "outer": st.sampled_from([None, "SGD", "Adam"]) if local else st.none(),
        "outer_eta": st.none() | positive if local else st.none(),
        "outer_options": st.none() | options if local else st.none(),
        "inner_memory": st.sampled_from([None, "kept", "reset"]) if local else st.none(),
        "drift": st.none() | st.floats(0, 1) if local and not grows else st.none(),
        "qsr": st.floats(0, 1e100) if grows else st.none(),
        "D": st.integers(1, 10**6),
        "c": st.none() if by_rho else st.none() | st.floats(0, allow_nan=False),
        "rho": st.floats(0, 1e100) if by_rho else st.none(),
        "guard": st.none() | st.booleans(),
        "window": st.integers(1, 100),
        "variance_bound": st.none() | st.floats(0, allow_nan=False),
        "c_d": st.none() if by_rho else st.none() | st.floats(0, 1e100),
        "start": st.sampled_from(["ask-twice", "zero"]),
        "H": st.integers(1, 100),
        "bits": st.integers(2, 16),
        "bucket": st.none() | st.integers(1, 5000),
        "smoothness": st.sampled_from(["paper", "tight"]),
        "dtype": st.sampled_from(["float32", "float64"]),
        "model": st.just("cnn") if network else st.none(),
        "weights": st.none() | words if network else st.none(),
        "batch_norm": st.sampled_from([None, "local", "frozen"]) if network else st.none(),
        "augment": st.none() | st.booleans() if network else st.none(),
        "clip": st.none() | positive,
        "autocast": st.sampled_from([None, "bfloat16", "float16"]) if network else st.none(),
        "device": st.none() | words if network else st.none(),
        "threads": st.none() | st.integers(1, 64) if network else st.none(),
        "patience": st.none() | st.integers(1, 1000),
        "iterations": st.integers(1, 10**9),
        "until": st.dictionaries(st.sampled_from(["uploads", "bits", "gradients", "loss"]), positive),
        "evaluate": st.integers(1, 10**6) | st.just("geometric"),
        "measured": st.none() | st.integers(1, 99) if network else st.none(),
        "marks": st.none() | st.dictionaries(st.sampled_from(["uploads", "bits", "gradients"]), positive),
        "watch": st.none() | st.lists(st.integers(0, workers - 1), unique=True, max_size=5).map(tuple),
        "robust": st.sampled_from([None, "median-clip3", "none"]),
        "own_rule": st.just(OWN_RULE) if own else st.none(),
        "own_codec": st.just({"name": "Half", "settings": {"k": 3, "x": 0.5}, "fingerprint": "f0"})
        if own
        else st.none(),
    }
    assert sorted(values) == sorted(KEYS), "a new field of Spec needs a strategy here"
    return Spec(**{name: draw(strategy) for name, strategy in values.items()})


def one_line(error: pytest.ExceptionInfo[LasgError]) -> str:
    message = str(error.value)
    assert message.strip()
    assert "\n" not in message
    return message


def prepare(values: dict[str, Any]) -> None:
    """Do with a spec's values all that happens before the first byte of a run is written."""
    spec = from_dict(values)
    factories.training(spec, factories.problem(spec))


@given(all_specs())
def test_a_spec_read_back_from_toml_is_the_spec_that_was_written(spec: Spec) -> None:
    again = from_toml(spec.to_toml())
    assert again == spec
    assert again.to_toml() == spec.to_toml()
    assert (again.digest, again.label) == (spec.digest, spec.label)


def test_runs_that_were_stored_before_c_d_was_a_key_keep_their_names() -> None:
    assert small("lasg-wk2").digest == "d3c1ede54e"
    assert task("mnist-lr").spec("laqsg-pse").digest == "3feee012f9"


@given(all_specs())
def test_a_label_names_one_folder(spec: Spec) -> None:
    assert len(Path(spec.label).parts) == 1
    assert spec.label not in {".", ".."}


@pytest.mark.parametrize(
    "values",
    [{"eta": 1}, {"optimizer": "Adam", "optimizer_options": {"betas": (0.9, 0.99)}}, {"until": {"uploads": 10}}],
    ids=str,
)
def test_values_as_python_writes_them_survive_the_trip_through_toml(values: dict[str, Any]) -> None:
    spec = Spec(task="t", algorithm="sgd", data="digits", **values)
    again = from_toml(spec.to_toml())
    assert again == spec, "a stored run of this spec would never be recognised and reused"
    assert again.label == spec.label


def test_a_spec_cannot_be_changed_in_place() -> None:
    spec = small("sgd")
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.eta = 1.0  # type: ignore[misc]


def test_a_spec_does_not_change_with_the_dict_it_was_made_from() -> None:
    until = {"uploads": 10.0}
    spec = small("sgd", until=until)
    until["uploads"] = 99.0
    assert spec.until == {"uploads": 10.0}


def test_but_returns_a_checked_copy() -> None:
    spec = small("sgd")
    assert spec.but(eta=0.7).eta == 0.7
    assert spec.eta == SMALL["eta"]
    with pytest.raises(LasgError, match="eta"):
        spec.but(eta=-1)


def test_specs_that_differ_have_labels_that_differ() -> None:
    labels = {small("sgd", **{key: value}).label for key, value in (("eta", 0.1), ("eta", 0.2), ("D", 5), ("seed", 1))}
    assert len(labels) == 4


@pytest.mark.parametrize(
    ("values", "hint"),
    [
        ({**SMALL, "algorithm": "sgd", "etta": 1}, "eta"),
        ({**SMALL, "algorithm": "sgd", "zzz": 1}, "zzz"),
        ({"task": "t", "data": "digits"}, "algorithm"),
        ({"algorithm": "sgd", "data": "digits"}, "task"),
        ({"algorithm": "sgd", "task": "t"}, "data"),
        ({}, "task"),
    ],
)
def test_an_unknown_or_missing_key_is_an_error_that_lists_the_valid_ones(values: dict[str, Any], hint: str) -> None:
    with pytest.raises(LasgError, match=hint) as error:
        from_dict(values)
    assert all(key in one_line(error) for key in KEYS)


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("eta", "fast", "a number"),
        ("eta", True, "a number"),
        ("D", 1.5, "an integer"),
        ("D", "7", "an integer"),
        ("seed", True, "an integer"),
        ("task", 3, "a string"),
        ("sizes", 3, "a list of integers"),
        ("sizes", [1, 2.5], "a list of integers"),
        ("watch", ["a"], "a list of integers"),
        ("until", 3, "a table"),
        ("optimizer_options", [1], "a table"),
        ("evaluate", "sometimes", "'geometric'"),
        ("evaluate", 1.5, "an integer"),
        ("start", "later", "'ask-twice'"),
        ("dtype", "float16", "'float64'"),
        ("smoothness", "loose", "'tight'"),
        ("dtype", 64, "'float64'"),
    ],
)
def test_an_ill_typed_value_is_an_error_that_says_what_is_valid(key: str, value: Any, wanted: str) -> None:
    with pytest.raises(LasgError) as error:
        from_dict({**SMALL, "algorithm": "sgd", key: value})
    message = one_line(error)
    assert key in message
    assert wanted in message


INVALID: list[tuple[str, Any]] = [
    ("eta", -0.1),
    ("eta", 0),
    ("eta", math.nan),
    ("eta", math.inf),
    ("D", 0),
    ("D", -3),
    ("c", -1),
    ("c", math.nan),
    ("window", 0),
    ("variance_bound", -1.0),
    ("variance_bound", math.nan),
    ("c_d", -1.0),
    ("c_d", math.inf),
    ("workers", 0),
    ("workers", 457),
    ("workers", 10**9),
    ("seed", -1),
    ("bits", 1),
    ("bits", 17),
    ("bucket", 0),
    ("batch", 0),
    ("batch", 1.5),
    ("batch", -0.1),
    ("batch", math.nan),
    ("batch", math.inf),
    ("lam", -1),
    ("lam", math.nan),
    ("lam", math.inf),
    ("H", 0),
    ("iterations", 0),
    ("evaluate", 0),
    ("until", {"uploads": 0}),
    ("until", {"uploads": math.nan}),
    ("until", {"loss": math.inf}),
    ("until", {"loss": "low"}),
    ("until", {"bits": True}),
    ("until", {"seconds": 3}),
    ("watch", [6]),
    ("watch", [-1]),
    ("algorithm", "sdg"),
    ("algorithm", "wk2"),
    ("algorithm", "wk2+qsgd99"),
    ("algorithm", "wk2+zip"),
    ("algorithm", ""),
    ("data", "no-such-data"),
    ("partition", "random"),
    ("optimizer", "Adamm"),
    ("optimizer", "Optimizer"),
    ("optimizer", "LBFGS"),
    ("optimizer", "SparseAdam"),
    ("optimizer_options", {"momentum": 0.9}),
    ("schedule", "sometimes"),
    ("schedule", "decreasing"),
    ("schedule", "CosineAnnealingLR"),
    ("schedule", "ReduceLROnPlateau"),
    ("start", "later"),
    ("dtype", "float16"),
    ("smoothness", "loose"),
    ("cut", 0),
    ("cut", 10**6),
    ("alpha", 0.5),
    ("sizes", [1, 2, 3]),
]


@pytest.mark.parametrize(("key", "value"), INVALID, ids=lambda value: str(value)[:30])
def test_an_invalid_value_is_refused_in_one_line_before_a_run_begins(key: str, value: Any) -> None:
    with pytest.raises(LasgError) as error:
        prepare({**SMALL, "algorithm": "sgd", key: value})
    one_line(error)


@pytest.mark.parametrize(
    ("key", "value"), [("dtype", "float16"), ("smoothness", "loose"), ("start", "later"), ("evaluate", "sometimes")]
)
def test_a_spec_made_in_python_is_checked_as_one_from_toml(key: str, value: Any) -> None:
    with pytest.raises(LasgError, match=key):
        Spec(**{**SMALL, "algorithm": "sgd", key: value})


def test_averaged_states_are_a_value_of_inner_memory_that_survives_toml_and_reaches_the_stages() -> None:
    values = {**SMALL, "algorithm": "always+dense+H2+inner", "optimizer": "Adam", "inner_memory": "averaged"}
    spec = from_toml(from_dict(values).to_toml())
    assert spec.inner_memory == "averaged"
    assert spec.stages.averages == 2


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"algorithm": "sgd"}, "inner_memory is for algorithms whose workers have an optimizer of their own"),
        ({"algorithm": "diloco", "optimizer": "SGD"}, "remembers nothing to average. Give it momentum, or take kept"),
        ({"algorithm": "clag+topk0.1+difference+H2+inner", "optimizer": "Adam"}, "take always, or inner_memory = kept"),
    ],
)
def test_averaged_states_are_refused_in_one_line_where_there_are_none(values: dict[str, Any], words: str) -> None:
    with pytest.raises(LasgError, match=words) as error:
        from_dict({**SMALL, **values, "inner_memory": "averaged"})
    one_line(error)


@pytest.mark.parametrize(
    "values",
    [
        {"optimizer": "Adam", "optimizer_options": {"lr": 1.0}},
        {"optimizer": "Adam", "optimizer_options": {"speed": 1.0}},
        {"optimizer": "Adam", "optimizer_options": {"betas": [2.0, 0.9]}},
        {"optimizer": "SGD", "optimizer_options": {"momentum": -1.0}},
        {"optimizer": "SGD", "schedule": "StepLR", "schedule_options": {"size": 3}},
        {"optimizer": "Adam", "schedule": "decreasing", "schedule_options": {"mu": 1.0, "K0": 1.0}},
        {"schedule": "decreasing", "schedule_options": {"mu": -1.0, "K0": 1.0}},
        {"schedule": "decreasing", "schedule_options": {"mu": "a", "K0": 1.0}},
        {"partition": "dirichlet"},
        {"partition": "dirichlet", "alpha": -1.0},
        {"partition": "classes", "classes": 3},
        {"partition": "sizes", "sizes": [456]},
        {"partition": "homogeneous", "cut": 3},
    ],
    ids=str,
)
def test_options_that_do_not_fit_are_refused_in_one_line(values: dict[str, Any]) -> None:
    with pytest.raises(LasgError) as error:
        prepare({**SMALL, "algorithm": "sgd", **values})
    one_line(error)


@pytest.mark.parametrize("text", ["task =", "[[", "a = 1\na = 2", "\x00"])
def test_text_that_is_not_toml_is_refused_in_one_line(text: str) -> None:
    with pytest.raises(LasgError, match="TOML") as error:
        from_toml(text)
    one_line(error)


def test_a_spec_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "wrong.toml").write_text("task = 'a'\nalgorithm = 'sgd'\ndata = 'digits'\neta = -1\n")
    for name in ("absent.toml", "binary.toml", "wrong.toml", ""):
        with pytest.raises(LasgError) as error:
            specs.read(tmp_path / name)
        assert str(tmp_path / name) in one_line(error)


def test_a_budget_is_added_to_those_there_are() -> None:
    spec = with_budget(with_budget(small("sgd"), "uploads", 100), "loss", 0.5)
    assert dict(spec.until) == {"uploads": 100, "loss": 0.5}
    assert with_budget(spec, "iterations", 7).iterations == 7


def test_a_budget_of_a_fraction_of_an_iteration_is_not_cut_silently() -> None:
    with pytest.raises(LasgError, match="iterations"):
        with_budget(small("sgd"), "iterations", 2.7)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("0.05", 0.05),
        ("7", 7),
        ("true", True),
        ("[1, 2]", [1, 2]),
        ("Adam", "Adam"),
        ("'a b'", "a b"),
        ("inf", math.inf),
    ],
)
def test_the_right_side_of_set_is_toml_or_a_bare_word(text: str, value: Any) -> None:
    assert parse_value(text) == value


# -- how lazy a run is that does not say it ------------------------------------------------------------------------


def test_lasgs_own_tasks_with_plain_sgd_are_as_lazy_as_the_paper_and_all_else_is_bounded_and_guarded() -> None:
    papers = task("digits").spec("lasg-wk2")
    assert (papers.c, papers.rho, papers.laziness.guard) == (0.1, None, False)
    for changes in ({"optimizer": "Adam"}, {"optimizer": "SGD", "optimizer_options": {"momentum": 0.9}}):
        for safe in (task("digits").spec("lasg-wk2", **changes), papers.but(**changes)):
            assert (safe.c, safe.rho, safe.laziness.guard) == (None, 0.5, True)
    own = from_dict({"task": "mine", "algorithm": "lasg-wk2", "data": "libsvm:mine.svm"})
    assert (own.c, own.rho, own.laziness.guard) == (None, 0.5, True)
    assert own.but(c=0.2).rho is None
    assert papers.but(rho=0.2).c is None
    assert papers.but(c=0.3).but(optimizer="Adam").c == 0.3  # what was said stays


def test_rho_beside_the_papers_constant_is_refused() -> None:
    with pytest.raises(LasgError, match="both say how lazy"):
        task("digits").spec("lasg-wk2", rho=0.3, c=0.1)
