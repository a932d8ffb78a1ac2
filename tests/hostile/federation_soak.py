"""A federation on Flower's in-process grid to which things happen: its model is computed again from what was taken.

The server and its nodes are a child process, which is killed; a second one goes on with what it left on the disk. After
every round it notes the answers that it took. From these notes alone the model is computed again at the end: rows,
their bounded sum, and plain SGD.
"""

from __future__ import annotations

import functools
import json
import logging
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Context, Message, RecordDict
from flwr.superlink.grid import InMemoryGrid
from safetensors.numpy import load_file
from torch import nn

from lasg import ModuleProblem
from lasg.core.arrays import host
from lasg.core.robust import as_bound, bounded_sum
from lasg.core.training import Round, Training
from lasg.errors import LasgError
from lasg.flower import Settings, apps, client_app
from lasg.flower.records import GridCarrier, _array, parcel
from lasg.flower.settings import ROBUST
from lasg.runs import store
from tests.flower.grid import Inline
from tests.hostile import hooks
from tests.hostile.children import damage, forked, hurt, judged, waited
from tests.runs.old_runs import data

FAULTS = ("kill", "stop", "cut link", "full disk", "damaged file", "damaged answer", "huge gradient", "clock jump")
WORKERS, ROUNDS, STEP = 4, 60, 0.1
ALGORITHMS = ("wk2+qsgd8", "wk2+dense", "always+qsgd8+difference")
DEADLINES, DEADLINE, ATTEMPTS = {"cut link": 2.0, "stop": 2.0}, 60.0, 6
"""Of a round: short where answers are lost or late, else longer than the busiest machine takes for one."""
Rows = npt.NDArray[np.floating[Any]]


def module() -> nn.Module:
    """Return the model that a run starts from."""
    found = nn.Linear(30, 2).double()
    nn.init.zeros_(found.weight)
    nn.init.zeros_(found.bias)
    return found


def problem(worker: int, workers: int = WORKERS) -> ModuleProblem:
    """Return what a node has: every fourth sample."""
    x, y = (part.numpy() for part in data())
    rows = [np.arange(m, len(y), workers) for m in range(workers)]
    loss = nn.functional.cross_entropy
    return ModuleProblem(module(), loss, (x, y), [rows[worker]], batch=0.1, dtype="float64", ids=[worker])


def loss(model: dict[str, Any]) -> float:
    """Return a model's loss over all data."""
    x, y = data()
    found = module()
    found.load_state_dict({name: x.new_tensor(value) for name, value in model.items()})
    return float(nn.functional.cross_entropy(found(x), y).detach())


def settings_of(algorithm: str, out: Path, fault: str) -> dict[str, Any]:
    """Return what is set in the app's configuration: the bound is the default one."""
    found = {"workers": WORKERS, "rounds": ROUNDS, "algorithm": algorithm, "eta": STEP}
    return {**found, "deadline": DEADLINES.get(fault, DEADLINE), "wait": 60.0, "out": str(out), "resume": True}


class Torn(Inline):
    """A grid on which answers get lost, late and damaged, and whose nodes forget; it keeps what nodes answer."""

    def __init__(self, config: dict[str, Any], fault: str, chance: random.Random) -> None:
        super().__init__(client_app(lambda _, worker: problem(worker)), WORKERS, config)
        self.fault, self.chance = fault, chance
        self.liar = chance.randrange(WORKERS)
        self.uploads: dict[tuple[int, int], tuple[bytes, bool]] = {}
        """By round and worker: the message, and whether it is added to what was said before."""
        self.late: list[Message] = []

    def push_messages(self, messages: Any) -> Any:
        """Answer, or not yet; what was late before comes now."""
        names = list(InMemoryGrid.push_messages(self, messages))
        late, self.late = self.late, []
        for node, context in self.contexts.items():
            for message in self.state.get_message_ins(node_id=node, limit=None):
                if self.fault == "kill" and self.chance.random() < 0.02:
                    context.state = RecordDict()  # as a node that was killed, and was started again
                answer = self.answer(message, context)
                if self.fault == "cut link" and self.chance.random() < 0.05:
                    continue
                (self.late if self.fault == "stop" and self.chance.random() < 0.05 else late).append(answer)
        for answer in late:
            self.state.store_message_res(answer)
        return names

    def answer(self, message: Message, context: Context) -> Message:
        """Let a node answer, spoil that perhaps, and keep it."""
        reply = super().answer(message, context)
        if not reply.has_content():
            return reply
        found = parcel(reply.content)
        if found.head["kind"] == "upload":
            k, m = int(found.head["round"]), int(found.head["key"])
            if self.fault == "damaged answer" and m == self.liar and k % 7 == 6:
                content = bytearray(found.arrays["contribution"].tobytes())
                content = content[: self.chance.randrange(len(content))]
                reply.content["lasg.arrays"]["contribution"] = _array(np.frombuffer(bytes(content), np.uint8))  # type: ignore[assignment]
            self.uploads[k, m] = found.arrays["contribution"].tobytes(), "base" in found.head
        return reply


