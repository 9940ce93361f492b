"""Weights in fewer bits: w = scale * q, with q of 8 bits and a scale for each row or column.

| what a weight is used for      | in the file         | when it runs                             |
|--------------------------------|---------------------|------------------------------------------|
| the right side of a product    | q, a scale a column | a product of whole numbers               |
| a table that rows are read of  | q, a scale a row    | the rows that are read become floats     |
| both: a head that is tied      | once, as the table  | as both                                  |
| else: E, positions, neighbours | float of 16 bits    | float, made once when the file is loaded |

E is not worth 8 bits: a short input uses few of its columns, scaled up to the whole row's size, and
their errors with them.

Products of whole numbers are onnxruntime's dynamic quantisation. It rounds only weights that it
finds beside their product, so transposed ones are laid there first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

FEWEST = 1024  # numbers in a weight worth rounding; vectors are left alone


def round_weights(file: Path, rounded: Path) -> None:
    """Write the graph of a file again, with its matrices in 8 bits."""
    import onnx
    from onnxruntime.quantization import QuantType, quantize_dynamic

    model = onnx.load(file)
    tied = _lay_beside_products(model.graph)
    quantize_dynamic(
        model,
        rounded,
        per_channel=True,
        reduce_range=True,  # 7 bits: without VNNI a CPU adds pairs of products in 16 bits
        weight_type=QuantType.QInt8,
        op_types_to_quantize=["MatMul"],
        nodes_to_quantize=_products(model.graph) or ["none"],  # an empty list would mean all
    )
    model = onnx.load(rounded)
    weights = {weight.name: weight for weight in model.graph.initializer}
    for transposed, table in tied.items():
        q = _values(weights[transposed + "_quantized"]).T
        scale = _values(weights[transposed + "_scale"])[:, None]
        _read_rows(model.graph, table, q, scale)
        _turn(model.graph, table + _Q, weights[transposed + "_quantized"])
    for name, weight in weights.items():
        if name not in tied.values() and _is_large(weight):
            if _is_table(model.graph, name):
                _read_rows(model.graph, name, *_rounded_rows(_values(weight)))
            else:
                _halve(model.graph, weight)
    onnx.save(model, rounded)


_Q, _SCALE = "_rows", "_scale_of_rows"  # endings of names


def _lay_beside_products(graph: Any) -> dict[str, str]:
    """Transpose matrices that are right sides of products.

    Gives the new name of each that is a table too, with the table's name.
    """
    from onnx import numpy_helper

    weights = {weight.name: weight for weight in graph.initializer}
    tied = {}
    for node in [node for node in graph.node if node.op_type == "Transpose"]:
        (name,), (made,) = node.input, node.output
        weight = weights.get(name)
        if weight is None or not _is_large(weight) or len(weight.dims) != 2:
            continue
        if all(user.op_type == "MatMul" and place == 1 for user, place in _users(graph, made)):
            graph.node.remove(node)
            turned = np.ascontiguousarray(_values(weight).T)
            graph.initializer.append(numpy_helper.from_array(turned, made))
            if _is_table(graph, name):
                tied[made] = name
            elif not list(_users(graph, name)):
                graph.initializer.remove(weight)
    return tied


def _products(graph: Any) -> list[str]:
    """The names of products by a large matrix; those of 3 axes, one for each head, are not."""
    sides = {w.name for w in graph.initializer if _is_large(w) and len(w.dims) == 2}
    return [n.name for n in graph.node if n.op_type == "MatMul" and n.input[1] in sides]


def _is_large(weight: Any) -> bool:
    from onnx import TensorProto

    floats = weight.data_type == TensorProto.FLOAT
    return floats and len(weight.dims) > 1 and bool(np.prod(weight.dims) >= FEWEST)


def _is_table(graph: Any, name: str) -> bool:
    """Whether all that is done with a weight is to read rows of it."""
    users = list(_users(graph, name))
    return bool(users) and all(
        node.op_type == "Gather"
        and place == 0
        and not any(given.name == "axis" and given.i != 0 for given in node.attribute)
        for node, place in users
    )


def _rounded_rows(values: NDArray[Any]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """Whole numbers up to 127, and a scale for each row."""
    scale = np.abs(values).max(-1, keepdims=True) / np.float32(127)
    return np.rint(values / np.where(scale == 0, 1, scale)).astype("int8"), scale


def _read_rows(graph: Any, table: str, q: NDArray[np.int8], scale: NDArray[np.float32]) -> None:
    """Read rows of whole numbers and their scales, in the place of rows of floats."""
    from onnx import TensorProto, helper

    _replace(graph, table, {table + _Q: q, table + _SCALE: scale})
    for node, _ in list(_users(graph, table)):
        where, made = node.input[1], node.output[0]
        place = list(graph.node).index(node)
        graph.node.remove(node)
        new = (
            helper.make_node("Gather", [table + _Q, where], [made + _Q]),
            helper.make_node("Gather", [table + _SCALE, where], [made + _SCALE]),
            helper.make_node("Cast", [made + _Q], [made + "_float"], to=TensorProto.FLOAT),
            helper.make_node("Mul", [made + "_float", made + _SCALE], [made]),
        )
        for offset, part in enumerate(new):
            graph.node.insert(place + offset, part)


def _turn(graph: Any, table: str, side: Any) -> None:
    """Make the right side of a product of the table: onnxruntime does it as it loads."""
    from onnx import helper

    graph.initializer.remove(side)
    graph.node.insert(0, helper.make_node("Transpose", [table], [side.name], perm=[1, 0]))


def _halve(graph: Any, weight: Any) -> None:
    """Keep a weight in 16 bits, if its numbers are not too large for them."""
    from onnx import TensorProto, helper

    name, half = weight.name, weight.name + "_half"
    values = _values(weight)
    if np.abs(values).max() <= np.finfo("float16").max:
        _replace(graph, name, {half: values.astype("float16")})
        graph.node.insert(0, helper.make_node("Cast", [half], [name], to=TensorProto.FLOAT))


def _replace(graph: Any, name: str, parts: dict[str, NDArray[Any]]) -> None:
    from onnx import numpy_helper

    (weight,) = [weight for weight in graph.initializer if weight.name == name]
    graph.initializer.remove(weight)
    for part, values in parts.items():
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), part))


def _values(weight: Any) -> NDArray[Any]:
    from onnx import numpy_helper

    return numpy_helper.to_array(weight)


def _users(graph: Any, name: str) -> Iterator[tuple[Any, int]]:
    for node in graph.node:
        for place, given in enumerate(node.input):
            if given == name:
                yield node, place
