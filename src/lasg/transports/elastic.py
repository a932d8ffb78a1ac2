"""A member of an elastic run: one thread that keeps up with the rounds, whatever the training loop is doing.

A rank that is late is silent in a round, and hears it all the same; what it has to say counts in the next one.
"""

from __future__ import annotations

import os
import re
import socket
import statistics
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from lasg import counter
from lasg.core.arrays import Array, copies
from lasg.core.belief import NEVER, Speaker
from lasg.errors import LasgError
from lasg.transports.elastic_group import Group, Unreachable, own_address, require_torchft
from lasg.transports.elastic_server import ElasticServer, Entry
from lasg.transports.elastic_state import NotYet, StateServer, digest, fetch_state, look, refuse_other

FIRST_ROUND = 300.0
"""Seconds that the members of the first round wait for each other: nobody knows yet what is usual."""
NOTHING = -2
"""An upload that no member ever made."""
LINGER = 0.5
"""Seconds after a member's last round in which its last message may be on its way."""
PAUSE = 0.1
"""Seconds before another quorum is asked for."""
DEADLINE_SPARE = 0.2
"""Seconds beyond the usual that no rank is late for."""


@dataclass(frozen=True, kw_only=True)
class Elastic:
    """How a rank takes part in an elastic run."""

    lighthouse: str
    """torchft's lighthouse: its address and port."""
    name: str = ""
    """This rank's name among the members; the same after a restart. By default the host's, and the process's number."""
    minimum: int = 1
    """Members below which training waits."""
    timeout: float = 10.0
    """Seconds that a silent member is waited for, beyond its deadline."""
    slack: float = 2.0
    """A round's deadline, in multiples of how long a move usually takes."""
    record: str | None = None
    """A folder to record the rounds in, for `lasg replay`."""
    address: str = ""
    """The address of this machine for the others; by default that which reaches the lighthouse."""

    def __post_init__(self) -> None:
        name = self.name or f"{socket.gethostname()}-{os.getpid()}"
        if not re.fullmatch(r"[\w.-]{1,64}", name):
            raise LasgError(f"name must be letters, digits, '.', '-' and '_', got {name!r}")
        place = self.lighthouse if "://" in self.lighthouse else f"http://{self.lighthouse}"
        if not re.fullmatch(r"http://(\[[0-9a-fA-F:]+\]|[\w.-]+):\d+", place):
            raise LasgError(f"lighthouse must be HOST:PORT, such as 10.0.0.1:29510, got {self.lighthouse!r}")
        if not isinstance(self.minimum, int) or self.minimum < 1:
            raise LasgError(f"minimum must be a number of members >= 1, got {self.minimum!r}")
        if not self.timeout > 0 or not self.slack >= 1:
            raise LasgError(f"timeout must be above 0 and slack at least 1, got {self.timeout!r} and {self.slack!r}")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "lighthouse", place)


class Closed(NamedTuple):
    """A round, as a member saw it end."""

    k: int
    members: tuple[str, ...]
    spoke: tuple[str, ...]
    checksum: int
    entries: tuple[Entry, ...]


