"""The report's HTML: its numbers are the runs', what comes from outside is inert, nothing is fetched; it is small."""

import base64
import json
import math
import re
import shlex
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lasg
from lasg.analysis import link_time
from lasg.analysis.compare import Summary, shared_target, summarise
from lasg.analysis.link_model import PRESETS, LinkModel
from lasg.analysis.series import series
from lasg.cli import training as commands
from lasg.cli.main import main
from lasg.core.algorithms import ALGORITHMS
from lasg.core.ledger import COUNTS
from lasg.errors import LasgError
from lasg.report import page
from lasg.report.curves import thin
from lasg.report.style import sort_series
from lasg.runs import store
from lasg.runs.runner import run
from lasg.runs.spec import Spec
from lasg.runs.store import Run
from lasg.runs.tasks import task
from lasg.runs.trace import Arrays
from tests.runs.samples import made_up, small

# -- reading HTML ------------------------------------------------------------------------------------------

VOID = {"meta", "link", "input", "br", "img", "path", "hr"}


@dataclass(repr=False)
class Node:
    """An element: its name, attributes, and what stands in it."""

    name: str
    attributes: dict[str, str]
    children: list["Node | str"] = field(default_factory=list)

    def walk(self) -> Iterator["Node"]:
        yield self
        for child in self.children:
            if isinstance(child, Node):
                yield from child.walk()

    def all(self, name: str) -> list["Node"]:
        return [node for node in self.walk() if node.name == name]

    def by_id(self, wanted: str) -> "Node":
        (found,) = [node for node in self.walk() if node.attributes.get("id") == wanted]
        return found

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        return "".join(child if isinstance(child, str) else child.text for child in self.children)

    @property
    def own(self) -> str:
        """The text that is not in another element."""
        return "".join(child for child in self.children if isinstance(child, str)).strip()


class Reader(HTMLParser):
    """Builds a tree, and wants every element closed in order."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = Node("root", {})
        self._open = [self.root]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice"
        node = Node(tag, {name: value or "" for name, value in attrs})
        self._open[-1].children.append(node)
        if tag not in VOID:
            self._open.append(node)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._open[-1].children.append(Node(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop().name == tag

    def handle_data(self, data: str) -> None:
        self._open[-1].children.append(data)


def parsed(html: str) -> Node:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader._open == [reader.root], "an element is not closed"
    return reader.root


def data_of(root: Node) -> Any:
    """Return what the page's script draws, as JSON says it: no NaN, no Infinity."""

    def refuse(word: str) -> float:
        raise AssertionError(word)

    return json.loads(root.by_id("data").text, parse_constant=refuse)


def networks_of(root: Node) -> list[str]:
    """Return the networks whose seconds the script can draw; every curve has all of them."""
    parts = [part for one in data_of(root)["series"] for part in (one["mean"], *one["seeds"])]
    (names,) = {tuple(part["seconds"]) for part in parts}
    return list(names)


def chosen_network(root: Node) -> str:
    """Return the network that is selected at first."""
    (option,) = [one for one in root.by_id("network").all("option") if "selected" in one.attributes]
    return option.attributes["value"] or ""


def table_of(root: Node, name: str) -> dict[str, dict[str, Node]]:
    """Return a table's cells, by the row's label and the column's name."""
    table = root.by_id(name)
    (head,) = table.all("thead")
    (body,) = table.all("tbody")
    columns = [cell.text for cell in head.all("th")][1:]
    found = {}
    for row in body.all("tr"):
        (label,) = row.all("th")
        found[label.own] = dict(zip(columns, row.all("td"), strict=True))
    return found


def marked(table: dict[str, dict[str, Node]]) -> dict[str, set[str]]:
    """Return whose value is marked as the best, for every column; the star and the colour go together."""
    found: dict[str, set[str]] = {}
    for label, cells in table.items():
        for column, cell in cells.items():
            found.setdefault(column, set())
            assert ("best" in cell.classes) == bool(cell.all("svg")) == ("best" in cell.text)
            if "best" in cell.classes:
                found[column].add(label)
    return found


UNITS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "x": 1, "%": 0.01, "s": 1, "min": 60, "h": 3600, "d": 86400}


def says(text: str, value: float | None) -> bool:
    """Tell whether a text such as 12.3k, 4.1x, 95.20 % or 3.2 min is a value, rounded to its last digit."""
    if value is None or text == "-":
        return value is None and text == "-"
    found = re.fullmatch(r"(\d+(?:\.(\d+))?(?:e(-?\d+))?) ?([A-Za-z%]*)(?: ± \d+\.\d+)?", text)
    assert found, text
    digits, decimals, power, unit = found.groups()
    half = 0.5 * 10.0 ** (int(power or 0) - len(decimals or "")) * UNITS[unit]
    if unit in {"s", "min", "h", "d"}:
        assert half <= 0.06 * value, f"{text} has too few digits for {value}"
    return abs(float(digits) * UNITS[unit] - value) <= half * (1 + 1e-6)


# -- stored runs with many numbers, made quickly -----------------------------------------------------------------


