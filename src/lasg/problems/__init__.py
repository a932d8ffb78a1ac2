"""What is minimised: regressions, and any torch module."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lasg.problems.module import ModuleProblem
    from lasg.problems.regression import Regression

__all__ = ["ModuleProblem", "Regression"]
_HOME_OF = {"ModuleProblem": "module", "Regression": "regression"}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'lasg.problems' has no attribute {name!r}")
    return getattr(importlib.import_module(f"lasg.problems.{_HOME_OF[name]}"), name)
