"""The app that `lasg flower new` writes: it trains, goes on after the server was killed, and says what is wrong."""

from __future__ import annotations

import csv
import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="needs Flower: pip install 'lasg[flower]'")
pytest.importorskip("sklearn", reason="the app's data is scikit-learn's")

import tomllib

from flwr.app import Context, RecordDict
from flwr.cli.config_utils import load_and_validate
from flwr.cli.utils import validate_project_name
from safetensors.numpy import load_file

from lasg.cli.main import main
from lasg.errors import LasgError
from lasg.runs import store
from tests.flower.grid import RUN, SUPERLINK, Inline


@pytest.fixture(scope="module")
def app(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("new") / "my-app"
    assert main(["flower", "new", str(folder)]) == 0
    sys.path.insert(0, str(folder))
    yield folder
    sys.path.remove(str(folder))


def trained(app: Path, out: Path, **changes: Any) -> Path:
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {"rounds": 12, "out": str(out), **{name.replace("_", "-"): value for name, value in changes.items()}}
    server = importlib.import_module("my_app.server_app").app
    client = importlib.import_module("my_app.client_app").app
    grid = Inline(client, config["workers"], config)
    server(grid, Context(RUN, SUPERLINK, {}, RecordDict(), config))
    return out


def lines(out: Path) -> list[dict[str, str]]:
    with (out / "trace.csv").open() as file:
        return list(csv.DictReader(file))


def test_the_new_app_trains_lazily_and_stores_model_trace_and_checkpoint(app: Path, tmp_path: Path) -> None:
    out = trained(app, tmp_path, rule="wk2")
    found = lines(out)
    assert [int(row["round"]) for row in found] == list(range(1, 13))
    assert float(found[-1]["loss"]) < 0.5 * float(found[0]["loss"])
    assert int(found[-1]["uploads_so_far"]) < 24
    assert set(load_file(out / "model.safetensors")) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    run, checkpoint = store.read(out), store.read_checkpoint(out)
    assert (run.status, run.meta["engine"], int(run.trace["rounds"][-1])) == ("done", "flower", 12)
    assert checkpoint is not None
    assert checkpoint["simulation"]["server"]["k"] == 12


@pytest.mark.parametrize("rule", ["wk2", "pse"])
def test_a_server_that_was_killed_goes_on_and_counts_nothing_twice(app: Path, tmp_path: Path, rule: str) -> None:
    out = trained(app, tmp_path, rule=rule, rounds=7)
    (out / store.CHECKPOINT).unlink()  # killed between moving the old checkpoint away and writing the new one
    before = lines(out)
    with (out / "trace.csv").open("a") as file:
        file.write("8,1")  # and while it wrote the line of the round after
    trained(app, out, rule=rule, resume=True)  # a new run of Flower: the nodes have forgotten everything
    found = lines(out)
    assert found[:6] == before[:6]
    assert [int(row["round"]) for row in found] == list(range(1, 13))
    so_far = np.cumsum([int(row["uploads"]) for row in found])
    assert [int(row["uploads_so_far"]) for row in found] == so_far.tolist()
    assert int(found[6]["uploads"]) == 2 or rule == "pse"  # who forgot uploads in full
    assert float(found[-1]["loss"]) < float(found[5]["loss"])


def test_a_checkpoint_of_another_run_is_refused_with_what_differs(app: Path, tmp_path: Path) -> None:
    trained(app, tmp_path, rounds=2)
    with pytest.raises(LasgError, match="of a run with another rule"):
        trained(app, tmp_path, rule="lag", resume=True)


def test_a_node_whose_key_nobody_knows_is_told_how_to_say_it(app: Path, tmp_path: Path) -> None:
    with pytest.raises(LasgError, match="no node came for worker north, south"):
        trained(app, tmp_path, keys="north, south", wait=0.5)


@pytest.mark.parametrize("name", ["my-app", "my_app", "Lazy2"])
def test_the_new_apps_configuration_is_one_that_flower_takes(name: str, tmp_path: Path) -> None:
    assert main(["flower", "new", str(tmp_path / name)]) == 0
    config, warnings = load_and_validate(tmp_path / name / "pyproject.toml")
    assert warnings == []
    validate_project_name(config["project"]["name"], "app")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no-name!", "cannot be the name"),
        ("2nd", "cannot be the name"),
        ("class", "cannot be the name"),
        ("a" * 33, "cannot be the name"),
        ("full", "is there already"),
    ],
)
def test_where_no_app_can_be_written_that_is_said(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    assert main(["flower", "new", str(tmp_path / name)]) == 2
    assert said in capsys.readouterr().err
