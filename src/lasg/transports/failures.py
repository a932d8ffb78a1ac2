"""Nodes whose own code raises errors: how often in a row, why, and when it is no use to ask again."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FAILURES = 3
"""Errors in a row after which a node fails for good: a model that does not fit its data fails every time."""
LONGEST_PAUSE = 64.0
"""Seconds, at most, after which a node that failed when it was greeted is greeted again."""


class Failures:
    """The errors of each node since it last answered."""

    def __init__(self) -> None:
        self.times: dict[int, int] = {}
        self.reasons: dict[int, str] = {}

    def note(self, node: int, reason: str) -> int:
        """Count an error; return how many there are in a row."""
        self.times[node], self.reasons[node] = self.times.get(node, 0) + 1, reason
        return self.times[node]

    def clear(self, node: int) -> None:
        """Forget the errors of a node that has answered."""
        self.times.pop(node, None)
        self.reasons.pop(node, None)

    def for_good(self, nodes: Iterable[int]) -> bool:
        """Tell whether there are any nodes, and all of them fail for good."""
        times = [self.times.get(node, 0) for node in nodes]
        return bool(times) and min(times) >= FAILURES

    def pause(self, node: int) -> float:
        """Return the seconds to wait before a node is greeted again: more after every error."""
        return min(LONGEST_PAUSE, 2.0 ** max(0, self.times.get(node, 0) - 1))

    def said(self, names: Mapping[int, str]) -> str:
        """Return what the nodes that fail said, each thing once, with who said it first if they have names."""
        first: dict[str, str] = {}
        for node in sorted(self.reasons, key=lambda node: names.get(node, "")):
            first.setdefault(self.reasons[node], f"{names[node]}: " if node in names else "")
        return "; ".join(f"{who}{reason}" for reason, who in list(first.items())[:3])
