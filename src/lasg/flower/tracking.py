"""Where the numbers of a federation's rounds go as they come, on its server: the setting `track`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from lasg.errors import first_line
from lasg.runs.trace import Trace
from lasg.trackers import Target, Tracker, finite

COLUMNS = {"uploads": "uploads_so_far", "seconds_per_round": "seconds"} | {
    name: name for name in ("bytes_up", "bytes_down", "loss", "accuracy")
}
"""What trackers call the columns of trace.csv."""


def targets(text: str) -> list[Target]:
    """Read trackers with commas between them, and look that their packages are there."""
    return [Target.parse(one.strip()) for one in text.split(",") if one.strip()]


class Tracked:
    """A run in every tracker; a tracker that fails is left out from then on, and the federation goes on."""

    def __init__(self, text: str, name: str, about: Mapping[str, Any], warn: Callable[[str], None]) -> None:
        self._warn = warn
        self._runs = [(target.kind, target.open(name, about)) for target in targets(text)]

    def log(self, line: Mapping[str, Any], trace: Trace) -> None:
        """Write a round: its line of trace.csv, and who was silent and why."""
        if not self._runs:
            return
        k = int(line["round"])
        values = finite({name: float(line[key]) for name, key in COLUMNS.items() if line[key] not in {"", None}})
        values["uploads_saved"] = 1 - values["uploads"] / (k * trace.workers)
        self._each(lambda run: run.log(k, values | trace.figures(k - 1)))

    def close(self) -> None:
        """End the runs."""
        self._each(lambda run: run.close())

    def _each(self, what: Callable[[Tracker], None]) -> None:
        for kind, run in list(self._runs):
            try:
                what(run)
            except Exception as error:  # whatever a tracker's package raises: nodes far away wait for this process
                self._runs.remove((kind, run))
                with suppress(Exception):
                    run.close()
                self._warn(f"the tracker {kind} failed, and gets nothing more: {first_line(error)}")
