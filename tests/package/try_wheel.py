"""Try the wheel in the environment that runs this: `python try_wheel.py dist constraints.txt`, in an empty one.

1. The wheel alone with what the demo needs: `lasg demo`, and no file of the source tree on the way.
2. Every extra after it: what it brings is imported, by the code of lasg that needs it where there is some.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

BRINGS = {
    "data": "import sklearn, PIL; from lasg.data.loaders import load; load('digits')",
    "plot": "import matplotlib; from lasg.report.plots import require_matplotlib; require_matplotlib()",
    "tensorboard": "from lasg.trackers import Target; Target('tensorboard', 'tb').check()",
    "notebook": "import pandas, matplotlib",
    "coding": "import constriction",
    "wandb": "from lasg.trackers import Target; Target('wandb', 'x').check()",
    "mlflow": "from lasg.trackers import Target; Target('mlflow', 'x').check(); import sqlalchemy, alembic",
    "trackio": "from lasg.trackers import Target; Target('trackio', 'x').check()",
    "huggingface": "import lasg.loops.huggingface, lasg.loops.accelerate",
    "elastic": "from lasg.transports.elastic_group import require_torchft; require_torchft()",
    "lightning": "import lasg.loops.lightning",
    "flower": "import flwr, ray, lasg.flower; lasg.flower.client_app; lasg.flower.server_app",
    "all": "import sklearn, matplotlib, pandas, constriction",
    "docs": "import sphinx, furo, myst_parser",
    "release": "import build, twine",
    "dev": "import pytest, hypothesis, playwright, xdist, nbclient",
}
"""By extra: a program that fails where what it brings is missing."""


def extras_of(wheel: Path) -> list[str]:
    """Return the extras that a wheel says it has."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = archive.read(name).decode().splitlines()
    return [line.partition(": ")[2] for line in lines if line.startswith("Provides-Extra: ")]


def call(*command: str, where: str) -> None:
    """Run a program in a folder outside the source tree."""
    print("+", " ".join(command[:6]), flush=True)
    subprocess.run(command, check=True, cwd=where)


def main(folder: Path, constraints: Path) -> None:
    """Install and try."""
    (wheel,) = folder.resolve().glob("*.whl")
    extras = extras_of(wheel)
    missing = sorted({*extras} ^ {*BRINGS})
    if missing:
        sys.exit(f"these extras are in one of wheel and {Path(__file__).name} only: {', '.join(missing)}")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
    pip += ["--constraint", str(constraints.resolve())]
    with tempfile.TemporaryDirectory() as empty:
        call(*pip, f"{wheel}[data,plot,coding]", where=empty)
        home = "import lasg, sys; assert lasg.__file__.startswith(sys.prefix), lasg.__file__; print(lasg.__version__)"
        call(sys.executable, "-c", home, where=empty)
        call(sys.executable, "-m", "lasg", "demo", "--seeds", "1", where=empty)
        for extra in extras:
            call(*pip, f"{wheel}[{extra}]", where=empty)
            call(sys.executable, "-c", BRINGS[extra], where=empty)


if __name__ == "__main__":
    if sys.prefix == sys.base_prefix:
        sys.exit("run this with the Python of an empty virtual environment: it installs things")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
