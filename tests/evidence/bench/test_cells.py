"""The benchmarks: every cell is measured once, and the records make its tables and figures."""

from __future__ import annotations

import sys

import pytest
import torch

from linformer_kit.core.encoder import EncoderLayer, LinformerEncoder
from linformer_kit.evidence.bench import attention, decode, grid, growth
from linformer_kit.evidence.bench.catalog import (
    AttentionSettings,
    DecodeSettings,
    GridSettings,
    GrowthSettings,
)
from linformer_kit.evidence.bench.results import ATTENTION, DECODE, GRID, GROWTH, headline
from linformer_kit.evidence.bench.vanilla import MaterialisedEncoder, materialised_bytes
from linformer_kit.measure.cells import measure_cells, unfinished

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}
TINY = {"dim": 16, "heads": 2, "rounds": 1, "threads": 1}
EVERYONE = ["linformer-kit", "full", "linformer", "linformer-pytorch", "gemm"]


def small_attention(**options) -> AttentionSettings:
    sizes = {"lengths": (32,), "k": (4, 8), "gemm_size": 32, **TINY, "rounds": 2}
    return AttentionSettings(**sizes | options)


def measured(bench, settings, earlier=()) -> list:
    name = bench.__name__.rpartition(".")[2]
    cells = bench.cells(settings)
    return list(measure_cells(name, cells, machine=MACHINE, earlier=earlier))


@pytest.fixture(scope="module")
def attention_records() -> list:
    return measured(attention, small_attention())


def test_every_point_layer_mode_and_implementation_is_measured_once(attention_records):
    found = [tuple(r[name] for name in ("k", "layer", "mode", "model")) for r in attention_records]
    assert found == [
        (k, layer, mode, model)
        for k in (4, 8)
        for layer in ("attention", "encoder")
        for mode in ("inference", "training", "dropout")
        for model in EVERYONE
    ]
    for record in attention_records:
        assert len(record["seconds"]) == 2
        assert record["best"] == min(record["seconds"])
        assert record["dropout"] == (0.1 if record["mode"] == "dropout" else 0.0)


def test_the_share_is_of_the_gemm_of_the_same_rounds(attention_records):
    item = {record["model"]: record for record in attention_records[: len(EVERYONE)]}
    ours, gemm = item["linformer-kit"], item["gemm"]
    expected = ours["flops"] / ours["best"] / (2 * 32**3 / gemm["best"])
    assert ours["share_of_gemm"] == pytest.approx(expected)
    assert gemm["share_of_gemm"] == pytest.approx(1.0)
    assert item["linformer"]["share_of_gemm"] is None


def test_the_attention_table_has_a_row_for_each_item(attention_records):
    (sheet,) = ATTENTION.sheets(attention_records)
    assert len(sheet.rows) == 12
    assert len(sheet.columns) == 4 + 4 + 1
    assert sheet.notes == ()


def test_an_implementation_over_the_limit_is_in_the_notes():
    options = {"k": (4,), "layers": ("encoder",), "modes": ("training",), "limit": 1e-9}
    found = measured(attention, small_attention(**options))
    assert [record["best"] for record in found] == [None] * len(EVERYONE)
    (sheet,) = ATTENTION.sheets(found)
    assert sheet.notes[0].startswith("linformer-kit, encoder, training, n 32, k 4: left out: one")
    assert sheet.rows[0][4].text == "left out"


def test_fewer_rounds_are_told(attention_records):
    shortened = [record | {"rounds": 3} for record in attention_records[:2]]
    (sheet,) = ATTENTION.sheets([*shortened, *attention_records[2:5]])
    assert sheet.notes == ("2 of 5 took over a second a run and had fewer rounds.",)


def test_memory_is_measured_of_training_steps():
    options = {"layers": ("attention",), "modes": ("inference", "training"), "memory": True}
    settings = small_attention(k=(4,), models=("linformer-kit", "full"), **options)
    found = measured(attention, settings)
    peaks = [(r["mode"], r["model"]) for r in found if r["what"] == "memory"]
    assert peaks == [("training", "linformer-kit"), ("training", "full")]
    assert all(record["note"] is None for record in found)
    time, memory = ATTENTION.sheets(found)
    assert (len(time.rows), len(memory.rows)) == (2, 1)


def test_a_missing_package_is_left_out_and_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "linformer", None)
    settings = small_attention(k=(4,), layers=("attention",), modes=("inference",))
    assert attention.notes(settings)[0].startswith("linformer skipped: cannot be imported")
    assert "linformer" not in [record["model"] for record in measured(attention, settings)]


def test_records_and_table_say_that_freed_memory_was_kept(monkeypatch):
    monkeypatch.setattr(attention, "keep_memory", lambda: True)
    options = {"k": (4,), "layers": ("attention",), "modes": ("inference",), "keep_memory": True}
    records = measured(attention, small_attention(**options))
    assert all(record["keep_memory"] for record in records)
    assert "freed memory kept" in ATTENTION.sheets(records)[0].caption


