"""Cells: measured once, measured again where the machine or a setting differs, with time left."""

from __future__ import annotations

from linformer_kit.measure.cells import Cell, Remaining, latest, left_to_measure, measure_cells

MACHINE = {"cpu": "a CPU", "threads": 2, "torch": "2", "seed": 0, "time": "now"}


def cell(n: int, ran: list[int] | None = None) -> Cell:
    def run(say):
        say("running")
        if ran is not None:
            ran.append(n)
        return [{"best": float(n)}]

    return Cell(name=f"n {n}", settings={"n": n, "ks": [1, 2]}, work=float(n), run=run)


def test_a_finished_cell_is_not_measured_again():
    ran: list[int] = []
    cells = [cell(1, ran), cell(2, ran), cell(3, ran)]
    records = list(measure_cells("grid", cells[:2], machine=MACHINE))
    left = left_to_measure("grid", cells, records, {**MACHINE, "time": "later"})
    assert [one.name for one in left] == ["n 3"]
    list(measure_cells("grid", left, machine=MACHINE))
    assert ran == [1, 2, 3]


def test_another_machine_setting_or_benchmark_is_measured():
    records = list(measure_cells("grid", [cell(1)], machine=MACHINE))
    assert left_to_measure("grid", [cell(1)], records, {**MACHINE, "cpu": "another"})
    assert left_to_measure("grid", [cell(1)], records, {**MACHINE, "threads": 1})
    assert left_to_measure("budget", [cell(1)], records, MACHINE)
    assert left_to_measure("grid", [cell(2)], records, MACHINE)


def test_records_of_others_are_no_cells():
    others = [{"bench": "growth", "length": 1}, {"kind": "spectrum"}, {"bench": "grid", "cell": 3}]
    assert len(left_to_measure("grid", [cell(1)], others, MACHINE)) == 1
    assert latest(others, "grid") == []


def test_what_was_measured_again_replaces_the_old():
    old, new = ({"bench": "grid", "cell": {"n": 1}, "results": [time]} for time in (1, 2))
    assert latest([old, new], "grid") == [new]


def test_progress_tells_number_name_and_time_left():
    said: list[str] = []
    list(measure_cells("grid", [cell(1), cell(2)], machine=MACHINE, say=said.append))
    assert said[1] == "1 of 2: n 1: running"
    assert said[-1].startswith("2 of 2 (about 1 s left): n 2")


def test_time_left_follows_the_work():
    now = [0.0]
    clock = Remaining([1.0, 3.0, 6.0], now=lambda: now[0])
    assert clock.in_words() == ""
    now[0] = 20.0
    clock.finish_one()
    assert clock.seconds() == 180.0
    assert clock.in_words() == " (about 3 min left)"
