"""A report replaces a report, and nothing else."""

from __future__ import annotations

import os

import pytest

from linformer_kit.evidence.report.collect import collect
from linformer_kit.evidence.report.write import write_report

from .evidence import growth_records, write_records


@pytest.fixture
def evidence(tmp_path):
    return collect([write_records(tmp_path / "records" / "growth.jsonl", growth_records())])


def test_a_report_is_written_again(evidence, tmp_path):
    page = tmp_path / "report.html"
    first = write_report(evidence, page)
    second = write_report(evidence, page, title="again")
    assert first.pictures == second.pictures
    assert "<title>again</title>" in page.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {
        "records",
        "report.html",
        "report-figures",
    }
    assert len(list((tmp_path / "report-figures").iterdir())) == len(first.pictures)


@pytest.mark.parametrize("content", ["<html>my page</html>", "# notes", "\0\1\2"])
def test_a_file_of_something_else_is_refused_and_stays(evidence, tmp_path, content):
    page = tmp_path / "thesis.html"
    page.write_text(content)
    with pytest.raises(
        ValueError, match=r"thesis\.html exists and was not written by this command"
    ):
        write_report(evidence, page)
    assert page.read_text() == content
    assert not (tmp_path / "thesis-figures").exists()


@pytest.mark.parametrize("kind", ["folder", "pipe", "link to nothing", "device"])
def test_what_is_not_a_file_is_refused(evidence, tmp_path, kind):
    page = tmp_path / "page.html"
    if kind == "folder":
        page.mkdir()
    elif kind == "pipe":
        os.mkfifo(page)
    elif kind == "device":
        page.symlink_to("/dev/null")
    else:
        page.symlink_to(tmp_path / "nothing")
    with pytest.raises(ValueError, match="is not a regular file"):
        write_report(evidence, page)
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("kind", ["png", "svg"])
def test_pictures_of_something_else_are_refused_and_stay(evidence, tmp_path, kind):
    figures = tmp_path / "report-figures"
    figures.mkdir()
    mine = figures / f"growth-time.{kind}"
    mine.write_text("mine")
    (figures / "holiday.png").write_text("mine too")
    with pytest.raises(ValueError, match=rf"growth-time\.{kind} exists and was not written"):
        write_report(evidence, tmp_path / "report.html")
    assert mine.read_text() == "mine"
    assert not (tmp_path / "report.html").exists()
    mine.unlink()
    write_report(evidence, tmp_path / "report.html")
    assert (figures / "holiday.png").read_text() == "mine too"


def test_a_file_in_the_place_of_the_folder_of_pictures_is_refused(evidence, tmp_path):
    (tmp_path / "report-figures").write_text("mine")
    with pytest.raises(ValueError, match="report-figures is not a folder"):
        write_report(evidence, tmp_path / "report.html")
    assert (tmp_path / "report-figures").read_text() == "mine"


def test_a_kill_while_writing_leaves_the_old_page(evidence, tmp_path, monkeypatch):
    from pathlib import Path

    page = tmp_path / "report.html"
    write_report(evidence, page, title="first", pictures=False)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", killed)
    with pytest.raises(KeyboardInterrupt):
        write_report(evidence, page, title="second", pictures=False)
    assert "<title>first</title>" in page.read_text()
    assert {path.name for path in tmp_path.iterdir()} == {"records", "report.html"}
