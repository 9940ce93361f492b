"""Pretrained models are loaded with their head, also where their class is unknown."""

from __future__ import annotations

import json
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

from linformer_kit.cli.app import run
from linformer_kit.convert import convert
from linformer_kit.convert.teacher import load_teacher
from linformer_kit.errors import UserError

from .pretrained import FAMILIES, pretrained


def change_config(folder, **values):
    file = folder / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def rename_class(folder, name):
    change_config(folder, architectures=[name])


class Code:
    """Calls print when it is unpickled."""

    def __reduce__(self):
        return print, ("unpickled",)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["ForMaskedLM", "ForQuestionAnswering"])
def test_the_tensors_tell_the_head_of_an_unknown_class(family, head, tmp_path):
    model = pretrained(family, head)
    model.save_pretrained(tmp_path)
    rename_class(tmp_path, "SomebodysOwnModel")
    found, _ = load_teacher(str(tmp_path))
    assert type(found) is type(model)
    ids = torch.randint(5, 50, (2, 12))
    for ours, theirs in zip(found(ids).to_tuple(), model.eval()(ids).to_tuple(), strict=True):
        assert torch.equal(ours, theirs)


def test_a_head_that_the_tensors_do_not_tell_is_named(tmp_path, capsys):
    pretrained("Bert", "ForTokenClassification").save_pretrained(tmp_path / "theirs")
    rename_class(tmp_path / "theirs", "SomebodysOwnModel")
    out = tmp_path / "ours"
    code = run(
        ["convert", str(tmp_path / "theirs"), "--k", "4", "--window", "2", "--out", str(out)]
    )
    said = capsys.readouterr()
    assert code == 0
    assert "2 tensors of" in said.out + said.err
    assert "loaded as BertModel, are not used: classifier.bias, classifier.weight." in (
        said.out + said.err
    )


def test_nothing_is_said_where_every_tensor_is_used(tmp_path):
    pretrained("Bert", "ForMaskedLM").save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_teacher(str(tmp_path))


def without_pooler(folder, head):
    pretrained("Bert", head).save_pretrained(folder)
    file = folder / "model.safetensors"
    kept = {name: t for name, t in load_file(file).items() if "pooler" not in name}
    save_file(kept, file, {"format": "pt"})
    return str(folder)


def test_a_head_without_its_pooler_is_refused(tmp_path):
    folder = without_pooler(tmp_path, "ForSequenceClassification")
    with pytest.raises(UserError, match=r"lacks 2 of the model's tensors: bert.pooler.dense.bias"):
        load_teacher(folder)


def test_an_encoder_without_its_pooler_has_none(tmp_path):
    with pytest.warns(UserWarning, match="no weights of its pooler: the result has none"):
        model, _ = load_teacher(without_pooler(tmp_path, "Model"))
    assert model.pooler is None
    assert not convert(model, k=4, window=4).config.pooler


def test_tensors_of_another_shape_are_named(tmp_path):
    pretrained("Bert").save_pretrained(tmp_path)
    change_config(tmp_path, vocab_size=61)
    with pytest.raises(UserError, match=r"1 tensor of another shape.*word_embeddings.weight \(60"):
        load_teacher(str(tmp_path))


@pytest.mark.parametrize("wrong", [5, [3], "BertModel"])
def test_a_class_must_be_a_name(wrong, tmp_path):
    pretrained("Bert").save_pretrained(tmp_path)
    change_config(tmp_path, architectures=wrong)
    with pytest.raises(UserError, match=r"'architectures' must be a list of class names: got"):
        load_teacher(str(tmp_path))


def test_a_pickle_with_code_is_refused_without_advice_to_run_it(tmp_path):
    pretrained("Bert").save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    torch.save({"a": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"pickle.*more than tensors.*safetensors") as refused:
        load_teacher(str(tmp_path))
    assert "weights_only" not in str(refused.value)
