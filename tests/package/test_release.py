"""What a release is made of says the same everywhere: versions, bounds, pins, workflows."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import lasg
from tests.package.try_wheel import BRINGS

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
PINS = dict(re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE))
WORKFLOWS = sorted((ROOT / ".github").rglob("*.yml"))


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_one_version_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert PROJECT["version"] == lasg.__version__ == citation["version"]
    dated = f"## {lasg.__version__} ({citation['date-released']})"
    assert dated in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()


def test_the_trial_of_the_wheel_knows_every_extra() -> None:
    assert set(BRINGS) == set(PROJECT["optional-dependencies"])


def test_every_dependency_and_extra_is_pinned() -> None:
    pins = {normal(name) for name in PINS}
    listed = [*PROJECT["dependencies"], *(one for some in PROJECT["optional-dependencies"].values() for one in some)]
    names = {normal(re.split(r"[\[<>=]", one)[0]) for one in listed} - {"lasg"}
    assert sorted(names - pins) == []


def test_every_dependency_is_on_the_page_that_says_why() -> None:
    page = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8").lower()
    listed = [*PROJECT["dependencies"], *(one for some in PROJECT["optional-dependencies"].values() for one in some)]
    names = {re.split(r"[\[<>=]", one)[0] for one in listed} - {"lasg"}
    assert sorted(name for name in names if name.lower().replace("-skinny", "") not in page) == []


def test_the_lock_file_has_hashes_and_the_versions_of_the_constraints() -> None:
    text = (ROOT / "requirements-dev.lock").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([\w.-]+)==([^\s;\\]+)", text, re.MULTILINE))
    pins = {normal(name): version for name, version in PINS.items()}
    assert {name: version for name, version in locked.items() if pins.get(normal(name), version) != version} == {}
    assert "torch" not in locked, "its file differs from machine to machine"
    entries = re.split(r"^(?=[\w.-]+==)", text, flags=re.MULTILINE)[1:]
    assert len(entries) > 100
    assert [entry.splitlines()[0] for entry in entries if "--hash=sha256:" not in entry] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_workflows_and_templates_are_yaml_and_run_what_is_there(path: Path) -> None:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for job in found.get("jobs", {}).values():
        assert "permissions" in found, "what a workflow may do is said, and is little"
        for step in job["steps"]:
            command = step.get("run", "")
            assert "secrets." not in str(step)
            assert all(target in targets for target in re.findall(r"^make ([\w-]+)", command, re.MULTILINE))
            assert not command.startswith(".") or (ROOT / command).is_file()


def test_publishing_trusts_the_workflow_and_holds_no_token() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "publish.yml").read_text(encoding="utf-8"))["jobs"]
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    (upload,) = (step for step in jobs["publish"]["steps"] if "pypi-publish" in step.get("uses", ""))
    assert upload["with"] == {"attestations": True}


def test_the_workflow_tests_the_versions_that_the_project_says() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yml").read_text(encoding="utf-8"))["jobs"]
    versions = jobs["test"]["strategy"]["matrix"]["python"]
    assert f">={versions[0]}" == PROJECT["requires-python"]
    assert versions == ["3.11", "3.12", "3.13"]
    assert [f"Programming Language :: Python :: {one}" for one in versions] == PROJECT["classifiers"][-3:]
