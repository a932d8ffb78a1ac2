"""The step sizes of a torch scheduler, by the number of the step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lasg.errors import LasgError


class StepSizes:
    """The step sizes of a schedule, from the first on: a scheduler knows only the next one."""

    def __init__(self, eta: float, schedule: str, options: Mapping[str, Any]) -> None:
        import torch

        self.name = schedule
        kind = getattr(torch.optim.lr_scheduler, schedule, None)
        if not (isinstance(kind, type) and issubclass(kind, torch.optim.lr_scheduler.LRScheduler)):
            raise LasgError(f"unknown schedule {schedule!r}: constant, or a class of torch.optim.lr_scheduler")
        self.optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=eta)
        try:
            self.scheduler = kind(self.optimizer, **options)
        except (TypeError, ValueError) as error:
            raise LasgError(f"{schedule} refused its options: {error}") from None
        except NotImplementedError:
            raise self._refused("it is the class of all schedules") from None
        self.values = [float(self.optimizer.param_groups[0]["lr"])]

    def advance(self) -> None:
        """Know one more."""
        self.optimizer.step()
        try:
            self.scheduler.step()
        except (TypeError, ValueError) as error:
            raise self._refused(str(error)) from None
        self.values.append(float(self.optimizer.param_groups[0]["lr"]))

    def _refused(self, reason: str) -> LasgError:
        """Build the error for a schedule that cannot say its next step size: it wants a loss, or is over."""
        line = " ".join(reason.split())
        return LasgError(f"{self.name} has no step size by itself: {line}. Take one such as CosineAnnealingLR")
