"""`bench peers`: all build and train at matched sizes, and what is the same gives the same."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.bench.contestants import Point
from linformer_kit.bench.peer_equality import COPIES, largest_difference
from linformer_kit.bench.peer_models import OURS, PEERS, build, why_missing
from linformer_kit.bench.peers import PeersBench, cells
from linformer_kit.bench.peers_view import figures, rows_behind, sheets
from linformer_kit.measure.cells import measure_cells

POINT = Point(dim=32, num_heads=4, k=16, length=64, depth=2)
MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_reads_and_trains(name):
    assert why_missing(name) is None
    x = torch.randn(1, POINT.length, POINT.dim, requires_grad=True)
    y = build(name, POINT, seed=0)(x)
    assert y.shape == x.shape
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("name", COPIES)
def test_copied_weights_give_equal_outputs(name):
    assert largest_difference(name, POINT, seed=0) < 1e-5


@pytest.mark.parametrize("name", COPIES)
def test_other_weights_give_other_outputs(name, monkeypatch):
    copy = COPIES[name]

    def disturbed(theirs, point):
        ours, core = copy(theirs, point)
        for weight in ours.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
        return ours, core

    monkeypatch.setitem(COPIES, name, disturbed)
    assert largest_difference(name, POINT, seed=0) > 1e-2


def test_a_peer_that_computes_something_else_is_not_compared():
    assert largest_difference("FNet", POINT, seed=0) is None


def test_records_hold_equality_time_and_memory():
    bench = PeersBench(points=(POINT,), peers=(OURS, "linformer", "FNet"), rounds=1, threads=1)
    records = list(measure_cells("peers", cells(bench), machine=MACHINE))
    assert [record["cell"]["what"] for record in records] == [
        "equality",
        "time",
        "time",
        "memory",
        "memory",
        "memory",
    ]
    assert len(sheets(records)) == 4
    assert {figure.name for figure in figures(records)} == {
        "peers-inference",
        "peers-training",
        "peers-memory",
    }


def test_a_row_in_which_we_are_behind_says_why():
    record = {
        "bench": "peers",
        "cell": {"what": "time", "mode": "inference", "length": 512, "dim": 512, "batch": 1},
        "results": [
            {"peer": OURS, "ours_times_faster": 1.0},
            {"peer": "FNet", "ours_times_faster": 0.8},
            {"peer": "Longformer", "ours_times_faster": 2.0},
        ],
        "machine": MACHINE,
    }
    (row,) = rows_behind([record])
    assert row.startswith("FNet took 0.80 of our time in inference at n 512: it has no attention")
    record["cell"]["dim"] = 16
    (row,) = rows_behind([record])
    assert row.endswith(
        "so small an input is mostly the calling of operations, of which ours has more"
    )


def test_without_ours_there_is_nothing_to_compare():
    with pytest.raises(ValueError, match="so it must take part: got FNet"):
        PeersBench(points=(POINT,), peers=("FNet",))
