"""`bench budget`: one number of tokens in pieces of every length."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.bench.budget import BudgetBench, build, cells
from linformer_kit.bench.budget_view import figures, growth, sheets
from linformer_kit.measure.cells import measure_cells

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}
TINY = BudgetBench(
    lengths=(32, 64), ks=(8,), tokens=64, dim=16, num_heads=2, window=8, rounds=1, threads=1
)


def test_every_model_is_timed_at_every_length_beside_the_yardstick():
    records = list(measure_cells("budget", cells(TINY), machine=MACHINE))
    assert [(r["cell"]["shape"], r["cell"]["k"]) for r in records] == [
        ("encoder", None),
        ("encoder", 8),
        ("encoder-decoder", None),
        ("encoder-decoder", 8),
    ]
    for record in records:
        assert [result["length"] for result in record["results"]] == [32, 64, None]
        assert all(result["best"] > 0 for result in record["results"])
    assert len(sheets(records)) == len(figures(records)) == 2
    assert sheets(records)[0].columns == ("n", "vanilla", "k = 8")
    assert [row[0].text for row in sheets(records)[0].rows[2:]] == [
        "longest / shortest",
        "slowest / fastest",
        "one GEMM beside it",
    ]


@pytest.mark.parametrize("shape", ["encoder", "encoder-decoder"])
@pytest.mark.parametrize("k", [None, 8])
def test_models_keep_the_shape(shape, k):
    x = torch.randn(2, 32, 16)
    assert build(TINY, shape, 32, k)(x).shape == x.shape


def test_growth_is_the_slowest_over_the_fastest_without_the_yardstick():
    times = {256: 2.0, 512: 1.0, 1024: 5.0, 2048: None, None: 9.0}
    results = [{"length": length, "best": best} for length, best in times.items()]
    assert growth({"results": results}) == 5.0
    assert growth({"results": []}) is None


def test_a_length_that_does_not_divide_the_tokens_is_refused():
    with pytest.raises(ValueError, match="must divide the tokens of a batch: got 24 and 64"):
        BudgetBench(**{**vars(TINY), "lengths": (24,)})
