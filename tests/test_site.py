"""The documentation site: built without warnings, complete, and readable on a phone."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from .evidence.report.test_page import browser  # noqa: F401  (a fixture; playwright)

ROOT = Path(__file__).parents[1]


class Loaded(HTMLParser):
    """What a browser loads with a page."""

    def __init__(self) -> None:
        super().__init__()
        self.urls: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "video"):
            self.urls.append(values.get("src") or "")
        elif tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.urls.append(values.get("href") or "")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site: it builds without warnings."""
    for package in ("mkdocs", "material", "mkdocstrings", "mkdocstrings_handlers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: `make docs` installs and builds")
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    return folder


def pages_of(site: Path) -> list[Path]:
    return [page for page in site.rglob("*.html") if page.name != "report.html"]


def test_nothing_is_loaded_from_elsewhere(site):
    pages = pages_of(site)
    assert len(pages) > 20
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text(encoding="utf-8"))
        assert not [url for url in parser.urls if re.match(r"(https?:)?//", url)], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(?:url\(|@import)\s*['\"]?https?:", style.read_text("utf-8")), style
    reference = (site / "api/core.html").read_text(encoding="utf-8")
    for name in ("LinformerAttention", "resize_max_length", "num_kv_heads"):
        assert name in reference


def test_notebooks_are_pages_with_their_code_and_picture(site):
    notebooks = sorted((ROOT / "notebooks").glob("*.py"))
    overview = (site / "guides/notebooks.html").read_text(encoding="utf-8")
    for path in notebooks:
        page = (site / f"notebooks/{path.stem}.html").read_text(encoding="utf-8")
        (picture,) = set(re.findall(r'src="pictures/([\w-]+\.png)"', page))
        assert (site / "notebooks/pictures" / picture).is_file()
        assert "savefig" in page
        assert "jupytext" not in page
        assert f"../notebooks/{path.stem}.html" in overview
        assert picture in overview


TABLES = """() => [...document.querySelectorAll(".md-typeset table")].map(table => {
  const around = table.closest(".md-typeset__scrollwrap");
  around.scrollLeft = around.scrollWidth;
  const last = table.rows[0].cells[table.rows[0].cells.length - 1].getBoundingClientRect();
  return { wide: table.offsetWidth > around.clientWidth,
           reached: last.right <= innerWidth && around.scrollWidth >= table.offsetWidth };
})"""


def test_tables_keep_their_last_column(browser, site):  # noqa: F811
    page = browser.new_page()
    found = 0
    for path in pages_of(site):
        if "<table>" not in path.read_text(encoding="utf-8"):
            continue
        page.goto(path.as_uri(), wait_until="domcontentloaded")
        page.wait_for_selector(".md-typeset__scrollwrap", state="attached")
        for width in (1280, 390):
            page.set_viewport_size({"width": width, "height": 800})
            tables = page.evaluate(TABLES)
            assert all(table["reached"] for table in tables), path
            assert width < 1280 or not any(table["wide"] for table in tables), path
            assert page.evaluate("document.documentElement.scrollWidth") <= width, path
            found += len(tables)
    assert found > 100
    page.close()
