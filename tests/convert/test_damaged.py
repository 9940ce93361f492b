"""Damaged and hostile folders of models: one line, exit code 2, and no file is changed or added."""

from __future__ import annotations

import json
import os
import shutil
import struct
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from linformer_kit.cli.app import run

from .pretrained import write_model, write_text

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Damage = Callable[[Path], object]

WEIGHTS = "model.safetensors"
QUERY = "bert.encoder.layer.0.attention.self.query.weight"
DEEP = b"[" * 100_000
root = os.name == "posix" and os.geteuid() == 0


def file(name: str, content: bytes) -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


def missing(*names: str) -> Damage:
    return lambda folder: [(folder / name).unlink() for name in names]


def half(name: str) -> Damage:
    def damage(folder: Path) -> None:
        content = (folder / name).read_bytes()
        (folder / name).write_bytes(content[: len(content) // 2])

    return damage


def directory(name: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return damage


def link(name: str, target: str) -> Damage:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).symlink_to(target)

    return damage


def pipe(name: str) -> Damage:
    """Reading it would wait forever."""

    def damage(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return damage


def unreadable(name: str) -> Damage:
    return lambda folder: (folder / name).chmod(0)


def entries(name: str, **values: Any) -> Damage:
    """Entries of a JSON file; one that is `...` is removed."""

    def damage(folder: Path) -> None:
        said = json.loads((folder / name).read_text()) | values
        kept = {key: value for key, value in said.items() if value is not ...}
        (folder / name).write_text(json.dumps(kept))

    return damage


def config(**values: Any) -> Damage:
    return entries("config.json", **values)


def tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Damage:
    def damage(folder: Path) -> None:
        found = load_file(folder / WEIGHTS)
        change(found)
        save_file(found, folder / WEIGHTS, {"format": "pt"})

    return damage


def header(change: Callable[[dict[str, Any]], object], length: int | None = None) -> Damage:
    """The header of the safetensors file, and the length of it that the file says."""

    def damage(folder: Path) -> None:
        content = (folder / WEIGHTS).read_bytes()
        (size,) = struct.unpack("<Q", content[:8])
        said = json.loads(content[8 : 8 + size])
        change(said)
        new = json.dumps(said).encode()
        start = struct.pack("<Q", len(new) if length is None else length)
        (folder / WEIGHTS).write_bytes(start + new + content[8 + size :])

    return damage


def index(weight_map: Any, *, keep: bool = False) -> Damage:
    """The index of weights in several files."""

    def damage(folder: Path) -> None:
        shutil.copy(folder / WEIGHTS, folder.parent / "outside.safetensors")
        if not keep:
            (folder / WEIGHTS).unlink()
        content = {"metadata": {}, "weight_map": weight_map}
        (folder / f"{WEIGHTS}.index.json").write_text(json.dumps(content))

    return damage


def pickled(content: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / WEIGHTS).unlink()
        if isinstance(content, bytes):
            (folder / "pytorch_model.bin").write_bytes(content)
        else:
            torch.save(content, folder / "pytorch_model.bin")

    return damage


class Harmful:
    def __reduce__(self) -> Any:
        return (os.mkdir, ("owned",))


def int8(found: dict[str, torch.Tensor]) -> None:
    for name, tensor in found.items():
        if tensor.ndim == 2:
            found[name] = (tensor / tensor.abs().max() * 127).to(torch.int8)


def foreign_tokenizer(folder: Path) -> None:
    """Of a larger vocabulary."""
    said = json.loads((folder / "tokenizer.json").read_text())
    vocabulary = said["model"]["vocab"]
    said["model"]["vocab"] = {w: n + (n > 4) * 500 for w, n in vocabulary.items()}
    (folder / "tokenizer.json").write_text(json.dumps(said))


def tokenizer(change: Callable[[dict[str, Any]], object]) -> Damage:
    def damage(folder: Path) -> None:
        said = json.loads((folder / "tokenizer.json").read_text())
        change(said)
        (folder / "tokenizer.json").write_text(json.dumps(said))

    return damage


SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size",
    "max_position_embeddings",
)  # fmt: skip

SOURCES: dict[str, Damage] = {
    "no config": missing("config.json"),
    "config empty": file("config.json", b""),
    "config truncated": half("config.json"),
    "config garbage": file("config.json", bytes(range(256))),
    "config a list": file("config.json", b"[1, 2]"),
    "config a number": file("config.json", b"7"),
    "config null": file("config.json", b"null"),
    "config nested": file("config.json", DEEP),
    "config with a byte order mark and nothing": file("config.json", b"\xef\xbb\xbf"),
    "config a folder": directory("config.json"),
    "config a link to nothing": link("config.json", "nowhere"),
    "config a link to itself": link("config.json", "config.json"),
    "config a device": link("config.json", "/dev/null"),
    "config a pipe": pipe("config.json"),
    "weights a pipe": pipe(WEIGHTS),
    "tokenizer a pipe": pipe("tokenizer.json"),
    "model_type unknown": config(model_type="perceptron-2000"),
    "model_type a number": config(model_type=3),
    "model_type a list": config(model_type=["bert"]),
    "model_type missing, nothing to infer it from": lambda folder: (
        config(model_type=..., architectures=...)(folder),
        missing(WEIGHTS)(folder),
    ),
    "model_type missing, tensors unknown": lambda folder: (
        config(model_type=..., architectures=...)(folder),
        tensors(lambda t: [t.update({f"x.{n}": t.pop(n)}) for n in list(t)])(folder),
    ),
    "architectures a number": config(architectures=4),
    "architectures of numbers": config(architectures=[4]),
    "code of its own": config(model_type="owned", auto_map={"AutoModel": "owned.Owned"}),
    **{f"{name} negative": config(**{name: -4}) for name in SIZES},
    **{f"{name} huge": config(**{name: 10**12}) for name in SIZES},
    **{f"{name} not a number": config(**{name: float("nan")}) for name in SIZES},
    **{f"{name} a text": config(**{name: "16"}) for name in SIZES[:3]},
    **{f"{name} null": config(**{name: None}) for name in SIZES[:3]},
    "heads do not divide": config(num_attention_heads=5),
    "no heads": config(num_attention_heads=0),
    "layers missing": config(num_hidden_layers=9),
    "activation unknown": config(hidden_act="swooosh"),
    "activation a number": config(hidden_act=1),
    "a decoder": config(is_decoder=True),
    "epsilon a text": config(layer_norm_eps="tiny"),
    "epsilon not a number": config(layer_norm_eps=float("nan")),
    "dropout of 7": config(hidden_dropout_prob=7),
    "pad_token_id out of the vocabulary": config(pad_token_id=10**9),
    "quantized by a library that is not here": config(quantization_config={"quant_method": "gptq"}),
    "quantized by garbage": config(quantization_config="int8"),
    "labels a number": config(architectures=["BertForSequenceClassification"], id2label=3),
    "no weights": missing(WEIGHTS),
    "weights empty": file(WEIGHTS, b""),
    "weights truncated": half(WEIGHTS),
    "weights garbage": file(WEIGHTS, os.urandom(400)),
    "weights a folder": directory(WEIGHTS),
    "weights a link to nothing": link(WEIGHTS, "nowhere"),
    "weights a device": link(WEIGHTS, "/dev/zero"),
    "header longer than the file": header(lambda h: None, length=2**40),
    "header of no length": header(lambda h: None, length=0),
    "header says other places": header(lambda h: h[QUERY].update(data_offsets=[0, 2**50])),
    "header says another shape": header(lambda h: h[QUERY].update(shape=[16, 10**12])),
    "header says another type": header(lambda h: h[QUERY].update(dtype="F64")),
    "header says a type that is none": header(lambda h: h[QUERY].update(dtype="NONE")),
    "header with overlapping tensors": header(
        lambda h: h[QUERY].update(data_offsets=h[QUERY.replace("query", "key")]["data_offsets"])
    ),
    "a tensor missing": tensors(lambda t: t.pop(QUERY)),
    "no tensor": tensors(lambda t: t.clear()),
    "a tensor of another shape": tensors(lambda t: t.update({QUERY: torch.ones(8, 8)})),
    "a tensor of no dimension": tensors(lambda t: t.update({QUERY: torch.tensor(1.0)})),
    "a tensor of NaN": tensors(lambda t: t[QUERY].fill_(float("nan"))),
    "a tensor with one infinity": tensors(lambda t: t[QUERY].view(-1)[3].fill_(float("inf"))),
    "int8 without scales": tensors(int8),
    "one tensor of int8 without scales": tensors(
        lambda t: t.update({QUERY: (t[QUERY] * 100).to(torch.int8)})
    ),
    "one tensor of truth values": tensors(lambda t: t.update({QUERY: t[QUERY] > 0})),
    "index of files outside": index({QUERY: "../outside.safetensors"}),
    "index of an absolute path": index({QUERY: "/etc/passwd"}),
    "index of files that are missing": index({QUERY: "model-00001.safetensors"}),
    "index empty": index({}),
    "index a list": index([QUERY]),
    "index of numbers": index({QUERY: 4}),
    "index garbage": lambda folder: (
        missing(WEIGHTS)(folder),
        file(f"{WEIGHTS}.index.json", b"{")(folder),
    ),
    "a pickle that runs code": pickled({"bert": Harmful()}),
    "a pickle that is damaged": pickled(os.urandom(300)),
    "a pickle that is empty": pickled(b""),
    "a pickle of a list": pickled([torch.ones(3)]),
    "a pickle of a number": pickled(3),
    "a pickle of names and no tensors": pickled({QUERY: "weights"}),
    "tokenizer of another vocabulary": foreign_tokenizer,
    "tokenizer empty": file("tokenizer.json", b""),
    "tokenizer truncated": half("tokenizer.json"),
    "tokenizer garbage": file("tokenizer.json", os.urandom(300)),
    "tokenizer a list": file("tokenizer.json", b"[]"),
    "tokenizer nested": file("tokenizer.json", DEEP),
    "tokenizer a folder": directory("tokenizer.json"),
    "tokenizer missing": missing("tokenizer.json"),
    "tokenizer with negative numbers": tokenizer(
        lambda said: said["model"]["vocab"].update(cat=-1)
    ),
    "tokenizer with a huge number": tokenizer(
        lambda said: said["model"]["vocab"].update(cat=2**32 - 1)
    ),
    "tokenizer of an unknown kind": tokenizer(lambda said: said["model"].update(type="Magic")),
    "modules garbage": file("modules.json", b"{"),
    "modules a number": file("modules.json", b"7"),
    "modules of numbers": file("modules.json", b"[7]"),
    "tokenizer settings garbage": file("tokenizer_config.json", b"{{{"),
    "tokenizer settings a list": file("tokenizer_config.json", b"[]"),
}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    home = tmp_path_factory.mktemp("sources")
    write_model(home / "bert")
    (home / "bert/owned.py").write_text("import os\nos.mkdir('owned')\n")
    write_text(home / "text.txt", 400)
    (home / "thesis.txt").write_text("years of work")
    return home


@pytest.fixture
def folder(sources, tmp_path, monkeypatch):
    shutil.copytree(sources, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def contents(folder: Path) -> dict[str, bytes | str | None]:
    """Of every file; of a link where it points to."""
    return {
        str(path.relative_to(folder)): str(path.readlink())
        if path.is_symlink()
        else path.read_bytes()
        if path.is_file()
        else None
        for path in sorted(folder.rglob("*"))
    }


def refused(arguments: list[str], folder: Path, capfd: Any) -> str:
    """What is said: one line; nothing is written."""
    before = contents(folder)
    capfd.readouterr()
    started = time.monotonic()
    code = run(arguments)  # a traceback would fail here
    seconds = time.monotonic() - started
    said = capfd.readouterr().err.strip()
    assert code == 2, said
    lines = said.splitlines()
    assert len(lines) == 1, said
    assert lines[0].startswith("linformer: "), said
    assert "Traceback" not in said
    assert contents(folder) == before
    assert seconds < 30
    return lines[0]


def test_there_are_enough_cases():
    assert len(SOURCES) >= 60


@pytest.mark.parametrize("name", SOURCES)
def test_a_damaged_source_is_one_line(folder, capfd, name):
    SOURCES[name](folder / "bert")
    given = ["--k", "4", "--window", "4", "--text", "text.txt", "--out", "out"]
    print(refused(["convert", "bert", *given], folder, capfd))


HARMLESS: dict[str, Damage] = {
    "a class that is a module": config(architectures=["utils"]),
    "a class that is no model": config(architectures=["Trainer"]),
    "a tokenizer with code of its own": entries(
        "tokenizer_config.json",
        tokenizer_class="Owned",
        auto_map={"AutoTokenizer": ["owned.Owned", None]},
    ),
    "a model with code of its own": config(auto_map={"AutoModel": "owned.Owned"}),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_does_no_harm_is_converted_and_runs_no_code(folder, name):
    HARMLESS[name](folder / "bert")
    before = contents(folder / "bert")
    assert run(["convert", "bert", "--k", "4", "--window", "4", "--out", "out"]) == 0
    assert contents(folder / "bert") == before
    assert {path.name for path in folder.iterdir()} == {"bert", "out", "text.txt", "thesis.txt"}


def without_model_type(folder: Path) -> None:
    """As early versions of transformers wrote it."""
    config(model_type=..., architectures=...)(folder)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "DistilBert", "Albert"])
def test_a_missing_model_type_is_told_by_the_names_of_tensors(folder, family, capsys):
    write_model(folder / "old", family)
    kind = json.loads((folder / "old/config.json").read_text())["model_type"]
    without_model_type(folder / "old")
    given = ["--k", "4", "--window", "40", "--text", "text.txt", "--out", "out"]
    assert run(["convert", "old", *given]) == 0
    said = capsys.readouterr().out
    assert f"has no model_type: read as that of {kind}, by its names" in said
    assert "embeddings 1.0000, tokens 1.0000" in said
    assert "LinformerForMaskedLM" in said


def test_the_spectrum_of_a_damaged_source_is_refused_too(folder, capfd):
    SOURCES["num_hidden_layers huge"](folder / "bert")
    assert "at most 8,192" in refused(["spectrum", "bert", "--text", "text.txt"], folder, capfd)


RUN = "distillation"
CONVERTED: dict[str, Damage] = {
    "record garbage": file("conversion.json", b"{"),
    "record a list": file("conversion.json", b"[]"),
    "record empty": file("conversion.json", b""),
    "record nested": file("conversion.json", DEEP),
    "record a folder": directory("conversion.json"),
    "record of other options": entries("conversion.json", options={"k": 8}),
    "options a number": entries("conversion.json", options=4),
    "settings a number": entries("conversion.json", settings=4),
    "settings missing": entries("conversion.json", settings=...),
    "settings without a length": entries("conversion.json", settings={}),
    "length a text": entries("conversion.json", settings={"max_length": "long"}),
    "how missing": entries("conversion.json", how=...),
    "result a number": entries("conversion.json", result=3),
}
STARTED: dict[str, Damage] = {
    "marker garbage": file(f"{RUN}/run.json", b"{"),
    "marker of another kind": entries(f"{RUN}/run.json", kind="other"),
    "marker without options": entries(f"{RUN}/run.json", options=...),
    "digest a number": entries(f"{RUN}/run.json", digest=4),
    "digest of another model": entries(f"{RUN}/run.json", digest={"model": "0"}),
    "start garbage": file(f"{RUN}/start.json", b"{"),
    "start a list": file(f"{RUN}/start.json", b"[]"),
    "start empty": file(f"{RUN}/start.json", b""),
    "start without settings": file(f"{RUN}/start.json", b"{}"),
    "settings of the start a number": entries(f"{RUN}/start.json", settings=7),
    "settings of the start impossible": entries(f"{RUN}/start.json", settings={"k": -1}),
    "scores of the start a text": entries(f"{RUN}/start.json", untrained="good"),
    "scores of the start missing": entries(f"{RUN}/start.json", untrained=...),
    "files that were moved a number": file(f"{RUN}/published.json", b'{"files": 3}'),
    "files that were moved garbage": file(f"{RUN}/published.json", b"{"),
    "log garbage": file(f"{RUN}/metrics.jsonl", b"{"),
    "log of numbers": file(f"{RUN}/metrics.jsonl", b"7\n"),
    "log of times that are texts": file(
        f"{RUN}/metrics.jsonl", b'{"step": 1, "spent_seconds": "a", "seconds": 1}\n'
    ),
}
GIVEN = ["convert", "bert", "--k", "4", "--window", "4", "--text", "text.txt", "--out", "out"]


@pytest.mark.parametrize("name", CONVERTED)
def test_a_damaged_record_of_a_conversion_is_one_line(folder, capfd, name):
    assert run(GIVEN) == 0
    CONVERTED[name](folder / "out")
    refused(GIVEN, folder, capfd)


@pytest.mark.parametrize("name", STARTED)
def test_a_damaged_start_of_a_conversion_is_one_line_or_made_anew(folder, capfd, name):
    """What was interrupted before the record: never a traceback, and the inputs stay."""
    steps = ["--steps", "2"]
    assert run([*GIVEN, *steps]) == 0
    (folder / "out/conversion.json").unlink()
    STARTED[name](folder / "out")
    before = contents(folder / "bert")
    capfd.readouterr()
    code = run([*GIVEN, *steps])
    said = capfd.readouterr().err.strip()
    assert code == 0 or (code == 2 and len(said.splitlines()) == 1), said
    assert contents(folder / "bert") == before
    assert (folder / "thesis.txt").read_text() == "years of work"
