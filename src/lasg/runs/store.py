"""Runs on disk: a folder with a format version. docs/store.md says what each file holds.

Nothing is pickled. Nested state becomes one safetensors file: the arrays, and a JSON tree that says where they go.
Every file has a seal, which is checked whenever it is read (`seals.py`).
"""

from __future__ import annotations

import contextlib
import functools
import io
import platform
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import load_file, save_file

import lasg
from lasg import counter
from lasg.core.arrays import host
from lasg.errors import LasgError, missing_extra
from lasg.runs import seals
from lasg.runs import spec as specs
from lasg.runs.checkpoints import (
    CHECKPOINT,
    PREVIOUS,
    has_checkpoint,
    last_checkpoint,
    promote_previous,
    read_checkpoint,
    read_progress,
    write_checkpoint,
)
from lasg.runs.files import LOCK, check_folder, remove, replace_atomically, sweep, wrap_write_errors, write_atomically
from lasg.runs.seals import META
from lasg.runs.spec import Spec
from lasg.runs.trace import EVALUATED, Arrays, check

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "CHECKPOINT",
    "META",
    "MODEL",
    "PREVIOUS",
    "SPEC",
    "TRACE",
    "Run",
    "begin",
    "check_model",
    "discard",
    "has_checkpoint",
    "is_run",
    "last_checkpoint",
    "promote_previous",
    "read",
    "read_checkpoint",
    "read_progress",
    "read_runs",
    "versions",
    "write_checkpoint",
    "write_meta",
    "write_model",
    "write_spec",
    "write_trace",
]
FORMAT = 1
SPEC, TRACE = "spec.toml", "trace.npz"
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
        except seals.UNREADABLE:
            return ""
        return f", {last['iterations']} iterations, loss {last['loss']:.4g}, {last['uploads']} uploads"

    def _arrays(self, *names: str) -> Arrays:
        """Read the trace's arrays of these names, or all."""
        # Opened here, since NumPy leaves a file open that it cannot read.
        with (self.folder / TRACE).open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
            found = bytes(stored.zip.comment).decode("ascii")
        if (found or self.sealed) and found != seals.of_arrays(self.id, TRACE, arrays):
            raise seals.Damaged
        return {name: arrays[name] for name in names} if names else arrays

    @functools.cached_property
    def trace(self) -> Arrays:
        """The trace's arrays by name."""
        path = self.folder / TRACE
        try:
            if self.sealed and self.status == "running":  # what lies there is not of this run yet
                raise FileNotFoundError
            arrays = self._arrays()
            check(arrays, self.spec, whole=self.status == "done", measured=self.meta["engine"] != "flower")
        except FileNotFoundError:
            todo = "goes on with it" if self.status == "running" else "writes it again"
            raise LasgError(f"{self.folder} has no {TRACE} yet: {self.how_to_resume} {todo}") from None
        except seals.UNREADABLE as error:
            raise LasgError(
                f"cannot read {path}: {seals.why(error)}. `lasg resume {self.folder}` writes it again"
            ) from None
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
    def id(self) -> str:
        """What no other run is called; of runs older than seals nothing."""
        return str(self.meta.get("id", ""))

    @property
    def sealed(self) -> bool:
        """Whether all files of the run have seals; those of older runs have none, and are read as they are."""
        return bool(self.id)

    @property
    def model(self) -> Arrays:
        """The trained model's arrays by name, of a run that ended."""
        check_model(self)
        path = self.folder / MODEL
        try:
            return dict(load_file(path))
        except seals.UNREADABLE as error:
            raise LasgError(f"cannot read {path}: {seals.why(error)}. --fresh runs it again") from None

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
    for run in found.values():
        check_model(run)
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
        meta = seals.read_meta(folder)
    except seals.UNREADABLE as error:
        raise LasgError(f"cannot read {path}: {seals.why(error)}. --fresh runs it again") from None
    version = meta.get("format")
    if version != FORMAT:
        raise LasgError(
            f"{folder} has run format {version!r}; this version of lasg reads format {FORMAT}; --fresh runs it again"
        )
    kinds = {"status": str, "engine": str, "versions": dict, "data_sha256": str, "seconds": int | float}
    wrong = [name for name, kind in kinds.items() if not isinstance(meta.get(name), kind)]
    if wrong or meta["status"] not in {"running", "done", "diverged"}:
        raise LasgError(f"cannot read {path}: {(wrong or ['status'])[0]} is missing or not what it should be")
    return Run(folder, _read_spec(folder, str(meta.get("id", ""))), meta)


