"""Every block of Python in README and docs runs, or says why not: `<!-- not run: REASON -->` in the line before it."""

from __future__ import annotations

import contextlib
import io
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from tests.test_docs import PAGES, ROOT, of_page

BLOCK = re.compile(r"(?:^<!-- not run: ([^\n]+) -->\n)?^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
ELSEWHERE = {"docs/adapters.md": "tests/adapters/test_programs.py", "docs/extending.md": "tests/test_docs.py"}
"""Pages whose blocks another test runs: with libraries of an extra, or each as a program of its own."""

LOOP = """
import torch
import torch.nn.functional as F
from torch import nn
import lasg
loss_function = F.cross_entropy
torch.manual_seed(0)
model = nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
loader = [(torch.randn(4, 6), torch.randint(3, (4,))) for _ in range(5)]
"""
STORED = """
import lasg
lasg.train(lasg.task("digits").spec("sgd", iterations=5), folder="runs/...")
"""
PROBLEM = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy
import lasg
from lasg.core.rules import WK2 as rule, WK2 as my_rule
from lasg.core.codecs import Dense, QSGD
from lasg.core.algorithms import Stages
from lasg.core.optimizers import ClosedFormSGD, Constant
from lasg.core.server import Laziness
from examples.own_codec import Half
codec, my_codec = Dense(), Half()
x = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
dataset = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
shards = [range(0, 20), range(20, 40)]
torch.manual_seed(0)
module = nn.Linear(6, 2)
problem = lasg.ModuleProblem(module, cross_entropy, dataset, shards, batch=0.1)
optimizer = ClosedFormSGD(problem.start(), Constant(0.1))
laziness = Laziness(workers=2, c=0.1)
stages = Stages(rule=rule, codec=codec)
"""
BEFORE = {
    "README.md": LOOP,
    "CONTRIBUTING.md": "from lasg.core.rules import *\nfrom lasg.core.rules import Array, Record, sq_distance\n",
    "docs/choosing.md": PROBLEM,
    "docs/distributed.md": LOOP,
    "docs/links.md": STORED,
    "docs/loops.md": f"{LOOP}\nrank, loop = 0, lasg.lazy(model, optimizer, every=20)\n",
    "docs/migration.md": f"{PROBLEM}\nfrom tests.test_walks import Direct\ncarrier, keys = Direct({{}}), ['0', '1']\n",
    "docs/models.md": PROBLEM,
    "docs/following.md": LOOP,
    "docs/flower.md": f"{PROBLEM}\nimport lasg.flower\nfrom lasg import ModuleProblem\nmeasure = None\n",
    "docs/store.md": STORED,
}
"""What a page takes for granted: the reader's model and data, a stored run."""


def found_in(path: Path) -> list[tuple[str, str]]:
    """Return (reason not to run it, code) of every block of Python."""
    return BLOCK.findall(path.read_text(encoding="utf-8"))


SHOWN = [
    (path, number, code)
    for path in PAGES
    if of_page(path) not in ELSEWHERE
    for number, (reason, code) in enumerate(found_in(path))
    if not reason
]


@pytest.mark.parametrize("path", dict.fromkeys(path for path, _, _ in SHOWN), ids=of_page)
def test_the_python_of_a_page_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT)
    module = ModuleType("shown")
    monkeypatch.setitem(sys.modules, "shown", module)
    for page, number, code in SHOWN:
        if page == path:
            here = tmp_path / str(number)
            here.mkdir()
            with contextlib.chdir(here), contextlib.redirect_stdout(io.StringIO()):
                exec(BEFORE.get(of_page(path), ""), vars(module))
                exec(compile(code, f"{of_page(path)}, block {number}", "exec"), vars(module))


def test_a_block_that_does_not_run_says_why() -> None:
    text = "<!-- not run: wants four hosts -->\n```python\nno_such_name\n```\n\n```python\nx = 1\n```\n"
    assert BLOCK.findall(text) == [("wants four hosts", "no_such_name\n"), ("", "x = 1\n")]
    reasons = [reason for path in PAGES for reason, _ in found_in(path) if reason]
    assert all(len(reason.split()) > 2 for reason in reasons)


def test_pages_that_are_tested_elsewhere_are() -> None:
    for page, test in ELSEWHERE.items():
        name = page.rpartition("/")[2]
        assert found_in(ROOT / page)
        assert name in (ROOT / test).read_text(encoding="utf-8")
