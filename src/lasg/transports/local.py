"""All workers stacked in one process. Nothing travels; everything is counted as a star network would send it."""

from __future__ import annotations

from lasg.core.server import Opened
from lasg.core.training import Rounds
from lasg.core.workers import Reply


class Simulation(Rounds):
    """An iterator of rounds: `for round in simulation: ...`, stopped by the caller when it has enough."""

    def respond(self, opened: Opened) -> Reply:
        """Return what the workers answer."""
        return self.workers.respond(opened)
