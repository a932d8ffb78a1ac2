"""Checkpoints of runs: nested state in one file, checked as it is read, and the one before it to fall back to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy.typing as npt
from safetensors import safe_open
from safetensors.numpy import save_file

from lasg.errors import LasgError
from lasg.packing import flatten, unflatten
from lasg.runs import seals
from lasg.runs.files import check_folder, replace_atomically, wrap_write_errors
from lasg.runs.trace import EVALUATED, Arrays

CHECKPOINT = "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"
"""The checkpoint before the last."""


class Checkpoint(NamedTuple):
    """What a run goes on from."""

    path: Path
    state: dict[str, Any]
    remark: str
    """Why it is not the newest; empty if it is."""


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write nested state atomically; the checkpoint before it is kept."""
    check_folder(folder)
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = json.dumps(flatten(state, "", arrays))
    digests = json.dumps({name: seals.of_array(array) for name, array in arrays.items()})
    seal = seals.seal(seals.run_of(folder), CHECKPOINT, tree.encode(), digests.encode())
    with replace_atomically(folder / CHECKPOINT, folder / PREVIOUS) as part:
        save_file(arrays, part, {"tree": tree, "digests": digests, seals.KEY: seal})


class _Sealed:
    """A checkpoint's file, whose arrays are checked as they are read."""

    def __init__(self, file: Any, run: str) -> None:
        self._file, found = file, file.metadata() or {}
        self._digests: dict[str, str] | None = None
        if run or set(found) != {"tree"}:
            if set(found) != {"tree", "digests", seals.KEY}:
                raise seals.Damaged
            text = found["tree"].encode(), found["digests"].encode()
            if found[seals.KEY] != seals.seal(run, CHECKPOINT, *text):
                raise seals.Damaged
            self._digests = json.loads(found["digests"])
            if set(file.keys()) != set(self._digests or ()):
                raise seals.Damaged
        self.tree = found["tree"]

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return an array."""
        array: npt.NDArray[Any] = self._file.get_tensor(name)
        if self._digests is not None and self._digests[name] != seals.of_array(array):
            raise seals.Damaged
        return array


def read_progress(folder: Path) -> Arrays:
    """Read, from the checkpoint of a run under way, the evaluations so far, and nothing else: a model may be large."""
    run = seals.run_of(folder)
    for path in (folder / CHECKPOINT, folder / PREVIOUS):
        try:
            with safe_open(path, framework="np") as file:
                sealed = _Sealed(file, run)
                # A number stands before the path of every array.
                there = {name.partition("/")[2]: name for name in file.keys()}  # noqa: SIM118
                return {name: sealed.array(there[f"trace/{name}"]) for name in EVALUATED if f"trace/{name}" in there}
        except FileNotFoundError:
            continue
        except seals.UNREADABLE as error:
            raise LasgError(f"cannot read {path}: {seals.why(error)}") from None
    return {}


def promote_previous(folder: Path) -> None:
    """Let the checkpoint before the newest take its place, which is damaged: else the next write would keep that."""
    with wrap_write_errors(folder / CHECKPOINT):
        (folder / PREVIOUS).replace(folder / CHECKPOINT)


def has_checkpoint(folder: Path) -> bool:
    """Tell whether a run was stopped after its first checkpoint."""
    return any((folder / name).is_file() for name in (CHECKPOINT, PREVIOUS))


def last_checkpoint(folder: Path) -> Checkpoint | None:
    """Read the newest checkpoint that is whole; None if the run was stopped before its first."""
    problem: LasgError | None = None
    for name in (CHECKPOINT, PREVIOUS):
        try:
            state = read_checkpoint(folder, name)
        except LasgError as error:
            problem = problem or error
            continue
        if state is not None:
            newest = name == CHECKPOINT
            why = str(problem).partition(". ")[0] if problem else f"{folder / CHECKPOINT} is missing"
            return Checkpoint(folder / name, state, "" if newest else f"{why}: going on from {name}, the one before")
    if problem is not None:
        raise problem
    return None


def read_checkpoint(folder: Path, name: str = CHECKPOINT) -> dict[str, Any] | None:
    """Read nested state; None if the run was stopped before its first checkpoint."""
    path, run = folder / name, seals.run_of(folder)
    try:
        with safe_open(path, framework="np") as file:
            sealed = _Sealed(file, run)
            arrays = {key: sealed.array(key) for key in file.keys()}  # noqa: SIM118
            state = unflatten(json.loads(sealed.tree), arrays)
            if not isinstance(state, dict):
                raise seals.Damaged
    except FileNotFoundError:
        return None
    except seals.UNREADABLE as error:
        why = seals.why(error)
        raise LasgError(f"cannot read {path}: {why}. Delete it, and `lasg resume {folder}` starts again") from None
    return state
