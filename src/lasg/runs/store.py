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
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

import lasg
from lasg.core.arrays import host
from lasg.errors import LasgError, missing_extra
from lasg.packing import flatten, unflatten
from lasg.runs import spec as specs
from lasg.runs.files import LOCK, replace_atomically, sweep, wrap_write_errors, write_atomically
from lasg.runs.spec import Spec
from lasg.runs.trace import EVALUATED, Arrays, check

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
UNREADABLE = (
    *(OSError, ValueError, KeyError, TypeError, IndexError, RuntimeError, EOFError),
    *(zipfile.BadZipFile, zlib.error),
)
"""What numpy raises on a file that is not what it seems."""
SPEC, META, TRACE, CHECKPOINT = "spec.toml", "meta.json", "trace.npz", "checkpoint.safetensors"
PREVIOUS = "checkpoint-previous.safetensors"
"""The checkpoint before the last, where a run keeps it."""
MODEL = "model.safetensors"
"""The trained model by the names of its parameters: what a module of the same kind loads."""
WRITTEN = (META, TRACE, CHECKPOINT, PREVIOUS, MODEL)
"""What a run writes besides its spec."""


@dataclass(frozen=True, repr=False)
class Run:
    """A stored run, read on demand."""

    folder: Path
    spec: Spec
    meta: dict[str, Any]

    def __repr__(self) -> str:
        spec = self.spec
        name = f"{spec.task}, {spec.algorithm}, seed {spec.seed}: {self.status}"
        return f"<Run {name}{self._outcome()}; {self.folder}>"

    def _outcome(self) -> str:
        """Say how far an ended run came; nothing where that cannot be read: a repr raises no errors."""
        try:
            last = {name: values[-1] for name, values in self._arrays("iterations", "loss", "uploads").items()}
        except UNREADABLE:
            return ""
        return f", {last['iterations']} iterations, loss {last['loss']:.4g}, {last['uploads']} uploads"

    def _arrays(self, *names: str) -> Arrays:
        """Read the trace's arrays of these names, or all."""
        # Opened here, since NumPy leaves a file open that it cannot read.
        with (self.folder / TRACE).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            return {name: stored[name] for name in names or stored.files}

    @functools.cached_property
    def trace(self) -> Arrays:
        """The trace's arrays by name."""
        path = self.folder / TRACE
        try:
            arrays = self._arrays()
            check(arrays, self.spec, whole=self.status == "done", measured=self.meta["engine"] != "flower")
        except FileNotFoundError:
            todo = "goes on with it" if self.status == "running" else "writes it anew"
            raise LasgError(f"{self.folder} has no {TRACE} yet: {self.how_to_resume} {todo}") from None
        except UNREADABLE as error:
            raise LasgError(f"cannot read {path}: {error}. `lasg resume {self.folder}` writes it anew") from None
        return arrays

    @functools.cached_property
    def derived(self) -> dict[Any, Any]:
        """What others computed from the trace and may want again."""
        return {}

    @property
    def uploads(self) -> npt.NDArray[np.bool_]:
        """Who uploaded: `(rounds, workers)`."""
        return np.unpackbits(self.trace["uploaded"], axis=1, count=self.spec.workers).astype(np.bool_)

    @property
    def status(self) -> str:
        """running, done or diverged."""
        return str(self.meta["status"])

    @property
    def how_to_resume(self) -> str:
        """What goes on with a run that was stopped."""
        by_engine = {"distributed": "the torchrun command that began it", "flower": "`flwr run` with resume=true"}
        own = "the same call of lasg.train" if self.spec.own_parts else f"`lasg resume {self.folder}`"
        return by_engine.get(self.meta["engine"], own)

    def frame(self) -> pd.DataFrame:
        """Return the trace as a pandas DataFrame: a row per evaluation, with loss, accuracy and the ledger."""
        try:
            import pandas as pd
        except ImportError:
            raise missing_extra("pandas", "notebook") from None
        return pd.DataFrame({name: self.trace[name] for name in EVALUATED})

    def plot(self, title: str | None = None) -> Any:
        """Draw loss against iterations, uploads and upload bits; return matplotlib's figure."""
        name = f"{self.spec.task}, {self.spec.partition}: {self.spec.algorithm}, seed {self.spec.seed}"
        # By the public name: stored runs know nothing of the layer that draws them.
        return lasg.plot(self, name if title is None else title)


