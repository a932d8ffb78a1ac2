"""What a run reports while it is under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from lasg.core.ledger import COUNTS, Ledger
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.runs.trace import EVALUATED, Trace


@dataclass(frozen=True)
class Status:
    """How far a run is."""

    spec: Spec
    share: float
    """Of the budget that is furthest spent, 0 to 1; 1 means that it ended."""
    ledger: Ledger
    loss: float
    seconds: float
    """How long it trained so far, without evaluations and the time between a stop and a resume."""
    evaluations: tuple[tuple[float, ...], ...]
    """The evaluations since the last report, as rows of `trace.EVALUATED`: all reports of a run have them all."""
    began: float = 0.0
    """The share that was done when this process took the run up: after a stop, more than 0."""
    stored: bool = False
    """Whether the run was read from disk, and nothing had to run."""
    evaluation_seconds: float = 0.0
    """How long loss and accuracy were measured so far."""
    evaluating: bool = False
    """Whether that is being done now."""
    broken: tuple[tuple[int, int], ...] = ()
    """(round, worker) of gradients that were NaN or infinite, since the last report."""
    remarks: tuple[str, ...] = ()
    """What a user must know of the run's files, since the last report: which were damaged, and what was done."""
    rounds: tuple[Mapping[str, float], ...] = ()
    """What is known of the round before each of the evaluations: see `round_figures`."""
    last_round: Mapping[str, float] = field(default_factory=dict)
    """The same of the last round."""

    @classmethod
    def from_run(cls, run: Run, *remarks: str) -> Status:
        """Return the report of a run that is read from disk."""
        trace = run.trace
        rows = tuple(zip(*(trace[name].tolist() for name in EVALUATED), strict=True))
        ledger = Ledger(*(int(trace[name][-1]) for name in COUNTS))
        kept = Trace(run.spec.workers, run.spec.watched)
        kept.restore(trace)
        return cls(
            run.spec,
            1.0,
            ledger,
            float(trace["loss"][-1]),
            float(run.meta["seconds"]),
            rows,
            stored=True,
            remarks=remarks,
            rounds=tuple(round_figures(kept, int(rounds)) for rounds in trace["rounds"]),
        )

    @property
    def saved(self) -> float:
        """The share of uploads that were saved so far: of those that every worker in every round would be."""
        possible = self.ledger.rounds * self.spec.workers
        return 1 - self.ledger.uploads / possible if possible else 0.0


def round_figures(trace: Trace, rounds: int, seconds: float | None = None) -> dict[str, float]:
    """Return the figures of the last of so many rounds, and how fast they were; nothing before the first."""
    if not rounds:
        return {}
    pace = {"rounds_per_second": rounds / seconds, "seconds_per_round": seconds / rounds} if seconds else {}
    return pace | trace.figures(rounds - 1)


Report = Callable[[Status], None]