def stored(
    folder: Path,
    spec: Spec,
    *,
    rounds: int = 40,
    every: int = 4,
    status: str = "done",
    accuracy: float = math.nan,
    floor: float = 0.1,
    uploads: float = 1.0,
) -> Run:
    """Store a run that never ran: its loss falls towards `floor`, a share `uploads` of the workers uploads."""
    meta = {**store.begin(folder, spec, "0" * 64), "status": status, "seconds": 1.25}
    at = np.unique([*range(0, rounds + 1, every), rounds])
    draw = np.random.default_rng(spec.seed)
    masks = draw.random((rounds, spec.workers)) < uploads
    sent = np.concatenate([[0], masks.sum(1).cumsum()])[at]
    arrays: Arrays = {name: at.astype(np.int64) for name in COUNTS}
    arrays |= {"uploads": sent, "bits_up": 960 * sent, "downloads": at * spec.workers}
    arrays |= {"bits_down": 960 * at * spec.workers, "control_bits": at * 0, "gradients": at * spec.workers}
    arrays["loss"] = floor + np.exp(-0.1 * at * 40 / max(1, rounds)) + 0.01 * draw.random(len(at)) * (at > 0)
    arrays["accuracy"] = accuracy * (1 - 0.5 / (1 + at))
    watched = len(spec.watched)
    arrays["uploaded"] = np.packbits(masks, axis=1)
    arrays["threshold"] = np.ones(rounds)
    arrays |= {"watched_tau": np.ones((rounds, watched), np.int64), "watched_left": np.ones((rounds, watched))}
    store.write_trace(folder, arrays)
    store.write_meta(folder, meta)
    return store.read(folder)


def built(runs: Sequence[Run], **more: Any) -> Node | str:
    """Return the report, or the one line with which it was refused."""
    try:
        return parsed(page.build(runs, **more))
    except LasgError as error:
        return str(error)


@pytest.fixture(scope="module")
def real(runs: list[Run]) -> Node:
    """Return the report of the twelve real algorithms."""
    return parsed(page.build(runs))


# -- the tables ----------------------------------------------------------------------------------------------

HEAD = {
    "iterations": "iterations",
    "uploads": "uploads",
    "bits up": "bits_up",
    "bits both ways": "bits_total",
    "gradient evaluations": "gradients",
}


def expected(row: Summary, network: str) -> dict[str, tuple[float | None, bool]]:
    """Return what a row of the table is to say, and whether less is better."""
    found: dict[str, tuple[float | None, bool]] = {
        column: (row.counts[name].mean if row.counts else None, True) for column, name in HEAD.items()
    }
    loss = None if math.isnan(row.loss.mean) else row.loss.mean
    return {
        **found,
        f"simulated time ({network})": (row.counts["seconds"].mean if row.counts else None, True),
        "MB": (row.counts["bits_total"].mean / 8e6 if row.counts else None, True),
        "fewer uploads": (row.fewer_uploads, False),
        "fewer bits up": (row.fewer_bits, False),
        "final loss": (loss, True),
        "test accuracy": (row.accuracy.mean if row.accuracy else None, False),
    }


def check_table(root: Node, runs: Sequence[Run], target: float, network: LinkModel) -> None:
    """Look at every number and every mark of the table of savings."""
    rows = {row.label: expected(row, network.name) for row in summarise(runs, target, network)}
    table = table_of(root, "savings")
    assert sorted(table) == sorted(rows)
    marks = marked(table)
    for column, found in marks.items():
        values = {label: rows[label][column][0] for label in rows}
        less = next(iter(rows.values()))[column][1]
        known = [value for value in values.values() if value is not None]
        best = (min if less else max)(known) if known else None
        for label, value in values.items():
            cell = table[label][column]
            assert says(cell.own, value), (label, column, cell.own, value)
            is_best = value is not None and best is not None and math.isclose(value, best, rel_tol=1e-9)
            assert (label in found) == is_best, (label, column)


def test_every_character_of_the_page_itself_is_one_that_any_font_has(real: Node) -> None:
    everything = "".join(node.own for node in real.walk() if node.name not in {"script", "style"})
    assert not {character for character in everything if ord(character) > 0xFF} - {"…"}


def test_every_number_of_the_table_is_the_summarys_and_the_best_are_marked(runs: list[Run], real: Node) -> None:
    check_table(real, runs, shared_target(runs), PRESETS["home"])
    assert all(marked(table_of(real, "savings")).values()), "every column has a best"


@pytest.mark.parametrize("target", [0.69, 0.3, 0.2])
def test_the_table_follows_the_target_and_the_network(runs: list[Run], target: float) -> None:
    link = link_time.read_link_model("mobile:up=2e3,latency=0.5")
    root = parsed(page.build(runs, target=target, network=link))
    check_table(root, runs, target, link)
    assert f"{target:g}" in root.by_id("table-head").text


def test_the_final_loss_has_its_standard_deviation(runs: list[Run], real: Node) -> None:
    for row in summarise(runs, shared_target(runs)):
        cell = table_of(real, "savings")[row.label]["final loss"]
        assert cell.own == f"{row.loss.mean:.4f} ± {row.loss.std:.4f}"


def test_the_table_of_times_has_the_seconds_of_every_network(runs: list[Run], real: Node) -> None:
    table = table_of(real, "times")
    marks = marked(table)
    assert list(marks) == list(PRESETS)
    for link in PRESETS.values():
        rows = {row.label: row for row in summarise(runs, shared_target(runs), link)}
        seconds = {label: row.counts["seconds"].mean for label, row in rows.items() if row.counts}
        assert marks[link.name] == {label for label, s in seconds.items() if math.isclose(s, min(seconds.values()))}
        for label, cells in table.items():
            cell = cells[link.name]
            assert says(cell.own, seconds.get(label)), (label, link.name, cell.own)
            (ratio,) = [node for node in cell.walk() if "ratio" in node.classes]
            faster = rows[label].faster
            assert says(ratio.text or "-", faster if label in seconds else None)


def test_the_last_row_of_the_table_of_times_names_the_winner_of_every_link(runs: list[Run], real: Node) -> None:
    (foot,) = real.by_id("times").all("tfoot")
    (row,) = foot.all("tr")
    assert [cell.text for cell in row.all("th")] == ["fastest"]
    marks = marked(table_of(real, "times"))
    named = [set(cell.text.split(", ")) for cell in row.all("td")]
    assert named == list(marks.values())
    assert all(named)
    alone = parsed(page.build(runs[:1]))
    assert alone.by_id("times").all("tfoot") == []


