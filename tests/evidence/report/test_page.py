"""The page in a real browser: every plot is drawn, nothing fails, nothing leaves the page."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from urllib.parse import unquote, urlparse
from xml.etree import ElementTree as ET

import pytest

from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.sections import sections
from linformer_kit.evidence.report.write import write_report

from .evidence import (
    all_records,
    growth_records,
    heads_record,
    spectrum_record,
    write_lines,
    write_records,
    write_run,
)

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


OVERLAPS = """() => {
  const found = [];
  for (const plot of document.querySelectorAll(".plot")) {
    const bar = plot.querySelector(".modebar");
    const inside = plot.querySelectorAll(".legend, .main-svg, .colorbar");
    if (!bar || !inside.length) continue;
    const a = bar.getBoundingClientRect();
    for (const element of inside) {
      const b = element.getBoundingClientRect();
      const apart = a.right <= b.left || b.right <= a.left || a.bottom <= b.top + 1
        || b.bottom <= a.top;
      if (!apart) found.push(plot.id + " " + element.getAttribute("class"));
    }
  }
  return found;
}"""


@pytest.mark.parametrize("width", [1280, 390])
def test_the_toolbar_covers_nothing_of_a_plot(browser, written, width):
    page, _, _ = opened(browser, written[0].page, viewport={"width": width, "height": 800})
    assert page.locator(".modebar").count() >= 15
    buttons = page.locator("#plot-grid-time .modebar-btn").all()
    titles = {button.get_attribute("data-title") for button in buttons}
    assert "Download plot as a PNG" in titles
    assert not any("hare" in title or "loud" in title for title in titles)  # nothing is uploaded
    assert page.evaluate(OVERLAPS) == []
    page.close()


def test_a_phone_shows_the_scores_of_runs_and_whole_names_in_legends(browser, tmp_path):
    long = "a run of the first look with a name that is longer than a phone is wide"
    for name, projection in (("vanilla", "full"), (long, "linear")):
        write_run(tmp_path / "runs" / name, projection=projection, perplexity=10.0)
    report = write_report(collect([tmp_path / "runs"]), tmp_path / "report.html", pictures=False)
    page, _, _ = opened(browser, report.page, viewport={"width": 390, "height": 800})
    table = page.locator("#runs .scroll").bounding_box()
    for column in range(4):  # name, n, time and the first score
        for row in page.locator("#runs tr").all():
            cell = row.locator("th, td").nth(column).bounding_box()
            assert cell["x"] + cell["width"] <= table["x"] + table["width"] + 1
    plot = page.locator("#plot-runs-loss").bounding_box()
    for text in page.locator("#plot-runs-loss .legendtext").all():
        box = text.bounding_box()
        assert plot["x"] <= box["x"] <= box["x"] + box["width"] <= plot["x"] + plot["width"]
    inside = "() => document.getElementById('plot-runs-loss')._fullLayout._size.h"
    assert page.evaluate(inside) > 150  # the legend does not take the place of the plot
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_large_values_of_a_heat_map_stand_out_in_both_themes(browser, written, scheme):
    page, _, _ = opened(browser, written[0].page, color_scheme=scheme)
    flipped = page.evaluate(
        "() => [...document.querySelectorAll('.plot')].flatMap(plot => plot.data)"
        ".filter(trace => trace.type === 'heatmap').map(trace => [trace.zmid, trace.reversescale])"
    )
    assert len(flipped) > 3
    for middle, reverse in flipped:
        assert bool(reverse) == (scheme == "dark" and middle is None)
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


HOSTILE = [
    "<script>window.hacked = 1</script>",
    '"><img src=x onerror="window.hacked = 1">',
    "</script><script>window.hacked = 1</script>",
    "<a href='javascript:window.hacked = 1'>press</a><b>bold</b>",
    "<svg onload='window.hacked = 1'>",
    "%{x} ${x} $x^2$ &lt;b&gt; &amp;",
    "_underscore 🙂 \u05e9\u05dc\u05d5\u05dd \u202egnirts",
    "\x1b[31m\x00 \ud800",
]


def hostile_evidence(folder):
    """Hostile text wherever a record or a run can hold text."""
    everything = " ".join(HOSTILE)
    machine = {"machine": {"cpu": everything, "commit": everything}}
    spectra = [{**spectrum_record(), **machine, "model": text} for text in HOSTILE[2:4]]
    tokens = [{**heads_record()["rows"][0]["tokens"][0], "text": text} for text in HOSTILE]
    rows = [{**heads_record()["rows"][0], "tokens": tokens}]
    about = {"model": everything, "projection": everything, "sharing": everything, "rows": rows}
    growth = [{**record, **machine} for record in growth_records()]
    write_lines(folder / "a.jsonl", [*growth, *spectra, {**heads_record(), **machine, **about}])
    for text in HOSTILE:
        name = text.replace("/", "\u2215").replace("\0", "").encode(errors="replace").decode()
        run = write_run(folder / name, projection=text, perplexity=10.0)
        (run / "environment.json").write_text(json.dumps(machine["machine"]))
    (folder / "<img src=x onerror=hacked>.jsonl").write_text("damaged <img src=x onerror=1>")
    return collect([folder])


def test_hostile_names_are_shown_as_text_and_no_script_runs(browser, tmp_path):
    evidence = hostile_evidence(tmp_path / "evidence")
    out = tmp_path / "javascript:window.hacked = 1; <b> #?%41.html"
    report = write_report(evidence, out, title=HOSTILE[2], pictures=True)
    page = browser.new_context().new_page()
    dialogs, complaints = [], []
    page.on("dialog", lambda dialog: (dialogs.append(dialog.message), dialog.dismiss()))
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(report.page.as_uri())
    page.wait_for_selector("body[data-plots=drawn]", timeout=300_000)
    assert page.evaluate("() => window.hacked") is None
    assert page.locator("img, iframe, object, embed, svg a, a[href^='javascript']").count() == 0
    assert page.title() == HOSTILE[2]
    assert page.locator("h1").text_content() == HOSTILE[2]
    legend = page.locator("#plot-runs-loss .legendtext").all_text_contents()
    shown = [text.replace("\xa0", " ") for text in legend]
    for text in HOSTILE[:5]:
        assert any(text.replace("/", "\u2215") in one for one in shown), text
        assert text in page.locator("main").inner_text()
    assert any(HOSTILE[5] in one for one in shown)
    for link in page.locator("figcaption a").all()[:4]:
        link_target = link.evaluate("link => link.href")
        assert link_target.startswith(report.page.parent.as_uri())
        assert Path(unquote(urlparse(link_target).path)).is_file()
    page.evaluate(
        "() => Plotly.Fx.hover(document.getElementById('plot-runs-loss'),"
        " [{curveNumber: 0, pointNumber: 0}])"
    )
    page.locator("figcaption a").first.click(modifiers=["Control"])
    assert page.evaluate("() => window.hacked") is None
    assert dialogs == []
    assert complaints == []
    for path in report.pictures:
        if path.suffix == ".svg":
            ET.parse(path)  # well formed
    page.close()


def test_the_machine_is_named_once_a_section(written):
    text = written[0].page.read_text(encoding="utf-8").partition("<footer>")[0]
    for section in text.split("<section ")[1:]:
        assert section.count("torch 2.13") == section.count("Measured on a &lt;CPU&gt;") <= 1
    assert text.count("Measured on a &lt;CPU&gt;") >= 8


def test_what_records_say_cannot_become_markup(written):
    text = written[0].page.read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert "a &lt;CPU&gt;" in text
    assert "<b>@0" not in text
