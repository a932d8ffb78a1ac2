"""The scripts in benchmarks/ as modules, so that tests run the code that made the results."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


def load(name: str, **changed: Any) -> Any:
    """Return a benchmark, with some of its constants changed the first time: less to do."""
    key = f"lasg_{name}"
    if key not in sys.modules:
        spec = importlib.util.spec_from_file_location(key, ROOT / "benchmarks" / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[key] = module
        spec.loader.exec_module(module)
        for constant, value in changed.items():
            setattr(module, constant, value)
    return sys.modules[key]