def test_rows_are_in_the_order_in_which_the_twelve_are_listed_everywhere(runs: list[Run]) -> None:
    root = parsed(page.build(list(reversed(runs))))
    for name in ("savings", "times"):
        assert list(table_of(root, name)) == list(ALGORITHMS)
    assert [one["label"] for one in data_of(root)["series"]] == list(ALGORITHMS)


ROWS = [(0, 0, 1.0), (10, 100, 0.5), (20, 200, 0.2)]


def test_equal_values_are_all_marked(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, small(name), ROWS) for name in ("sgd", "lag-wk", "qsgd")]
    marks = marked(table_of(parsed(page.build(runs, target=0.5)), "savings"))
    for column in ("iterations", "uploads", "bits up", "bits both ways", "fewer uploads", "final loss"):
        assert marks[column] == {"sgd", "lag-wk", "qsgd"}


def test_means_that_differ_by_rounding_alone_are_equal(tmp_path: Path) -> None:
    sgd = [
        made_up(tmp_path / f"s{i}", small("sgd", seed=i), [(0, 0, 1.0), (1, 1, v)]) for i, v in enumerate((0.1, 0.3))
    ]
    lag = [
        made_up(tmp_path / f"l{i}", small("lag-wk", seed=i), [(0, 0, 1.0), (1, 1, v)])
        for i, v in enumerate((0.2, 0.1 + 0.1))
    ]
    assert sum((0.1, 0.3)) / 2 == pytest.approx(0.2)
    assert marked(table_of(parsed(page.build([*sgd, *lag])), "savings"))["final loss"] == {"sgd", "lag-wk"}


def test_who_did_not_get_there_has_dashes_and_no_mark_but_for_how_it_ended(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "0", small("sgd"), ROWS),
        made_up(tmp_path / "1", small("lag-wk", seed=0), [(0, 0, 1.0), (1, 1, 0.21)]),
        made_up(tmp_path / "2", small("lag-wk", seed=1), [(0, 0, 1.0), (1, 1, 0.1)]),
    ]
    root = parsed(page.build(runs, target=0.2))
    table = table_of(root, "savings")
    assert [cell.own for cell in table["lag-wk"].values()][:9] == ["-"] * 9
    marks = marked(table)
    assert marks.pop("final loss") == {"lag-wk"}
    assert all(found == {"sgd"} for found in marks.values())
    assert "not reached (1 of 2 seeds)" in root.by_id("savings").text


def test_who_diverged_is_the_best_at_nothing(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path / "0", small("sgd"), accuracy=0.8),
        stored(tmp_path / "1", small("lag-wk", seed=0), accuracy=0.99, uploads=0.1, floor=0.01, status="diverged"),
        stored(tmp_path / "2", small("lag-wk", seed=1), accuracy=0.99, uploads=0.1, floor=0.01),
        stored(tmp_path / "3", small("qsgd"), accuracy=0.99, uploads=0.1, floor=0.01, status="diverged"),
    ]
    root = parsed(page.build(runs))
    assert set().union(*marked(table_of(root, "savings")).values()) == {"sgd"}
    text = root.by_id("savings").text
    assert "diverged (1 of 2 seeds)" in text
    assert "diverged (1 of 1 seeds)" in text
    assert "2 of 4 runs diverged" in root.text
    series_ = {one["label"]: one for one in data_of(root)["series"]}
    assert [seed["seed"] for seed in series_["lag-wk"]["seeds"]] == [1], "diverged seeds are left out of the curves"
    assert series_["qsgd"]["seeds"] == series_["qsgd"]["mean"]["loss"] == []


def test_where_nobody_gets_there_nothing_is_marked_and_the_page_says_so(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, small(name), ROWS) for name in ("sgd", "lag-wk")]
    root = parsed(page.build(runs, target=0.01))
    marks = marked(table_of(root, "savings"))
    assert {column for column, found in marks.items() if found} == {"final loss"}
    assert "Nobody reached loss 0.01" in root.by_id("summary").text
    assert not any(marked(table_of(root, "times")).values())


def test_a_thousand_megabytes_are_not_written_as_a_power_of_ten(tmp_path: Path) -> None:
    bits = int(999.7 * 8e6)
    one = made_up(tmp_path / "0", small("sgd"), [(0, 0, 1.0), (10, bits, 0.5)])
    assert table_of(parsed(page.build([one], target=0.5)), "savings")["sgd"]["MB"].own in {"1000", "999.7", "1.00k"}


# -- the sentences ---------------------------------------------------------------------------------------------


def test_the_summary_is_about_the_fewest_upload_bits(runs: list[Run], real: Node) -> None:
    rows = [row for row in summarise(runs, shared_target(runs)) if row.counts]
    best = min((row for row in rows if row.algorithm != "sgd"), key=lambda row: row.counts["bits_up"].mean)
    said = real.by_id("summary").text
    assert best.label.upper() in said
    assert "mean of 2 seeds" in said
    for ratio, what in ((best.fewer_uploads, "uploads"), (best.fewer_bits, "upload bits")):
        assert ratio is not None
        found = re.search(rf"([\d.]+)x (fewer|more) {what}", said)
        assert found
        assert says(f"{found[1]}x", ratio if found[2] == "fewer" else 1 / ratio)


