"""Parcels as Flower's records, and Flower's grid as what carries them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, RecordDict
from flwr.common.constant import ErrorCode
from flwr.serverapp import Grid

from lasg.transports.nodes import FAILED, Parcel

HEAD, ARRAYS = "lasg", "lasg.arrays"
STYPE = "lasg.little-endian"
"""How the bytes of an array are to be read: as they lie in memory, never unpickled."""
KNOWN: dict[str, np.dtype[Any]] = {"uint8": np.dtype("u1"), "float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
LOST = {ErrorCode.MESSAGE_UNAVAILABLE, ErrorCode.REPLY_MESSAGE_UNAVAILABLE, ErrorCode.NODE_UNAVAILABLE}
"""Flower's errors that say nothing of the node's own code."""
LOOK_AGAIN = 1.0
"""Seconds for which the list of nodes is believed."""


def records(parcel: Parcel) -> RecordDict:
    """Return a parcel as Flower carries it."""
    arrays = {name: _array(value) for name, value in parcel.arrays.items()}
    return RecordDict({HEAD: ConfigRecord(parcel.head), ARRAYS: ArrayRecord(arrays)})


def parcel(content: RecordDict) -> Parcel:
    """Undo `records`; what cannot be read is a parcel that says so, which nobody takes for an answer."""
    try:
        head, arrays = content[HEAD], content[ARRAYS]
        if not isinstance(head, ConfigRecord) or not isinstance(arrays, ArrayRecord):
            raise ValueError("its records are of other kinds")
        return Parcel(dict(head), {name: _numbers(value) for name, value in arrays.items()})
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError, MemoryError) as error:
        return Parcel({"kind": "unreadable", "why": str(error)}, {})


def _array(value: npt.NDArray[Any]) -> Array:
    kind = next(name for name, dtype in KNOWN.items() if dtype == value.dtype)
    return Array(dtype=kind, shape=tuple(value.shape), stype=STYPE, data=value.astype(KNOWN[kind]).tobytes())


def _numbers(value: Array) -> npt.NDArray[Any]:
    if value.stype != STYPE or value.dtype not in KNOWN:
        raise ValueError(f"an array of {value.dtype!r}, written as {value.stype!r}")
    found = np.frombuffer(value.data, KNOWN[value.dtype])
    if tuple(value.shape) != found.shape:
        raise ValueError(f"an array of shape {tuple(value.shape)} with {len(value.data)} bytes")
    return found


class GridCarrier:
    """Flower's grid. Messages of a round have its number as their group, and live as long as it waits.

    Others may be answered late: a node that starts is slow.
    """

    pause = 0.5  # a SuperNode looks for work every 3 s, and for its ClientApp's answer every 0.5 s

    def __init__(self, grid: Grid, deadline: float, wait: float) -> None:
        self.grid, self.deadline, self.wait = grid, deadline, max(deadline, wait)
        self._nodes: list[int] = []
        self._looked = -float("inf")

    def nodes(self) -> Iterable[int]:
        """Return the nodes that Flower knows to be alive."""
        if time.monotonic() - self._looked > LOOK_AGAIN:
            self._nodes, self._looked = list(self.grid.get_node_ids()), time.monotonic()
        return self._nodes

    def push(self, node: int, sent: Parcel) -> str:
        """Send a parcel to a node."""
        group = str(sent.head.get("round", ""))
        ttl = self.deadline if group else self.wait
        message = Message(records(sent), node, MessageType.TRAIN, ttl=ttl, group_id=group)
        return next(iter(self.grid.push_messages([message])), "")

    def pull(self, names: Sequence[str]) -> Iterable[tuple[str, Parcel | None]]:
        """Return the answers that have come."""
        wanted = [name for name in names if name]
        found: list[tuple[str, Parcel | None]] = [(name, None) for name in names if not name]  # it was never sent
        for message in self.grid.pull_messages(wanted) if wanted else []:
            name = message.metadata.reply_to_message_id
            found.append((name, parcel(message.content) if message.has_content() else _error(message)))
        return found


def _error(message: Message) -> Parcel | None:
    """Return an error of Flower's as an answer: what the node failed of, or None where a message was lost."""
    if message.error.code in LOST:
        return None
    return Parcel({"kind": FAILED, "reason": message.error.reason or f"Flower's error {message.error.code}"}, {})
