"""The two apps: the server's loop of rounds, and a node's answer to one message."""

from __future__ import annotations

import csv
import json
import time
from collections.abc import Callable, Sequence
from logging import INFO, WARNING
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.common.logger import log
from flwr.serverapp import Grid, ServerApp
from safetensors.torch import save
from torch import nn

from lasg.core.arrays import Array, FloatArray, copies, zeros
from lasg.core.ledger import COUNTS
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.workers import Oracle
from lasg.engines.federated import Federated, Refused
from lasg.engines.nodes import Node
from lasg.errors import LasgError
from lasg.experiments.files import locked, write_atomically
from lasg.flower.records import GridCarrier, parcel, records
from lasg.flower.settings import Settings
from lasg.packing import packed, unpacked
from lasg.problems.flat import FlatView

MEMORY = "lasg.memory"
CHECKPOINT, PREVIOUS, STATUS = "server.safetensors", "server-previous.safetensors", "server.json"
SECURE = {"secagg_mod", "secaggplus_mod", "secaggplus_base"}

MakeModel = Callable[[Context], nn.Module]
MakeProblem = Callable[[Context, int], "Own"]
Measure = Callable[[nn.Module], tuple[float, float | None]]


class Own(Oracle, Protocol):
    """A node's own problem, such as a `ModuleProblem` of one shard."""

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
        node = _node(context, make_problem)
        asked = parcel(message.content)
        answer = node.answer(asked)
        log(
            INFO,
            "lasg: worker %s, round %s: %s, %d bytes up and %d down, so far %d and %d",
            node.key,
            answer.head.get("round", "none"),
            answer.head["kind"],
            answer.size,
            asked.size,
            node.bytes_up,
            node.bytes_down,
        )
        context.state[MEMORY] = ConfigRecord({"memory": node.memory()})
        return Message(records(answer), reply_to=message)

    return app


def _node(context: Context, make_problem: MakeProblem) -> Node:
    """Return the node as it was after its last message."""
    settings = Settings.of(context.run_config)
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
        schedule=Constant(settings.eta),
        D=settings.D,
        clip=settings.clip or None,
        **settings.shared,
    )
    memory = context.state.get(MEMORY)
    if isinstance(memory, ConfigRecord):
        node.recall(memory["memory"])  # type: ignore[arg-type]
    return node


def server_app(
    make_model: MakeModel, measure: Measure | None = None, smoothness: FloatArray | None = None
) -> ServerApp:
    """Return the app of the server. `make_model(context)` gives the model to start from.

    `measure(model)` returns loss and accuracy on data that the server has, if it has any. `smoothness` are the
    workers' L_m, for rule ps.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        train(grid, Settings.of(context.run_config), make_model(context), measure, smoothness)

    return app


def train(
    grid: Grid,
    settings: Settings,
    model: nn.Module,
    measure: Measure | None = None,
    smoothness: FloatArray | None = None,
) -> Federated:
    """Train over the nodes of a grid; leave checkpoint, trace and model in the settings' folder."""
    flat = FlatView(model.named_parameters())
    theta = flat.gather().clone()

    def measured(at: Any) -> tuple[float, float | None]:
        assert measure is not None
        flat.point_at(at.clone())
        return measure(model)

    run = Federated(
        ClosedFormSGD(theta, Constant(settings.eta)),
        carrier=GridCarrier(grid, settings.deadline, settings.wait),
        keys=settings.names,
        laziness=settings.laziness,
        deadline=settings.deadline,
        away=settings.away,  # type: ignore[arg-type]
        away_after=settings.away_after or None,
        norm_bound=settings.bound,
        relay=settings.relay,
        smoothness=smoothness,
        measure=measured if measure is not None else None,
        report=_told,
        **settings.shared,
    )
    folder = Path(settings.out)
    with locked(folder):
        _rounds(run, settings, folder)
        flat.point_at(run.theta)
        named = {name: value.contiguous() for name, value in model.state_dict().items()}
        write_atomically(folder / "model.safetensors", save(named))
    return run


