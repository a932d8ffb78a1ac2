"""The two apps: the server's loop of rounds, and a node's answer to one message."""

from __future__ import annotations

import copy
import functools
import math
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import replace
from logging import ERROR, INFO, WARNING
from pathlib import Path
from typing import Any, Protocol

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from torch import nn

from lasg.core.arrays import Array, FloatArray, host, zeros
from lasg.core.training import Training
from lasg.core.work import Oracle
from lasg.errors import LasgError, first_line
from lasg.flower.records import GridCarrier, parcel, records
from lasg.flower.settings import Settings
from lasg.flower.storage import Recorder, choose
from lasg.flower.tracking import Tracked
from lasg.problems.buffers import Buffers
from lasg.problems.flat import FlatView
from lasg.runs import factories
from lasg.runs.files import lock
from lasg.runs.store import MODEL
from lasg.transports.federation import Federation
from lasg.transports.membership import Admission, Trouble
from lasg.transports.nodes import FAILED, Node, Parcel

LINGERING = 60.0
"""Seconds that the ServerApp of a SuperLink that was killed may go on, with its folder locked, before it ends."""
MEMORY, FAILURE = "lasg.memory", "lasg.failure"
SECURE = {"secagg_mod", "secaggplus_mod", "secaggplus_base"}

MakeModel = Callable[[Context], nn.Module]
MakeProblem = Callable[[Context, int], "Own"]
Measure = Callable[[nn.Module], tuple[float, float | None]]


class Own(Oracle, Protocol):
    """A node's own problem, such as a `ModuleProblem` of one shard.

    Where training changes buffers (BatchNorm's statistics), it has them as `buffers`, a `Buffers` of one worker, and in
    its `state`: the server's model gets them with every upload.
    """

    @property
    def workers(self) -> int:
        """One."""
        ...

    @property
    def samples(self) -> int:
        """How many samples it has."""
        ...

    def start(self) -> Array:
        """Return any model: its length and dtype are what counts."""
        ...


def client_app(make_problem: MakeProblem, mods: Sequence[Any] = ()) -> ClientApp:
    """Return the app of a node. `make_problem(context, worker)` gives its module, loss and data: one worker's.

    The worker's number is where its key stands among the keys; pass it to ModuleProblem as `ids=[worker]`.
    """
    for mod in mods:
        if getattr(mod, "__name__", type(mod).__name__) in SECURE:
            raise LasgError(
                "secure aggregation cannot be combined with lazy aggregation: it shows the server only sums of what "
                "comes in one round, and a stale contribution is kept, and replaced, by itself"
            )
    app = ClientApp(mods=list(mods))

    @app.train()
    def train(message: Message, context: Context) -> Message:
        asked = parcel(message.content)
        try:
            node = _node(context, make_problem)
            answer = node.answer(asked)
        except Exception as error:  # whatever a user's own model, loss or data raises: the server is told
            return Message(records(_failure(context, error)), reply_to=message)
        what = f"worker {node.key}, round {answer.head.get('round', 'none')}: {answer.head['kind']}"
        so_far = f"so far {node.bytes_up} and {node.bytes_down}"
        say(INFO, f"{what}, {answer.size} bytes up and {asked.size} down, {so_far}")
        context.state[MEMORY] = ConfigRecord({"memory": node.memory()})
        return Message(records(answer), reply_to=message)

    return app


def _failure(context: Context, error: Exception) -> Parcel:
    """Return an error as an answer; the node's log has where it came from, once for the same error."""
    cause = error.__cause__ or error  # without which worker and minibatch it was: the server knows, and they change
    reason = first_line(cause) if isinstance(cause, LasgError) else f"{type(cause).__name__}: {first_line(cause)}"
    before = context.state.get(FAILURE)
    if not isinstance(before, ConfigRecord) or before["reason"] != reason:
        say(ERROR, f"this node failed: {reason}", exc_info=cause)
    context.state[FAILURE] = ConfigRecord({"reason": reason})
    return Parcel({"kind": FAILED, "reason": reason}, {})


def _node(context: Context, make_problem: MakeProblem) -> Node:
    """Return the node as it was after its last message."""
    settings = Settings.from_config(context.run_config)
    key = str(context.node_config.get("worker", context.node_config.get("partition-id", "")))
    if key not in settings.names:
        raise LasgError(
            f"this node's key is {key!r}, and the workers are {', '.join(settings.names)}: start it with "
            f"--node-config 'worker=\"{settings.names[0]}\"'"
        )
    problem = make_problem(context, settings.names.index(key))
    if problem.workers != 1:
        raise LasgError(f"a node is one worker, and its problem has {problem.workers}: give it one shard")
    start = problem.start()
    node = Node(
        key,
        problem,
        samples=problem.samples,
        like=zeros(start.shape, start),
        optimizer=lambda theta: factories.optimizer(settings.spec, theta),
        D=settings.D,
        stages=settings.stages.for_shapes(getattr(problem, "shapes", None)),
        seed=settings.seed,
        clip=settings.clip or None,
        buffers=getattr(problem, "buffers", None),
        start=start,
    )
    memory = context.state.get(MEMORY)
    if isinstance(memory, ConfigRecord):
        node.recall(memory["memory"])  # type: ignore[arg-type]
    return node


