"""Imports go one way, and heavy modules load only where they are needed."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import lasg

ROOT = Path(lasg.__file__).parent
STANDARD = sys.stdlib_module_names

# A layer may import, of lasg, itself, errors, counter, packing, trackers, and these.
MAY: dict[str, set[str]] = {
    "core": set(),
    "data": set(),
    "problems": {"core", "data"},
    "transports": {"core", "problems"},
    "loops": {"core", "problems", "transports"},
    "theory": {"core", "problems", "transports"},
    "runs": {"core", "data", "problems", "transports", "loops"},
    "flower": {"core", "problems", "transports", "runs"},
    "analysis": {"core", "data", "runs"},
    "report": {"core", "data", "runs", "analysis", "theory"},
    "cli": {"core", "data", "problems", "transports", "theory", "runs", "flower", "analysis", "report"},
}
FOREIGN: dict[str, set[str]] = {
    "core": {"numpy", "torch", "constriction"},
    "data": {"numpy", "sklearn", "platformdirs", "PIL"},
    "problems": {"numpy", "torch", "safetensors"},
    "transports": {"numpy", "torch", "torchft"},
    "loops": {"numpy", "torch", "accelerate", "transformers", "lightning"},
    "theory": {"numpy"},
    "analysis": {"numpy"},
    "runs": {"numpy", "torch", "torchft", "safetensors", "tomli_w", "threadpoolctl", "pandas"},
    "flower": {"numpy", "torch", "safetensors", "flwr", "cryptography"},
    "report": {"numpy", "matplotlib", "jinja2", "torch", "tomli_w"},
    "cli": {"typer", "click", "rich"},
}
RUNS_THINGS = ("lasg.runs.runner", "lasg.runs.pool", "lasg.runs.factories")


def imports(path: Path) -> Iterator[str]:
    """Name every module that a file imports, wherever in it, with what is imported from packages of lasg."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            assert node.module is not None
            yield node.module
            if node.module.startswith("lasg"):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0]


def files() -> list[Path]:
    found = (path for path in ROOT.rglob("*.py") if "template" not in path.parts)  # an app of its own
    return sorted(path for path in found if len(path.relative_to(ROOT).parts) > 1)


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_layer_imports_only_what_is_below_it(path: Path) -> None:
    layer = layer_of(path)
    for name in imports(path):
        top, *rest = name.split(".")
        if top == "lasg":
            allowed = MAY[layer] | {layer, "errors", "counter", "packing", "trackers", "__version__"}
            assert not rest or rest[0] in allowed or (ROOT / rest[0]).with_suffix(".py") == path, name
        else:
            assert top in STANDARD or top in FOREIGN[layer], f"{layer} imports {name}"


@pytest.mark.parametrize("path", sorted((ROOT / "report").rglob("*.py")), ids=lambda path: path.name)
def test_the_report_runs_nothing(path: Path) -> None:
    assert not [name for name in imports(path) if name.startswith(RUNS_THINGS) or name.startswith("lasg.transports")]


@pytest.mark.parametrize("name", ["errors.py", "counter.py", "packing.py", "trackers.py"])
def test_what_all_layers_share_imports_no_layer(name: str) -> None:
    assert not [found for found in imports(ROOT / name) if found.split(".")[0] == "lasg" and "errors" not in found]


def modules_after(code: str) -> set[str]:
    """Run code in a new Python and return the top-level modules that were then loaded."""
    report = "; import sys; print('MODULES', *sorted({name.split('.')[0] for name in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code + report], capture_output=True, text=True, check=True, timeout=60)
    return set(done.stdout.rpartition("MODULES")[2].split())


@pytest.mark.parametrize(
    "code",
    [
        "import lasg",
        "from lasg.cli.main import main; main(['list', 'tasks'])",
        "from lasg.cli.main import main; main(['list', 'algorithms'])",
        "from lasg.cli.main import main; main(['compare', '--help'])",
    ],
)
def test_what_trains_nothing_loads_neither_torch_nor_sklearn_nor_matplotlib(code: str) -> None:
    loaded = modules_after(code)
    assert "lasg" in loaded
    assert not loaded & {"torch", "sklearn", "scipy", "matplotlib"}


def test_a_run_with_plain_sgd_does_not_load_torch_or_matplotlib(tmp_path: Path) -> None:
    arguments = ["run", "breast-cancer", "-a", "lasg-wk2", "--until", "iterations=3", "--out", str(tmp_path)]
    assert not modules_after(f"from lasg.cli.main import main; main({arguments!r})") & {"torch", "matplotlib"}


def test_no_file_has_more_than_400_lines_and_no_function_more_than_60() -> None:
    long = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if text.count("\n") > 400:
            long.append(f"{path.name}: {text.count(chr(10))} lines")
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                lines = (node.end_lineno or 0) - node.lineno + 1
                if lines > 60:
                    long.append(f"{path.name}: {node.name} has {lines} lines")
    assert not long
