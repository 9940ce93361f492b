"""The page in a real browser: every plot is drawn, nothing fails, nothing leaves the page."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

from linformer_kit.report.collect import collect
from linformer_kit.report.sections import sections
from linformer_kit.report.write import write_report

from .evidence import all_records, write_records, write_run

if TYPE_CHECKING:
    from pathlib import Path

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


def browser_path() -> str | None:
    named = os.environ.get("CHROMIUM")
    return named or next((found for name in BROWSERS if (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evidence")
    write_records(folder / "all.jsonl", all_records())
    write_run(folder / "vanilla", projection="full", perplexity=10.0, seconds=1.0)
    write_run(folder / "linformer", projection="linear", perplexity=10.1, seconds=0.5)
    evidence = collect([folder])
    names = [figure.name for section in sections(evidence) for figure in section.figures]
    return write_report(evidence, tmp_path_factory.mktemp("page") / "report.html"), names


@pytest.fixture(scope="module")
def browser():
    path = browser_path()
    if path is None:
        pytest.skip("no Chromium is installed; put one in the PATH, or name it in CHROMIUM")
    sync = pytest.importorskip("playwright.sync_api")
    with sync.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield running
        running.close()


def opened(browser, page_file: Path, **context):
    """The page, drawn, with everything it asked for and complained about."""
    page = browser.new_context(**context).new_page()
    requests: list[str] = []
    complaints: list[str] = []
    page.on("request", lambda request: requests.append(request.url))

    def listen(message):
        if message.type in ("error", "warning"):
            complaints.append(message.text)

    page.on("console", listen)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(page_file.as_uri())
    page.wait_for_selector("body[data-plots=drawn]", timeout=300_000)
    return page, requests, complaints


def test_every_plot_is_drawn_and_nothing_leaves_the_page(browser, written):
    report, names = written
    page, requests, complaints = opened(browser, report.page)
    assert complaints == []
    outside = [url for url in requests if not url.startswith(("data:", "blob:"))]
    assert outside == [report.page.as_uri()]
    assert len(names) == len(set(names)) >= 15
    for name in names:
        plot = page.locator(f"#plot-{name}")
        assert plot.locator("svg.main-svg").count() >= 1, name
        assert plot.bounding_box()["height"] > 200, name
        marks = plot.locator(".scatterlayer .trace, .heatmaplayer image, .barlayer .trace")
        assert marks.count() >= 1, name
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(browser, written, scheme):
    page, _, complaints = opened(browser, written[0].page, color_scheme=scheme)
    other = "light" if scheme == "dark" else "dark"
    assert page.locator("html").get_attribute("data-theme") == scheme
    background = "return getComputedStyle(document.body).backgroundColor"
    before = page.evaluate(f"() => {{ {background} }}")
    page.locator("button.theme").click()
    page.wait_for_selector(f"html[data-theme={other}]")
    assert page.evaluate(f"() => {{ {background} }}") != before
    assert complaints == []
    page.close()


def test_a_phone_needs_no_sideways_scrolling(browser, written):
    page, _, complaints = opened(browser, written[0].page, viewport={"width": 375, "height": 740})
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= 375
    assert complaints == []
    page.close()


def test_pointing_at_a_line_shows_its_value(browser, written):
    page, _, _ = opened(browser, written[0].page)
    plot = page.locator("#plot-grid-time")
    plot.scroll_into_view_if_needed()
    page.evaluate(
        "() => Plotly.Fx.hover(document.getElementById('plot-grid-time'),"
        " [{curveNumber: 0, pointNumber: 0}])"
    )
    assert "n = 512" in plot.locator(".hovertext").first.text_content()
    page.close()


def test_it_prints(browser, written, tmp_path):
    page, _, complaints = opened(browser, written[0].page)
    page.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    assert complaints == []
    page.close()


def test_each_figure_lies_beside_the_page(written):
    report, names = written
    folder = report.page.with_name("report-figures")
    assert {path.name for path in folder.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("png", "svg")
    }


def test_what_records_say_cannot_become_markup(written):
    text = written[0].page.read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert "a &lt;CPU&gt;" in text
    assert "<b>@0" not in text
