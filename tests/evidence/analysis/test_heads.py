"""`linformer heads`: E as it is applied, the n x k weights, and what each row looks at."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import torch

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data import tokenizer as tokenizers
from linformer_kit.evidence.analysis.encoders import load_encoder, pieces
from linformer_kit.evidence.analysis.heads import HeadsOptions, analyse_head, look_at_head
from linformer_kit.evidence.analysis.heads_view import figures, sheet
from linformer_kit.models import LinformerConfig, LinformerModel

from .test_spectrum import MACHINE, save_bert, save_tokenizer, text

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["text"]  # a fixture


def save_linformer(folder: Path, **more: object) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 45, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    options = {"max_position_embeddings": 32, "intermediate_size": 32, "k": 8, **more}
    LinformerModel(LinformerConfig(**sizes, **options)).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
def test_a_learned_e_is_shown_as_it_is(tmp_path, text, sharing):
    encoder = load_encoder(str(save_linformer(tmp_path, sharing=sharing)))
    options = HeadsOptions(layer=2, head=2, length=32)
    record = analyse_head(encoder, [str(text)], options, machine=MACHINE)
    core = encoder.model.encoder
    projection = core.projection or core.layers[1].attention.projection
    weight = projection.weight.detach().flatten(0, 1)  # (sides * heads, k, n)
    assert len(record["matrices"]) == len(weight)
    for found, expected in zip(record["matrices"], weight, strict=True):
        torch.testing.assert_close(torch.tensor(found["values"]), expected, atol=1e-5, rtol=0)
    assert (record["attention"]["rows"], record["attention"]["columns"]) == (32, 8)
    assert sum(row["used"] for row in record["rows"]) == pytest.approx(1.0, abs=1e-4)


@pytest.mark.parametrize("projection", ["conv", "mean", "pool", "fixed", "dynamic"])
def test_every_kind_of_matrix_can_be_shown(tmp_path, text, projection):
    encoder = load_encoder(str(save_linformer(tmp_path, projection=projection)))
    record = analyse_head(encoder, [str(text)], HeadsOptions(length=32), machine=MACHINE)
    assert len(record["rows"]) == 8
    assert len(sheet(record).rows) == 8
    assert len(figures(record)) == 1 + len(record["matrices"])
    if projection == "mean":  # row j is made of the 4 positions of its window
        assert record["rows"][3]["middle"] == 13.5
        assert record["rows"][3]["positions_in_use"] == 4.0


def test_a_shorter_text_shows_the_part_of_e_that_is_used(tmp_path, text):
    encoder = load_encoder(str(save_linformer(tmp_path)))
    record = analyse_head(encoder, [str(text)], HeadsOptions(length=20), machine=MACHINE)
    assert record["matrices"][0]["columns"] == 20


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layer": 3}, "--layer must be at most 2: got 3"),
        ({"head": 3}, "--head must be at most 2: got 3"),
    ],
)
def test_a_head_that_is_not_there_is_refused(tmp_path, text, options, message):
    encoder = load_encoder(str(save_linformer(tmp_path)))
    with pytest.raises(ValueError, match=message):
        analyse_head(encoder, [str(text)], HeadsOptions(length=32, **options), machine=MACHINE)


def test_a_model_without_e_is_refused(tmp_path, text):
    options = HeadsOptions(length=32)
    vanilla = load_encoder(str(save_linformer(tmp_path / "full", projection="full", k=None)))
    with pytest.raises(ValueError, match="projection='full', the vanilla Transformer"):
        analyse_head(vanilla, [str(text)], options, machine=MACHINE)
    bert = load_encoder(str(save_bert(tmp_path / "bert")))
    with pytest.raises(ValueError, match=r"is no Linformer, and has no E to look at.*'bert'"):
        analyse_head(bert, [str(text)], options, machine=MACHINE)


def test_a_layer_without_e_among_others_is_refused(tmp_path, text):
    encoder = load_encoder(str(save_linformer(tmp_path, full_layers=[0])))
    with pytest.raises(ValueError, match=r"layer 1 .* has no E to look at.* Use --layer 2\."):
        analyse_head(encoder, [str(text)], HeadsOptions(length=32), machine=MACHINE)
    record = analyse_head(encoder, [str(text)], HeadsOptions(layer=2, length=32), machine=MACHINE)
    assert len(record["rows"]) == 8


def test_e_of_one_head_alone(tmp_path, text):
    encoder = load_encoder(str(save_linformer(tmp_path, sharing="none")))
    piece = next(pieces(encoder, [str(text)], 32))
    every = look_at_head(encoder, piece, layer=1, head=2)["matrices"]
    own = look_at_head(encoder, piece, layer=1, head=2, all_matrices=False)["matrices"]
    assert own == [each for each in every if each["name"].endswith("head 2")]
    assert [each["name"] for each in own] == ["E, head 2", "F, head 2"]


def test_a_text_of_bytes_is_shown_in_the_table(tmp_path):
    text = "“café”\n" * 40
    tokenizer = tokenizers.make(
        TokenizerSection(kind="bpe", vocab_size=270), "mlm", [{"text": text}]
    )
    options = {"vocab_size": len(tokenizer), "hidden_size": 16, "num_hidden_layers": 1}
    sizes = {"num_attention_heads": 2, "intermediate_size": 32, "max_position_embeddings": 32}
    LinformerModel(LinformerConfig(**options, **sizes, k=8)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "text.txt").write_text(text)
    record = analyse_head(
        load_encoder(str(tmp_path)), [str(tmp_path / "text.txt")], HeadsOptions(), machine=MACHINE
    )
    assert record["attention"]["rows"] == record["length"] == 32  # with <s> and </s>
    shown = " ".join(row[-1].text for row in sheet(record).rows)
    assert "↵@" in shown
    assert not any(sign in shown for sign in "ĠĊâĢĿ")
    json.dumps(record, allow_nan=False)
