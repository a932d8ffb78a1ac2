"""Runs on disk: a folder with a format version. docs/store.md says what each file holds.

Nothing is pickled. Nested state becomes one safetensors file: the arrays, and a JSON tree that says where they go.
"""

from __future__ import annotations

import contextlib
import functools
import io
import json
import platform
import sys
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import lasg
from lasg.core.arrays import host
from lasg.errors import LasgError
from lasg.experiments import spec as specs
from lasg.experiments.files import LOCK, replacing, sweep, told, write_atomically
from lasg.experiments.spec import Spec
from lasg.experiments.trace import EVALUATED, Arrays, check, unpack_uploads
from lasg.packing import grow, plant

FORMAT = 1
UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, EOFError)
"""What numpy raises on a file that is not what it seems."""
SPEC, META, TRACE, CHECKPOINT = "spec.toml", "meta.json", "trace.npz", "checkpoint.safetensors"
MODEL = "model.safetensors"
"""The trained model by the names of its parameters: what a module of the same kind loads."""


@dataclass(frozen=True)
class Run:
    """A stored run, read on demand."""

    folder: Path
    spec: Spec
    meta: dict[str, Any]

    @functools.cached_property
    def trace(self) -> Arrays:
        """The trace's arrays by name."""
        path = self.folder / TRACE
        try:
            with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                arrays = {name: stored[name] for name in stored.files}
            check(arrays, self.spec, whole=self.status == "done")
        except FileNotFoundError:
            todo = "goes on with it" if self.status == "running" else "writes it anew"
            raise LasgError(f"{self.folder} has no {TRACE} yet: `lasg resume {self.folder}` {todo}") from None
        except (*UNREADABLE, zipfile.BadZipFile, zlib.error) as error:
            raise LasgError(f"cannot read {path}: {error}. `lasg resume {self.folder}` writes it anew") from None
        return arrays

    @functools.cached_property
    def derived(self) -> dict[Any, Any]:
        """What others computed from the trace and may want again."""
        return {}

    @property
    def uploads(self) -> npt.NDArray[np.bool_]:
        """Who uploaded: `(rounds, workers)`."""
        return unpack_uploads(self.trace["uploaded"], self.spec.workers)

    @property
    def status(self) -> str:
        """running, done or diverged."""
        return str(self.meta["status"])


def is_run(path: Path) -> bool:
    """Tell whether a folder is, or was to be, a stored run."""
    return (path / META).is_file() or (path / SPEC).is_file()


def read(folder: Path) -> Run:
    """Read a run's spec and meta data."""
    path = folder / META
    if not path.is_file():
        raise LasgError(f"{folder} is not a stored run: it has no {META}")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LasgError(f"cannot read {path}: {error}") from None
    if not isinstance(meta, dict) or meta.get("format") != FORMAT:
        found = meta.get("format") if isinstance(meta, dict) else None
        raise LasgError(
            f"{folder} has run format {found!r}; this version of lasg reads format {FORMAT}; --fresh runs it anew"
        )
    kinds = {"status": str, "engine": str, "versions": dict, "data_sha256": str, "seconds": int | float}
    wrong = [name for name, kind in kinds.items() if not isinstance(meta.get(name), kind)]
    if wrong or meta["status"] not in {"running", "done", "diverged"}:
        raise LasgError(f"cannot read {path}: {(wrong or ['status'])[0]} is missing or not what it should be")
    return Run(folder, specs.read(folder / SPEC), meta)


def begin(folder: Path, spec: Spec, data_sha256: str, engine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Create a run's folder with its spec and meta data; return the meta data. Without an engine it is simulated."""
    meta = {
        "format": FORMAT,
        "status": "running",
        **(engine or {"engine": "simulation"}),
        "seed": spec.seed,
        "seconds": 0.0,
        "data_sha256": data_sha256,
        "versions": versions(),
    }
    with told(folder):
        for leftover in (META, TRACE, CHECKPOINT, MODEL):
            (folder / leftover).unlink(missing_ok=True)
    write_atomically(folder / SPEC, spec.to_toml().encode())
    write_meta(folder, meta)
    return meta


def discard(folder: Path) -> None:
    """Remove a run that was begun and cannot be finished."""
    for name in (SPEC, META, TRACE, CHECKPOINT, MODEL):
        (folder / name).unlink(missing_ok=True)
    sweep(folder)
    with contextlib.suppress(OSError):  # something else lies there, or the lock that is about to go
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write a run's meta data."""
    write_atomically(folder / META, (json.dumps(meta, indent=2) + "\n").encode())


def write_trace(folder: Path, arrays: Arrays) -> None:
    """Write a run's trace."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    write_atomically(folder / TRACE, buffer.getvalue())


def versions() -> dict[str, str]:
    """Return the versions that decide a run's numbers."""
    found = {"lasg": lasg.__version__, "python": platform.python_version(), "numpy": np.__version__}
    torch = sys.modules.get("torch")
    if torch is not None:
        found["torch"] = str(torch.__version__)
    return found


# -- checkpoints -----------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, state: dict[str, Any]) -> None:
    """Write nested state atomically."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = plant(state, "", arrays)
    _save(folder / CHECKPOINT, arrays, {"tree": json.dumps(tree)})


def write_model(folder: Path, model: Mapping[str, Any]) -> None:
    """Write a trained model by name."""
    _save(folder / MODEL, {name: np.asarray(host(value), order="C") for name, value in model.items()}, {})


def _save(path: Path, arrays: dict[str, npt.NDArray[Any]], metadata: dict[str, str]) -> None:
    from safetensors.numpy import save_file

    with replacing(path) as part:
        save_file(arrays, part, metadata)


def read_progress(folder: Path) -> Arrays:
    """Read, from the checkpoint of a run under way, the evaluations so far, and nothing else: a model may be large."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(folder / CHECKPOINT, framework="np") as file:
            # A number stands before the path of every array.
            there = {name.partition("/")[2]: name for name in file.keys()}  # noqa: SIM118
            return {name: file.get_tensor(there[f"trace/{name}"]) for name in EVALUATED if f"trace/{name}" in there}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, SafetensorError) as error:
        raise LasgError(f"cannot read {folder / CHECKPOINT}: {error}") from None


def read_checkpoint(folder: Path) -> dict[str, Any] | None:
    """Read nested state; None if the run was stopped before its first checkpoint."""
    from safetensors import SafetensorError, safe_open

    path = folder / CHECKPOINT
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            tree = json.loads((file.metadata() or {})["tree"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise LasgError(f"cannot read {path}: {error}. Delete it, and `lasg resume {folder}` starts anew") from None
    state = grow(tree, arrays)
    assert isinstance(state, dict)
    return state
