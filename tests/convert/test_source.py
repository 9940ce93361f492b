"""Models of other families are converted in place by the same command."""

from __future__ import annotations

import json

import pytest
import torch
import transformers
from safetensors.torch import load_file

from linformer_kit.cli.app import run
from linformer_kit.convert import load_linformerized
from linformer_kit.models.text_input import COUNTED_FROM_PADDING, longest

from .pretrained import word_tokenizer, write_model, write_text

SMALL = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
}


def esm() -> transformers.PreTrainedModel:
    config = transformers.EsmConfig(
        vocab_size=60, max_position_embeddings=42, pad_token_id=0, mask_token_id=4, **SMALL
    )
    return transformers.EsmForMaskedLM(config)


def vit() -> transformers.PreTrainedModel:
    return transformers.ViTModel(transformers.ViTConfig(image_size=32, patch_size=4, **SMALL))


def whisper() -> transformers.PreTrainedModel:
    config = transformers.WhisperConfig(
        d_model=16, encoder_layers=2, decoder_layers=1, encoder_attention_heads=2,
        decoder_attention_heads=2, encoder_ffn_dim=24, decoder_ffn_dim=24, vocab_size=60,
        num_mel_bins=8, max_source_positions=40, pad_token_id=0, bos_token_id=1, eos_token_id=2,
        decoder_start_token_id=1, suppress_tokens=None, begin_suppress_tokens=None,
    )  # fmt: skip
    return transformers.WhisperModel(config)


@pytest.mark.parametrize(("make", "length"), [(esm, 40), (vit, 65), (whisper, 40)])
def test_the_positions_of_a_model_follow_from_its_configuration(make, length):
    assert longest(make().config) == length


@pytest.mark.parametrize("model_type", sorted({*COUNTED_FROM_PADDING} - {"esm"}))
def test_positions_may_be_counted_from_the_padding_token_on(model_type):
    kind = transformers.CONFIG_MAPPING[model_type]
    more = {
        "lilt": {"hidden_size": 48},
        "longformer": {"attention_window": 4},
        "luke": {"entity_vocab_size": 4, "entity_emb_size": 8},
        "xmod": {"default_language": "en_XX"},
    }.get(model_type, {})
    config = kind(vocab_size=60, max_position_embeddings=20, pad_token_id=3, **{**SMALL, **more})
    model = transformers.AutoModel.from_config(config).eval()
    length = longest(config)
    assert length == 16
    inputs = {"bbox": torch.zeros(1, length, 4, dtype=torch.long)} if model_type == "lilt" else {}
    assert model(torch.full((1, length), 7), **inputs).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("make", "inputs"),
    [
        (vit, {"pixel_values": torch.randn(1, 3, 32, 32)}),
        (
            whisper,
            {
                "input_features": torch.randn(1, 8, 80),
                "decoder_input_ids": torch.tensor([[1, 5, 6]]),
            },
        ),
    ],
)
def test_images_and_audio_by_the_same_command(make, inputs, tmp_path, capsys):
    model = make().eval()
    model.save_pretrained(tmp_path / "model")
    sizes = ["--k", "4", "--window", "40"]  # the window covers the input: the same outputs
    out = tmp_path / "out"
    assert run(["convert", str(tmp_path / "model"), "--out", str(out), *sizes]) == 0
    said = capsys.readouterr().out
    assert "swapped in place" in said
    assert "load_linformerized" in said
    again = load_linformerized(out)
    with torch.no_grad():
        ours, theirs = again(**inputs), model(**inputs)
    torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state)
    assert json.loads((out / "conversion.json").read_text())["how"] == "in place"


def test_decoder_attention_is_left_alone_and_said(tmp_path, capsys):
    whisper().save_pretrained(tmp_path / "model")
    given = ["--k", "4", "--window", "4", "--out", str(tmp_path / "out")]
    assert run(["convert", str(tmp_path / "model"), *given]) == 0
    said = capsys.readouterr().out
    assert "2 of 4 attention modules swapped in place; left alone:" in said
    assert "cross-attention" in said


def test_an_encoder_of_proteins_is_distilled_in_place(tmp_path, capsys):
    esm().save_pretrained(tmp_path / "esm")
    word_tokenizer(40).save_pretrained(tmp_path / "esm")
    text = write_text(tmp_path / "text.txt", 800)
    out = tmp_path / "out"
    given = ["--text", str(text), "--k", "4", "--window", "4", "--steps", "3", "--lr", "0.01"]
    assert run(["convert", str(tmp_path / "esm"), *given, "--out", str(out)]) == 0
    assert "after 3 steps: cosine to the original" in capsys.readouterr().out
    record = json.loads((out / "conversion.json").read_text())
    assert record["trained"] != record["untrained"]
    again = load_linformerized(out)
    assert type(again).__name__ == "EsmForMaskedLM"
    assert again(torch.randint(5, 20, (1, 40))).logits.shape == (1, 40, 60)


def test_pool_is_calibrated_on_rows_that_are_not_measured(tmp_path, capsys):
    write_model(tmp_path / "bert")
    text = write_text(tmp_path / "text.txt")
    given = ["convert", str(tmp_path / "bert"), "--k", "4", "--window", "2", "--projection", "pool"]
    assert run([*given, "--text", str(text), "--out", str(tmp_path / "out")]) == 0
    tensors = load_file(tmp_path / "out/model.safetensors")
    learned = [tensor for name, tensor in tensors.items() if "projection" in name]
    assert learned
    assert all(bool(tensor.any()) for tensor in learned)
    capsys.readouterr()
    assert run([*given, "--out", str(tmp_path / "plain")]) == 0
    assert "pool is not calibrated" in capsys.readouterr().out


def test_a_mistake_about_a_model_in_place_is_one_line(tmp_path, capsys):
    esm().save_pretrained(tmp_path / "esm")
    word_tokenizer(40).save_pretrained(tmp_path / "esm")
    vit().save_pretrained(tmp_path / "vit")
    text = str(write_text(tmp_path / "text.txt", 800))
    wav = transformers.Wav2Vec2Config(
        conv_dim=(8,), conv_kernel=(4,), conv_stride=(2,), num_conv_pos_embedding_groups=2, **SMALL
    )
    transformers.Wav2Vec2Model(wav).save_pretrained(tmp_path / "wav")
    for name, options, message in (
        ("esm", ["--max-length", "80"], "--max-length must be at most 40, got 80"),
        ("esm", ["--positions", "spread"], "--positions spread has no effect"),
        ("vit", ["--text", text], "--text needs an encoder of text"),
        ("wav", [], "does not tell how many positions it reads. Give --max-length"),
        ("esm", ["--k", "4", "--keep-full", "7"], "keep_full takes numbers from 0 to 1"),
    ):
        out = tmp_path / "out"
        assert run(["convert", str(tmp_path / name), "--out", str(out), *options]) == 2
        assert message in capsys.readouterr().err
        assert not out.exists()
