"""ONNX files that are damaged, foreign or reach outside their folder; and what may be replaced."""

from __future__ import annotations

import json
import shutil

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.errors import UserError
from linformer_kit.export import ExportError
from linformer_kit.export.exporter import check_target, export_onnx
from linformer_kit.export.files import METADATA, is_exported
from linformer_kit.export.runtime import OnnxModel, session

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64
STATE = {"position": ([], "int64"), "layers.0.key": ([2, 3], "float32")}


def same(name: str, inputs: dict, outputs: dict, facts: dict) -> onnx.ModelProto:
    """A graph whose outputs are its inputs, in their order, with metadata."""
    pairs = zip(outputs, inputs, strict=False)
    graph = helper.make_graph(
        [helper.make_node("Identity", [source], [made]) for made, source in pairs],
        name,
        [helper.make_tensor_value_info(n, *about) for n, about in inputs.items()],
        [helper.make_tensor_value_info(n, *about) for n, about in outputs.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    helper.set_model_props(model, {METADATA: json.dumps(facts)})
    return model


@pytest.fixture
def folder(tmp_path):
    """An encoder, and a decoder with its encoder: files as an export writes them, but smaller."""
    files = {"step": "decoder.onnx", "encoder": "decoder.encoder.onnx"}
    rows = (FLOAT, ["batch", "length", 8])
    state = {
        "position": (INT64, ["batch"]),
        "layers.0.key": (FLOAT, ["batch", 2, 3]),
    }
    step = {
        "kind": "seq2seq",
        "files": files,
        "result": "y",
        "longest": 8,
        "reach": None,
        "state": {name: {"shape": shape, "type": kind} for name, (shape, kind) in STATE.items()},
    }
    context = {"memories.0.key": rows}
    past = {f"past.{name}": about for name, about in (state | context).items()}
    present = {f"present.{name}": about for name, about in state.items()}
    for name, model in {
        "encoder.onnx": same(
            "model",
            {"x": rows},
            {"y": rows},
            {"kind": "encoder", "graph": "model", "files": {"model": "encoder.onnx"}},
        ),
        "decoder.onnx": same(
            "step", {"x": rows} | past, {"y": rows} | present, step | {"graph": "step"}
        ),
        "decoder.encoder.onnx": same(
            "encoder", {"context": rows}, context, step | {"graph": "encoder"}
        ),
    }.items():
        onnx.save(model, tmp_path / name)
    return tmp_path


def changed(path, change):
    """Write a file again, with other metadata."""
    model = onnx.load(path)
    for entry in model.metadata_props:
        if entry.key == METADATA:
            value = change(json.loads(entry.value))
            entry.value = value if isinstance(value, str) else json.dumps(value)
    onnx.save(model, path)


def without(name):
    return lambda facts: {key: value for key, value in facts.items() if key != name}


def state_with(**about):
    def change(facts):
        facts["state"]["layers.0.key"] |= about
        return facts

    return change


def test_the_files_themselves_run(folder):
    y = OnnxModel(folder / "encoder.onnx")(x=np.zeros((1, 3, 8), "float32"))["y"]
    assert y.shape == (1, 3, 8)
    running = OnnxModel(folder / "decoder.onnx")
    state = running.first_state(context=np.zeros((2, 5, 8), "float32"))
    assert running.step(np.zeros((2, 8), "float32"), state)[0].shape == (2, 8)


BYTES = {
    "empty": (lambda data: b"", "it has no graph"),
    "garbage": (lambda data: b"nothing", "is not an ONNX file: "),
    "zeros": (lambda data: bytes(1000), "is not an ONNX file: "),
    "text": (lambda data: b'{"model": "encoder"}', "is not an ONNX file: "),
    "a tenth": (lambda data: data[: len(data) // 10], "is not an ONNX file"),
    "half": (lambda data: data[: len(data) // 2], "is not an ONNX file"),
    "all but one byte": (lambda data: data[:-1], "is not an ONNX file"),
}


@pytest.mark.parametrize("kind", BYTES)
def test_damaged_bytes_are_one_error(kind, folder):
    change, message = BYTES[kind]
    path = folder / "encoder.onnx"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ExportError, match=message) as raised:
        OnnxModel(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


METADATA_OF_THE_STEP = {
    "not JSON": (lambda facts: "{", "are damaged: "),
    "nested": (lambda facts: "[" * 100_000, "are damaged: nested too deeply"),
    "a list": (lambda facts: [1], "must be a JSON object, not list"),
    "null": (lambda facts: None, "must be a JSON object, not NoneType"),
    "no kind": (without("kind"), "the key 'kind' is missing"),
    "no graph": (without("graph"), "the key 'graph' is missing"),
    "no files": (without("files"), "the key 'files' is missing"),
    "no state": (without("state"), "the key 'state' is missing"),
    "no result": (without("result"), "the key 'result' is missing"),
    "another kind": (lambda facts: facts | {"kind": "bert"}, "'kind' must be .*got 'bert'"),
    "a list as kind": (lambda facts: facts | {"kind": []}, r"'kind' must be .*got \[\]"),
    "another graph": (lambda facts: facts | {"graph": "model"}, "'graph' must be .*got 'model'"),
    "files as a list": (lambda facts: facts | {"files": []}, "'files' must name"),
    "no encoder's name": (lambda facts: facts | {"files": {"step": "a"}}, "'files' must name"),
    "a path": (
        lambda facts: facts | {"files": {"step": "a", "encoder": "../decoder.encoder.onnx"}},
        "'files' must name the file of 'encoder' in the same folder: got",
    ),
    "an absolute path": (
        lambda facts: facts | {"files": {"step": "a", "encoder": "/decoder.encoder.onnx"}},
        "'files' must name the file of 'encoder' in the same folder",
    ),
    "a length": (lambda facts: facts | {"longest": "long"}, "'longest' must be a whole number"),
    "a token": (lambda facts: facts | {"eos_token_id": 1.5}, "'eos_token_id' must be a whole"),
    "a state": (lambda facts: facts | {"state": 3}, "'state' must have the shape of"),
    "a shape": (state_with(shape="wide"), "'state' must have the shape of"),
    "a size": (state_with(shape=[-1]), "'state' must have the shape of"),
    "a type": (state_with(type="object"), "'state' must have the type of"),
    "another type": (state_with(type=[1]), "'state' must have the type of"),
    "a shape of another graph": (state_with(shape=[2, 4]), "does not have the inputs and"),
    "another output": (lambda facts: facts | {"result": "z"}, "does not have the inputs and outp"),
    "a smaller state": (lambda facts: facts | {"state": {}}, "does not have the inputs and outp"),
}


@pytest.mark.parametrize("kind", METADATA_OF_THE_STEP)
def test_damaged_metadata_are_one_error(kind, folder):
    change, message = METADATA_OF_THE_STEP[kind]
    path = folder / "decoder.onnx"
    changed(path, change)
    with pytest.raises(ExportError, match=message) as raised:
        OnnxModel(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_step_needs_its_own_encoder(folder):
    encoder = folder / "decoder.encoder.onnx"
    with pytest.raises(ExportError, match=r"is the encoder of decoder.onnx: run that one"):
        OnnxModel(encoder)
    shutil.copy(folder / "encoder.onnx", encoder)
    with pytest.raises(ExportError, match="is not the encoder of"):
        OnnxModel(folder / "decoder.onnx")
    encoder.write_bytes(b"nothing")
    with pytest.raises(ExportError, match=r"decoder.encoder.onnx is not an ONNX file"):
        OnnxModel(folder / "decoder.onnx")
    encoder.unlink()
    with pytest.raises(ExportError, match=r"needs its encoder decoder.encoder.onnx, which is not"):
        OnnxModel(folder / "decoder.onnx")


def foreign(*, location: str | None = None, where: str = "initializer") -> onnx.ModelProto:
    """A small graph that adds a weight, which may lie in another file."""
    weight = numpy_helper.from_array(np.arange(4, dtype="float32"), "w")
    if location is not None:
        weight.ClearField("raw_data")
        weight.data_location = TensorProto.EXTERNAL
        for key, text in (("location", location), ("offset", "0"), ("length", "16")):
            entry = weight.external_data.add()
            entry.key, entry.value = key, text
    nodes, weights = [helper.make_node("Add", ["x", "w"], ["y"])], [weight]
    if where == "constant":
        nodes, weights = [helper.make_node("Constant", [], ["w"], value=weight), *nodes], []
    elif where == "subgraph":
        inner = helper.make_graph(
            [helper.make_node("Add", ["x", "w"], ["z"])], "inner", [], [value("z")], [weight]
        )
        condition = numpy_helper.from_array(np.array(True), "yes")
        nodes = [helper.make_node("If", ["yes"], ["y"], then_branch=inner, else_branch=inner)]
        weights = [condition]
    graph = helper.make_graph(nodes, "outer", [value("x")], [value("y")], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)


def value(name: str) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, [4])


def test_a_foreign_file_is_refused(tmp_path):
    onnx.save(foreign(), tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="was not written by `linformer export`"):
        OnnxModel(tmp_path / "model.onnx")


@pytest.mark.parametrize("where", ["initializer", "constant", "subgraph"])
@pytest.mark.parametrize("how", ["parent", "absolute", "link", "deep", "empty"])
def test_weights_outside_the_folder_are_refused_by_name(how, where, tmp_path):
    secret = tmp_path / "secret.bin"
    secret.write_bytes(np.arange(4, dtype="float32").tobytes())
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "link.bin").symlink_to(secret)
    location = {
        "parent": "../secret.bin",
        "absolute": str(secret),
        "link": "link.bin",
        "deep": "sub/../../secret.bin",
        "empty": "",
    }[how]
    path = folder / "model.onnx"
    path.write_bytes(foreign(location=location, where=where).SerializeToString())
    with pytest.raises(ExportError, match="outside its own folder, and is not read") as raised:
        OnnxModel(path)
    assert repr(location) in str(raised.value)


def test_weights_beside_the_file_are_read_and_missed(tmp_path):
    model = foreign(location="model.onnx.data")
    facts = {"kind": "encoder", "graph": "model", "files": {"model": "model.onnx"}}
    helper.set_model_props(model, {METADATA: json.dumps(facts)})
    path, data = tmp_path / "model.onnx", tmp_path / "model.onnx.data"
    path.write_bytes(model.SerializeToString())
    with pytest.raises(ExportError, match=r"needs the file model.onnx.data, which is not beside"):
        OnnxModel(path)
    data.write_bytes(np.arange(4, dtype="float32").tobytes())
    assert session(path).run(None, {"x": np.ones(4, "float32")})[0].tolist() == [1, 2, 3, 4]
    data.write_bytes(b"short")
    with pytest.raises(ExportError, match="is not an ONNX file that onnxruntime can run"):
        OnnxModel(path)


def test_an_export_replaces_its_own_files_and_no_others(folder, tmp_path_factory):
    encoder = LinformerEncoder(dim=8, depth=1, num_heads=2, max_length=8, k=2)
    tmp_path = tmp_path_factory.mktemp("target")
    target = tmp_path / "model.onnx"
    for name, write in {
        "text": lambda path: path.write_text("my thesis"),
        "foreign": lambda path: onnx.save(foreign(), path),
        "link": lambda path: path.symlink_to(folder / "encoder.onnx"),
        "broken link": lambda path: path.symlink_to(tmp_path / "nothing"),
    }.items():
        write(target)
        before = target.read_bytes() if target.exists() else None
        with pytest.raises(UserError, match="it is left alone"):
            export_onnx(encoder, target)
        assert (target.read_bytes() if target.exists() else None) == before, name
        assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]
        target.unlink()
    shutil.copy(folder / "decoder.onnx", target)  # an earlier export, of another model
    export_onnx(encoder, target)
    assert OnnxModel(target).kind == "encoder"


@pytest.mark.parametrize(
    "name", ["model.encoder.onnx", "model.int8.onnx", "model.encoder.int8.onnx"]
)
def test_no_file_of_an_export_replaces_another_one_s(name, tmp_path):
    decoder = LinformerDecoder(dim=8, depth=1, num_heads=2, k=2, window=2, cross_attention=True)
    (tmp_path / name).write_text("notes")
    with pytest.raises(UserError, match=rf"{name} exists and was not written by"):
        export_onnx(decoder, tmp_path / "model.onnx", int8=True)
    assert [path.name for path in tmp_path.iterdir()] == [name]
    assert (tmp_path / name).read_text() == "notes"


def test_large_weights_belong_to_the_file_beside_them(folder, tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("target")
    data = tmp_path / "model.onnx.data"
    data.write_text("something else")
    assert not is_exported(data)
    shutil.copy(folder / "encoder.onnx", tmp_path / "model.onnx")
    assert is_exported(data)
    check_target(tmp_path / "model.onnx")
