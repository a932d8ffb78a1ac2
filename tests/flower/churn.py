"""Kill nodes and the server of a real federation at random, and see that nothing was lost or counted twice.

    python -m tests.flower.churn --csv results/churn.csv        # ten minutes

Four SuperNodes with TLS and keys. Each is killed (kill -9) at random moments and started again, as an init system does;
the ServerApp and the SuperLink are killed too, and the run goes on with resume=true. One answer is spoiled on its way.
The server writes every answer that it gets to a file before it looks at it. From these files, and from the trace, the
whole run is computed again at the end, without any of lasg's server: the model must be the one in the checkpoint.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from deployment import Deployment

from lasg.core import codec_names
from lasg.core.ledger import COUNTS
from lasg.flower import new, storage
from lasg.report.paper_tables import to_csv
from lasg.runs import store

NODES, D, ETA, CODEC, SPOILED = 4, 10, 0.1, "qsgd8:512", 0
SERVER = '''"""The server of the churn run: it keeps what it gets."""

import json
import time
from pathlib import Path

import numpy as np
from flwr.serverapp import ServerApp

from lasg.flower import Settings
from lasg.flower.apps import train
from lasg.flower.records import parcel
from lazy.task import measure, model

app = ServerApp()


class Kept:
    """A grid that writes every answer to a file."""

    def __init__(self, grid, folder):
        self.grid, self.folder, self.life, self.count = grid, Path(folder), time.time_ns(), 0

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def pull_messages(self, names):
        for message in self.grid.pull_messages(names):
            if message.has_content():
                found = parcel(message.content)
                self.count += 1
                path = self.folder / f"{self.life}-{self.count:05}"
                with path.with_suffix(".part").open("wb") as file:
                    np.savez(file, head=json.dumps(found.head), **found.arrays)
                path.with_suffix(".part").rename(path.with_suffix(".npz"))
            yield message


@app.main()
def main(grid, context):
    settings = Settings.from_config(context.run_config)
    train(Kept(grid, Path(settings.out).parent / "kept"), settings, model(), measure)
'''
CLIENT = '''

def spoiled(message, context, following):
    """Spoil what one worker uploads in one round."""
    answer = following(message, context)
    if answer.has_content():
        head = answer.content["lasg"]
        if head["kind"] == "upload" and head["key"] == "LIAR" and head["round"] == SPOILED:
            arrays = answer.content["lasg.arrays"]
            arrays["contribution"] = _array(np.full(len(arrays["contribution"].data), 255, np.uint8))
    return answer


app = client_app(problem, mods=[spoiled])
'''


class Event(NamedTuple):
    """What happened to whom, and in which round."""

    seconds: float
    round: int
    event: str
    whom: str


class Federation:
    """A deployment that is disturbed and mended."""

    def __init__(self, folder: Path, nodes: int = NODES, **config: Any) -> None:
        self.folder, self.out = folder, folder / "out"
        (folder / "kept").mkdir()
        new.create(folder / "lazy")
        (folder / "lazy" / "lazy" / "server_app.py").write_text(SERVER)
        spoiling = CLIENT.replace("SPOILED", str(SPOILED)).replace("LIAR", str(nodes - 1))
        client = folder / "lazy" / "lazy" / "client_app.py"
        client.write_text(
            client.read_text().replace("app = client_app(problem)\n", spoiling)
            + "\nfrom lasg.flower.records import _array\n"
        )
        self.deployed = Deployment(folder, nodes, folder / "lazy")
        self.config = {
            "rule": "wk2",
            "D": D,
            "eta": ETA,
            "codec": CODEC,
            "robust": "none",  # what is computed again below is the plain sum
            "deadline": 30.0,
            "wait": 120.0,
            "rounds": 100_000,
            **config,
        }
        self.run = ""
        self.process: dict[str, str] = {}
        self.began = time.monotonic()
        self.events: list[Event] = []
        self.mending = False

    def start(self) -> None:
        """Start everything."""
        self.deployed.superlink()
        self.deployed.register()
        for name in self.deployed.nodes:
            self.process[name] = self.deployed.supernode(name)
        self.run = self.deployed.run(**self.config)

    def mend(self) -> None:
        """Start nodes again that are not there: one that was killed is refused until the SuperLink has missed it."""
        for name, process in self.process.items():
            gone = self.deployed.running.get(process)
            if gone is None or gone.poll() is not None:
                self.deployed.supernode(name)

    def note(self, event: str, whom: str) -> None:
        """Remember what was done."""
        found = Event(round(time.monotonic() - self.began, 1), self.rounds, event, whom)
        self.events.append(found)
        print(found, file=sys.stderr, flush=True)

    def kill_node(self, name: str) -> None:
        """Kill -9 of a node and its ClientApp."""
        self.deployed.kill(self.process[name])
        self.note("killed", f"node {name}")

    def kill_server(self, what: str) -> None:
        """Kill -9 of the ServerApp or of the SuperLink, and go on."""
        if what == "ServerApp":
            assert self.deployed.kill_all("flwr-serverapp"), "there is no ServerApp"
            self.note("killed", what)
            self.deployed.stop(self.run)  # or the nodes look for the dead run's last message for a minute
        else:
            self.deployed.kill("superlink")
            self.note("killed", what)
            self.deployed.superlink()
        self.run = self.deployed.run(**self.config, resume=True)
        self.note("resumed", what)

    @property
    def rounds(self) -> int:
        """How many rounds are done."""
        return len(storage.RoundLog(self.out / "trace.csv").lines())

    def until(self, rounds: int, seconds: float = 300) -> None:
        """Wait until so many rounds are done."""
        self.wait(lambda: self.rounds >= rounds, seconds, f"there are no {rounds} rounds")

    def until_answered(self, lives: int) -> None:
        """Wait until so many servers, the present one the last, have got an answer and done its round."""
        self.wait(
            lambda: len({found.life for found in kept(self.folder)}) >= lives, 300, f"server {lives} got no answer"
        )
        self.until(self.rounds + 1)

    def wait(self, done: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until something holds, and mend meanwhile if that is wanted."""

        def mended() -> bool:
            if self.mending:
                self.mend()
            return done()

        self.deployed.until(mended, seconds, what)


