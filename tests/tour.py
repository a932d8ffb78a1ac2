"""Execute a notebook, as the test and `python -m tests.tour examples/tour.ipynb` do; the latter writes its outputs."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

TOUR = Path(__file__).resolve().parents[1] / "examples" / "tour.ipynb"


def executed(path: Path, folder: Path) -> Any:
    """Return the notebook with the outputs that it has in a folder, run by this Python."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": str(folder)}})
    client.execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # when it ran, which is different every time
    return notebook


def main(path: Path) -> None:
    """Write the outputs into the notebook."""
    import nbformat

    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(path, Path(folder))
    text = nbformat.writes(notebook)
    path.write_text(re.sub(r" at 0x[0-9a-f]+", " at 0x...", text) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
