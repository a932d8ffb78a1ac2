"""The examples of the adapters, and the code of their page, run on two ranks as torchrun would start them."""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import sys
import warnings
from pathlib import Path
from types import ModuleType

import pytest
import torch.distributed as dist

from tests.adapters.common import as_torchrun_would
from tests.test_docs import ROOT, blocks
from tests.transports.ranks import on_ranks

for name in ("accelerate", "transformers", "lightning"):
    pytest.importorskip(name, reason=f"{name} is not installed: make test-all installs it")

EXAMPLES = sorted((ROOT / "examples" / "adapters").glob("*.py"))
PAGE = ROOT / "docs" / "adapters.md"
BLOCKS = ("Trainer", "Accelerate", "Lightning", "Fabric")


def printed_by(code: str, place: str, folder: Path) -> str:
    """Run a program on this rank, in a folder of its own; return what it printed."""
    as_torchrun_would()
    module = ModuleType("program")
    sys.modules["program"] = module
    here = folder / str(dist.get_rank())
    here.mkdir()
    with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()) as printed, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice about workers of loaders
        if code:
            exec(compile(code, place, "exec"), vars(module))
        else:
            runpy.run_path(place, run_name="__main__")
    return printed.getvalue()


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_trains_and_sends_a_hundredth_of_ddp(path: Path, tmp_path: Path) -> None:
    printed = on_ranks(2, printed_by, "", str(path), tmp_path)[0]
    line = re.search(r"([\d.]+) MB sent by rank 0; ([\d.]+) % right", printed)
    assert line is not None, printed
    ddp = 5 * 57 * 4 * (64 * 64 + 64 + 640 + 10) / 1e6  # epochs, steps, bytes, parameters
    assert 0 < float(line[1]) < ddp / 100
    assert float(line[2]) > 90


@pytest.mark.parametrize("number", range(len(BLOCKS)), ids=BLOCKS.__getitem__)
def test_a_block_of_the_page_runs(number: int, tmp_path: Path) -> None:
    code = blocks(PAGE, "python")
    assert len(code) == len(BLOCKS)
    printed = on_ranks(2, printed_by, code[number], str(PAGE), tmp_path)[0]
    assert bool(re.search(r"[1-9][\d.]* bytes sent", printed)) == (BLOCKS[number] in ("Trainer", "Lightning"))
