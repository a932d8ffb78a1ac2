"""Tests of Flower's apps. A deployment of real processes is shared with the benchmarks."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "benchmarks"))
