"""`make pictures`: the pictures of the README and the documentation, drawn from kept records.

No model runs. The texts in each picture are kept in `docs/pictures/texts.json`; a test compares
them with what the code says today, so a picture cannot go on saying what the report no longer says.
"""

from __future__ import annotations

import json
import tempfile
from html.parser import HTMLParser
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

from linformer_kit.compare.plots import plots
from linformer_kit.evidence.analysis import needle_view
from linformer_kit.evidence.bench.results import GROWTH
from linformer_kit.evidence.figures.figure import BarChart, HeatMap, Panels
from linformer_kit.evidence.figures.pictures import pictures
from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.verdict import groups_of
from linformer_kit.evidence.report.write import write_report
from linformer_kit.measure.records import read_records

if TYPE_CHECKING:
    from collections.abc import Iterator

    from linformer_kit.evidence.figures.figure import Figure

DOCS = Path(__file__).parents[1]
TEXTS = DOCS / "pictures/texts.json"
# What `make run` trained and looked into, and the speed of a machine without other work.
SHOWN_RECORDS = ["pictures/first-look", "results/grid.jsonl", "results/growth.jsonl"]
REPORT = "pictures/report.png"
SIZE = {"width": 1280, "height": 1400}  # of the part of the report that is shown
NEEDLES = {"minilm-512": "original", "minilm-4k": "converted", "runs/needle-embed": "tuned"}

# The texts of the elements that lie in the picture as a whole.
SHOWN = """height => [...document.querySelectorAll("h1, .answer p, dt, dd, nav a, h2, .lead, h3")]
  .filter(each => each.getBoundingClientRect().bottom <= height)
  .map(each => each.textContent)"""


def figures() -> Iterator[tuple[str, Figure | Panels]]:
    """The figures by the paths of their pictures."""
    results = DOCS / "results"
    growth, _ = read_records(results / "growth.jsonl")
    (time, *_) = GROWTH.figures(growth)
    yield f"pictures/{time.name}.png", time
    books, _ = read_records(results / "books-2048.jsonl")
    for panels in plots(groups_of(books)):
        yield f"results/books-2048-{panels.name}.png", panels
    needles, _ = read_records(results / "needle.jsonl")
    for record in needles:
        (_, needle) = needle_view.figures(record)
        yield f"results/needle-{NEEDLES[record['model']]}.png", needle


def texts(figure: Figure | Panels) -> list[str]:
    """Every text in the picture of a figure."""
    if isinstance(figure, Panels):
        return list(dict.fromkeys(text for chart in figure.charts for text in texts(chart)))
    found = [figure.title]
    if isinstance(figure, BarChart):
        found += [figure.value.title, *figure.categories, *(one.name for one in figure.groups)]
        return found
    found += [figure.x.title, figure.y.title]
    if isinstance(figure, HeatMap):
        return [*found, figure.unit, *figure.columns, *figure.rows, *sum(figure.labels, ())]
    return [text for text in (*found, *(line.name for line in figure.lines)) if text]


def report_page(folder: Path) -> Path:
    """The report that the README shows."""
    evidence = collect([DOCS / path for path in SHOWN_RECORDS])
    return write_report(evidence, folder / "report.html", pictures=False).page


class Texts(HTMLParser):
    """The texts of a page, without its scripts."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(page.read_text(encoding="utf-8").partition("<script")[0])

    def handle_data(self, data: str) -> None:
        self.found.append(data)


def draw_report(browser_path: str) -> tuple[bytes, list[str]]:
    """The top of the report as Chromium draws it, and the texts there."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE, color_scheme="light")
        page.goto(report_page(Path(folder)).as_uri())
        page.wait_for_selector("body[data-plots=drawn]")
        image, shown = page.screenshot(), page.evaluate(SHOWN, SIZE["height"])
        browser.close()
    small = BytesIO()
    Image.open(BytesIO(image)).quantize(128, dither=Image.Dither.NONE).save(small, "png")
    return small.getvalue(), shown


def main() -> None:
    from tests.evidence.report.test_page import browser_path

    found = browser_path()
    if found is None:
        raise SystemExit("no Chromium is installed; put one in the PATH, or name it in CHROMIUM")
    kept: dict[str, list[str]] = {}
    data, kept[REPORT] = draw_report(found)
    (DOCS / REPORT).write_bytes(data)
    for path, figure in figures():
        (picture,) = pictures(figure, ["png"]).values()
        (DOCS / path).write_bytes(picture)
        kept[path] = texts(figure)
    TEXTS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_report(collect([DOCS / "results"]), DOCS / "results/report.html", pictures=False)
    for path in [*kept, "results/report.html"]:
        print(f"docs/{path}")


if __name__ == "__main__":
    main()
