"""Runs: described, trained, stored.

Public: `spec`, `tasks`, `store`, `train`, `runner`, `pool` and `status`; of these lasg.* has what most users need. The
other modules are not for users, and none is an extension point: rules, codecs and problems come through `train`.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import Any


class _Runs(ModuleType):
    """The package, which in lasg 0.1 was a function of this name."""

    def __call__(self, *folders: Any, **options: Any) -> Any:
        """Read stored runs, with a warning: `lasg.read_runs` does it now."""
        from lasg.runs.store import read_runs

        text = "lasg.runs(...) is lasg.read_runs(...) now: the old name goes with the next version"
        warnings.warn(text, DeprecationWarning, stacklevel=2)
        return read_runs(*folders, **options)


sys.modules[__name__].__class__ = _Runs