# -- what must hold at the end ---------------------------------------------------------------------------------------


class Kept(NamedTuple):
    """An answer that the server got."""

    life: int
    head: dict[str, Any]
    contribution: bytes


def kept(folder: Path) -> list[Kept]:
    """Read all answers."""
    found = []
    for path in sorted((folder / "kept").glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            head = json.loads(str(arrays["head"]))
            contribution = arrays["contribution"].tobytes() if "contribution" in arrays else b""
        found.append(Kept(int(path.stem.partition("-")[0]), head, contribution))
    return found


def checked(folder: Path, nodes: int = NODES) -> dict[str, Any]:
    """Compute the run again from what was kept; return what was found, after everything was compared."""
    checkpoint = store.read_checkpoint(folder / "out")
    assert checkpoint is not None
    state = checkpoint["simulation"]
    lines = storage.RoundLog(folder / "out" / "trace.csv").lines()[: int(state["server"]["k"])]
    assert [int(line["round"]) for line in lines] == list(range(1, int(state["server"]["k"]) + 1))
    answers = kept(folder)
    codec, theta = codec_names.parse(CODEC), start(folder)
    rows = np.zeros((nodes, len(theta)), np.float32)
    uploads = bits = longest = 0
    last = np.full(nodes, -1)
    for k, line in enumerate(lines):
        of_round = [answer for answer in answers if answer.head.get("round") == k]
        # A round that a killed server had begun is begun again: the last one that did has done it.
        life = max((answer.life for answer in of_round), default=0)
        there = {answer.head["key"]: answer for answer in of_round if answer.life == life}
        for key in line["who"].split():
            message = there[key].contribution
            assert there[key].head["kind"] == "upload"
            rows[int(key)] = codec.decode([message], rows[0])[0]
            last[int(key)], uploads, bits = k, uploads + 1, bits + 8 * len(message)
        for key, answer in there.items():
            if answer.head["kind"] == "silent":
                longest = max(longest, k - int(last[int(key)]))
        theta = theta - np.float32(ETA) * rows.astype(np.float64).sum(0).astype(np.float32)
        assert int(line["uploads_so_far"]) == uploads
        assert int(line["bits_up"]) == bits
    ledger = dict(zip(COUNTS, state["ledger"], strict=True))
    assert (ledger["uploads"], ledger["bits_up"]) == (uploads, bits), ledger
    mine = state["transport"]
    np.testing.assert_array_equal(np.asarray(mine["listener"]["rows"]), rows)
    assert mine["uploads"] == last.tolist()
    total = rows.astype(np.float64).sum(0).astype(np.float32)
    np.testing.assert_allclose(np.asarray(state["server"]["aggregate"]), total, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.asarray(state["server"]["optimizer"]["theta"]), theta, rtol=0, atol=1e-5)
    assert longest <= D, f"a node was silent for {longest} rounds"
    losses = [float(line["loss"]) for line in lines]
    assert losses[-1] < losses[0], "the loss does not fall"
    return {
        "rounds": len(lines),
        "refused": mine["refused"],
        "uploads": uploads,
        "answers": len(answers),
        "lives": len({answer.life for answer in answers}),
        "longest_silence": longest,
        "first_loss": losses[0],
        "last_loss": losses[-1],
        "furthest": float(np.abs(np.asarray(state["server"]["optimizer"]["theta"]) - theta).max()),
    }


def start(folder: Path) -> npt.NDArray[np.float32]:
    """Return the model that the app starts from, as one vector."""
    sys.path.insert(0, str(folder / "lazy"))
    try:
        from lazy.task import model  # type: ignore[import-not-found]
    finally:
        sys.path.pop(0)
    found: npt.NDArray[np.float32] = torch.cat([value.detach().flatten() for value in model().parameters()]).numpy()
    return found


# -- the command -----------------------------------------------------------------------------------------------------


def main() -> None:
    """Disturb a federation for some minutes, and check it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--csv", type=Path, help="also write what happened to this file")
    options = parser.parse_args()
    chance = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as name:
        federation = Federation(Path(name))
        with federation.deployed:
            federation.start()
            federation.until(2, 180)
            federation.mending = True
            end = time.monotonic() + 60 * options.minutes
            servers = ["ServerApp", "SuperLink"]
            while time.monotonic() < end:
                pause = time.monotonic() + chance.uniform(10, 50)
                federation.wait(lambda pause=pause: time.monotonic() > pause, 60, "time stands still")  # type: ignore[misc]
                left = (end - time.monotonic()) / (60 * options.minutes)
                if servers and left < (1 + len(servers)) / 4:
                    federation.kill_server(servers.pop(0))
                    continue
                federation.kill_node(chance.choice(federation.deployed.nodes))
            federation.until(federation.rounds + 2 * D, 900)
            federation.deployed.kill("superlink")
            federation.note("ended", "the SuperLink")
        found = checked(federation.folder)
    print(json.dumps(found, indent=2))
    if options.csv is not None:
        rows: list[dict[str, Any]] = [event._asdict() for event in federation.events]
        rows += [{"seconds": None, "round": None, "event": key, "whom": value} for key, value in found.items()]
        options.csv.write_text(to_csv(rows))


if __name__ == "__main__":
    main()
