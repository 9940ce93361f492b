"""The pictures of README and docs show what the code says today: `make pictures` draws them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("plotly")
pytest.importorskip("datasets")

from docs._site.pictures import DOCS, REPORT, TEXTS, Texts, figures, report_page, texts

from linformer_kit.evidence.analysis.spectrum_view import in_words
from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.sections import answer, highlights
from linformer_kit.measure.records import read_records

KEPT = json.loads(TEXTS.read_text(encoding="utf-8"))
STALE = "a picture says what the code no longer says: run `make pictures` and look at it"


def test_the_picture_of_the_report_says_what_the_report_says(tmp_path):
    said = Texts(report_page(tmp_path)).found
    assert len(KEPT[REPORT]) > 15
    assert [text for text in KEPT[REPORT] if text not in said] == [], STALE


def test_the_texts_of_figures_are_those_that_are_drawn_today():
    assert {REPORT: KEPT[REPORT]} | {path: texts(one) for path, one in figures()} == KEPT, STALE


def test_the_report_of_the_results_says_what_the_records_say_today():
    said = Texts(DOCS / "results/report.html").found
    evidence = collect([DOCS / "results"])
    shown = [*answer(evidence), *(label for _, label in highlights(evidence))]
    assert [text for text in shown if text not in said] == [], STALE
    (spectrum,) = read_records(DOCS / "results/spectrum.jsonl")[0]
    page = (DOCS / "results/evidence.md").read_text(encoding="utf-8")
    assert in_words(spectrum) in " ".join(page.split())


def test_every_picture_of_a_page_is_made_by_a_command():
    root = DOCS.parent
    for page in (root / "README.md", *DOCS.rglob("*.md")):
        for link in re.findall(r"!\[[^]]*\]\(([^)]+\.png)\)", page.read_text(encoding="utf-8")):
            picture = Path(page.parent, link).resolve()
            assert picture.is_file(), link
            if "notebooks" not in picture.parts:  # `make notebooks` draws those
                assert picture.relative_to(DOCS).as_posix() in KEPT, link