def test_full_attention_over_its_budget_is_skipped_and_linformer_is_measured():
    settings = GrowthSettings(lengths=(64, 16), k=8, budget=1e-9, **TINY)
    found = measured(growth, settings)
    assert [(r["length"], r["model"]) for r in found] == [
        (16, "full"),
        (16, "linformer-kit"),
        (64, "full"),
        (64, "linformer-kit"),
    ]
    assert found[0]["best"] is not None  # nothing to estimate from yet
    assert found[2]["best"] is None
    assert found[2]["note"].startswith("skipped: about ")
    for ours in found[1::2]:
        assert ours["best"] > 0
        assert ours["memory_total"] > 0
    (sheet,) = GROWTH.sheets(found)
    assert sheet.rows[1][1].text.startswith("skipped: about")
    (cell,) = unfinished("growth", growth.cells(settings), found[:2], MACHINE)
    full, ours = measure_cells("growth", [cell], machine=MACHINE, earlier=found[:2])  # resumed
    assert full["note"].startswith("skipped: about ")
    assert ours["best"] > 0


GRID_TINY = {"lengths": (32, 64), "k": (8, 32), "tokens": 64, **TINY}


@pytest.fixture(scope="module")
def grid_records() -> list:
    return measured(grid, GridSettings(**GRID_TINY))


def test_the_materialised_transformer_is_the_vanilla_one():
    torch.manual_seed(0)
    plain = MaterialisedEncoder(dim=16, depth=2, num_heads=4, ff_dim=32).eval()
    fused = LinformerEncoder(
        dim=16, depth=2, num_heads=4, ff_dim=32, projection="full", qkv_bias=False
    ).eval()
    for a, b in zip(fused.layers, plain.layers, strict=True):
        assert isinstance(a, EncoderLayer)
        a.attention.q_proj.load_state_dict(b.query.state_dict())
        a.attention.k_proj.load_state_dict(b.key.state_dict())
        a.attention.v_proj.load_state_dict(b.value.state_dict())
        a.attention.out_proj.load_state_dict(b.out.state_dict())
        a.feed_forward.w_1.load_state_dict(b.feed_forward[0].state_dict())
        a.feed_forward.w_2.load_state_dict(b.feed_forward[2].state_dict())
    x = torch.randn(2, 12, 16)
    torch.testing.assert_close(plain(x), fused(x))


def test_a_k_that_does_not_shorten_takes_no_part(grid_records):
    times = [(r["length"], r["batch"], r["k"]) for r in grid_records if r["what"] == "time"]
    assert times == [
        *((32, 2, k) for k in (None, None, 8)),
        *((64, 1, k) for k in (None, None, 8, 32)),
    ]


def test_every_form_has_a_time_and_a_peak(grid_records):
    merged = GRID.select(grid_records)
    assert len(merged) == 3 + 4
    assert all(r["best"] > 0 and r["work"] > 0 and not r["note"] for r in merged)
    assert [figure.name for figure in GRID.figures(grid_records)] == [
        "grid-time",
        "grid-memory",
        "grid-saved",
    ]
    assert len(GRID.sheets(grid_records)) == 4
    (sheet,) = headline(grid_records)
    assert (len(sheet.rows), sheet.title) == (2, "Time to read a batch, k = 8")


def test_what_does_not_fit_is_skipped_and_said(monkeypatch):
    need = materialised_bytes(batch=1, length=64, num_heads=2)
    monkeypatch.setattr(grid, "free_memory", lambda: need)
    found = measured(grid, GridSettings(**GRID_TINY | {"lengths": (64,)}))
    timed = {r["model"] for r in found if r.get("best") is not None}
    assert timed == {"sdpa", "linformer"}
    table = GRID.sheets(found)[0]
    assert table.rows[0][1].text == "does not fit"
    assert table.notes[0].startswith("materialised, n 64: skipped: needs about")


def test_what_would_take_too_long_is_skipped_and_said(monkeypatch):
    monkeypatch.setattr(grid, "RATE", 1.0)
    found = measured(grid, GridSettings(**GRID_TINY | {"memory": False}))
    assert all(record["note"].startswith("skipped: about ") for record in found)


def test_forms_are_built_alike():
    forms = grid.forms_at(GridSettings(**GRID_TINY | {"k": (4,)}), 8)
    sdpa, materialised, linformer = (
        sum(p.numel() for p in form.build().parameters()) for form in forms
    )
    assert sdpa == materialised == linformer - 4 * 8


DECODE_TINY = DecodeSettings(contexts=(64, 256), depth=1, k=4, window=8, steps=2, **TINY)


def test_states_have_the_size_they_should():
    sizes = {}
    for model in decode.MODELS:
        decoder = decode.build(model, seed=0, sizes=decode.sizes_of(DECODE_TINY))
        for context in DECODE_TINY.contexts:
            state = decode.state_at(decoder, context, batch=1)
            assert state.position.tolist() == [context]
            sizes[model, context] = state.nbytes
            assert torch.isfinite(decode.generate(decoder, state, 2)()).all()
    assert sizes["linformer", 64] == sizes["linformer", 256]
    assert sizes["vanilla", 256] == 4 * (sizes["vanilla", 64] - 8) + 8  # 8: the position


def test_decode_records_make_a_row_a_context():
    records = measured(decode, DECODE_TINY)
    assert len(records) == 2 * (2 + 2)
    (sheet,) = DECODE.sheets(records)
    assert [row[0].text for row in sheet.rows] == ["64", "256"]
    assert all(entry.text != "-" for row in sheet.rows for entry in row)
    assert [figure.name for figure in DECODE.figures(records)] == ["decode-time", "decode-memory"]
