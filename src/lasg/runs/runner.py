"""Runs specs: one in this process, with checkpoints, or many in parallel processes."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
from threadpoolctl import threadpool_limits

from lasg.core.own_codec import CodecLike
from lasg.core.rules import Rule
from lasg.core.training import CHECKPOINT, STOP, Round, Training
from lasg.data.raw_files import path_or_none
from lasg.errors import CannotWrite, Diverged, Faulty, LasgError
from lasg.runs import factories, store
from lasg.runs.files import lock, sweep, wrap_write_errors
from lasg.runs.spec import Spec
from lasg.runs.status import Report, Status, round_figures
from lasg.runs.store import Run
from lasg.runs.trace import EVALUATED, Trace

CHECKPOINT_SECONDS = 10.0
"""Between two checkpoints; 0 or less: one after every round."""
CHECKPOINT_SHARE = 0.05
"""Of the time of a run that checkpoints may take: those of a large model come less often."""
REPORT_SECONDS = 0.2
LONG_SECONDS = 0.5
"""An evaluation that takes longer is announced."""
EARLIER = ("0.1.0",)
"""Versions of lasg whose unfinished runs this one ends with the same bits."""
SPENT = {"uploads": "uploads", "bits": "bits_up", "gradients": "gradients"}
"""What of the ledger a budget or a mark is about."""
KEPT = ("next_evaluation", "seconds", "evaluation_seconds")
"""What of a job a checkpoint has, besides the training and its trace."""
ALMOST = 0.999
"""The share of a run that has not ended yet, at most."""


class Own(TypedDict, total=False):
    """What of a run only the caller's program has: it replaces what the spec describes."""

    problem: factories.Problem | None
    rule: Rule | None
    codec: CodecLike | None