def test_the_first_sgd_that_did_not_get_there_does_not_make_the_others_silent(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "0", small("sgd", eta=0.01), [(0, 0, 1.0), (9, 9, 0.9)]),
        made_up(tmp_path / "1", small("sgd", eta=0.1), ROWS),
        made_up(tmp_path / "2", small("lag-wk"), [(0, 0, 1.0), (5, 50, 0.2)]),
    ]
    said = parsed(page.build(runs, target=0.2)).by_id("summary").text
    assert "no uploads" not in said
    assert "no upload bits" not in said


@pytest.mark.parametrize("target", [1.0, 5.0])
def test_a_loss_that_was_reached_before_the_first_round_is_no_crash_and_no_nonsense(
    tmp_path: Path, target: float
) -> None:
    runs = [made_up(tmp_path / name, small(name), ROWS) for name in ("sgd", "lag-wk")]
    root = built(runs, target=target)
    if isinstance(root, str):
        assert f"{target:g}" in root
    else:
        assert "no uploads and no upload bits than" not in root.by_id("summary").text


def test_the_loss_that_the_runs_were_to_reach_is_the_one_they_are_compared_at(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, small(name, until={"loss": 0.45}), ROWS) for name in ("sgd", "lag-wk")]
    root = parsed(page.build(runs))
    assert root.by_id("table-head").text == "What it took to reach loss 0.45"
    assert data_of(root)["target"] == 0.45
    check_table(root, runs, 0.45, PRESETS["home"])


# -- what comes from outside is inert --------------------------------------------------------------------------

EVIL = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "\"'><b onclick=alert(1)>\"'",
    "<!--",
    "]]>&lt;&amp;",
    "{{ 7 * 7 }}{% raw %}",
    "名前 ± é 🦎",
    "a\u2028b",
    "${alert(1)} `x`",
]
ELEMENTS = {"script": 3, "style": 1, "img": 0, "iframe": 0, "object": 0, "b": 0, "base": 0, "form": 0}


def harmless(root: Node) -> None:
    """Look that nothing was added to the page's own elements."""
    for name, count in ELEMENTS.items():
        assert len(root.all(name)) == count, name
    for node in root.walk():
        assert not [name for name in node.attributes if name.startswith("on")]
        assert not node.attributes.get("href", "").startswith("javascript")
    own = [node for node in root.all("script") if not node.attributes]
    assert [len(node.text) > 1_000_000 for node in own] == [True, False], "plotly's and the page's"


@pytest.mark.parametrize("evil", EVIL)
def test_strings_from_outside_are_text_wherever_they_stand(tmp_path: Path, evil: str) -> None:
    folder = tmp_path / evil.replace("/", "")
    specs = [small("sgd", task=evil, data=evil, partition=evil, optimizer=name) for name in (evil, "sgd")]
    found = [stored(folder / str(i), spec) for i, spec in enumerate(specs)]
    for one in found:
        store.write_meta(one.folder, {**one.meta, "versions": {evil: evil}, "engine": evil})
    runs = [store.read(one.folder) for one in found]
    link = LinkModel(name=evil, latency=1, up=1, down=1, gradient=1)
    root = parsed(page.build(runs, network=link, title=evil))
    harmless(root)
    (head,) = root.all("h1")
    assert head.text == evil
    assert root.all("title")[0].text == f"lasg report: {evil}"
    assert f"{evil} {evil}" in root.all("footer")[0].text
    labels = [one["label"] for one in data_of(root)["series"]]
    assert sorted(labels) == sorted([f"sgd optimizer={evil}", "sgd optimizer=sgd"])
    assert list(table_of(root, "savings")) == labels
    assert networks_of(root)[0] == chosen_network(root) == evil
    assert {node.text for node in root.by_id("runs").all("pre")} == {run.spec.to_toml() for run in runs}


@pytest.mark.parametrize("evil", [name for name in EVIL if "/" not in name])
def test_names_of_folders_are_text_too(tmp_path: Path, evil: str) -> None:
    run_ = made_up(tmp_path / evil, small("sgd"), ROWS)
    root = parsed(page.build([run_]))
    harmless(root)
    names = {node.attributes["download"] for node in root.all("a") if "download" in node.attributes}
    assert names == {f"{run_.spec.label}.toml"}


def test_the_raw_text_has_no_end_of_a_script_but_its_own(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / "0", small("sgd", task=EVIL[0]), ROWS)]
    html = page.build(runs, title=EVIL[0])
    assert html.lower().count("</script") == 3
    assert html.count("<!--") == html[html.index("<script>") : html.rindex("</script>")].count("<!--")


def test_a_name_that_is_not_unicode_is_shown_or_refused_but_no_crash(tmp_path: Path) -> None:
    run_ = made_up(tmp_path / "0", small("sgd"), ROWS)
    odd = tmp_path / "run\udcff"
    shutil.copytree(run_.folder, odd)
    path = tmp_path / "report.html"
    path.write_text("old")
    try:
        page.write(path, [store.read(odd)])
    except LasgError:
        assert path.read_text() == "old"
    else:
        assert path.read_text(encoding="utf-8").startswith("<!doctype html>")


def test_every_network_of_the_menu_is_one_that_the_script_knows(tmp_path: Path) -> None:
    """A browser takes an option's text without its outer spaces, and runs of spaces as one."""
    run_ = made_up(tmp_path / "0", small("sgd"), ROWS)
    root = parsed(page.build([run_], network=link_time.read_link_model("mobile:up=2e6,  latency=0.1")))
    known = networks_of(root)
    for option in root.by_id("network").all("option"):
        assert option.attributes.get("value", " ".join(option.text.split())) in known


# -- nothing is fetched ----------------------------------------------------------------------------------------


