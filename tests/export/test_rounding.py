"""Weights in fewer bits: which are rounded, how, and that the graph still computes the same."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from linformer_kit.export.rounding import round_weights

DRAW = np.random.default_rng(0)
TABLE = DRAW.standard_normal((300, 64)).astype("float32")
IDS = DRAW.integers(0, 300, (2, 5))


def written(folder, nodes, weights, *, outputs=("y",)):
    """A file of a graph from `ids` to `y`."""
    graph = helper.make_graph(
        nodes,
        "test",
        [helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch", "length"])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in outputs],
        [numpy_helper.from_array(values, name) for name, values in weights.items()],
    )
    for number, node in enumerate(graph.node):
        node.name = f"node_{number}"
    path = folder / "model.onnx"
    opset = helper.make_opsetid("", 23)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=11), path)
    return path


def both(path):
    """What a file gives, what its rounded form gives, and the rounded weights by name."""
    rounded = path.with_name("rounded.onnx")
    round_weights(path, rounded)
    answers = [onnxruntime.InferenceSession(p).run(None, {"ids": IDS})[0] for p in (path, rounded)]
    weights = {w.name: numpy_helper.to_array(w) for w in onnx.load(rounded).graph.initializer}
    return *answers, weights


def types(weights) -> list[str]:
    """Of matrices, not of their scales."""
    return sorted(str(w.dtype) for w in weights.values() if min(w.shape[1:], default=0) > 1)


def relative(exact, other) -> float:
    return float(np.abs(exact - other).mean() / np.abs(exact).mean())


READ = helper.make_node("Gather", ["table", "ids"], ["rows"])


@pytest.mark.parametrize("tied", [True, False])
def test_a_table_that_is_the_head_too_is_there_once(tied, tmp_path):
    head = "table" if tied else "head"
    nodes = [
        READ,
        helper.make_node("Transpose", [head], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["y"]),
    ]
    weights = {"table": TABLE} if tied else {"table": TABLE, "head": TABLE[::-1].copy()}
    exact, rounded, kept = both(written(tmp_path, nodes, weights))
    assert types(kept) == ["int8"] * (1 if tied else 2)
    assert 0 < relative(exact, rounded) < 0.03


def test_a_scale_for_each_row_keeps_small_rows(tmp_path):
    sizes = np.logspace(-6, 3, 300, dtype="float32")[:, None]
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    exact, rounded, _ = both(written(tmp_path, [node], {"table": TABLE * sizes}))
    for row, other in zip(exact.reshape(-1, 64), rounded.reshape(-1, 64), strict=True):
        assert np.abs(row - other).max() <= 1.01 * np.abs(row).max() / 254


def test_rows_of_zeros_stay_zeros(tmp_path):
    node = helper.make_node("Gather", ["table", "ids"], ["y"])
    _, rounded, _ = both(written(tmp_path, [node], {"table": 0 * TABLE}))
    assert not rounded.any()


def test_transposes_too_large_for_the_exporter_to_fold_are_rounded(tmp_path):
    side = DRAW.standard_normal((4200, 64)).astype("float32")
    nodes = [
        READ,
        helper.make_node("Transpose", ["side"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["rows", "turned"], ["y"]),
    ]
    exact, rounded, kept = both(written(tmp_path, nodes, {"table": TABLE, "side": side}))
    assert kept["turned_quantized"].shape == (64, 4200)
    assert types(kept) == ["int8", "int8"]
    assert 0 < relative(exact, rounded) < 0.03


def test_a_matrix_for_each_head_and_what_is_sliced_have_16_bits(tmp_path):
    heads = DRAW.standard_normal((5, 64, 8)).astype("float32")
    positions = DRAW.standard_normal((40, 64)).astype("float32")
    weights = {"table": TABLE, "heads": heads, "positions": positions}
    weights |= {name: np.array([value]) for name, value in (("from", 3), ("to", 8), ("axis", 0))}
    nodes = [
        READ,
        helper.make_node("Slice", ["positions", "from", "to", "axis"], ["places"]),
        helper.make_node("Add", ["rows", "places"], ["x"]),
        helper.make_node("Unsqueeze", ["x", "place"], ["wide"]),
        helper.make_node("MatMul", ["wide", "heads"], ["y"]),
    ]
    weights["place"] = np.array([2])
    exact, rounded, kept = both(written(tmp_path, nodes, weights))
    assert types(kept) == ["float16", "float16", "int8"]
    assert 0 < relative(exact, rounded) < 0.02


def test_what_is_too_large_for_16_bits_and_what_is_small_stay_as_they_are(tmp_path):
    weights = {"large": np.full((64, 64), 1e5, "float32"), "small": TABLE[:2]}
    nodes = [
        helper.make_node("Gather", ["small", "zero"], ["row"]),
        helper.make_node("Mul", ["large", "row"], ["y"]),
    ]
    path = written(tmp_path, nodes, weights | {"zero": np.array([0])})
    rounded = path.with_name("rounded.onnx")
    round_weights(path, rounded)
    kept = {w.name: numpy_helper.to_array(w) for w in onnx.load(rounded).graph.initializer}
    assert {name: str(kept[name].dtype) for name in weights} == dict.fromkeys(weights, "float32")
