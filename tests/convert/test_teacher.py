"""Pretrained models are loaded with their head, also where their class is unknown."""

from __future__ import annotations

import json
import warnings

import pytest
import torch

from linformer_kit.cli.app import run
from linformer_kit.convert.teacher import load_teacher

from .pretrained import FAMILIES, pretrained


def rename_class(folder, name):
    file = folder / "config.json"
    config = json.loads(file.read_text())
    file.write_text(json.dumps(config | {"architectures": [name]}))


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