@dataclass
class Job:
    """A run under way: the training, its trace, and when the next evaluation is."""

    spec: Spec
    training: Training
    trace: Trace
    next_evaluation: int = 0
    seconds: float = 0.0
    evaluation_seconds: float = 0.0
    message: str = ""
    remarks: list[str] = field(default_factory=list)
    """What a user must know of the run's files, and was not told yet."""
    _report_due: float = field(default=0.0, repr=False)
    _reported: int = field(default=0, repr=False)
    _broken: int = field(default=0, repr=False)
    _began: float = field(default=0.0, repr=False)
    _paces: dict[int, float] = field(default_factory=dict, repr=False)

    @classmethod
    def from_spec(cls, spec: Spec, data_dir: Path | None, **own: Unpack[Own]) -> Job:
        """Prepare the run of a spec."""
        problem = own.get("problem")
        problem = factories.problem(spec, data_dir) if problem is None else problem
        training = factories.training(spec, problem, rule=own.get("rule"), codec=own.get("codec"))
        return cls(spec, training, Trace(spec.workers, spec.watched))

    @property
    def loss(self) -> float:
        """The loss at the last evaluation."""
        return self.trace.evaluations[-1][-2] if self.trace.evaluations else math.nan

    def share(self) -> float:
        """How much of the budget that is furthest spent is spent: 1 or more ends the run."""
        ledger, spec = self.training.ledger, self.spec
        shares: list[float] = [
            getattr(ledger, SPENT[kind]) / budget for kind, budget in spec.until.items() if kind in SPENT
        ]
        if "loss" in spec.until and self.loss <= spec.until["loss"]:
            shares.append(1.0)
        return max([ledger.iterations / spec.iterations, *shares])

    def _evaluation_due(self) -> bool:
        """Whether the schedule says so, or a mark was passed since the last evaluation."""
        ledger = self.training.ledger
        if ledger.rounds >= self.next_evaluation or not self.spec.marks:
            return ledger.rounds >= self.next_evaluation
        before = dict(zip(EVALUATED, self.trace.evaluations[-1], strict=True))
        marks = {SPENT[kind]: mark for kind, mark in self.spec.marks.items()}
        return any(before[name] < mark <= getattr(ledger, name) for name, mark in marks.items())

    def advance(self, report: Report | None, checkpoint: Callable[[], None] | None) -> str:
        """Run to the end; return how it ended: done or diverged."""
        saved, pause, training = time.monotonic(), CHECKPOINT_SECONDS, self.training
        try:
            if not self.trace.evaluations:
                self.evaluate(report)
            while self.share() < 1:
                began = time.monotonic()
                if training.transport.is_first and checkpoint is not None and began - saved > pause:
                    training.control = max(training.control, CHECKPOINT)
                finished = training.step()
                self.trace.add_round(finished)
                self.seconds += (now := time.monotonic()) - began
                if self._evaluation_due():
                    self.evaluate(report)
                if report is not None and now >= self._report_due:
                    self._report_due = now + REPORT_SECONDS
                    report(self.status(min(ALMOST, self.share())))
                if checkpoint is not None and finished.control:
                    pause = self._save(checkpoint, finished)
                    saved = time.monotonic()
            if self.trace.evaluations[-1][0] != self.training.ledger.rounds:
                self.evaluate(report)
        except Diverged as error:
            self.message = str(error)
            return "diverged"
        except Faulty as error:
            return self._gave_up(error, report, checkpoint)
        return "done"

    def _save(self, checkpoint: Callable[[], None], finished: Round) -> float:
        """Write the checkpoint that somebody asked for, and stop if it was to stop; return the seconds to the next."""
        began = time.monotonic()
        checkpoint()
        if finished.control == STOP:
            raise KeyboardInterrupt
        if self.training.control == CHECKPOINT:  # a Ctrl-C may have come meanwhile
            self.training.control = 0
        longest = (time.monotonic() - began) / CHECKPOINT_SHARE
        return max(CHECKPOINT_SECONDS, longest) if CHECKPOINT_SECONDS > 0 else CHECKPOINT_SECONDS

    def _gave_up(self, error: Faulty, report: Report | None, checkpoint: Callable[[], None] | None) -> str:
        """Tell a diverged model, at which no gradient can be finite, from a worker's fault, which can be fixed."""
        everybody = bool((self.training.streak >= self.training.patience).all())
        if (everybody and self.spec.workers > 1) or not math.isfinite(self.training.measure()[0]):
            self.message = str(error)
            return "diverged"
        self.training.reset_faults()  # after a resume it has as much patience again
        if checkpoint is not None:
            checkpoint()
        if report is not None:
            report(self.status(min(ALMOST, self.share())))
        raise error

    def status(self, share: float, *, evaluating: bool = False) -> Status:
        """Return how far the run is, with the evaluations that were not reported yet."""
        rows = tuple(self.trace.evaluations[self._reported :])
        self._reported += len(rows)
        broken = tuple(self.trace.broken[self._broken :])
        self._broken += len(broken)
        remarks, self.remarks = tuple(self.remarks), []
        return Status(
            self.spec,
            share,
            replace(self.training.ledger),
            self.loss,
            self.seconds,
            rows,
            self._began,
            evaluation_seconds=self.evaluation_seconds,
            evaluating=evaluating,
            broken=broken,
            remarks=remarks,
            rounds=tuple(round_figures(self.trace, int(row[0]), self._paces.get(int(row[0]))) for row in rows),
            last_round=round_figures(self.trace, self.training.ledger.rounds, self.seconds),
        )

    def evaluate(self, report: Report | None = None) -> None:
        """Measure loss and accuracy now, and plan the next time; its time is counted apart."""
        # Of a network the first evaluation may be long already.
        done = len(self.trace.evaluations)
        if report is not None and (self.evaluation_seconds / done > LONG_SECONDS if done else self.spec.neural):
            report(self.status(min(ALMOST, self.share()), evaluating=True))
        began, rounds = time.monotonic(), self.training.ledger.rounds
        self._paces[rounds] = self.seconds
        loss, accuracy = self.training.measure()
        if not math.isfinite(loss):
            raise Diverged(f"the loss is no longer finite after round {rounds}: take a smaller eta")
        self.trace.add_evaluation(self.training.ledger, loss, accuracy)
        self.evaluation_seconds += time.monotonic() - began
        every = self.spec.evaluate
        if rounds >= self.next_evaluation:  # a mark in between does not move the schedule
            later = rounds + every if isinstance(every, int) else max(rounds + 1, math.ceil(1.1 * rounds))
            self.next_evaluation = later

    def state(self) -> dict[str, Any]:
        """Return all that the run needs to go on."""
        return {"simulation": self.training.state(live=True), **self.record()}

    def record(self) -> dict[str, Any]:
        """Return what is known of the run so far, besides the simulation's state."""
        return {"trace": self.trace.arrays(), **{name: getattr(self, name) for name in KEPT}}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint's state."""
        self.training.restore(state["simulation"])
        self.trace.restore(state["trace"])
        for name in KEPT:
            setattr(self, name, state[name])
        self._broken = len(self.trace.broken)
        self._began = min(1.0, self.share())


