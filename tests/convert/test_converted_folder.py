"""Folders that `linformer convert` wrote load wherever model folders load."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    pipeline,
)

from linformer_kit.cli.app import run

from .pretrained import WORDS, write_model, write_text

SIZES = ["--max-length", "60", "--k", "4", "--window", "4"]


def converted(folder, head, *more):
    """A folder of a converted model with this head, trained for two steps."""
    write_model(folder / "bert", head=head)
    for name, content in more:
        (folder / "bert" / name).parent.mkdir(exist_ok=True)
        (folder / "bert" / name).write_text(json.dumps(content))
    text = write_text(folder / "text.txt")
    given = ["--text", str(text), "--steps", "2", "--out", str(folder / "out")]
    assert run(["convert", str(folder / "bert"), *SIZES, *given]) == 0
    return folder / "out"


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory):
    return converted(tmp_path_factory.mktemp("masked"), "ForMaskedLM")


def test_from_pretrained_gives_the_model_and_its_encoder(masked_lm):
    ids = torch.randint(5, 20, (1, 60))
    whole, encoder = (
        kind.from_pretrained(masked_lm).eval() for kind in (AutoModelForMaskedLM, AutoModel)
    )
    with torch.no_grad():
        hidden = encoder(ids).last_hidden_state
        expected = whole.lm_head(whole.transform(hidden))
        torch.testing.assert_close(whole(ids).logits, expected)


def test_the_pipeline_fills_a_mask_beyond_the_length_of_the_original(masked_lm):
    fill = pipeline("fill-mask", model=str(masked_lm), tokenizer=str(masked_lm))
    text = " ".join([*WORDS, *WORDS, "[MASK]", *WORDS])
    assert len(AutoTokenizer.from_pretrained(masked_lm)(text)["input_ids"]) > 20
    found = fill(text, top_k=3)
    assert len(found) == 3
    assert sum(answer["score"] for answer in found) <= 1.0


def test_the_pipeline_classifies(tmp_path):
    folder = converted(tmp_path, "ForSequenceClassification")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = " ".join(WORDS * 3)
    (found,) = pipeline("text-classification", model=model, tokenizer=tokenizer)(text)
    with torch.no_grad():
        chances = model(**tokenizer(text, return_tensors="pt")).logits.softmax(-1)[0]
    assert found["label"] == model.config.id2label[int(chances.argmax())]
    assert found["score"] == pytest.approx(float(chances.max()), abs=1e-5)


def test_sentence_transformers_loads_the_folder_of_one(tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    kinds = "sentence_transformers.models."
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": f"{kinds}Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{kinds}Pooling"},
    ]
    pooling = {"word_embedding_dimension": 16, "pooling_mode_mean_tokens": True}
    folder = converted(
        tmp_path,
        "Model",
        ("modules.json", modules),
        ("1_Pooling/config.json", pooling),
        ("sentence_bert_config.json", {"max_seq_length": 20, "do_lower_case": False}),
    )
    model = sentence_transformers.SentenceTransformer(str(folder), device="cpu")
    assert model.max_seq_length == 60
    text = " ".join(WORDS * 3)
    (found,) = model.encode([text])
    tokenizer = AutoTokenizer.from_pretrained(folder)
    batch = tokenizer(text, truncation=True, max_length=60, return_tensors="pt")
    with torch.no_grad():
        states = AutoModel.from_pretrained(folder).eval()(
            batch["input_ids"], attention_mask=batch["attention_mask"]
        )
    expected = states.last_hidden_state[0].mean(0)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_onnxruntime_gives_the_logits_of_an_exported_folder(masked_lm, tmp_path):
    pytest.importorskip("onnxruntime")
    from linformer_kit.export.runtime import OnnxModel

    file = tmp_path / "model.onnx"
    assert run(["export", str(masked_lm), "--to", str(file)]) == 0
    model = AutoModelForMaskedLM.from_pretrained(masked_lm).eval()
    for length in (5, 33, 60):
        ids = torch.randint(5, 20, (2, length))
        mask = torch.ones_like(ids)
        mask[1, length - 3 :] = 0
        with torch.no_grad():
            expected = model(ids, attention_mask=mask).logits
        (found,) = OnnxModel(file)(input_ids=ids.numpy(), attention_mask=mask.numpy()).values()
        real = mask.bool()
        torch.testing.assert_close(
            torch.from_numpy(found)[real], expected[real], atol=1e-4, rtol=1e-4
        )
