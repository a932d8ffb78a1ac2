"""What was sent and computed, counted in one place from the messages themselves. docs/ledger.md defines each."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields


@dataclass(slots=True)
class Ledger:
    """The counts of a run so far."""

    rounds: int = 0
    """Exchanges: one is one opening and closing of the server's round."""
    iterations: int = 0
    """Local steps: rounds x H."""
    uploads: int = 0
    """Contributions that travelled to the server: the paper's 'communication rounds'."""
    downloads: int = 0
    """Models that travelled to a worker."""
    bits_up: int = 0
    """8 x the length of the contributions' encodings."""
    bits_down: int = 0
    """p entries of the run's dtype per download."""
    control_bits: int = 0
    """Flags (1 bit per worker and round under a worker rule) and L-hat (32 bits per upload under PSE)."""
    gradients: int = 0
    """Minibatch gradients of one worker."""

    def row(self) -> tuple[int, ...]:
        """Return the counts in the order of `COUNTS`."""
        return astuple(self)


COUNTS = tuple(field.name for field in fields(Ledger))
