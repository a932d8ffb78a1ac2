"""The figures of a loop of your own, sent to a tracker after every round.

with lasg.lazy(model, optimizer, every=20) as loop:
    log = track(loop, "wandb=my-project")
    for x, y in loader:
        loss = loss_function(model(x), y)
        loss.backward()
        log(loss=loss)
        optimizer.step()
        optimizer.zero_grad()
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lasg.core.training import Round
from lasg.errors import LasgError
from lasg.loops.elastic_loop import ElasticLoop
from lasg.loops.lazy_loop import LazyLoop
from lasg.loops.lazy_optimizer import LazyOptimizer
from lasg.trackers import MOST_WORKERS, Target, Tracker, finite, of_round
from lasg.transports.elastic import Closed


class Log:
    """Writes a row per round until it is closed, or the lazy loop has ended; of fixed ranks only rank 0 writes."""

    def __init__(self, loop: LazyLoop | LazyOptimizer | ElasticLoop, tracker: Tracker | None) -> None:
        self._loop, self._tracker, self._given = loop, tracker, dict[str, Any]()
        self._before = time.monotonic()
        if tracker is not None and isinstance(loop, ElasticLoop):
            loop.listeners.append(self.heard_of_members)
        elif tracker is not None:
            loop.listeners.append(self)  # type: ignore[arg-type]

    def __call__(self, **values: float | Tensor) -> None:
        """Keep figures of yours, such as the loss, for the row of the round that is under way."""
        # Without its graph, which would keep the whole step's memory until the round ends.
        self._given |= {key: value.detach() if isinstance(value, Tensor) else value for key, value in values.items()}

    def heard(self, finished: Round, loss: Tensor | None) -> None:
        """Write the row of a round."""
        assert not isinstance(self._loop, ElasticLoop)
        said = of_round(finished.uploaded, finished.threshold, finished.left)
        said["bytes_sent_by_rank_0"] = float(self._loop.sent.sum())
        self._write(finished.k + 1, said, {} if loss is None else {"loss": loss})

    def heard_of_members(self, closed: Closed) -> None:
        """Write the row of a round on ranks that come and go; it comes from a thread of the loop's own."""
        spoke = {f"uploaded/{name}": float(name in closed.spoke) for name in closed.members[:MOST_WORKERS]}
        counts = {"members": float(len(closed.members)), "silent": float(len(closed.members) - len(closed.spoke))}
        self._write(closed.k + 1, counts | spoke, {})

    def _write(self, step: int, said: dict[str, float], known: Mapping[str, Any]) -> None:
        if self._tracker is None:
            return
        now, ledger = time.monotonic(), self._loop.ledger
        # A tensor becomes a number here, once per round, and not at every step: on a GPU that waits for it.
        given = {name: float(value) for name, value in {**known, **self._given}.items()}
        counts = {
            "uploads": ledger.uploads,
            "bytes_up": ledger.bits_up / 8,
            "bytes_down": ledger.bits_down / 8,
            "seconds_per_round": now - self._before,
        }
        self._before = now
        self._tracker.log(step, finite(given) | counts | said)

    def close(self) -> None:
        """End the tracker's run; the loop goes on without it."""
        if self._tracker is not None:
            mine: Any = self.heard_of_members if isinstance(self._loop, ElasticLoop) else self
            self._loop.listeners.remove(mine)
            self._tracker.close()
            self._tracker = None


def track(
    loop: LazyLoop | LazyOptimizer | ElasticLoop,
    to: str,
    *,
    name: str = "lasg",
    settings: Mapping[str, Any] | None = None,
) -> Log:
    """Send a loop's figures to wandb[=PROJECT], mlflow[=EXPERIMENT], trackio[=PROJECT], tensorboard=FOLDER or csv=FILE.

    `loop` is what `lasg.lazy` or `lasg.elastic` returns, or a `LazyOptimizer`, whose loss is logged by itself; close
    the log of the last two. `settings` are shown beside the run. Returns a function that takes further figures by name.
    """
    if not isinstance(loop, LazyLoop | LazyOptimizer | ElasticLoop):
        raise LasgError(
            f"track takes what lasg.lazy or lasg.elastic returns, or a LazyOptimizer, got {type(loop).__name__}"
        )
    target = Target.parse(to)
    first = isinstance(loop, ElasticLoop) or loop.rank == 0
    return Log(loop, target.open(name, settings or {}) if first else None)
