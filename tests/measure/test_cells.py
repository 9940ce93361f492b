"""Cells: measured once, measured again where the machine or a setting differs, with time left."""

from __future__ import annotations

import json

from linformer_kit.measure.cells import Cell, measure_cells, records_of, time_left, unfinished

MACHINE = {"cpu": "a CPU", "threads": 2, "torch": "2", "seed": 0, "time": "now"}


def cell(n: int, ran: list[int] | None = None) -> Cell:
    def run(say, earlier):
        say("running")
        if ran is not None:
            ran.append(n)
        return [{"best": float(n), "earlier": len(earlier)}, {"best": 2.0 * n}]

    variants = [{"model": "a"}, {"model": "b"}]
    return Cell(
        name=f"n {n}", settings={"n": n, "ks": (1, 2)}, variants=variants, work=float(n), run=run
    )


def test_records_are_flat_and_hold_settings_variant_results_and_machine():
    first, second = measure_cells("grid", [cell(3)], machine=MACHINE)
    settings = {"bench": "grid", "n": 3, "ks": [1, 2], "machine": MACHINE}
    assert first == {**settings, "model": "a", "best": 3.0, "earlier": 0}
    assert second == {**settings, "model": "b", "best": 6.0}


def test_records_are_found_before_and_after_they_were_written():
    records = list(measure_cells("grid", [cell(1), cell(2)], machine=MACHINE))
    written = [json.loads(json.dumps(record)) for record in records]
    for known in (records, written):
        assert records_of("grid", [cell(2)], known) == known[2:]
        assert unfinished("grid", [cell(1), cell(2)], known, MACHINE) == []


def test_a_finished_cell_is_not_measured_again():
    ran: list[int] = []
    cells = [cell(1, ran), cell(2, ran), cell(3, ran)]
    records = list(measure_cells("grid", cells[:2], machine=MACHINE))
    left = unfinished("grid", cells, records, {**MACHINE, "time": "later"})
    assert [one.name for one in left] == ["n 3"]
    list(measure_cells("grid", left, machine=MACHINE))
    assert ran == [1, 2, 3]


def test_a_cell_that_lacks_the_record_of_a_variant_is_measured_again():
    records = list(measure_cells("grid", [cell(1)], machine=MACHINE))
    assert unfinished("grid", [cell(1)], records, MACHINE) == []
    assert len(unfinished("grid", [cell(1)], records[:1], MACHINE)) == 1


def test_another_machine_setting_or_benchmark_is_measured():
    records = list(measure_cells("grid", [cell(1)], machine=MACHINE))
    assert unfinished("grid", [cell(1)], records, {**MACHINE, "cpu": "another"})
    assert unfinished("grid", [cell(1)], records, {**MACHINE, "threads": 1})
    assert unfinished("budget", [cell(1)], records, MACHINE)
    assert unfinished("grid", [cell(2)], records, MACHINE)


def test_records_of_others_are_not_used():
    others = [{"bench": "growth", "n": 1}, {"kind": "spectrum"}, {"bench": "grid", "machine": 3}]
    assert len(unfinished("grid", [cell(1)], others, MACHINE)) == 1
    assert records_of("grid", [cell(1)], others) == []


def test_a_cell_sees_the_records_before_it():
    records = list(measure_cells("grid", [cell(1), cell(2)], machine=MACHINE))
    assert [record.get("earlier") for record in records] == [0, None, 2, None]
    more = list(measure_cells("grid", [cell(3)], machine=MACHINE, earlier=records))
    assert more[0]["earlier"] == 4


def test_progress_tells_number_name_and_time_left():
    said: list[str] = []
    list(measure_cells("grid", [cell(1), cell(2)], machine=MACHINE, say=said.append))
    assert said[1] == "1 of 2: n 1: running"
    assert said[-1].startswith("2 of 2 (about 1 s left): n 2")


def test_time_left_follows_the_work():
    assert time_left(20.0, [1.0, 3.0, 6.0], 0) == ""
    assert time_left(20.0, [1.0, 3.0, 6.0], 1) == " (about 3 min left)"
    assert time_left(20.0, [1.0, 3.0, 1.0], 2) == " (about 5 s left)"
