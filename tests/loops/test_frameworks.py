"""What the adapters share: versions that they know, and files of ranks; none of the libraries is needed."""

from __future__ import annotations

import importlib
import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
import torch

from lasg.errors import LasgError
from lasg.loops import frameworks
from tests.loops.test_lazy_loop import loop_of, train
from tests.loops.test_lazy_optimizer import data, flat

ADAPTERS = {"accelerate": "accelerate", "huggingface": "transformers", "lightning": "lightning"}


def say(version: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every package be of a version, or missing."""

    def answer(package: str) -> str:
        if version is None:
            raise importlib.metadata.PackageNotFoundError(package)
        return version

    monkeypatch.setattr(importlib.metadata, "version", answer)


@pytest.mark.parametrize("adapter", ADAPTERS)
def test_a_missing_package_is_refused_with_its_install_line(adapter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    say(None, monkeypatch)
    monkeypatch.delitem(importlib.import_module("sys").modules, f"lasg.loops.{adapter}", raising=False)
    with pytest.raises(LasgError) as error:
        importlib.import_module(f"lasg.loops.{adapter}")
    extra = frameworks.VERSIONS[ADAPTERS[adapter]][0]
    assert str(error.value) == f"{ADAPTERS[adapter]} is not installed, and this needs it: pip install 'lasg[{extra}]'"


@pytest.mark.parametrize("package", frameworks.VERSIONS)
def test_a_version_that_moved_is_named(package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _, first, beyond = frameworks.VERSIONS[package]
    for version in ("0.1.9", f"{beyond}.0.1"):
        say(version, monkeypatch)
        with pytest.raises(LasgError, match=f"{package} {first} to below {beyond}, and {version} is installed"):
            frameworks.require(package)
    for version in (first, f"{first}.7", f"{first}.0rc1"):
        say(version, monkeypatch)
        frameworks.require(package)


def test_the_extras_have_the_bounds_that_the_adapters_know() -> None:
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    declared = {}
    for extra in {extra for extra, _, _ in frameworks.VERSIONS.values()}:
        for line in project["optional-dependencies"][extra]:
            found = re.fullmatch(r"([a-z]+)>=([\d.]+),<([\d.]+)", line)
            assert found is not None, line
            declared[found[1]] = (extra, found[2], found[3])
    assert declared == frameworks.VERSIONS


def test_a_rank_goes_on_from_its_file_and_misses_it_where_it_is_not(tmp_path: Path) -> None:
    model, optimizer, loop = loop_of()
    train(model, optimizer, data(0, 4))
    for place in (tmp_path, tmp_path / "last.ckpt"):
        frameworks.save_rank(place, loop)
        again, _, other = loop_of()
        frameworks.load_rank(place, other)
        assert torch.equal(flat(model), flat(again))
        assert other.steps == 1
    assert {path.name for path in tmp_path.iterdir()} == {"lasg_rank_0.pt", "last.ckpt.lasg_rank_0.pt"}
    with pytest.raises(LasgError, match=r"the checkpoint has no other\.ckpt\.lasg_rank_0\.pt, which rank 0 needs"):
        frameworks.load_rank(tmp_path / "other.ckpt", loop)


def test_a_loop_that_was_synchronised_has_closed_its_round() -> None:
    model, optimizer, loop = loop_of(every=3)
    loop.release()
    for k, (x, y) in enumerate(data(0, 4)):
        train(model, optimizer, [(x, y)])
        assert loop.steps == k % 3, "nobody counts but the caller"
        loop.step()
    loop.synchronise()
    assert (loop.steps, loop.rounds) == (0, 2)
    loop.synchronise()
    assert loop.rounds == 2
    loop.leave()
    train(model, optimizer, data(0, 1))