def read_runs(*folders: Path | str, task: str | None = None, partition: str | None = None) -> list[Run]:
    """Read the runs in some folders, `runs` by default; each a run's folder, or a folder of runs. Refuses others."""
    found: dict[Path, Run] = {}
    for path in map(Path, folders or ("runs",)):
        try:
            if not path.is_dir():
                found_here = "is not a stored run, but a file: name its folder" if path.exists() else "does not exist"
                raise LasgError(f"{path} {found_here}")
            inside = [path] if is_run(path) else sorted(child for child in path.iterdir() if is_run(child))
        except OSError as error:
            raise LasgError(f"cannot read {path}: {error.strerror or error}") from None
        if not inside:
            raise LasgError(f"no stored runs in {path}: a run is a folder with a {META} in it (lasg compare)")
        found |= {folder.resolve(): read(folder) for folder in inside}
    chosen = [
        run for run in found.values() if task in {None, run.spec.task} and partition in {None, run.spec.partition}
    ]
    if not chosen:
        tasks = sorted({f"{run.spec.task} ({run.spec.partition})" for run in found.values()})
        raise LasgError(f"none of the {len(found)} runs is of that task and partition: they are of {', '.join(tasks)}")
    return chosen


def is_run(path: Path) -> bool:
    """Tell whether a folder is, or was to be, a stored run."""
    return (path / META).is_file() or (path / SPEC).is_file()


def read(folder: Path | str) -> Run:
    """Read a run's spec and meta data."""
    folder = Path(folder)
    path = folder / META
    if not path.is_file():
        raise LasgError(f"{folder} is not a stored run: it has no {META}")
    try:
        meta = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise LasgError(f"cannot read {path}: {error}") from None
    version = meta.get("format") if isinstance(meta, dict) else None
    if version != FORMAT:
        raise LasgError(
            f"{folder} has run format {version!r}; this version of lasg reads format {FORMAT}; --fresh runs it anew"
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
    with wrap_write_errors(folder):
        for leftover in WRITTEN:
            (folder / leftover).unlink(missing_ok=True)
    write_atomically(folder / SPEC, spec.to_toml().encode())
    write_meta(folder, meta)
    return meta


def discard(folder: Path) -> None:
    """Remove a run that was begun and cannot be finished."""
    for name in (SPEC, *WRITTEN):
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


@functools.cache
def _blas() -> str:
    """Return NumPy's BLAS, its version and the kernel that it chose for this CPU: its last bits are that kernel's."""
    from threadpoolctl import threadpool_info

    found = [info for info in threadpool_info() if info["user_api"] == "blas"]
    names = ("internal_api", "version", "architecture")
    return ", ".join(sorted({" ".join(str(info.get(name) or "") for name in names).strip() for info in found}))


def versions() -> dict[str, str]:
    """Return the versions that decide a run's numbers."""
    ours = {"lasg": lasg.__version__, "python": platform.python_version(), "numpy": np.__version__, "blas": _blas()}
    torch = sys.modules.get("torch")
    return ours if torch is None else {**ours, "torch": str(torch.__version__)}


# -- checkpoints -----------------------------------------------------------------------------------------


def write_checkpoint(folder: Path, state: dict[str, Any], *, keep_previous: bool = False) -> None:
    """Write nested state atomically."""
    arrays: dict[str, npt.NDArray[Any]] = {}
    tree = flatten(state, "", arrays)
    path = folder / CHECKPOINT
    with replace_atomically(path) as part:
        save_file(arrays, part, {"tree": json.dumps(tree)})
        if keep_previous and path.exists():
            path.replace(folder / PREVIOUS)


def write_model(folder: Path, model: Mapping[str, Any]) -> None:
    """Write a trained model by name."""
    with replace_atomically(folder / MODEL) as part:
        save_file({name: np.asarray(host(value), order="C") for name, value in model.items()}, part, {})


def read_progress(folder: Path) -> Arrays:
    """Read, from the checkpoint of a run under way, the evaluations so far, and nothing else: a model may be large."""
    try:
        with safe_open(folder / CHECKPOINT, framework="np") as file:
            # A number stands before the path of every array.
            there = {name.partition("/")[2]: name for name in file.keys()}  # noqa: SIM118
            return {name: file.get_tensor(there[f"trace/{name}"]) for name in EVALUATED if f"trace/{name}" in there}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, SafetensorError) as error:
        raise LasgError(f"cannot read {folder / CHECKPOINT}: {error}") from None


def read_checkpoint(folder: Path, name: str = CHECKPOINT) -> dict[str, Any] | None:
    """Read nested state; None if the run was stopped before its first checkpoint."""
    path = folder / name
    if not path.is_file():
        return None
    try:
        with safe_open(path, framework="np") as file:
            tree = json.loads((file.metadata() or {})["tree"])
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise LasgError(f"cannot read {path}: {error}. Delete it, and `lasg resume {folder}` starts anew") from None
    state = unflatten(tree, arrays)
    assert isinstance(state, dict)
    return state