@contextmanager
def deterministic_threads(spec: Spec) -> Iterator[None]:
    """One thread, or as many as the spec says: a run's bits do not depend on the cores that are there.

    Divergence is told by us, not by warnings.
    """
    with threadpool_limits(1), np.errstate(over="ignore", invalid="ignore"):
        if not spec.neural:
            yield
            return
        import torch

        before = torch.get_num_threads()
        torch.set_num_threads(spec.threads or 1)
        try:
            yield
        finally:
            torch.set_num_threads(before)


def run(
    spec: Spec,
    folder: Path | str,
    *,
    data_dir: Path | str | None = None,
    report: Report | None = None,
    **own: Unpack[Own],
) -> Run:
    """Run a spec from the start and store it in `folder`; with the caller's own problem, rule or codec, if there is."""
    folder, data_dir = Path(folder), path_or_none(data_dir)
    with deterministic_threads(spec):
        job = Job.from_spec(spec, data_dir, **own)
        with lock(folder):
            meta = store.begin(folder, spec, factories.identity(spec, data_dir, own.get("problem")))
            try:
                return _finish(job, folder, meta, report)
            except LasgError as error:
                # What has a checkpoint can be resumed, and so can what only lacks room.
                if not store.has_checkpoint(folder) and not isinstance(error, CannotWrite):
                    store.discard(folder)
                raise


def resume(
    folder: Path | str, *, data_dir: Path | str | None = None, report: Report | None = None, **own: Unpack[Own]
) -> Run:
    """Go on with a stored run that did not end; the result equals that of a run that was never stopped."""
    folder, data_dir = Path(folder), path_or_none(data_dir)
    stored = store.read(folder)
    if stored.status != "running":
        return repaired(stored, report)
    if stored.meta["engine"] == "distributed":
        raise LasgError(f"{folder} is a run on {stored.meta['ranks']} ranks: start the same torchrun command again")
    if stored.meta["engine"] == "flower":
        raise LasgError(f"{folder} is a federation's run: {stored.how_to_resume} goes on with it")
    with deterministic_threads(stored.spec):
        job = Job.from_spec(stored.spec, data_dir, **own)
        if factories.identity(stored.spec, data_dir, own.get("problem")) != stored.meta["data_sha256"]:
            raise LasgError(f"{folder} was begun on other data or weights than there are now: start it again")
        with lock(folder):
            found = store.last_checkpoint(folder)
            if found is not None and "ended" in found.state:
                return finalize(folder, stored.spec, stored.meta, found.state)
            if found is not None:
                restore(job, found.state, found.path)
                if found.remark:
                    store.promote_previous(folder)
                add_remark(job, found.remark, report)
            return _finish(job, folder, stored.meta, report)


def restore(job: Job, state: dict[str, Any], path: Path) -> None:
    """Let a job go on from a checkpoint; refuse one that is not its."""
    try:
        job.restore(state)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, RuntimeError) as error:
        raise LasgError(f"{path} does not hold this run ({error!r}): delete it to start again") from None


def add_remark(job: Job, remark: str, report: Report | None) -> None:
    """Tell the user a line, if there is one: with the next report, or as a warning if nobody takes reports."""
    if remark and report is not None:
        job.remarks.append(remark)
    elif remark:
        warnings.warn(remark, stacklevel=4)


