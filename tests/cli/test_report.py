"""`linformer report`, `spectrum` and `heads` from the command line."""

from __future__ import annotations

import pytest

from linformer_kit.cli import main
from linformer_kit.measure.records import read_records

from ..evidence.analysis.test_heads import save_linformer
from ..evidence.analysis.test_spectrum import save_bert, text
from ..evidence.report.evidence import all_records, write_records

__all__ = ["text"]  # a fixture


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def test_a_report_prints_its_answer_and_where_it_is(capsys, tmp_path):
    records = write_records(tmp_path / "all.jsonl", all_records())
    page = tmp_path / "new" / "report.html"
    code, out, _ = run(capsys, "report", str(records), "--out", str(page), "--no-pictures")
    assert code == 0
    assert "4.0 times faster than today's fused attention" in out
    assert out.rstrip().endswith(f"The report is {page.resolve()}")
    assert not page.with_name("report-figures").exists()


def test_a_damaged_record_is_told_and_the_report_is_written(capsys, tmp_path):
    records = write_records(tmp_path / "all.jsonl", all_records())
    with records.open("a") as file:
        file.write('{"bench": "grid", "cel')
    page = tmp_path / "report.html"
    code, _, aside = run(capsys, "report", str(records), "--out", str(page), "--no-pictures")
    assert code == 0
    assert "not JSON" in aside
    assert "What could not be read" in page.read_text()


def test_nothing_to_report_is_one_line(capsys, tmp_path):
    code, _, aside = run(capsys, "report", str(tmp_path))
    assert code == 2
    assert "there is nothing to report" in aside


def test_spectrum_then_heads_leave_records_for_the_report(capsys, tmp_path, text):
    model, bert = save_linformer(tmp_path / "linformer"), save_bert(tmp_path / "bert")
    common = ["--text", str(text), "--length", "32", "--threads", "1", "--out"]
    out = str(tmp_path / "looks.jsonl")
    code, said, _ = run(capsys, "spectrum", str(bert), *common, out, "--pieces", "1")
    assert code == 0
    assert "suggested k" in said
    code, said, _ = run(capsys, "heads", str(model), *common, out)
    assert code == 0
    assert "heaviest" in said
    assert [record["kind"] for record in read_records(tmp_path / "looks.jsonl").records] == [
        "spectrum",
        "heads",
    ]


@pytest.mark.parametrize("command", ["spectrum", "heads"])
def test_a_text_that_is_not_there_is_one_line(capsys, tmp_path, command):
    code, _, aside = run(capsys, command, str(tmp_path), "--text", str(tmp_path / "no.txt"))
    assert code == 2
    assert "is no file. Give a file of plain text" in aside