def test_nothing_refers_to_the_network_outside_of_plotly(runs: list[Run], real: Node) -> None:
    for node in real.walk():
        assert not {"src", "srcset", "action", "background", "poster", "ping"} & set(node.attributes)
        if "href" in node.attributes:
            assert re.match(r"data:|#main$", node.attributes["href"]), node.attributes["href"]
        if "plotly" not in node.text[:300] or node.name != "script":
            own = "".join(child for child in node.children if isinstance(child, str))
            if node.attributes.get("id") == "data":
                own = own.replace("//", "")  # as base64 has it
            assert not re.search(r"https?:|//\w|@import|url\(|\bfetch\(|XMLHttpRequest|WebSocket|import\(", own), (
                node.name
            )
        for value in node.attributes.values():
            assert "http:" not in value
            assert "https:" not in value
    (policy,) = [node for node in real.all("meta") if node.attributes.get("http-equiv") == "Content-Security-Policy"]
    assert policy.attributes["content"].startswith("default-src 'none'")
    assert "http" not in policy.attributes["content"]


def test_the_parts_that_the_script_looks_for_are_there(real: Node) -> None:
    (script,) = [node for node in real.all("script") if '"use strict"' in node.text[:20]]
    ids = [node.attributes["id"] for node in real.walk() if "id" in node.attributes]
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'\$\("([\w-]+)"\)', script.text)) <= set(ids)
    for node in real.walk():
        for name in ("aria-labelledby", "aria-describedby", "for"):
            assert set((node.attributes.get(name) or "main").split()) <= set(ids)


# -- the curves ------------------------------------------------------------------------------------------------


def same(shown: Any, wanted: Any) -> bool:
    """Tell whether the page has a number to its six digits."""
    return math.isclose(float(shown), float(wanted), rel_tol=5.1e-6, abs_tol=1e-300)


def check_seed(shown: dict[str, Any], one: Run, networks: Sequence[LinkModel], most: int) -> None:
    """Look that the page's points of a seed are points of the trace, both ends among them."""
    trace = one.trace
    names = {name: trace[name] for name in ("iterations", "uploads", "bits_up", "gradients", "loss")}
    names["bits_total"] = trace["bits_up"] + trace["bits_down"] + trace["control_bits"]
    if "accuracy" in shown:
        names["accuracy"] = trace["accuracy"]
    columns = {name: shown[name] for name in names}
    for link in networks:
        names[link.name] = link_time.seconds(one, link)
        columns[link.name] = shown["seconds"][link.name]
    assert set(shown) - {"seed", "seconds"} <= set(names)
    count = len(columns["loss"])
    assert min(2, len(trace["loss"])) <= count <= most
    where = []
    for row in zip(*columns.values(), strict=True):
        found = np.ones(len(trace["loss"]), np.bool_)
        for value, name in zip(row, columns, strict=True):
            found &= np.isclose(names[name], float(value), rtol=5.1e-6, atol=0)
        assert found.any(), "a point of the page that is not in the trace"
        where.append(np.flatnonzero(found).tolist())
    assert 0 in where[0]
    assert len(trace["loss"]) - 1 in where[-1]
    assert len(where) == count


def test_every_point_of_every_seed_is_the_traces_with_both_ends(runs: list[Run], real: Node) -> None:
    data = data_of(real)
    assert (chosen_network(real), networks_of(real)) == ("home", list(PRESETS))
    for shown, one in zip(data["series"], sort_series(series(runs)), strict=True):
        assert shown["label"] == one.label
        assert [seed["seed"] for seed in shown["seeds"]] == [run.spec.seed for run in one.runs] == [0, 1]
        for seed, run_ in zip(shown["seeds"], one.runs, strict=True):
            check_seed(seed, run_, list(PRESETS.values()), page.POINTS)


def test_the_mean_curve_is_the_mean_of_the_seeds_after_the_same_rounds(runs: list[Run], real: Node) -> None:
    for shown, one in zip(data_of(real)["series"], sort_series(series(runs)), strict=True):
        mean = shown["mean"]
        # Both seeds of these runs are evaluated in every round, and there are fewer rounds than points.
        length = min(len(run.trace["loss"]) for run in one.runs)
        rows = {name: np.array([run.trace[name][:length] for run in one.runs], float) for name in (*COUNTS, "loss")}
        rows["accuracy"] = np.array([run.trace["accuracy"][:length] for run in one.runs])
        for name in ("iterations", "uploads", "bits_up", "gradients", "loss", "accuracy"):
            assert all(map(same, mean[name], rows[name].mean(0)))
            assert len(mean[name]) == length
        both = rows["bits_up"] + rows["bits_down"] + rows["control_bits"]
        assert all(map(same, mean["bits_total"], both.mean(0)))
        for name in ("loss", "accuracy"):
            np.testing.assert_allclose(mean[f"{name}_spread"], rows[name].std(0, ddof=1), rtol=1e-5, atol=1e-12)
        for link in PRESETS.values():
            seconds = np.mean([link_time.seconds(run, link)[:length] for run in one.runs], 0)
            assert all(map(same, mean["seconds"][link.name], seconds))


def test_long_traces_are_thinned_and_keep_both_ends(tmp_path: Path) -> None:
    one = stored(tmp_path / "0", small("sgd"), rounds=5000, every=1, accuracy=0.9)
    data = data_of(parsed(page.build([one])))
    check_seed(data["series"][0]["seeds"][0], one, list(PRESETS.values()), page.POINTS)
    mean = data["series"][0]["mean"]
    assert len(mean["loss"]) <= page.MEAN_POINTS
    assert (mean["iterations"][0], mean["iterations"][-1]) == (0, 5000)
    assert same(mean["loss"][-1], one.trace["loss"][-1])


