"""Records that cannot be shown are named and left out; those beside them are shown."""

from __future__ import annotations

import copy
import json
import random

import pytest

from linformer_kit.evidence.report.collect import Evidence, collect
from linformer_kit.evidence.report.sections import sections
from linformer_kit.evidence.report.usable import usable
from linformer_kit.evidence.report.write import write_report

from .evidence import all_records, growth_records, write_lines, write_run

WRONG = ["text", None, [], {}, float("nan"), float("inf"), 10**400, -1, 0, [["x"]], True]


def places(value, path=()):
    """Where in a record a value stands."""
    inside = value.items() if isinstance(value, dict) else enumerate(value)
    for key, one in inside:
        yield (*path, key)
        if isinstance(one, (dict, list)):
            yield from places(one, (*path, key))


def changed(record, place, value):
    record = copy.deepcopy(record)
    inner = record
    for key in place[:-1]:
        inner = inner[key]
    if value is KeyError:
        del inner[place[-1]]
    else:
        inner[place[-1]] = value
    return record


def test_good_records_are_all_usable():
    evidence = Evidence(records=all_records())
    assert usable(evidence) is evidence
    for record in all_records():  # as an interrupted measurement leaves them
        assert usable(Evidence(records=[record])).problems == []


@pytest.mark.parametrize("number", range(len(all_records())))
def test_a_record_without_a_key_is_left_out_and_named(tmp_path, number):
    record = all_records()[number]
    draw = random.Random(number)
    for place in draw.sample(list(places(record)), min(12, len(list(places(record))))):
        write_lines(tmp_path / "a.jsonl", [*growth_records(), changed(record, place, KeyError)])
        found = usable(collect([tmp_path / "a.jsonl"]))
        assert any(section.name == "growth" for section in sections(found))
        for problem in found.problems:
            assert str(tmp_path / "a.jsonl") in problem
            assert "left out" in problem


def test_wrong_values_anywhere_never_end_a_report(tmp_path):
    draw = random.Random(1)
    records = []
    for record in all_records():
        for place in draw.sample(list(places(record)), min(10, len(list(places(record))))):
            records.append(changed(record, place, draw.choice(WRONG)))
    draw.shuffle(records)
    write_lines(tmp_path / "a.jsonl", [*growth_records(), *records])
    report = write_report(collect([tmp_path]), tmp_path / "page.html", pictures=False)
    text = report.page.read_text()
    assert "What could not be read" in text
    assert len(report.evidence.records) > len(growth_records())
    drawings = text.partition('id="drawings">')[2].partition("</script>")[0]
    json.loads(drawings, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_figure_that_cannot_be_drawn_is_left_out(tmp_path):
    records = [{**record, "best": "fast"} for record in growth_records()]
    write_lines(tmp_path / "a.jsonl", records)
    write_run(tmp_path / "run", projection="full", perplexity=10.0)
    report = write_report(collect([tmp_path]), tmp_path / "page.html", pictures=False)
    assert report.evidence.problems
    assert "run (vanilla)" in report.page.read_text()


def test_nothing_but_damaged_records_is_an_error(tmp_path):
    write_lines(tmp_path / "a.jsonl", [{"kind": "spectrum"}])
    with pytest.raises(ValueError, match=r"nothing to report: .*a record of spectrum is damaged"):
        write_report(collect([tmp_path]), tmp_path / "page.html")
    assert not (tmp_path / "page.html").exists()