def _rounds(run: Federated, settings: Settings, folder: Path) -> None:
    """Do all rounds, with a line in the trace and a checkpoint after each."""
    trace = Trace(folder / "trace.csv")
    if settings.resume:
        resume(run, folder)
        log(INFO, "lasg: going on at round %d", run.server.k)
    trace.begin(run.server.k)
    run.gather(settings.wait)
    while run.server.k < settings.rounds:
        began = time.monotonic()
        done = run.step()
        last = run.server.k == settings.rounds
        loss, accuracy = run.measure() if last or run.server.k % settings.evaluate_every == 0 else (None, None)
        trace.add(run, done.uploaded, time.monotonic() - began, loss, accuracy)
        checkpoint(run, folder)
        if run.unheard.all():
            log(WARNING, "lasg: round %d: nobody answered in %g s: raise deadline", run.server.k, settings.deadline)
        log(
            INFO,
            "lasg: round %d of %d, %d of %d uploaded, %d uploads so far%s%s",
            run.server.k,
            settings.rounds,
            done.uploaded.sum(),
            len(settings.names),
            run.ledger.uploads,
            "" if loss is None else f", loss {loss:.4f}",
            "" if accuracy is None else f", accuracy {100 * accuracy:.2f} %",
        )


def _told(refused: Refused) -> None:
    who = refused.key or "a node"
    log(WARNING, "lasg: round %d: %s (node %d) is refused: %s", refused.round, who, refused.node, refused.reason)


def checkpoint(run: Federated, folder: Path) -> None:
    """Write the server's whole state; the one before is kept."""
    path = folder / CHECKPOINT
    data = packed(run.state(live=True))
    if path.exists():
        path.replace(folder / PREVIOUS)
    write_atomically(path, data)
    status = {
        "round": run.server.k,
        "run": run.run,
        "settings": run.settings,
        "ledger": dict(zip(COUNTS, run.ledger.row(), strict=True)),
        "bytes up": run.bytes_up,
        "bytes down": run.bytes_down,
        "refused answers": run.refusals,
    }
    write_atomically(folder / STATUS, (json.dumps(status, indent=2) + "\n").encode())


def resume(run: Federated, folder: Path) -> None:
    """Take the last whole checkpoint, if there is one."""
    for name in (CHECKPOINT, PREVIOUS):
        path = folder / name
        if path.exists():
            state = unpacked(path.read_bytes(), str(path))
            theirs = state["federation"]["settings"]
            differs = [name for name, value in run.settings.items() if theirs.get(name) != value]
            if differs:
                raise LasgError(f"{path} is of a run with another {', '.join(differs)}")
            run.restore(copies(state))
            return


class Trace:
    """A line a round, of what was sent and measured.

    A round's line is written before its checkpoint: there is a line for every round that a server can go on from.
    """

    FIELDS = (
        "round",
        "uploads",
        "uploads_so_far",
        "bits_up",
        "bytes_up",
        "bytes_down",
        "gradients",
        "seconds",
        "loss",
        "accuracy",
        "who",
    )

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[dict[str, str]]:
        """Return the lines that are there; the last may be in the midst of being written, and is then left out."""
        text = self.path.read_text() if self.path.exists() else ""
        return list(csv.DictReader(text[: text.rfind("\n") + 1].splitlines()))

    def begin(self, k: int) -> None:
        """Keep the lines of the first k rounds: the run goes on from there, and a line after them may be half."""
        header = ",".join(self.FIELDS)
        found = self.path.read_text().splitlines() if k and self.path.exists() else []
        kept = found[1 : k + 1] if found[:1] == [header] else []
        write_atomically(self.path, "".join(f"{line}\n" for line in (header, *kept)).encode())

    def add(
        self, run: Federated, who: npt.NDArray[np.bool_], seconds: float, loss: float | None, accuracy: float | None
    ) -> None:
        """Write the line of a round; `who` has uploaded in it."""
        ledger, keys = run.ledger, [key for key, uploaded in zip(run.keys, who, strict=True) if uploaded]
        counts = (run.server.k, len(keys), ledger.uploads, ledger.bits_up)
        sent = (run.bytes_up, run.bytes_down, ledger.gradients)
        with self.path.open("a", newline="") as file:
            csv.writer(file, lineterminator="\n").writerow(
                (*counts, *sent, round(seconds, 3), loss, accuracy, " ".join(keys))
            )