def server_app(
    make_model: MakeModel, measure: Measure | None = None, smoothness: FloatArray | None = None
) -> ServerApp:
    """Return the app of the server. `make_model(context)` gives the model to start from.

    `measure(model)` returns loss and accuracy on data that the server has, if it has any; it gets a copy of the model
    in evaluation mode. `smoothness` are the workers' L_m, for rule ps.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        try:
            train(grid, Settings.from_config(context.run_config), make_model(context), measure, smoothness)
        except LasgError as error:
            raise error.with_traceback(None) from None  # its line says it all, and Flower prints where it came from

    return app


def train(
    grid: Grid,
    settings: Settings,
    model: nn.Module,
    measure: Measure | None = None,
    smoothness: FloatArray | None = None,
) -> Training:
    """Train over the nodes of a grid; leave checkpoint, trace and model in the settings' folder."""
    run, federation, trained = serve(grid, settings, model, smoothness)
    out = Path(settings.out).resolve()
    folder = choose(out, resume=settings.resume)
    if folder != out and not settings.resume:
        say(INFO, f"{out} has a run in it: this one goes to {folder} (resume=true goes on with the last)")
    with lock(folder, LINGERING if settings.resume else 0.0):
        spec = settings.spec.but(dtype=str(host(run.theta).dtype))
        tracked = Tracked(settings.track, folder.name, spec.to_dict(), functools.partial(say, WARNING))
        recorder = Recorder(folder, spec, run, federation, tracked)
        with closing(tracked):
            _rounds(recorder, settings, None if measure is None else lambda: measure(trained()))
        recorder.finish(trained())
    say(INFO, _summary(run, federation, folder / MODEL))
    return run


def serve(
    grid: Grid, settings: Settings, model: nn.Module, smoothness: FloatArray | None = None
) -> tuple[Training, Federation, Callable[[], nn.Module]]:
    """Return a training over the nodes of a grid, what reaches them, and what gives the model as it is now.

    The model that is given is not changed. What is measured, and what is saved, are copies of it in evaluation mode,
    with the nodes' BatchNorm statistics pooled.
    """
    module = copy.deepcopy(model)
    flat, buffers = FlatView(module.named_parameters()), Buffers(module, len(settings.names))
    federation = Federation(
        GridCarrier(grid, settings.deadline, settings.wait),
        settings.names,
        deadline=settings.deadline,
        away=settings.away,  # type: ignore[arg-type]
        away_after=settings.away_after or settings.D,
        admission=_admission(grid, settings),
        norm_bound=settings.norm_bound or math.inf,
        send_deltas=settings.relay,
        buffers=buffers if buffers.names else None,
        report=_report,
    )
    run = Training(
        None,
        factories.optimizer(settings.spec, flat.gather()),
        settings.stages,
        settings.laziness,
        federation,
        seed=settings.seed,
        smoothness=smoothness,
        shapes=flat.shapes,
    )

    def trained() -> nn.Module:
        flat.point_at(run.theta)
        federation.load_pooled_buffers()
        return copy.deepcopy(module).eval()

    return run, federation, trained


def _admission(grid: Grid, settings: Settings) -> Admission:
    """Return who may be which worker; the simulation engine's nodes are this process's, and new in every run."""
    simulated = any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)
    return replace(settings.admission, bind="key") if simulated and not settings.bind else settings.admission


def _summary(run: Training, federation: Federation, model: Path) -> str:
    """Return the last line of a run: the model, and what it cost."""
    uploads, possible = run.ledger.uploads, run.ledger.rounds * len(federation.keys)
    saved = f"{possible - uploads} of {possible} uploads saved ({(possible - uploads) / max(1, possible):.0%})"
    sent = f"{federation.members.bytes_up / 1e6:.2f} MB up, {federation.members.bytes_down / 1e6:.2f} MB down"
    return f"done: {model}, {run.ledger.rounds} rounds, {saved}, {sent}"


def _rounds(recorder: Recorder, settings: Settings, measure: Callable[[], tuple[float, float | None]] | None) -> None:
    """Do all rounds, with a line in the trace and a checkpoint after each."""
    run, federation = recorder.run, recorder.federation
    if settings.resume and recorder.resume():
        for remark in recorder.remarks:
            say(WARNING, remark)
        say(INFO, f"going on at round {run.server.k} of {recorder.folder}")
    elif settings.resume:
        say(WARNING, f"there is no checkpoint in {recorder.folder} to go on from: this run begins at round 0")
    recorder.begin()
    federation.gather(settings.wait)
    while run.server.k < settings.rounds:
        began = time.monotonic()
        done = run.step()
        due = run.server.k == settings.rounds or run.server.k % settings.evaluate_every == 0
        loss, accuracy = (None, None) if measure is None or not due else measure()
        recorder.add(done, time.monotonic() - began, loss, accuracy)
        if federation.rounds_unanswered.all() and not federation.members.failures:
            say(WARNING, f"round {run.server.k}: nobody answered in {settings.deadline:g} s: raise deadline")
        if done.remark:
            say(WARNING, f"{done.remark}. All nodes upload in every round from here on")
        uploads = f"{done.uploaded.sum()} of {len(settings.names)} uploaded, {run.ledger.uploads} uploads so far"
        measured = "" if loss is None else f", loss {loss:.4f}"
        measured += "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %"
        say(INFO, f"round {run.server.k} of {settings.rounds}, {uploads}{measured}")


def _report(trouble: Trouble) -> None:
    who = f"worker {trouble.key}" if trouble.key else "a node"
    again = f", {trouble.times} times in a row" if trouble.times > 1 else ""
    what = f"failed{again}" if trouble.times else f"(node {trouble.node}) is {'taken' if trouble.taken else 'refused'}"
    say(WARNING, f"round {trouble.round}: {who} {what}: {trouble.reason}")


def say(level: int, text: str, exc_info: BaseException | None = None) -> None:
    """Write a line to Flower's log."""
    log(level, "lasg: %s", text, exc_info=exc_info)