@given(st.integers(0, 6000), st.integers(4, 300))
def test_thinning_keeps_both_ends_and_no_more_than_asked_for(length: int, most: int) -> None:
    rows = thin(length, most)
    assert len(rows) <= most
    assert (np.diff(rows) > 0).all()
    if length:
        assert (rows[0], rows[-1]) == (0, length - 1)
    assert len(rows) >= min(length, most // 2)


def unpacked(raster: dict[str, Any]) -> Any:
    bits = np.unpackbits(np.frombuffer(base64.b64decode(raster["bits"]), np.uint8))
    width = len(raster["workers"])
    return bits[: raster["rounds"] * width].reshape(raster["rounds"], width).astype(bool)


def test_the_raster_is_who_uploaded(runs: list[Run], real: Node) -> None:
    for shown, one in zip(data_of(real)["series"], sort_series(series(runs)), strict=True):
        raster, first = shown["raster"], one.runs[0]
        np.testing.assert_array_equal(unpacked(raster), first.uploads)
        assert raster["workers"] == list(range(6))
        assert (raster["seed"], raster["all_workers"]) == (0, 6)
        assert raster["all_rounds"] == raster["rounds"] == len(first.uploads)


def test_of_200_workers_some_are_in_the_raster_the_first_and_the_last_among_them(tmp_path: Path) -> None:
    one = stored(tmp_path / "0", small("lasg-wk2", workers=200), rounds=5000, every=50, uploads=0.3)
    raster = data_of(parsed(page.build([one])))["series"][0]["raster"]
    assert (raster["workers"][0], raster["workers"][-1], raster["all_workers"]) == (0, 199, 200)
    assert len(raster["workers"]) == page.RASTER_WORKERS
    assert (raster["rounds"], raster["all_rounds"]) == (page.RASTER_ROUNDS, 5000)
    np.testing.assert_array_equal(unpacked(raster), one.uploads[: page.RASTER_ROUNDS, raster["workers"]])


# -- how large it is -------------------------------------------------------------------------------------------


def test_twelve_algorithms_with_five_seeds_and_long_traces_are_less_than_5_megabytes(tmp_path: Path) -> None:
    runs = [
        stored(
            tmp_path / f"{name}-{seed}",
            small(name, seed=seed, workers=20),
            rounds=20_000,
            every=4,
            accuracy=0.9,
            uploads=0.5,
        )
        for name in ALGORITHMS
        for seed in range(5)
    ]
    assert len(runs[0].trace["loss"]) == 5001
    html = page.build(runs)
    assert len(html.encode()) < 5_000_000
    data = data_of(parsed(html))
    assert len(data["series"]) == 12
    for shown, one in zip(data["series"], sort_series(series(runs)), strict=True):
        assert len(shown["seeds"]) == 5
        for seed, run_ in zip(shown["seeds"], one.runs, strict=True):
            for name in ("iterations", "uploads", "bits_up", "gradients", "loss", "accuracy"):
                assert same(seed[name][0], run_.trace[name][0])
                assert same(seed[name][-1], run_.trace[name][-1])


# -- accuracy --------------------------------------------------------------------------------------------------


def test_a_run_without_a_test_set_takes_the_accuracy_axis_away(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path / "0", small("sgd"), accuracy=0.9),
        stored(tmp_path / "1", small("lag-wk"), accuracy=math.nan),
    ]
    root = parsed(page.build(runs))
    assert [option.attributes["value"] for option in root.by_id("y").all("option")] == ["loss"]
    data = data_of(root)
    assert not any("accuracy" in part for one in data["series"] for part in (one["mean"], *one["seeds"]))
    table = table_of(root, "savings")
    assert says(table["sgd"]["test accuracy"].own, runs[0].trace["accuracy"][-1])
    assert table["lag-wk"]["test accuracy"].own == "-"


def test_where_no_run_has_a_test_set_there_is_no_accuracy_at_all(tmp_path: Path) -> None:
    root = parsed(page.build([stored(tmp_path / "0", small("sgd"))]))
    assert "test accuracy" not in table_of(root, "savings")["sgd"]
    assert "accuracy" not in root.all("main")[0].text


def test_with_a_test_set_accuracy_is_an_axis(real: Node) -> None:
    assert [option.attributes["value"] for option in real.by_id("y").all("option")] == ["loss", "accuracy"]


# -- few runs, and bad ones --------------------------------------------------------------------------------------


def test_one_run_is_a_report(tmp_path: Path) -> None:
    root = parsed(page.build([run(small("lasg-wk2", iterations=20), tmp_path / "0")]))
    data = data_of(root)
    assert [len(one["seeds"]) for one in data["series"]] == [1]
    assert set(data["series"][0]["mean"]["loss_spread"]) == {0}
    assert "LASG-WK2" in root.by_id("summary").text
    assert "mean of 1" not in root.text


def test_one_run_is_not_called_runs(tmp_path: Path) -> None:
    assert "1 runs" not in parsed(page.build([made_up(tmp_path / "0", small("sgd"), ROWS)])).text


@pytest.mark.parametrize("names", [["sgd"], ["lag-wk"], ["sgd", "lag-wk", "qsgd", "laqsg-wk2"]])
def test_one_evaluation_is_enough(tmp_path: Path, names: list[str]) -> None:
    runs = [made_up(tmp_path / name, small(name), [(0, 0, 0.69)]) for name in names]
    data = data_of(parsed(page.build(runs)))
    assert [one["mean"]["loss"] for one in data["series"]] == [[0.69]] * len(names)
    assert [one["raster"]["rounds"] for one in data["series"]] == [0] * len(names)


def test_a_lazy_algorithm_that_hardly_moved_is_no_crash(tmp_path: Path) -> None:
    """The loss that all reached is then, rounded up, the one they began with."""
    runs = [
        made_up(tmp_path / "0", small("sgd"), [(0, 0, 0.6931), (6, 60, 0.6905)]),
        made_up(tmp_path / "1", small("lasg-wk2"), [(0, 0, 0.6931), (6, 60, 0.6925)]),
    ]
    page.build(runs)