class Member:
    """This rank among the others. The training loop's thread calls `join`, `finish`, `progress` and `leave`."""

    def __init__(
        self, how: Elastic, server: ElasticServer, settings: dict[str, Any], *, weight: float, seed: int, resumed: bool
    ) -> None:
        """Take how to take part, the server, what all must agree on, and this rank's weight."""
        require_torchft()
        self.how, self.server, self.settings, self.run = how, server, settings, digest(settings)
        self.weight, self.seed = weight, seed
        stages, theta = server.stages, server.theta
        known: dict[str, Any] = {"decay": stages.decay, "confirmed_later": True}
        self.speaker = Speaker(stages.belief, stages.codec, 1, theta, **known)
        self.on_round: list[Callable[[Closed], None]] = []
        """Called in the thread of the rounds."""
        self.has_state = resumed
        self._fetched: dict[str, Any] | None = None
        self._fetching: threading.Thread | None = None
        self._missed: list[tuple[int, list[str], list[Entry]]] = []
        self._changed = threading.Condition()
        self._offer: tuple[Array | None, float] | None = None
        self._owed = self._mute = False
        self._answer: tuple[int, Array] | None = None
        self._error: Exception | None = None
        self._leaving = self._left = False
        self._seconds: float | None = None
        self._share, self._began = 0.0, time.monotonic()
        self._voids = 0
        self._told = ""
        address = how.address or own_address(how.lighthouse)
        look(how.lighthouse, how.name, settings)
        self._states = StateServer(address, settings, self.state_for)
        replica = f"lasg|{how.name}|{self.run}|{self._states.at}"
        self.group = Group(how.lighthouse, replica, address, self._states.at, how.timeout)
        self.group.go_to(server.k if resumed else 0)
        self._thread = threading.Thread(target=self._work, name="lasg-elastic", daemon=True)

    # -- the training loop's side -----------------------------------------------------------------------------------

    def join(self) -> tuple[int, Array]:
        """Become a member; return the round and the model to begin with."""
        self._thread.start()
        return self._await(lambda: self.has_state, lambda: (self.server.k, self.server.theta))

    def begin(self) -> None:
        """Begin to train from the model that was given last."""
        self._share, self._began = 0.0, time.monotonic()

    def progress(self, share: float) -> None:
        """Note how much of this rank's move is done."""
        self._share = share

    def finish(self, move: Array | None, *, leaving: bool = False) -> tuple[int, Array]:
        """Say how far this rank moved, None: nothing finite; return the round that is open then, and its model."""
        with self._changed:
            self._offer, self._leaving = (move, time.monotonic() - self._began), leaving
            self._changed.notify_all()
        return self._await(lambda: self._answer is not None, self._take_answer)

    def _take_answer(self) -> tuple[int, Array]:
        assert self._answer is not None
        found, self._answer = self._answer, None
        return found

    def _await(self, done: Callable[[], bool], result: Callable[[], tuple[int, Array]]) -> tuple[int, Array]:
        with self._changed:
            while not done():
                if self._error is not None:
                    raise self._error
                self._changed.wait(0.5)
            return result()

    def leave(self) -> None:
        """Be no member any more."""
        with self._changed:
            self._left = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(2 * self.how.timeout)
        self._states.close()

    # -- the rounds' side -------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            while not self._left:
                try:
                    self._round()
                except Unreachable as error:
                    self._say(f"{error}")
                    time.sleep(PAUSE)
        except Exception as error:  # the training loop's thread raises it
            with self._changed:
                self._error = error if isinstance(error, LasgError) else LasgError(f"the rounds stopped: {error!r}")
                self._changed.notify_all()
        finally:
            self.group.close(LINGER if self._leaving else 0.0)

    def _say(self, line: str) -> None:
        """Say once what has changed."""
        if line != self._told:
            self._told = line
            sys.stderr.write(f"lasg: {self.how.name}, round {self.server.k}: {line}\n")

    def _round(self) -> None:
        """Take part in a round."""
        group, server = self.group, self.server
        group.quorum()
        if group.behind is not None:
            self._fall_behind(*group.behind)
        elif not self.has_state and self._fetching is None and self._fetched is None:
            self._be_first()
        if group.size + server.ended < self.how.minimum:
            self._say(f"waiting: {group.size} of at least {self.how.minimum} members are there")
            time.sleep(PAUSE)
            return
        opened = time.monotonic()
        deadline = self._wait_for_move(opened)
        own = self._entry()
        heard = group.gather(own.pack(), max(0.0, deadline - time.monotonic()))
        entries = self._ours([Entry.unpack(data) for data in heard])
        self._compare(entries)
        group.commit()
        self._close(own, entries)

    def _be_first(self) -> None:
        """Begin with this rank's own model: the run is new, and its name is the first of all."""
        if self.server.k or self.group.step:
            raise LasgError(
                "the last rank that had the model is gone, and this one had not got it yet: start again from a "
                "checkpoint"
            )
        with self._changed:
            self.has_state = True
            self._changed.notify_all()

    def _wait_for_move(self, opened: float) -> float:
        """Wait until this rank has something to say, or is late; return until when the others may wait."""
        with self._changed:
            self._changed.wait_for(lambda: self._fetched is not None or self.has_state, self._patience)
            self._catch_up()
            usual = self.server.usual if self.has_state else None
            limit = FIRST_ROUND if usual is None else self.how.slack * usual * 2**self._voids + DEADLINE_SPARE
            deadline = opened + limit
            while self._offer is None and not self._owed and not self._left and self.how.name in self.server.slots:
                now = time.monotonic()
                late = usual is not None and not self._voids and self._is_hopeless(now, deadline)
                if late or now >= deadline or not self.has_state:
                    break
                self._changed.wait(min(0.05, deadline - now))
        return deadline

    @property
    def _patience(self) -> float:
        """For how long the members wait for this rank to get the state; in the first round nobody can do without."""
        return self.how.timeout / 2 if self.group.step == 0 else 0.2

    def _is_hopeless(self, now: float, deadline: float) -> bool:
        """Tell whether this rank will be late, as far as its progress shows: then nobody needs to wait for it."""
        spent = now - self._began
        needed = spent / self._share if self._share else max(spent, self._seconds or 0.0)
        return self._began + needed > deadline + DEADLINE_SPARE

    def _entry(self) -> Entry:
        """Return what this rank says in this round."""
        name, server, speaker = self.how.name, self.server, self.speaker
        entry = Entry(name, self.run, weight=self.weight, seconds=self._seconds)
        if not self.has_state:
            return entry
        entry = entry._replace(checksum=server.checksum)
        if name not in server.slots:  # its number, and so the noise that rounds its messages, is the next round's
            return entry
        with self._changed:
            if self._offer is not None:
                (move, self._seconds), self._offer, self._owed = self._offer, None, True
                self._mute = move is None
                if move is not None:
                    speaker.add(move[None] * self.weight, slice(None))
        entry = entry._replace(seconds=self._seconds, leaving=self._leaving and self._owed)
        if not self._owed or self._mute:
            return entry
        speaker.confirm(server.last_upload(name))
        if name in server.unheard:
            speaker.confirm(NOTHING)  # the others know of nothing that its messages build on
        rows = speaker.to_say(speaker.rows, slice(None))
        noise = counter.Draws(self.seed, server.k, np.array([server.slots[name]]), rows.shape[-1])
        messages, _ = speaker.pack(server.k, rows, slice(None), noise)
        return entry._replace(fresh=speaker.last == NEVER, message=messages[0])

    def _ours(self, entries: list[Entry]) -> list[Entry]:
        """Return the entries of this run's members; refuse to be where another run is, or another of this name."""
        first = next((entry for entry in entries if entry.checksum is not None), entries[0])
        if first.run != self.run:
            raise LasgError(f"{first.name} runs with other settings than {self.how.name}: start them alike")
        names = [entry.name for entry in entries if entry.run == self.run]
        if names.count(self.how.name) > 1:
            raise LasgError(f"there are two members of the name {self.how.name}: give each its own")
        return [entry for entry in entries if entry.run == self.run]

    def _compare(self, entries: list[Entry]) -> None:
        """End the round where members have different models: those that differ from most get it again."""
        models = [entry.checksum for entry in entries if entry.checksum is not None]
        if len(set(models)) <= 1:
            return
        right = statistics.mode(models)
        if self.has_state and self.server.checksum != right:
            self._say("this rank's model is not the others': it gets theirs")
            self.has_state = False
            self.group.go_to(0)
        self.group.fail("the members' models differ")

    def _close(self, own: Entry, entries: list[Entry]) -> None:
        """Take what was said for the round's end, or keep it until the state is here."""
        members = sorted(entry.name for entry in entries)
        if not self.has_state:
            self._missed.append((self.group.step - 1, members, entries))
            return
        with self._changed:
            k, server = self.server.k, self.server
            server.close(members, entries)
            spoke = tuple(entry.name for entry in entries if entry.message)
            self._voids = 0 if spoke else self._voids + 1
            if own.message or (self._owed and self._mute and own.name in members):
                self._counted()
        closed = Closed(k, tuple(members), spoke, server.checksum, tuple(entries))
        for listener in self.on_round:
            listener(closed)
        self._told = ""

    def _counted(self) -> None:
        """Let the training loop go on: what it said counts."""
        self.speaker.confirm(self.server.last_upload(self.how.name))
        self._owed = self._mute = False
        self._answer = self.server.k, self.server.theta
        self._changed.notify_all()

    # -- newcomers --------------------------------------------------------------------------------------------------

    def state_for(self, k: int) -> dict[str, Any]:
        """Return the state for a newcomer of round k."""
        with self._changed:
            if not self.has_state or self.server.k < k:
                raise NotYet
            return {"state": copies(self.server.state()), "settings": self.settings}

    def _fall_behind(self, at: str, k: int) -> None:
        """Get the state of round k or a later one; keep what is said meanwhile."""
        with self._changed:
            self.has_state, self._fetched, self._missed = False, None, []

        def fetch() -> None:
            try:
                found: dict[str, Any] | None = fetch_state(at, k)
            except (OSError, LasgError) as error:
                self._say(f"the state did not come from {at}: {error}")
                found = None
            with self._changed:
                if self._fetching is threading.current_thread():
                    self._fetched, self._fetching = {} if found is None else found, None
                    self._changed.notify_all()

        self._fetching = threading.Thread(target=fetch, name="lasg-fetch", daemon=True)
        self._fetching.start()

    def _catch_up(self) -> None:
        """Take the state that was fetched, and the rounds that ended since."""
        if self.has_state or self._fetched is None:
            return
        found, self._fetched = self._fetched, None
        if not found:
            self.group.go_to(0)  # the next quorum names another member to ask
            raise Unreachable("the state is asked for again")
        refuse_other(self.settings, found["settings"], "the others", self.how.lighthouse)
        server = self.server
        server.restore(found["state"])
        for k, members, entries in self._missed:
            if k == server.k:
                server.close(members, entries)
        self._missed, self.has_state = [], True
        said = self.speaker.pending is not None
        if self.speaker.confirm(server.last_upload(self.how.name)) and said and self._owed:
            self._counted()
        self._changed.notify_all()
