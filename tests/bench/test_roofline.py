"""`bench roofline`: operations that add up to the layer, and roofs that follow from yardsticks."""

from __future__ import annotations

import pytest

from linformer_kit.bench.contestants import Point, build
from linformer_kit.bench.gemm import step_flops
from linformer_kit.bench.roofline import RooflineBench, cells, operations
from linformer_kit.bench.roofline_view import figures, reached, sheets
from linformer_kit.measure.cells import measure_cells

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}


def test_the_products_are_those_of_the_layer():
    point = Point(dim=64, num_heads=2, k=64, length=256)
    counted = sum(
        operation.flops * operation.times
        for operation in operations(point)
        if operation.name not in ("norm", "gelu")
    )
    model = build("linformer-kit", "encoder", point, dropout=0.0, seed=0)
    assert counted == step_flops(model, point, "inference")


def test_every_operation_has_a_share():
    bench = RooflineBench(
        points=(Point(dim=16, num_heads=2, k=8, length=32),), rounds=1, threads=1, gemm_size=32
    )
    records = list(measure_cells("roofline", cells(bench), machine=MACHINE))
    found, gemm, bandwidth = reached(records[0])
    assert len(found) == 9
    assert gemm > 0
    assert bandwidth > 0
    assert len(sheets(records)[0].rows) == 10
    assert figures(records)[0].lines[0].name == "roof"


def test_the_roof_is_the_lower_of_rate_and_bandwidth():
    def result(name, flops, size, best):
        return {"operation": name, "flops": flops, "bytes": size, "times": 2, "best": best}

    record = {
        "results": [
            result("GEMM", 100, 0, 1.0),
            result("copy", 0, 10, 1.0),
            result("light", 10, 10, 2.0),  # 1 FLOP a byte: at most 10 a second
            result("heavy", 1000, 10, 20.0),  # 100 FLOPs a byte: at most 100 a second
        ]
    }
    (light, heavy), _, _ = reached(record)
    assert light.of_roof == pytest.approx(0.5)
    assert light.of_gemm == pytest.approx(0.05)
    assert heavy.of_roof == heavy.of_gemm == pytest.approx(0.5)
    assert heavy.seconds == 40.0