def test_runs_that_all_diverged_are_refused_in_one_line(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / name, small(name), ROWS, status="diverged") for name in ("sgd", "lag-wk")]
    with pytest.raises(LasgError, match="every run diverged") as caught:
        page.build(runs)
    assert "\n" not in str(caught.value)


def test_runs_that_all_diverged_on_their_way_to_a_loss_are_shown_so_or_refused(tmp_path: Path) -> None:
    runs = [
        stored(tmp_path / name, small(name, until={"loss": 0.2}), accuracy=0.9, status="diverged")
        for name in ("sgd", "lag-wk")
    ]
    root = built(runs)
    if isinstance(root, str):
        assert "diverged" in root
    else:
        assert "2 of 2 runs diverged" in root.text
        assert not any(marked(table_of(root, "savings")).values())
        assert [option.attributes["value"] for option in root.by_id("y").all("option")] == ["loss"]


def test_the_same_run_from_two_folders_is_not_two_seeds(tmp_path: Path) -> None:
    one = made_up(tmp_path / "a" / "0", small("sgd"), ROWS)
    shutil.copytree(one.folder, tmp_path / "b" / "0")
    root = built(store.read_runs(tmp_path / "a", tmp_path / "b"))
    if isinstance(root, str):
        assert "twice" in root or "same" in root
    else:
        assert [len(shown["seeds"]) for shown in data_of(root)["series"]] == [1]


def test_a_report_that_cannot_be_made_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "out" / "report.html"
    path.parent.mkdir()
    path.write_text("old")
    runs = [made_up(tmp_path / "0", small("sgd"), ROWS), made_up(tmp_path / "1", small("sgd", lam=0.1), ROWS)]
    with pytest.raises(LasgError, match="lam"):
        page.write(path, runs)
    assert path.read_text() == "old"
    assert [child.name for child in path.parent.iterdir()] == ["report.html"]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"task": "other"}, "task"),
        ({"workers": 7}, "workers"),
        ({"partition": "homogeneous"}, "partition"),
        ({"lam": 0.5}, "lam"),
        ({"data": "digits"}, "data"),
    ],
)
def test_runs_of_two_problems_are_refused_and_what_differs_is_said(
    tmp_path: Path, change: dict[str, Any], word: str
) -> None:
    runs = [made_up(tmp_path / "0", small("lag-wk"), ROWS), made_up(tmp_path / "1", small("lag-wk", **change), ROWS)]
    with pytest.raises(LasgError, match="different problems") as caught:
        page.build(runs)
    message = str(caught.value)
    assert f"({word}: " in message
    assert "\n" not in message


def test_the_pattern_that_is_suggested_takes_every_algorithm_of_the_problem(tmp_path: Path) -> None:
    specs = [small(name, partition=p) for p in ("homogeneous", "sorted") for name in ("lag-wk", "lasg-wk2", "sgd")]
    runs = [made_up(tmp_path / spec.label, spec, ROWS) for spec in specs]
    with pytest.raises(LasgError) as caught:
        page.build(store.read_runs(tmp_path))
    pattern = Path(str(caught.value).split()[-1])
    assert pattern.parent == tmp_path
    chosen = {path.name for path in tmp_path.glob(pattern.name)}
    assert chosen == {run.folder.name for run in runs if run.spec.partition == "homogeneous"}


# -- networks ----------------------------------------------------------------------------------------------------

SITES = LinkModel(name="sites", latency=0.5, up=tuple(1e4 * (m + 1) for m in range(6)), down=1e6, gradient=0.25)


def test_a_network_of_ones_own_is_chosen_and_stands_beside_the_presets(runs: list[Run]) -> None:
    root = parsed(page.build(runs, network=SITES))
    assert (chosen_network(root), networks_of(root)) == ("sites", ["sites", *PRESETS])
    assert list(marked(table_of(root, "times"))) == ["sites", *PRESETS]
    check_table(root, runs, shared_target(runs), SITES)
    (row,) = [row for row in root.all("tr") if [cell.text for cell in row.all("th")] == ["sites"]]
    assert [cell.text for cell in row.all("td")] == ["500 ms", "10 kbit/s to 60 kbit/s", "1 Mbit/s", "250 ms"]


def test_a_preset_that_was_chosen_stands_there_once(runs: list[Run]) -> None:
    root = parsed(page.build(runs[:2], network=PRESETS["lora"]))
    assert (chosen_network(root), networks_of(root)) == ("lora", list(PRESETS))


def test_a_network_of_ones_own_that_is_called_as_a_preset_is_not_ignored(runs: list[Run]) -> None:
    link = LinkModel(name="home", latency=100, up=1.0, down=1.0, gradient=1)
    root = built(runs, network=link)
    if isinstance(root, str):
        assert "home" in root
    else:
        check_table(root, runs, shared_target(runs), link)


def test_a_network_for_another_number_of_workers_is_refused(runs: list[Run]) -> None:
    link = LinkModel(name="three", latency=(0.1, 0.2, 0.3), up=1e6, down=1e6, gradient=0)
    with pytest.raises(LasgError, match="latency lists 3 workers, the run has 6"):
        page.build(runs, network=link)


# -- settings, commands, versions ------------------------------------------------------------------------------


def run_rows(root: Node) -> list[list[Node]]:
    (body,) = root.by_id("runs").all("tbody")
    return [
        [cell for cell in row.children if isinstance(cell, Node)]
        for row in body.children
        if isinstance(row, Node) and row.name == "tr"
    ]


