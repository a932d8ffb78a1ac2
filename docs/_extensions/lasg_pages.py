"""What Sphinx needs besides: pages made from the code, and links that lead out of docs/."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import lasg_reference
from docutils import nodes

if TYPE_CHECKING:
    from sphinx.application import Sphinx

PAGES_OF_FILES = {
    "../README.md": "index.md",
    "../CONTRIBUTING.md": "contributing.md",
    "../CHANGELOG.md": "changelog.md",
    "../results": "results.md",
    "../examples": "examples.md",
    "../examples/adapters": "examples.md#trainers-of-other-libraries",
    "../examples/extending": "examples.md#parts-of-your-own",
    "../examples/torchrun": "examples.md#on-the-ranks-of-torchrun",
}
"""What stands for files and folders outside docs/; other files are offered as downloads."""
LONG = 40
"""Characters of a word that is too long for a column of a table."""
MARK = re.compile(r"^<!-- (\w+): ([\w./]+) -->$", re.MULTILINE)


def from_root(text: str) -> str:
    """Turn the links of a page in the project's root into those of a page in docs/."""
    return re.sub(r"\]\((?!https?:|#)(docs/)?", lambda found: "](" + ("" if found[1] else "../"), text)


def expand(text: str) -> str:
    """Replace marks by what they stand for, and links to files by links to pages."""

    def made(found: re.Match[str]) -> str:
        kind, name = found[1], found[2]
        if kind == "include":
            text = from_root((lasg_reference.ROOT / name).read_text(encoding="utf-8"))
            return text if found.start() == 0 else re.sub(r"^# ", "## ", text, flags=re.MULTILINE)
        return lasg_reference.GENERATED[name]() if kind == "generated" else found[0]

    text = MARK.sub(made, text)
    return re.sub(r"\]\(([^)\s#]+)(?=[)#])", lambda found: "](" + PAGES_OF_FILES.get(found[1], found[1]), text)


def _read(_app: Sphinx, _name: str, source: list[str]) -> None:
    source[0] = expand(source[0])


def _mark_long_words(_app: Sphinx, tree: nodes.document) -> None:
    """Give words of code in tables that fill a line a class of their own: they may break."""
    for table in tree.findall(nodes.table):
        for word in table.findall(nodes.literal):
            if max(map(len, word.astext().split() or [""])) > LONG:
                word["classes"].append("long")


def setup(app: Sphinx) -> dict[str, Any]:
    """Tell Sphinx."""
    app.connect("source-read", _read)
    app.connect("doctree-read", _mark_long_words)
    return {"version": "1", "parallel_read_safe": True, "parallel_write_safe": True}
