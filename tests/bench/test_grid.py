"""`bench grid`: every form at every length, what does not fit said, the paper beside it."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.bench import grid as grid_module
from linformer_kit.bench.grid import GridBench, build, cells
from linformer_kit.bench.grid_view import (
    best_saving,
    figures,
    headline,
    in_words,
    read_grid,
    sheets,
)
from linformer_kit.bench.paper import LENGTHS, TABLE_3
from linformer_kit.bench.vanilla import MaterialisedEncoder, materialised_bytes
from linformer_kit.core.encoder import EncoderLayer, LinformerEncoder
from linformer_kit.measure.cells import measure_cells

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}
TINY = GridBench(lengths=(32, 64), ks=(8, 32), dim=16, num_heads=2, tokens=64, rounds=1, threads=1)


def records(bench: GridBench) -> list:
    return list(measure_cells("grid", cells(bench), machine=MACHINE))


@pytest.fixture(scope="module")
def measured() -> list:
    return records(TINY)


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


def test_a_k_that_does_not_shorten_takes_no_part(measured):
    times = [record for record in measured if record["cell"]["what"] == "time"]
    assert [[r["k"] for r in record["results"]] for record in times] == [
        [None, None, 8],
        [None, None, 8, 32],
    ]
    assert [record["cell"]["batch"] for record in times] == [2, 1]


def test_every_form_has_a_time_and_a_peak(measured):
    grid = read_grid(measured)
    assert set(grid.seconds) == set(grid.memory)
    assert len(grid.seconds) == 3 + 4
    assert not grid.skipped
    assert all(figure.title for figure in figures(grid))
    assert len(sheets(grid)) == 4
    assert len(headline(grid, 8).rows) == 2


def test_what_does_not_fit_is_skipped_and_said(monkeypatch):
    need = materialised_bytes(batch=1, length=64, num_heads=2)
    monkeypatch.setattr(grid_module, "free_memory", lambda: need)
    found = read_grid(records(GridBench(**{**vars(TINY), "lengths": (64,)})))
    assert found.skipped[64, "materialised", None].startswith("skipped: needs about ")
    assert (64, "sdpa", None) in found.seconds
    table = sheets(found)[0]
    assert table.rows[0][1].text == "does not fit"
    assert "n 64, vanilla, materialised: skipped: needs about" in table.notes[0]


def test_what_would_take_too_long_is_skipped_and_said():
    slow = GridBench(**{**vars(TINY), "rate": 1.0, "memory": False})
    assert all(
        result["note"].startswith("skipped: about ")
        for record in records(slow)
        for result in record["results"]
    )
    assert read_grid(records(slow)).lengths == []


def test_the_paper_stands_beside_and_below_it_is_marked():
    record = {
        "bench": "grid",
        "cell": {"what": "time", "length": 512, "batch": 1, "dim": 8, "num_heads": 1},
        "results": [
            {"form": "sdpa", "k": None, "best": 1.0},
            {"form": "materialised", "k": None, "best": 1.4},
            {"form": "linformer", "k": 128, "best": 1.0},
            {"form": "linformer", "k": 256, "best": 0.5},
        ],
        "machine": MACHINE,
    }
    grid = read_grid([record])
    below, above = sheets(grid)[0].rows[0][1:]
    assert (below.text, below.tone) == ("1.4 (1.5)", "bad")
    assert (above.text, above.tone) == ("2.8 (1.3)", "good")
    assert best_saving(grid).time == 2.0
    assert in_words(grid) == (
        "On this machine, a Linformer layer with k = 256 reads 512 tokens 2.0 times faster than "
        "today's fused attention; against the attention of the paper's day it is 2.8 times faster "
        "at 512 tokens."
    )


def test_the_table_of_the_paper_is_whole():
    assert len(TABLE_3) == 2 + 3 + 4 + 5 * 5
    assert TABLE_3[65536, 2048] == (7.9, 18.0)
    assert {length for length, _ in TABLE_3} == set(LENGTHS)


def test_no_records_make_no_grid():
    assert read_grid([]) is None


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"dim": 15}, "dim must be divisible by the number of heads: got dim=15, heads=2"),
        ({"ks": (0,)}, "k must be at least 1: got 0"),
        ({"limit": 0.0}, "limit must be more than 0 seconds"),
    ],
)
def test_settings_that_mean_nothing_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        GridBench(**{**vars(TINY), **wrong})


def test_forms_are_built_alike():
    shapes = {
        form: sum(p.numel() for p in build(form, dim=16, num_heads=2, length=8, k=k).parameters())
        for form, k in (("sdpa", None), ("materialised", None), ("linformer", 4))
    }
    assert shapes["sdpa"] == shapes["materialised"] == shapes["linformer"] - 4 * 8