def repaired(stored: Run, report: Report | None) -> Run:
    """Return an ended run whose files are whole: a trace that cannot be read is written again from the checkpoint."""
    store.check_model(stored)
    remarks = []
    try:
        stored.trace["loss"]
    except LasgError:
        state = store.read_checkpoint(stored.folder)
        if state is None or "ended" not in state:
            raise
        store.write_trace(stored.folder, state["trace"])
        stored = store.read(stored.folder)
        remarks.append(f"{stored.folder / store.TRACE} was missing or damaged: written again from {store.CHECKPOINT}")
    if report is not None:
        report(Status.from_run(stored, *remarks))
    return stored


def _finish(job: Job, folder: Path, meta: dict[str, Any], report: Report | None) -> Run:
    """Advance a job to its end and store it."""
    ended = job.advance(report, lambda: store.write_checkpoint(folder, job.state()))
    return conclude(job, ended, job.training.export(), folder, meta, report)


def conclude(
    job: Job, ended: str, model: Mapping[str, Any], folder: Path, meta: dict[str, Any], report: Report | None
) -> Run:
    """Store a job that came to its end."""
    digest = store.write_model(folder, model)
    # The vectors of a run that ended are of no more use; what is left says how it ended.
    state = job.record() | {"ended": ended, "message": job.message, "given_up": job.training.given_up, "model": digest}
    store.write_checkpoint(folder, state)
    stored = finalize(folder, job.spec, meta, state)
    if report is not None:
        report(job.status(1.0))
    return stored


def finalize(
    folder: Path, spec: Spec, meta: dict[str, Any], state: dict[str, Any], *, keep_previous: bool = False
) -> Run:
    """Store a run that ended. The status is written last: a kill before it is a run to resume."""
    store.write_trace(folder, state["trace"])
    if not keep_previous:
        with wrap_write_errors(folder):
            (folder / store.PREVIOUS).unlink(missing_ok=True)
    meta = {**meta, "status": state["ended"], "versions": store.versions()}
    meta |= {name: round(state[name], 3) for name in ("seconds", "evaluation_seconds")}
    if state["message"]:
        meta["message"] = state["message"]
    if "model" in state and "id" in meta:
        meta["model"] = state["model"]
    if state.get("given_up"):
        meta["laziness_given_up"] = state["given_up"]
    if "broken" in state["trace"]:
        meta["broken_gradients"] = len(state["trace"]["broken"])
    store.write_meta(folder, meta)
    sweep(folder)
    return Run(folder, spec, meta)


def folder_for(spec: Spec, out: Path) -> Path:
    """Return the folder where `obtain` keeps a spec's run."""
    return out / spec.label


def obtain(
    spec: Spec,
    out: Path | str,
    *,
    fresh: bool = False,
    data_dir: Path | str | None = None,
    report: Report | None = None,
) -> Run:
    """Return the stored run of a spec, going on with it or running it first where that is missing."""
    folder, data_dir = folder_for(spec, Path(out)), path_or_none(data_dir)
    stored = None if fresh else reusable(spec, folder, data_dir)
    if stored is None:
        return run(spec, folder, data_dir=data_dir, report=report)
    if stored.status == "running":
        return resume(folder, data_dir=data_dir, report=report)
    if report is not None:
        return repaired(stored, report)
    store.check_model(stored)  # the trace is checked when it is read
    return stored


def reusable(spec: Spec, folder: Path, data_dir: Path | None) -> Run | None:
    """Return a folder's run if it is this spec's on today's data, by this version, or unfinished by an earlier one."""
    if not (folder / store.META).is_file():
        return None
    stored = store.read(folder)
    version = stored.meta["versions"].get("lasg")
    same_code = version == store.versions()["lasg"] or (stored.status == "running" and version in EARLIER)
    same_data = stored.meta["data_sha256"] == factories.identity(spec, data_dir)
    return stored if stored.spec == spec and same_code and same_data else None
