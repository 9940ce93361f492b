"""`bench decode`: the state of Linformer has one size, the cache of vanilla grows."""

from __future__ import annotations

import torch

from linformer_kit.bench.decode import DecodeBench, build, cells, generate, state_at
from linformer_kit.bench.decode_view import figures, sheets
from linformer_kit.measure.cells import measure_cells

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}
TINY = DecodeBench(
    contexts=(64, 256), dim=16, num_heads=2, depth=1, k=4, window=8, steps=2, rounds=1, threads=1
)


def test_states_stand_where_they_should():
    sizes = {}
    for kind in ("linformer", "vanilla"):
        decoder = build(kind, seed=0, sizes=TINY.sizes)
        for context in TINY.contexts:
            state = state_at(decoder, context, batch=1)
            assert state.position.tolist() == [context]
            sizes[kind, context] = state.nbytes
            assert torch.isfinite(generate(decoder, state, 2)()).all()
    assert sizes["linformer", 64] == sizes["linformer", 256]
    assert sizes["vanilla", 256] == 4 * (sizes["vanilla", 64] - 8) + 8  # 8: the position


def test_records_make_a_row_a_context():
    records = list(measure_cells("decode", cells(TINY), machine=MACHINE))
    assert len(records) == 2 * (1 + 2)
    (sheet,) = sheets(records)
    assert [row[0].text for row in sheet.rows] == ["64", "256"]
    assert all(entry.text != "-" for row in sheet.rows for entry in row)
    assert [figure.name for figure in figures(records)] == ["decode-time", "decode-memory"]
    assert sheets([]) == figures([]) == []
