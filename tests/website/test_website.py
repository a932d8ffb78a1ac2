"""The built site, in a real browser: search without a network, no page wider than the screen. `make docs` builds it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.report.test_browser import browser as browser  # noqa: PLC0414 (a fixture)

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SITE = Path(__file__).resolve().parents[2] / "docs" / "_build" / "html"
if not (SITE / "index.html").is_file():
    pytest.skip("the site is not built: make docs", allow_module_level=True)
PAGES = sorted(path.stem for path in SITE.glob("*.html") if path.stem not in {"genindex", "search"})
WIDTHS = (1280, 390)


@pytest.fixture(params=[(width, scheme) for width in WIDTHS for scheme in ("light", "dark")], ids=str)
def look(request: pytest.FixtureRequest, browser: Browser) -> Iterator[Page]:
    width, scheme = request.param
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    asked: list[str] = []
    context.on("request", lambda one: asked.append(one.url))
    yield context.new_page()
    context.close()
    assert [url for url in asked if not url.startswith(("file:", "data:", "blob:"))] == [], "it works without a network"


def test_no_page_is_wider_than_the_screen_and_every_picture_loads(look: Page) -> None:
    wide, broken = [], []
    for name in PAGES:
        look.goto((SITE / f"{name}.html").as_uri())
        if look.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
            wide.append(name)
        if look.evaluate("[...document.querySelectorAll('article img')].some(image => !image.naturalWidth)"):
            broken.append(name)
    assert (wide, broken) == ([], [])


def contrast(look: Page, selector: str) -> float:
    """Return the contrast of a text with the page behind it, as WCAG defines it."""
    script = """selector => {
        const parts = text => text.match(/[\\d.]+/g).slice(0, 3).map(Number)
        const light = text => parts(text).map(v => v / 255)
            .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
            .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0)
        const own = light(getComputedStyle(document.querySelector(selector)).color)
        const back = light(getComputedStyle(document.body).backgroundColor)
        return (Math.max(own, back) + 0.05) / (Math.min(own, back) + 0.05)
    }"""
    return float(look.evaluate(script, selector))


def test_text_and_links_can_be_read(look: Page) -> None:
    look.goto((SITE / "index.html").as_uri())
    assert contrast(look, "article p") > 7
    assert contrast(look, "article p a, article li a") > 4.5


def test_search_finds_a_setting_a_command_and_a_word_without_a_network(look: Page) -> None:
    for word, page in (("inner_memory", "keys"), ("picture", "commands"), ("staleness", "glossary"), ("lazy", "api")):
        look.goto(f"{(SITE / 'search.html').as_uri()}?q={word}")
        look.wait_for_selector("#search-results li a", timeout=10_000)
        look.wait_for_function("document.querySelector('#search-results .search-summary')?.textContent.match(/found/)")
        found = look.eval_on_selector_all("#search-results li a", "links => links.map(link => link.href)")
        assert any(f"{page}.html" in link for link in found), (word, found)


def test_a_wide_table_scrolls_inside_its_box(look: Page) -> None:
    look.goto((SITE / "demo.html").as_uri())
    box, table = look.evaluate("(box => [box.clientWidth, box.scrollWidth])(document.querySelector('.table-wrapper'))")
    narrow = look.viewport_size is not None and look.viewport_size["width"] == min(WIDTHS)
    assert (table > box) >= narrow
    assert look.evaluate("getComputedStyle(document.querySelector('.table-wrapper')).overflowX") == "auto"


def test_every_part_of_the_reference_is_there() -> None:
    import lasg

    api = (SITE / "api.html").read_text(encoding="utf-8")
    assert [name for name in lasg.__all__[1:] if f'id="lasg.{name}"' not in api] == []
    commands = (SITE / "commands.html").read_text(encoding="utf-8")
    assert all(f'id="lasg-{name}"' in commands for name in ("run", "compare", "watch", "scoreboard", "flower-new"))
    assert 'id="term-Innovation"' in (SITE / "glossary.html").read_text(encoding="utf-8") or "Innovation" in (
        SITE / "glossary.html"
    ).read_text(encoding="utf-8")