def serve(algorithm: str, folder: Path, fault: str, chance: random.Random) -> int:
    """Be the server and the nodes, until the end; note every round."""
    logging.getLogger("flwr").setLevel(logging.WARNING)
    GridCarrier.pause = 0.02
    config = settings_of(algorithm, folder / "out", fault)
    grid, step = Torn(config, fault, chance), Training.step
    taken = folder / "taken"
    taken.mkdir(exist_ok=True)

    def stepping(self: Training) -> Round:
        done = step(self)
        members = self.transport.members  # type: ignore[attr-defined]
        took = {m: grid.uploads[done.k, m] for m in np.flatnonzero(done.uploaded).tolist()}
        said = {m: [message.hex(), adds] for m, (message, adds) in took.items()}
        text = json.dumps({"said": said, "gone": list(members.excluded), "weights": members.weights.tolist()})
        part = taken / f"{done.k}.part"
        part.write_text(text)
        part.replace(taken / f"{done.k}.json")  # of a round that is done again, the last counts
        return done

    Training.step = stepping  # type: ignore[method-assign]
    try:
        apps.train(grid, Settings.from_config(config), module())
    except LasgError as error:
        print(error, flush=True)
        return 2
    return 0


def recomputed(algorithm: str, taken: Path) -> Rows:
    """Return the model that the answers give which were taken."""
    stages = Settings(workers=WORKERS, algorithm=algorithm).stages
    bound, theta = as_bound(ROBUST), np.zeros(62)
    assert bound is not None
    rows = np.zeros((WORKERS, len(theta)))
    for k in range(ROUNDS):
        note = json.loads((taken / f"{k}.json").read_text())
        rows[note["gone"]] = 0
        for m, (message, adds) in note["said"].items():
            said = host(stages.codec.decode([bytes.fromhex(message)], theta))[0]
            rows[int(m)] = rows[int(m)] + said if adds else said
        theta = theta - STEP * bounded_sum(bound, rows, np.array(note["weights"]))
    return theta


@functools.cache
def load_all() -> None:
    """Load what the first gradient loads, before the first fork."""
    found = problem(0)
    found.gradients(0, [found.start()], None)


def episode(fault: str, chance: random.Random, folder: Path) -> str:
    """Do a run that a fault happens to; say how it ended."""
    algorithm, out, refused = chance.choice(ALGORITHMS), folder / "out", ""
    log = folder / "log"
    load_all()
    for attempt in range(ATTEMPTS):
        calm, given = attempt >= 2, dict[str, str]()
        if not calm and fault == "clock jump":
            given[hooks.CLOCK] = str(chance.uniform(0.1, 1e4))
        if not calm and fault == "full disk":
            given[hooks.DISK] = str(chance.randrange(2000, 12_000))
        if fault == "huge gradient":
            given[hooks.HUGE] = f"{chance.randrange(WORKERS)}:7"
        seed = chance.random()
        child = forked(lambda seed=seed: serve(algorithm, folder, fault, random.Random(seed)), log, given)  # type: ignore[misc]
        if not calm and fault in ("kill", "stop", "damaged file"):
            time.sleep(chance.uniform(0.1, 3.0))
            hurt(child, signal.SIGTERM if fault == "stop" else signal.SIGKILL)
        status = waited(child)
        if (said := judged(status, log)) is not None:
            return said
        if status == 0:
            break
        if status == 2 and calm:
            if fault != "damaged file":
                return "LOST"
            refused = "refused, then "
            shutil.rmtree(out)
        if fault == "damaged file" and not calm:
            damage(out, chance)
    else:
        return "GAVE UP"
    model = load_file(out / store.MODEL)
    found = np.concatenate([model[name].ravel() for name, _ in module().named_parameters()])
    if not np.allclose(found, recomputed(algorithm, folder / "taken"), rtol=0, atol=1e-10):
        return "WRONG"
    start = {name: value.detach().numpy() for name, value in module().named_parameters()}
    return f"{refused}recomputed" if loss(model) < loss(start) else "WRONG: no better than the start"
