"""The model of an elastic run, computed again in one process from what its members said."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from lasg.core.algorithms import Outer
from lasg.errors import LasgError
from lasg.transports.elastic_record import Recorded, read_rounds, read_start
from lasg.transports.elastic_server import ElasticServer


class Replayed(NamedTuple):
    """What a replay found."""

    rounds: int
    joins: int
    leaves: int
    """Members that were there in one round and not in the next, whether they left or died."""
    silent: int
    """How often a member was silent."""
    checksum: int
    server: ElasticServer


def replay(folder: Path) -> Replayed:
    """Compute the model from a record; refuse one that does not come to the same bits in every round."""
    start = read_start(folder)
    server = _server(start)
    before: set[str] | None = set(server.slots) or None
    joins = leaves = silent = rounds = 0
    for recorded in _in_order(folder, server):
        server.close(recorded.members, recorded.entries)
        if server.checksum != recorded.checksum:
            raise LasgError(
                f"{folder}: the model after round {recorded.k} is another one than the members had: checksum "
                f"{server.checksum:08x}, not {recorded.checksum:08x}. Another CPU or version of torch may round "
                "otherwise"
            )
        now = set(recorded.members)
        joins, leaves = joins + len(now - (before or now)), leaves + len((before or now) - now)
        silent += sum(not entry.message for entry in recorded.entries)
        before, rounds = now, rounds + 1
    return Replayed(rounds, joins, leaves, silent, server.checksum, server)


def _in_order(folder: Path, server: ElasticServer) -> Iterator[Recorded]:
    for recorded in read_rounds(folder):
        if recorded.k != server.k:
            raise LasgError(f"{folder} has no record of round {server.k}: after it comes round {recorded.k}")
        yield recorded


def _server(start: dict[str, Any]) -> ElasticServer:
    """Return the server of a record, as it was before the first round."""
    settings = start["settings"]
    import torch

    from lasg.loops.lazy_setup import choose_stages, outer_optimizer

    said = settings["outer optimizer"]
    options = dict(said["options"])
    outer: Any
    if said["own"]:
        outer = Outer(said["name"], options.pop("lr"), options)
    else:
        kind = getattr(torch.optim, said["name"], None)
        if kind is None:
            raise LasgError(f"the outer optimizer {said['name']} is none of torch.optim, and cannot be replayed")
        outer = (kind, options)
    stages, _ = choose_stages(settings["algorithm"], settings["robust setting"])
    shapes = tuple(map(tuple, settings["model (the shapes of its parameters)"]))
    theta = start["state"]["server"]["optimizer"]["theta"]
    server = ElasticServer(outer_optimizer(theta.clone(), outer), stages.for_shapes(shapes), settings["seed"])
    server.restore(start["state"])
    return server
