"""A model folder is loaded whole, or refused with one line that names what is wrong."""

from __future__ import annotations

import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM
from linformer_kit.models.load import load_pretrained, load_tokenizer

TENSOR = "linformer.embeddings.positions.weight"


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    config = LinformerConfig(
        vocab_size=50,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=32,
        k=8,
    )
    model = LinformerForMaskedLM(config)
    model.save_pretrained(folder)
    return folder, model


@pytest.fixture
def folder(tmp_path, saved):
    shutil.copytree(saved[0], tmp_path / "model")
    return tmp_path / "model"


def test_what_was_saved_is_loaded(saved):
    folder, model = saved
    again = load_pretrained(LinformerForMaskedLM, folder)
    torch.testing.assert_close(again.state_dict(), model.state_dict(), rtol=0, atol=0)


def with_weights(change):
    def act(folder):
        weights = load_file(folder / "model.safetensors")
        change(weights)
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})

    return act


def with_config(**values):
    def act(folder):
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return act


def write(name, content):
    return lambda folder: (folder / name).write_bytes(content)


def cut(folder):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


WRONG = {
    "a tensor is missing": (with_weights(lambda w: w.pop(TENSOR)), f"lacks 1 .*{TENSOR}"),
    "NaN": (with_weights(lambda w: w[TENSOR].fill_(float("nan"))), f"NaN or infinite.*{TENSOR}"),
    "Inf": (with_weights(lambda w: w[TENSOR][0].fill_(float("inf"))), "NaN or infinite"),
    "a tensor too many": (with_weights(lambda w: w.update(more=torch.ones(2))), "no use for: more"),
    "another shape": (with_weights(lambda w: w.update({TENSOR: torch.ones(2, 2)})), r"\(2, 2\)"),
    "truncated weights": (cut, "cannot read"),
    "garbage weights": (write("model.safetensors", b"garbage" * 99), "cannot read"),
    "empty weights": (write("model.safetensors", b""), "cannot read"),
    "no weights": (lambda f: (f / "model.safetensors").unlink(), "has no model.safetensors"),
    "no config": (lambda f: (f / "config.json").unlink(), "has no config.json"),
    "no folder": (shutil.rmtree, "there is no model folder"),
    "invalid config": (write("config.json", b"{{"), "not a model's configuration"),
    "a list as config": (write("config.json", b"[]"), "must be a JSON object: got list"),
    "deeply nested config": (write("config.json", b"[" * 200_000), "nested too deeply"),
    "binary config": (write("config.json", b"\xff\xfe\x00"), "not a model's configuration"),
    "another class": (with_config(architectures=["BertModel"]), "holds BertModel"),
    "no class": (with_config(architectures=None), "without a class"),
    "wrong class type": (with_config(architectures=7), "list of class names"),
    "a value of another type": (with_config(hidden_size="wide"), "hidden_size"),
    "an unknown key": (with_config(hiden_size=16), "hiden_size"),
    "a missing key": (
        lambda f: (f / "config.json").write_text('{"architectures": ["LinformerForMaskedLM"]}'),
        "the configuration lacks 'vocab_size'",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_a_damaged_folder_is_refused_in_one_line(folder, name):
    break_it, message = WRONG[name]
    break_it(folder)
    with pytest.raises(UserError, match=message) as refused:
        load_pretrained(LinformerForMaskedLM, folder)
    assert "\n" not in str(refused.value)
    assert "model" in str(refused.value)


def test_pickled_weights_are_refused_before_they_are_read(folder):
    class Evil:
        def __reduce__(self):
            return (os.mkdir, (str(folder / "owned"),))

    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Evil()))
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle file"):
        load_pretrained(LinformerForMaskedLM, folder)
    assert not (folder / "owned").exists()


def test_code_beside_a_model_is_never_run(folder):
    with_config(auto_map={"AutoModel": "evil.Evil", "AutoConfig": "evil.Evil"})(folder)
    (folder / "evil.py").write_text(f"import os; os.mkdir({str(folder / 'owned')!r})")
    load_pretrained(LinformerForMaskedLM, folder)
    assert not (folder / "owned").exists()


def test_a_model_of_another_class_is_refused(folder):
    with pytest.raises(UserError, match="holds LinformerForMaskedLM: this needs a LinformerForC"):
        load_pretrained(LinformerForCausalLM, folder)


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"{{", b"\xff", b"[" * 100_000])
def test_a_damaged_tokenizer_is_refused_in_one_line(folder, content):
    assert load_tokenizer(folder) is None  # none there
    (folder / "tokenizer.json").write_bytes(content)
    with pytest.raises(UserError, match="cannot load the tokenizer in"):
        load_tokenizer(folder)