def _read_spec(folder: Path, run: str) -> Spec:
    """Read a run's spec."""
    path = folder / SPEC
    try:
        content = seals.open_text(path.read_bytes(), SPEC, run, required=bool(run))
        return specs.from_toml(content.decode().replace("\r\n", "\n"))
    except LasgError as error:
        raise LasgError(f"{path}: {error}") from None
    except (OSError, ValueError) as error:
        raise LasgError(f"cannot read {path}: {seals.why(error)}. --fresh runs it again") from None


def check_model(run: Run) -> None:
    """Refuse an ended run whose model is not the one that it ended with."""
    path, expected = run.folder / MODEL, run.meta.get("model")
    if expected is None or run.status == "running":
        return
    try:
        whole = seals.of_file(path) == expected
    except OSError:
        whole = False
    if not whole:
        raise LasgError(f"{path} is missing, damaged, or of another run: --fresh runs it again")


def begin(folder: Path, spec: Spec, data_sha256: str, engine: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Create a run's folder with its spec and meta data; return the meta data. Without an engine it is simulated."""
    meta = {
        "format": FORMAT,
        "id": seals.new_run(),
        "status": "running",
        **(engine or {"engine": "simulation"}),
        "seed": spec.seed,
        "seconds": 0.0,
        "data_sha256": data_sha256,
        "versions": versions(),
    }
    with wrap_write_errors(folder):
        remove(*(folder / leftover for leftover in WRITTEN))  # the meta data first: without them it is no run
    write_spec(folder, spec, meta)
    write_meta(folder, meta)
    return meta


def discard(folder: Path) -> None:
    """Remove a run that was begun and cannot be finished."""
    with contextlib.suppress(OSError):  # whoever says why it cannot be finished says enough
        remove(*(folder / name for name in (*WRITTEN, SPEC)))
    sweep(folder)
    with contextlib.suppress(OSError):  # something else lies there, or the lock that is about to go
        (folder / LOCK).unlink(missing_ok=True)
        folder.rmdir()


def write_spec(folder: Path, spec: Spec, meta: Mapping[str, Any]) -> None:
    """Write the spec of the run that has, or is about to have, these meta data."""
    write_atomically(folder / SPEC, seals.seal_text(str(meta.get("id", "")), SPEC, spec.to_toml().encode()))


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write a run's meta data."""
    write_atomically(folder / META, seals.seal_json(str(meta.get("id", "")), META, meta))


def write_trace(folder: Path, arrays: Arrays) -> None:
    """Write the trace of the run in this folder."""
    check_folder(folder)
    buffer = io.BytesIO()
    np.savez_compressed(buffer, allow_pickle=False, **arrays)
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.comment = seals.of_arrays(seals.run_of(folder), TRACE, arrays).encode()
    write_atomically(folder / TRACE, buffer.getvalue())


def write_model(folder: Path, model: Mapping[str, Any]) -> str:
    """Write a trained model by name; return the file's sha256, which the meta data will have."""
    check_folder(folder)
    with replace_atomically(folder / MODEL) as part:
        save_file({name: np.asarray(host(value), order="C") for name, value in model.items()}, part, {})
        return seals.of_file(part)


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
    ours["rounding"] = str(counter.ROUNDING)
    torch = sys.modules.get("torch")
    return ours if torch is None else {**ours, "torch": str(torch.__version__)}
