"""The report in a real browser: Debian's chromium, headless, through playwright."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from lasg.report import page as pages
from lasg.runs.store import Run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
REQUIRED = "LASG_REQUIRE_BROWSER"
"""Set where the browser must be there, as in CI: then its absence fails."""


def unavailable(reason: str) -> None:
    if os.environ.get(REQUIRED):
        pytest.fail(f"{reason}, and {REQUIRED} is set")
    pytest.skip(reason)


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        unavailable("no chromium on this machine: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        unavailable("playwright is not installed: pip install 'lasg[dev]'")
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield started
        started.close()


@pytest.fixture(scope="module")
def report(runs: list[Run], tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "report.html"
    pages.write(path, runs)
    return path


Open = Callable[..., "Page"]


@pytest.fixture
def opened(browser: "Browser", report: Path) -> Iterator[Open]:
    """Give a function that opens the report from disk; in the end, nothing was complained of and nothing fetched."""
    complaints: list[str] = []
    contexts = []

    def visit(width: int = 1280, height: int = 900, scheme: Any = "light", path: Path = report) -> "Page":
        context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: complaints.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        local = ("data:", "blob:", path.as_uri())
        page.on("request", lambda request: None if request.url.startswith(local) else complaints.append(request.url))
        page.goto(path.as_uri())
        page.wait_for_selector("#chart .scatterlayer .trace")
        return page

    yield visit
    for context in contexts:
        context.close()
    assert not complaints


def curves(page: "Page") -> Any:
    """Return what Plotly drew: name, x, y of each mean curve."""
    return page.evaluate(
        "document.getElementById('chart').data.filter(t => t.meta === 'mean')"
        ".map(t => ({name: t.name, x: t.x, y: t.y}))"
    )


def test_it_opens_from_disk_with_twelve_curves_and_a_table(opened: Open) -> None:
    page = opened()
    assert len(curves(page)) == 12
    assert page.locator("#savings tbody tr").count() == 12
    assert page.locator("#savings td.best").count() >= 8
    assert "fewer uploads" in page.inner_text("#summary")


def test_the_axis_switch_changes_the_curve(opened: Open) -> None:
    page = opened()
    seen = {}
    for axis in pages.AXES:
        page.select_option("#x", axis)
        found = next(curve for curve in curves(page) if curve["name"] == "lasg-wk2")
        seen[axis] = found["x"]
        title = page.locator("#chart .xtitle").text_content()
        assert title is not None
        assert title.startswith(pages.AXES[axis])
    assert len({tuple(x) for x in seen.values()}) == len(pages.AXES)


def test_the_network_switch_changes_the_seconds_and_shows_only_with_them(opened: Open) -> None:
    page = opened()
    assert not page.locator("#network").is_visible()
    page.select_option("#x", "seconds")
    assert page.locator("#network").is_visible()
    page.select_option("#network", "datacenter")
    fast = curves(page)[0]["x"][-1]
    page.select_option("#network", "lora")
    slow = curves(page)[0]["x"][-1]
    assert slow > 1000 * fast


def test_seconds_are_never_written_as_thousandths(opened: Open) -> None:
    page = opened()
    page.select_option("#x", "seconds")
    page.select_option("#network", "datacenter")
    ticks = page.locator("#chart .xtick text").all_text_contents()
    assert ticks
    assert all(re.fullmatch(r"[\d.]+", tick) for tick in ticks), ticks


def test_a_toggle_hides_one_algorithm_and_brings_it_back(opened: Open) -> None:
    page = opened()
    box = page.get_by_label("lag-wk", exact=True)
    box.uncheck()
    names = [curve["name"] for curve in curves(page)]
    assert "lag-wk" not in names
    assert len(names) == 11
    assert "11 of 12 algorithms" in page.inner_text("#chart-text")
    box.check()
    assert len(curves(page)) == 12
    page.click("#none")
    assert curves(page) == []
    page.click("#all")
    assert len(curves(page)) == 12


def test_log_and_linear_axes(opened: Open) -> None:
    page = opened()

    def kinds() -> Any:
        return page.evaluate("(l => [l.xaxis.type, l.yaxis.type])(document.getElementById('chart')._fullLayout)")

    assert kinds() == ["log", "log"]
    page.uncheck("#xlog")
    page.uncheck("#ylog")
    assert kinds() == ["linear", "linear"]


def test_test_accuracy_can_be_drawn_and_every_seed(opened: Open) -> None:
    page = opened()
    page.select_option("#y", "accuracy")
    assert all(0 <= y <= 100 for curve in curves(page) for y in curve["y"])
    before = page.evaluate("document.getElementById('chart').data.length")
    page.check("#every")
    assert page.evaluate("document.getElementById('chart').data.length") == before + 24


def test_values_are_shown_on_hover(opened: Open) -> None:
    page = opened()
    page.click("#none")
    page.get_by_label("sgd", exact=True).check()
    page.uncheck("#band")
    box = page.locator("#chart .scatterlayer .trace .points path").last.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.wait_for_selector("#chart .hoverlayer .hovertext")
    text = page.locator("#chart .hoverlayer .hovertext").text_content() or ""
    assert "sgd" in text
    assert "uploads" in text
    assert "loss" in text


def test_values_can_be_read_by_keyboard(opened: Open) -> None:
    page = opened()
    page.focus("#chart")
    for key in ("ArrowDown", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    name, x, y = page.evaluate(
        "(t => [t.name, t.x[2], t.y[2]])(document.getElementById('chart').data.filter(t => t.meta === 'mean')[1])"
    )
    said = page.inner_text("#chart-point").replace(",", "")
    assert name == "lag-wk"
    assert said.startswith(f"lag-wk: uploads {x:g} loss")
    assert float(said.split()[-1]) == pytest.approx(y, rel=5e-4)
    page.wait_for_selector("#chart .hoverlayer .hovertext")
    page.focus("#x")
    assert page.inner_text("#chart-point") == ""


def luminance(colour: str) -> float:
    """Return the relative luminance of rgb(...), as WCAG defines it."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    bright, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (bright + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_and_curves_stand_out_from_the_ground_in_light_and_dark(opened: Open, scheme: str) -> None:
    page = opened(scheme=scheme)
    ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (luminance(ground) > 0.5) == (scheme == "light")
    for selector in ("body", "#summary", ".small", "footer"):
        text = page.evaluate("s => getComputedStyle(document.querySelector(s)).color", selector)
        assert contrast(text, ground) >= 4.5, selector
    best = page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.querySelector('td.best')))")
    assert contrast(*best) >= 4.5
    tick = page.evaluate("getComputedStyle(document.querySelector('#chart .xtick text')).fill")
    assert contrast(tick, ground) >= 4.5
    drawn = page.evaluate(
        "[...document.querySelectorAll('#chart .trace .lines path')].filter(e => parseFloat(e.style.strokeWidth) > 1)"
        ".map(e => getComputedStyle(e).stroke)"
    )
    assert len(drawn) == 12
    assert all(contrast(stroke, ground) >= 3 for stroke in drawn)