def test_every_run_stands_there_with_its_seed_status_and_spec(runs: list[Run], real: Node) -> None:
    rows = run_rows(real)
    assert len(rows) == len(runs)
    for cells, one in zip(rows, runs, strict=True):
        assert [cell.text for cell in cells[:3]] == [one.spec.algorithm, str(one.spec.seed), one.status]
        assert float(cells[3].text) == pytest.approx(one.meta["seconds"], abs=0.051)
        (spec,) = cells[5].all("pre")
        assert spec.text == one.spec.to_toml()
        for link in [node for cell in cells for node in cell.all("a")]:
            kind, content = link.attributes["href"].split(",")
            assert kind == "data:application/toml;base64"
            assert base64.b64decode(content).decode() == one.spec.to_toml()


def test_what_all_runs_share_is_listed_and_what_differs_is_named(tmp_path: Path) -> None:
    runs = [
        made_up(tmp_path / "0", small("sgd"), ROWS),
        made_up(tmp_path / "1", small("sgd", eta=0.25, D=7, until={"loss": 0.2}), ROWS),
    ]
    root = parsed(page.build(runs))
    (found,) = root.all("dl")
    shared = {row.all("dt")[0].text: row.all("dd")[0].text for row in found.all("div")}
    assert (shared["workers"], float(shared["lam"]), shared["partition"]) == ("6", 1e-5, "sorted")
    assert not {"eta", "D", "until"} & set(shared)
    assert "Runs differ in eta, D, until: see" in root.text


SPECS = [
    task("digits").spec("lasg-wk2", seed=3),
    task("digits").spec("sgd", setting="homogeneous", iterations=7),
    task("breast-cancer").spec("qsgd", until={"loss": 0.25}),
    task("breast-cancer").spec("qsgd", until={"uploads": 90, "bits": 1e6}, iterations=50),
    task("breast-cancer").spec("laqsg-pse", partition="dirichlet", alpha=0.3, start="zero"),
    task("breast-cancer").spec("wk2+qsgd8:16+H3", optimizer="Adam", optimizer_options={"betas": [0.8, 0.9]}),
    task("digits").spec("local-sgd", schedule="StepLR", schedule_options={"step_size": 5}, watch=[1, 2], lam=0),
    task("digits").spec("sgd", partition="sizes", sizes=[100] * 10, evaluate="geometric", dtype="float64"),
]


class Caught(Exception):  # noqa: N818
    """Carries the specs that a command was about to run."""


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.label)
def test_the_command_of_a_run_gives_exactly_its_spec(
    tmp_path: Path, spec: Spec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def catch(specs: list[Spec], *rest: Any, **more: Any) -> None:
        raise Caught(specs)

    monkeypatch.setattr(commands, "execute", catch)
    (cells,) = run_rows(parsed(page.build([stored(tmp_path / "0", spec)])))
    (code,) = cells[4].all("code")
    first, *arguments = shlex.split(code.text)
    assert first == "lasg"
    with pytest.raises(Caught) as caught:
        main(arguments)
    assert caught.value.args[0] == [spec]


@pytest.mark.parametrize("name", ["plain", "with two spaces", "$(touch x)", "it's"])
def test_a_run_of_no_known_task_is_run_again_from_its_spec(tmp_path: Path, name: str) -> None:
    (cells,) = run_rows(parsed(page.build([made_up(tmp_path / name, small("sgd"), ROWS)])))
    (code,) = cells[4].all("code")
    saved = cells[4].all("a")[0].attributes["download"]
    assert shlex.split(code.text) == ["lasg", "run", saved]


def test_a_run_that_is_named_by_a_dot_still_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made_up(tmp_path / "mine", small("sgd"), ROWS)
    monkeypatch.chdir(tmp_path / "mine")
    (cells,) = run_rows(parsed(page.build(store.read_runs(Path()))))
    assert Path(cells[4].all("a")[0].attributes["download"]).stem not in {"", ".", ".toml"}


def test_the_versions_that_made_the_runs_and_draw_the_page_are_there(runs: list[Run], real: Node) -> None:
    (footer,) = real.all("footer")
    for name, version in runs[0].meta["versions"].items():
        assert f"{name} {version}" in footer.text
    assert re.search(r"plotly\.js \d+\.\d+\.\d+", footer.text)
    assert runs[0].meta["data_sha256"][:12] in footer.text
    (generator,) = [node for node in real.all("meta") if node.attributes.get("name") == "generator"]
    assert generator.attributes["content"] == f"lasg {lasg.__version__}"


def test_runs_of_two_versions_are_told_apart(tmp_path: Path) -> None:
    runs = [made_up(tmp_path / str(i), small("sgd", seed=i), ROWS) for i in range(2)]
    store.write_meta(runs[1].folder, {**runs[1].meta, "versions": {"lasg": "9.9.9"}})
    (footer,) = parsed(page.build([runs[0], store.read(runs[1].folder)])).all("footer")
    assert len([node for node in footer.all("p") if node.text.startswith("Runs made by")]) == 2
    assert "lasg 9.9.9" in footer.text


# -- the same runs give the same file --------------------------------------------------------------------------


def test_the_same_runs_give_the_same_bytes(runs: list[Run], tmp_path: Path) -> None:
    for i in range(2):
        page.write(tmp_path / f"{i}.html", [store.read(run.folder) for run in runs], network=SITES)
    assert (tmp_path / "0.html").read_bytes() == (tmp_path / "1.html").read_bytes()


def test_a_title_of_ones_own_or_the_problems_name(runs: list[Run]) -> None:
    assert parsed(page.build(runs[:1])).all("h1")[0].text == "small, sorted, 6 workers"
    assert parsed(page.build(runs[:1], title="Mine")).all("h1")[0].text == "Mine"
