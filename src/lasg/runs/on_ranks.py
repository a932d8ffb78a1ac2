"""Runs of specs on the ranks of a process group: all compute, rank 0 alone reports and stores.

A checkpoint has a part a rank, each written by its rank, and a manifest that rank 0 writes last. Only what the manifest
names counts, with the checksums that it has: a kill at any moment leaves the checkpoint before.
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

from lasg.core.arrays import IntArray
from lasg.core.training import STOP
from lasg.errors import LasgError, RemoteFailure
from lasg.packing import pack, unpack
from lasg.runs import factories, runner, store
from lasg.runs.files import lock, sweep, write_atomically
from lasg.runs.runner import Job
from lasg.runs.spec import Spec
from lasg.runs.status import Report, Status
from lasg.runs.stopping import on_stop
from lasg.runs.store import Run
from lasg.runs.trace import Trace

if TYPE_CHECKING:
    from lasg.transports.links import Links

MANIFEST = "checkpoint.json"


class Parts:
    """The checkpoint of a run on ranks."""

    def __init__(self, folder: Path, links: Links) -> None:
        self.folder, self.links = folder, links
        self._before: Path | None = None

    def _path(self, rounds: int, digest: str) -> Path:
        name = f"checkpoint-{rounds}-{digest[:8]}-rank-{self.links.rank}-of-{self.links.ranks}.safetensors"
        return self.folder / name

    def mine(self) -> list[Path]:
        """Return the parts of this rank that lie here, of whichever checkpoint."""
        return list(self.folder.glob(f"checkpoint-*-rank-{self.links.rank}-of-*.safetensors"))

    def write(self, rounds: int, own: dict[str, Any], shared: dict[str, Any]) -> None:
        """Write this rank's part, then, when all ranks have, the manifest. The parts before it stay until the next."""
        data = pack({"own": own, "shared": shared} if self.links.rank == 0 else {"own": own})
        digest = hashlib.sha256(data).hexdigest()
        path = self._path(rounds, digest)
        write_atomically(path, data)
        sums = self.links.gather(digest.encode(), "checksums")
        if self.links.rank == 0:
            manifest = {"round": rounds, "ranks": self.links.ranks, "sha256": [text.decode() for text in sums]}
            write_atomically(self.folder / MANIFEST, (json.dumps(manifest, indent=2) + "\n").encode())
        # Rank 0 may not have written the manifest yet: what it named before must last until it has.
        for old in {*self.mine()} - {path, self._before}:
            old.unlink(missing_ok=True)
        self._before = path

    def _manifest(self) -> dict[str, Any] | None:
        """Return the manifest, which rank 0 has."""
        path = self.folder / MANIFEST
        if self.links.rank or not path.is_file():
            return None
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            whole = isinstance(found["round"], int) and len(found["sha256"]) == found["ranks"]
        except (OSError, ValueError, KeyError, TypeError):
            whole = False
        if not whole:
            raise LasgError(f"cannot read {path}: delete it to start anew")
        return dict(found)

    def read(self) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """Return this rank's own state and the shared one of the last checkpoint; None if there is none."""
        manifest = json.loads(first(self.links, lambda: json.dumps(self._manifest()).encode()))
        if manifest is None:
            return None
        if manifest["ranks"] != self.links.ranks:
            raise LasgError(
                f"{self.folder} was begun on {manifest['ranks']} ranks, and here are {self.links.ranks}: "
                "start as many, or run it anew with --fresh"
            )
        digest = manifest["sha256"][self.links.rank]
        path = self._path(manifest["round"], digest)
        data = path.read_bytes() if path.is_file() else b""
        damaged = self.ranks_that(hashlib.sha256(data).hexdigest() != digest, "checksums")
        if damaged:
            raise LasgError(
                f"the part of rank {damaged[0]} of the checkpoint of round {manifest['round']} in {self.folder} is "
                "missing there or damaged: run it anew with --fresh"
            )
        self._before = path
        state = unpack(data, str(path))
        shared = state.get("shared")
        text = self.links.broadcast(b"" if shared is None else pack(shared), "the server's state")
        return state["own"], unpack(text, "rank 0's state") if shared is None else shared

    def ranks_that(self, say: bool, what: str) -> list[int]:
        """Return the ranks that say yes."""
        return [rank for rank, said in enumerate(self.links.gather(b"yes" if say else b"no", what)) if said == b"yes"]

    def remove(self) -> None:
        """Remove the checkpoint of a run that ended."""
        if self.links.rank == 0:
            (self.folder / MANIFEST).unlink(missing_ok=True)
        for path in self.mine():
            path.unlink(missing_ok=True)
        sweep(self.folder)


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


def place(spec: Spec, out: Path, ranks: int) -> Path:
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

    folder = place(spec, out, links.ranks)
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
            own, shared = state
            whole = {**shared["record"], "simulation": {**own, **shared["rounds"]}}
            runner.restore(job, whole, folder / MANIFEST)
        return _finish(job, parts, ranks.links.sent, meta, report)


def _there(spec: Spec, folder: Path, fresh: bool, data_dir: Path | None, report: Report | None) -> bytes:
    """Tell what of a run is there: none, running (to go on with), or stored."""
    stored = runner.usable(spec, folder, data_dir)
    if stored is not None and fresh and stored.meta.get("job") != _job():  # what this job has begun goes on
        stored = None
    if stored is not None and stored.status == "running":
        state = store.read_checkpoint(folder)
        if state is None or "ended" not in state:
            return b"running"
        stored = runner.finalize(folder, spec, stored.meta, state)
    if stored is not None and report is not None:
        report(Status.from_run(stored))
    return b"none" if stored is None else b"stored"


def _check_no_parts(parts: Parts) -> None:
    """Refuse to start anew where another rank has a checkpoint to go on from."""
    for rank in parts.ranks_that(bool(parts.mine()), "checkpoints"):
        raise LasgError(
            f"rank {rank} has a checkpoint in {parts.folder}, and rank 0 has no run there: start rank 0 on the "
            "host where it was, or run it anew with --fresh"
        )


def _meta_of_same(folder: Path, exchange: str, relay: int) -> dict[str, Any]:
    """Return the meta data of a run to go on with; refuse another way to exchange."""
    meta = store.read(folder).meta
    if [meta["exchange"], meta["relay"]] != [exchange, relay]:
        begun = f"--exchange {meta['exchange']} --relay {meta['relay']}"
        raise LasgError(f"{folder} was begun with {begun}: go on with these, or run it anew with --fresh")
    return meta


def _finish(job: Job, parts: Parts, sent: IntArray, meta: dict[str, Any], report: Report | None) -> Run | None:
    """Advance a job to its end; rank 0 stores it."""
    links, training = parts.links, job.training

    def checkpoint() -> None:
        record = job.record()  # on every rank: it also makes the trace short
        shared = {"rounds": training.shared(), "record": record} if links.rank == 0 else {}
        parts.write(training.ledger.rounds, training.own(), shared)

    # At whichever rank it comes, all stop after the round, with a checkpoint; a second Ctrl-C does not wait for one.
    with on_stop(lambda: setattr(training, "control", STOP)):
        ended = job.advance(report, checkpoint)
    model = training.export()
    by_rank = [np.frombuffer(data, np.int64).tolist() for data in links.gather(sent.tobytes(), "bytes")]
    run = None
    if links.rank == 0:
        run = runner.conclude(job, ended, model, parts.folder, {**meta, "bytes_sent": by_rank}, report)
    links.gather(b"", "the end")  # the parts are of use until rank 0 has stored the run
    parts.remove()
    return run