def test_the_theme_button_goes_from_auto_to_light_to_dark(opened: Open) -> None:
    page = opened()
    seen = []
    for _ in range(3):
        page.click("#theme")
        seen.append(page.evaluate("document.documentElement.dataset.theme"))
    assert seen == ["light", "dark", "light"]


def test_every_control_is_reached_and_worked_by_keyboard(opened: Open) -> None:
    page = opened()
    reached = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.dataset.series || ''"))
    assert {"theme", "x", "y", "xlog", "ylog", "band", "every", "all", "none"} <= reached
    assert {"raster-series", "raster-length", "raster-from", *map(str, range(12))} <= reached
    page.focus("#keys input[data-series='0']")
    page.keyboard.press("Space")
    assert len(curves(page)) == 11
    page.focus("#raster-from")
    page.keyboard.press("ArrowRight")
    page.focus("#theme")
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_the_raster_shows_the_uploads_of_the_run(opened: Open, runs: list[Run]) -> None:
    page = opened()
    page.select_option("#raster-series", label="lasg-wk2")
    dots = page.evaluate("(t => t.x.map((x, i) => [x, t.y[i]]))(document.getElementById('raster').data[0])")
    run = next(run for run in runs if run.spec.algorithm == "lasg-wk2" and run.spec.seed == 0)
    expected = {(int(k), int(m)) for k, m in zip(*run.uploads[:200].nonzero(), strict=True)}
    assert {tuple(dot) for dot in dots} == expected
    assert len(dots) == len(expected)


@pytest.mark.parametrize("width", [1280, 390])
def test_nothing_sticks_out_of_the_page(opened: Open, width: int) -> None:
    page = opened(width=width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.locator("#chart").bounding_box()["width"] <= width  # type: ignore[index]


def test_printed_pages_are_light_and_no_curve_is_cut_off(opened: Open) -> None:
    page = opened(scheme="dark")
    before = page.evaluate("document.getElementById('chart')._fullLayout.width")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "light"
    assert page.evaluate("document.getElementById('chart')._fullLayout.width") <= 700
    assert page.evaluate("document.querySelector('#runs').open")
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    assert page.pdf(format="A4").startswith(b"%PDF")
    page.select_option("#x", "iterations")
    assert page.evaluate("document.getElementById('chart')._fullLayout.width") == before > 1000


def test_the_spec_that_a_link_saves_is_the_runs(opened: Open, runs: list[Run]) -> None:
    page = opened()
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    with page.expect_download() as download:
        page.locator("#runs a[download]").first.click()
    assert download.value.path().read_text(encoding="utf-8") == runs[0].spec.to_toml()
