"""Folders of linformerized models: the same model again with one call, or one clear error."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import torch
import transformers as T
from safetensors.torch import load_file, save_file
from torch import nn

from linformer_kit.convert import (
    linformerize,
    linformerized,
    load_linformerized,
    save_linformerized,
)
from linformer_kit.errors import UserError

from .test_in_place import CASES, N, build, call, input_of

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS, WEIGHTS = "linformerized.json", "linformerized.safetensors"
OPTIONS: dict[str, Any] = {"max_length": N + 10, "k": 5, "window": 4}


@pytest.mark.parametrize("kind", ["mean", "linear"])
@pytest.mark.parametrize("name", [n for n in CASES if not n.startswith("torch")])
def test_a_hugging_face_model_loads_again_with_one_call(
    tmp_path: Path, name: str, kind: Any
) -> None:
    case, model = CASES[name], build(name)
    linformerize(model, **OPTIONS, projection=kind)
    for parameter in model.parameters():
        parameter.data += 0.01 * torch.randn_like(parameter)
    save_linformerized(model, tmp_path / "saved")
    assert {f.suffix for f in (tmp_path / "saved").iterdir()} == {".json", ".safetensors"}
    again = load_linformerized(tmp_path / "saved")
    assert type(again) is type(model)
    assert not again.training
    assert linformerized(again) == linformerized(model)
    assert again.dtype == torch.float64
    x = input_of(case)
    with torch.no_grad():
        assert torch.equal(call(case, again, x), call(case, model, x))


@pytest.mark.parametrize("name", [n for n in CASES if n.startswith("torch")])
def test_another_module_is_loaded_into_a_new_one(tmp_path: Path, name: str) -> None:
    case = CASES[name]
    model = linformerize(build(name), **OPTIONS, projection="linear", keep_full=[1])
    save_linformerized(model, tmp_path)
    with pytest.raises(UserError, match=r"not a class of transformers.*into="):
        load_linformerized(tmp_path)
    new = case.build().double().eval()
    again = load_linformerized(tmp_path, into=new)
    assert again is new
    x = input_of(case)
    assert torch.equal(call(case, again, x), call(case, model, x))
    assert linformerized(again) == linformerized(model)


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    model = linformerize(build("bert-masked-lm"), **OPTIONS)
    save_linformerized(model, tmp_path)
    names = load_file(tmp_path / WEIGHTS).keys()
    assert "cls.predictions.decoder.weight" not in names
    again = load_linformerized(tmp_path)
    embedding = again.get_input_embeddings().weight
    assert again.get_output_embeddings().weight is embedding
    assert torch.equal(embedding, model.get_input_embeddings().weight)


def test_the_settings_of_generation_come_along(tmp_path: Path) -> None:
    model = linformerize(build("whisper").float(), **OPTIONS)
    model.generation_config.max_new_tokens = 5
    save_linformerized(model, tmp_path)
    again = load_linformerized(tmp_path)
    features = input_of(CASES["whisper"]).float()
    assert torch.equal(again.generate(features), model.generate(features))
    assert again.generation_config.max_new_tokens == 5


def test_half_precision_is_kept(tmp_path: Path) -> None:
    model = linformerize(build("vit").bfloat16(), **OPTIONS, projection="linear")
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    save_linformerized(model, tmp_path)
    assert {p.dtype for p in load_linformerized(tmp_path).parameters()} == {torch.bfloat16}


def test_a_model_that_was_not_converted_is_not_saved(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="call linformerize first"):
        save_linformerized(build("bert"), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning")
def test_a_quantized_model_is_not_saved(tmp_path: Path) -> None:
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 24, batch_first=True), 1)
    linformerize(encoder, max_length=20, k=4)
    encoder = torch.ao.quantization.quantize_dynamic(encoder, {nn.Linear})
    with pytest.raises(ValueError, match=r"TransformerEncoder has quantized layers.*linear1"):
        save_linformerized(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    model = linformerize(build("vit"), **OPTIONS)
    with pytest.raises(UserError, match=r"left alone, for it holds config.json"):
        save_linformerized(model, tmp_path)
    assert [f.name for f in tmp_path.iterdir()] == ["config.json"]


def test_a_folder_is_written_twice(tmp_path: Path) -> None:
    save_linformerized(linformerize(build("vit"), **OPTIONS), tmp_path)
    save_linformerized(linformerize(build("vit"), **OPTIONS | {"k": [3, 7]}), tmp_path)
    assert [r.k for r in linformerized(load_linformerized(tmp_path))] == [3, 7]


def _edit(file: Path, change: Any) -> None:
    said = json.loads(file.read_text())
    change(said)
    file.write_text(json.dumps(said))


def _edit_weights(folder: Path, change: Any) -> None:
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS)


NAME = "layernorm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / SETTINGS).unlink(), f"has no {SETTINGS}"),
        (lambda f: (f / SETTINGS).write_text("{"), "Expecting property name"),
        (lambda f: (f / SETTINGS).write_text("[]"), f"cannot read .*{SETTINGS}"),
        (lambda f: _edit(f / SETTINGS, lambda s: s.pop("attention")), "'attention' is missing"),
        (lambda f: _edit(f / SETTINGS, lambda s: s.update(format=9)), "format 9.*reads 1"),
        (
            lambda f: _edit(f / SETTINGS, lambda s: s["attention"].update(other={"k": 1})),
            f"cannot read .*{SETTINGS}",
        ),
        (
            lambda f: _edit(
                f / SETTINGS, lambda s: [a.update(window=-1) for a in s["attention"].values()]
            ),
            "window must be at least 0",
        ),
        (
            lambda f: _edit(
                f / SETTINGS, lambda s: s["attention"].update(a=next(iter(s["attention"].values())))
            ),
            "swapped attention 'a'.*no such attention",
        ),
        (lambda f: _edit(f / SETTINGS, lambda s: s.update({"class": "os"})), "the class os"),
        (
            lambda f: _edit(f / SETTINGS, lambda s: s.update({"class": "AutoModel"})),
            "the class AutoModel",
        ),
        (lambda f: (f / "config.json").unlink(), "cannot build ViTModel"),
        (lambda f: (f / WEIGHTS).unlink(), f"has no {WEIGHTS}"),
        (lambda f: (f / WEIGHTS).write_bytes(b"no"), f"cannot read .*{WEIGHTS}"),
        (lambda f: _edit_weights(f, lambda t: t.pop(NAME)), f"lacks 1 .*{NAME}"),
        (
            lambda f: _edit_weights(f, lambda t: t.update(other=torch.ones(1))),
            "1 tensor that .*other",
        ),
        (
            lambda f: _edit_weights(f, lambda t: t.update({NAME: torch.ones(3)})),
            rf"another shape.*{NAME} \(3,\)",
        ),
        (lambda f: _edit_weights(f, lambda t: t[NAME].fill_(torch.nan)), f"NaN .*{NAME}"),
    ],
)
def test_a_damaged_folder_gives_one_clear_line(tmp_path: Path, damage: Any, message: str) -> None:
    save_linformerized(linformerize(build("vit"), **OPTIONS), tmp_path)
    damage(tmp_path)
    with pytest.raises(UserError, match=message) as error:
        load_linformerized(tmp_path)
    assert "\n" not in str(error.value)


def test_a_module_of_another_kind_is_refused(tmp_path: Path) -> None:
    save_linformerized(linformerize(build("torch-encoder"), **OPTIONS), tmp_path)
    with pytest.raises(UserError, match=r"layers.0.self_attn.*no such attention"):
        load_linformerized(tmp_path, into=nn.Linear(4, 4))
    with pytest.raises(UserError, match="swapped already"):
        load_linformerized(tmp_path, into=linformerize(build("torch-encoder"), **OPTIONS))


def test_code_beside_the_model_is_not_run(tmp_path: Path) -> None:
    save_linformerized(linformerize(build("vit"), **OPTIONS), tmp_path)
    (tmp_path / "evil.py").write_text("raise SystemExit('was run')")
    _edit(
        tmp_path / "config.json",
        lambda c: c.update(auto_map={"AutoConfig": "evil.C", "AutoModel": "evil.M"}),
    )
    assert isinstance(load_linformerized(tmp_path), T.ViTModel)
