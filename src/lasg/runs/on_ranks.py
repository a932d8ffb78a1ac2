"""Runs of specs on the ranks of a process group: all compute, rank 0 alone reports and stores.

A checkpoint has a part a rank, each written by its rank, and a manifest that rank 0 writes last. Only what the manifest
names counts, with the checksums that it has: a kill at any moment leaves the checkpoint before. That is kept, with a
manifest of its own, for the case that a part or the manifest is damaged.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lasg.core.training import STOP
from lasg.errors import LasgError, RemoteFailure
from lasg.packing import pack, pack_into, unpack
from lasg.runs import factories, runner, seals, store
from lasg.runs.files import (
    PART,
    check_folder,
    keep,
    lock,
    make_folder,
    replace_atomically,
    sweep,
    wrap_write_errors,
    write_atomically,
)
from lasg.runs.runner import Job
from lasg.runs.spec import Spec
from lasg.runs.status import Report
from lasg.runs.stopping import on_stop
from lasg.runs.store import Run
from lasg.runs.trace import Trace

if TYPE_CHECKING:
    from lasg.transports.links import Links
    from lasg.transports.ranks import Ranks

MANIFEST, PREVIOUS = "checkpoint.json", "checkpoint-previous.json"
OLD = frozenset({"round", "ranks", "sha256"})
"""What manifests hold; those that are older than seals no more than that."""


class Parts:
    """The checkpoint of a run on ranks."""

    def __init__(self, folder: Path, links: Links) -> None:
        self.folder, self.links = folder, links
        self._before: Path | None = None

    def _path(self, rounds: int, digest: str, rank: int | None = None) -> Path:
        rank = self.links.rank if rank is None else rank
        name = f"checkpoint-{rounds}-{digest[:8]}-rank-{rank}-of-{self.links.ranks}.safetensors"
        return self.folder / name

    def own_paths(self) -> list[Path]:
        """Return the parts of this rank that lie here, of whichever checkpoint."""
        return list(self.folder.glob(f"checkpoint-*-rank-{self.links.rank}-of-*.safetensors"))

    def write(self, rounds: int, own: dict[str, Any], shared: dict[str, Any]) -> None:
        """Write this rank's part, then, when all ranks have, the manifest. The parts before it stay until the next."""
        if self.links.rank == 0:  # the folders of the other ranks are made by their parts
            check_folder(self.folder)
        unnamed = self.folder / f".checkpoint-rank-{self.links.rank}{PART}"  # its name has its digest
        with wrap_write_errors(self.folder):
            make_folder(self.folder)
            pack_into(unnamed, {"own": own, "shared": shared} if self.links.rank == 0 else {"own": own})
            digest = _digest(unnamed)
        path = self._path(rounds, digest)
        with replace_atomically(path) as part:
            unnamed.replace(part)
        sums = self.links.gather(digest.encode(), "checksums")
        if self.links.rank == 0:
            manifest = {"round": rounds, "ranks": self.links.ranks, "sha256": [text.decode() for text in sums]}
            with wrap_write_errors(self.folder / MANIFEST):
                if (self.folder / MANIFEST).exists():
                    keep(self.folder / MANIFEST, self.folder / PREVIOUS)
            write_atomically(self.folder / MANIFEST, seals.seal_json(seals.run_of(self.folder), MANIFEST, manifest))
        # Rank 0 may not have written the manifest yet: what it named before must last until it has.
        with wrap_write_errors(self.folder):
            for old in {*self.own_paths()} - {path, self._before}:
                old.unlink(missing_ok=True)
        self._before = path

    def _manifests(self) -> list[dict[str, Any]]:
        """Return the manifests that rank 0 has, the newest first; of one that cannot be read, what is wrong with it."""
        found: list[dict[str, Any]] = []
        run = "" if self.links.rank else seals.run_of(self.folder)
        for path in () if self.links.rank else (self.folder / MANIFEST, self.folder / PREVIOUS):
            try:
                manifest = seals.open_json(path.read_bytes(), MANIFEST, run, None if run else OLD)
                if len(manifest["sha256"]) != manifest["ranks"] or not isinstance(manifest["round"], int):
                    raise seals.Damaged
                found.append(manifest)
            except FileNotFoundError:
                continue
            except seals.UNREADABLE as error:
                found.append({"problem": f"cannot read {path}: {seals.why(error)}"})
        return found

    def read(self) -> tuple[dict[str, Any], dict[str, Any], str] | None:
        """Return this rank's own state and the shared one of the last checkpoint that is whole; None if there is none.

        With them comes a line that says why it is not the newest, or nothing.
        """
        problem = ""
        for manifest in json.loads(first(self.links, lambda: json.dumps(self._manifests()).encode())):
            if wrong := manifest.get("problem", "") or self._damage(manifest):
                problem = problem or wrong
                continue
            own, shared = self._open(self._path(manifest["round"], manifest["sha256"][self.links.rank]))
            if problem and self.links.rank == 0:  # the next checkpoint keeps this one, not the damaged one
                with wrap_write_errors(self.folder / MANIFEST):
                    (self.folder / PREVIOUS).replace(self.folder / MANIFEST)
            line = f"{problem}: going on from the checkpoint before it, of round {manifest['round']}"
            return own, shared, line if problem else ""
        if problem:
            raise LasgError(f"{problem}: run it again with --fresh")
        return None

    def _damage(self, manifest: dict[str, Any]) -> str:
        """Return what is wrong with the parts that a manifest names, on whichever rank; nothing if they are whole."""
        if manifest["ranks"] != self.links.ranks:
            raise _other_ranks(self.folder, manifest["ranks"], self.links.ranks)
        digest = manifest["sha256"][self.links.rank]
        path = self._path(manifest["round"], digest)
        try:
            found = _digest(path)
        except OSError:
            found = ""
        damaged = self.ranks_that(found != digest, "checksums")
        if damaged:
            names = self._path(manifest["round"], manifest["sha256"][damaged[0]], damaged[0]).name
            return f"{names} in {self.folder}, the part of rank {damaged[0]}, is missing there or damaged"
        self._before = path
        return ""

    def _open(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return what a part of this rank has, and what rank 0's has for all."""
        state = unpack(path, str(path))
        shared = state.get("shared")
        text = self.links.broadcast(b"" if shared is None else pack(shared), "the server's state")
        return state["own"], unpack(text, "rank 0's state") if shared is None else shared

    def ranks_that(self, say: bool, what: str) -> list[int]:
        """Return the ranks that say yes."""
        return [rank for rank, said in enumerate(self.links.gather(b"yes" if say else b"no", what)) if said == b"yes"]

    def remove(self) -> None:
        """Remove the checkpoints of a run that ended, or begins."""
        manifests = [self.folder / MANIFEST, self.folder / PREVIOUS] if self.links.rank == 0 else []
        with wrap_write_errors(self.folder):
            for path in (*manifests, *self.own_paths()):
                path.unlink(missing_ok=True)
        sweep(self.folder)


def _digest(path: Path) -> str:
    """Return the checksum of a file, of whatever size."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _other_ranks(folder: Path, there: int, here: int) -> LasgError:
    return LasgError(
        f"{folder} was begun on {there} ranks, and here are {here}: start as many, or run it again with --fresh"
    )


def first(links: Links, make: Callable[[], bytes]) -> bytes:
    """Return what rank 0 makes; if it fails, all ranks do."""
    said, failed = b"", None
    if links.rank == 0:
        try:
            said = b"+" + make()
        except LasgError as error:
            said, failed = b"-" + str(error).encode(), error
    said = links.broadcast(said, "rank 0's word")
    if failed is not None:
        raise failed
    if said[:1] == b"-":
        raise RemoteFailure(f"rank 0 could not go on: {said[1:].decode()}")
    return said[1:]


def _job() -> str:
    """Name the torchrun that started this process: the same after it has started it again."""
    return f"{os.environ.get('TORCHELASTIC_RUN_ID', '')} {os.getppid()}"


def folder_for(spec: Spec, out: Path, ranks: int) -> Path:
    """Return the folder of a spec's run on so many ranks."""
    return out / f"{spec.label}-{ranks}-ranks"


def obtain(
    spec: Spec,
    out: Path,
    links: Links,
    *,
    exchange: str = "auto",
    relay: int = 0,
    fresh: bool = False,
    data_dir: Path | None = None,
    report: Report | None = None,
) -> Run | None:
    """Return, on rank 0, the stored run of a spec, going on with it or running it first where that is missing."""
    from lasg.transports.links import describe_code
    from lasg.transports.ranks import Ranks

    folder = folder_for(spec, out, links.ranks)
    parts = Parts(folder, links)
    found = first(links, lambda: _there(spec, folder, fresh, data_dir, report))
    if found == b"stored":
        parts.remove()
        return store.read(folder) if links.rank == 0 else None
    if found == b"none" and not fresh:
        _check_no_parts(parts)
    with runner.deterministic_threads(spec), ExitStack() as held:
        ranks = Ranks(
            links,
            exchange=exchange,
            hub_rank=relay,
            tell_left=bool(spec.watched) and spec.composition.rule.flag_bits > 0,
        )
        training = factories.training(spec, factories.problem(spec, data_dir), ranks)
        identity = factories.identity(spec, data_dir)
        links.agree(
            {"version of lasg": describe_code(), "spec": spec.digest, "data": identity, "exchange": [exchange, relay]}
        )
        job = Job(spec, training, Trace(spec.workers, spec.watched))

        def begin() -> bytes:
            held.enter_context(lock(folder))
            if found == b"running":
                return json.dumps(_meta_of_same(folder, exchange, relay)).encode()
            told = {"engine": "distributed", "ranks": links.ranks, "exchange": exchange, "relay": relay, "job": _job()}
            return json.dumps(store.begin(folder, spec, identity, told)).encode()

        meta = json.loads(first(links, begin))
        if found == b"none":
            parts.remove()
        state = parts.read() if found == b"running" else None
        if state is not None:
            own, shared, remark = state
            whole = {**shared["record"], "simulation": {**own, **shared["rounds"]}}
            runner.restore(job, whole, folder / MANIFEST)
            runner.add_remark(job, remark if links.rank == 0 else "", report)
        return _finish(job, parts, ranks, meta, report)


def _there(spec: Spec, folder: Path, fresh: bool, data_dir: Path | None, report: Report | None) -> bytes:
    """Tell what of a run is there: none, running (to go on with), or stored."""
    try:
        stored = runner.reusable(spec, folder, data_dir)
    except LasgError:
        if not fresh:
            raise
        stored = None
    if stored is not None and fresh and stored.meta.get("job") != _job():  # what this job has begun goes on
        stored = None
    if stored is not None and stored.status == "running":
        last = store.last_checkpoint(folder)
        if last is None or "ended" not in last.state:
            return b"running"
        stored = runner.finalize(folder, spec, stored.meta, last.state)
    if stored is None:
        if not fresh:
            _check_other_ranks(spec, folder)
        return b"none"
    runner.repaired(stored, report)
    return b"stored"


def _check_other_ranks(spec: Spec, folder: Path) -> None:
    """Refuse to start again where the run was begun on another number of ranks, and has a checkpoint."""
    for other in sorted(folder.parent.glob(f"{spec.label}-*-ranks")):
        if other != folder and any((other / name).is_file() for name in (MANIFEST, PREVIOUS)):
            there, here = (path.name.removeprefix(f"{spec.label}-").removesuffix("-ranks") for path in (other, folder))
            raise _other_ranks(other, int(there), int(here))


def _check_no_parts(parts: Parts) -> None:
    """Refuse to start from nothing where another rank has a checkpoint to go on from."""
    for rank in parts.ranks_that(bool(parts.own_paths()), "checkpoints"):
        raise LasgError(
            f"rank {rank} has a checkpoint in {parts.folder}, and rank 0 has no run there: start rank 0 on the "
            "host where it was, or run it again with --fresh"
        )


def _meta_of_same(folder: Path, exchange: str, relay: int) -> dict[str, Any]:
    """Return the meta data of a run to go on with; refuse another way to exchange."""
    meta = store.read(folder).meta
    if [meta["exchange"], meta["relay"]] != [exchange, relay]:
        begun = f"--exchange {meta['exchange']} --relay {meta['relay']}"
        raise LasgError(f"{folder} was begun with {begun}: go on with these, or run it again with --fresh")
    return meta


def _finish(job: Job, parts: Parts, ranks: Ranks, meta: dict[str, Any], report: Report | None) -> Run | None:
    """Advance a job to its end; rank 0 stores it."""
    from lasg.loops.sharing import agree_on_model

    links, training, sent = parts.links, job.training, ranks.links.sent

    def checkpoint() -> None:
        agree_on_model(training, ranks)
        record = job.record()  # on every rank: it also makes the trace short
        shared = {"rounds": training.shared(), "record": record} if links.rank == 0 else {}
        parts.write(training.ledger.rounds, training.own(), shared)

    # At whichever rank it comes, all stop after the round, with a checkpoint; a second Ctrl-C does not wait for one.
    with on_stop(lambda: setattr(training, "control", STOP)):
        ended = job.advance(report, checkpoint)
    agree_on_model(training, ranks)
    model = training.export()
    by_rank = [np.frombuffer(data, np.int64).tolist() for data in links.gather(sent.tobytes(), "bytes")]
    run = None
    if links.rank == 0:
        run = runner.conclude(job, ended, model, parts.folder, {**meta, "bytes_sent": by_rank}, report)
    links.gather(b"", "the end")  # the parts are of use until rank 0 has stored the run
    parts.remove()
    return run
