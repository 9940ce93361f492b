"""transformers.pipeline with small models, trained on the spot until they know one thing."""

from __future__ import annotations

import pytest
import torch
from transformers import AutoModelForQuestionAnswering, AutoModelForSeq2SeqLM, pipeline

from linformer_kit.models import LinformerConfig

from .cases import CASES, SMALL
from .vocabulary import tokenizer_of


def trained(name, batch, tokenizer, steps=60, **options):
    torch.manual_seed(0)
    ids = {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "decoder_start_token_id": tokenizer.bos_token_id,
    }
    model = CASES[name].model(LinformerConfig(**SMALL | ids | options)).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(**batch).loss.backward()
        optimizer.step()
    return model.eval()


def saved(model, tokenizer, folder):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def test_fill_mask(tmp_path):
    tokenizer = tokenizer_of(pairs=True)
    texts = ["the cat sat on the mat", "the bird slept in the tree"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch.input_ids.clone()
    for row, word in enumerate(("mat", "tree")):
        asked = batch.input_ids[row] == tokenizer.convert_tokens_to_ids(word)
        labels[row, ~asked] = -100
        batch.input_ids[row, asked] = tokenizer.mask_token_id
    model = trained("LinformerForMaskedLM", {**batch, "labels": labels}, tokenizer)
    fill = pipeline("fill-mask", saved(model, tokenizer, tmp_path))
    assert fill("the cat sat on the [MASK]")[0]["token_str"] == "mat"
    assert fill("the bird slept in the [MASK]")[0]["token_str"] == "tree"


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_text_classification(tmp_path, pooling):
    tokenizer = tokenizer_of(pairs=True)
    batch = tokenizer(["a good cat", "a bad dog sat"], return_tensors="pt", padding=True)
    model = trained(
        "LinformerForSequenceClassification",
        {**batch, "labels": torch.tensor([1, 0])},
        tokenizer,
        num_labels=2,
        pooling=pooling,
    )
    model.config.id2label = {0: "bad", 1: "good"}
    model.config.label2id = {"bad": 0, "good": 1}
    classify = pipeline("text-classification", saved(model, tokenizer, tmp_path))
    found = classify(["a good cat", "a bad dog sat"], batch_size=2)
    assert [answer["label"] for answer in found] == ["good", "bad"]


def test_token_classification(tmp_path):
    tokenizer = tokenizer_of(pairs=True)
    batch = tokenizer(["Anna lives in Paris"], return_tensors="pt")
    labels = torch.tensor([[-100, 1, 0, 0, 2, -100]])
    model = trained("LinformerForTokenClassification", {**batch, "labels": labels}, tokenizer)
    model.config.id2label = {0: "O", 1: "B-PER", 2: "B-LOC"}
    tag = pipeline(
        "token-classification", saved(model, tokenizer, tmp_path), aggregation_strategy="simple"
    )
    found = {answer["word"]: answer["entity_group"] for answer in tag("Anna lives in Paris")}
    assert found["Anna"] == "PER"
    assert found["Paris"] == "LOC"


def test_text_generation(tmp_path):
    tokenizer = tokenizer_of()
    texts = ["the cat sat on the mat [EOS]", "a bird slept in a tree [EOS]"]
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    model = trained("LinformerForCausalLM", {**batch, "labels": labels}, tokenizer)
    write = pipeline("text-generation", saved(model, tokenizer, tmp_path))
    how = {"max_new_tokens": 10, "do_sample": False, "return_full_text": False}
    assert write("the cat sat", **how)[0]["generated_text"] == "on the mat"
    both = write(["the cat sat", "a bird"], batch_size=2, **how)
    assert both[1][0]["generated_text"] == "slept in a tree"


def test_feature_extraction(tmp_path):
    tokenizer = tokenizer_of(pairs=True)
    model = CASES["LinformerModel"].build(vocab_size=len(tokenizer))
    extract = pipeline("feature-extraction", saved(model, tokenizer, tmp_path))
    rows = torch.tensor(extract("the cat sat"))
    inputs = tokenizer("the cat sat", return_tensors="pt")
    torch.testing.assert_close(rows, model(**inputs).last_hidden_state)


# transformers 5 has no pipeline for these two: what it did is here done by hand.


def test_question_answering(tmp_path):
    tokenizer = tokenizer_of(pairs=True)
    batch = tokenizer("Anna lives in", "the dog ran in London", return_tensors="pt")
    place = batch.input_ids[0].tolist().index(tokenizer.convert_tokens_to_ids("London"))
    answer = {"start_positions": torch.tensor([place]), "end_positions": torch.tensor([place])}
    model = trained("LinformerForQuestionAnswering", {**batch, **answer}, tokenizer)
    model = AutoModelForQuestionAnswering.from_pretrained(saved(model, tokenizer, tmp_path))
    output = model(**batch)
    span = slice(output.start_logits.argmax(), output.end_logits.argmax() + 1)
    assert tokenizer.decode(batch.input_ids[0, span]) == "London"


@pytest.mark.parametrize("beams", [1, 3])
def test_text_to_text(tmp_path, beams):
    tokenizer = tokenizer_of()
    batch = tokenizer(["the cat", "a bird slept"], return_tensors="pt", padding=True)
    wanted = tokenizer(
        ["sat on the mat [EOS]", "in a tree [EOS]"],
        return_tensors="pt",
        padding=True,
        padding_side="right",
    )
    labels = wanted.input_ids.masked_fill(wanted.attention_mask == 0, -100)
    model = trained("LinformerForConditionalGeneration", {**batch, "labels": labels}, tokenizer)
    model = AutoModelForSeq2SeqLM.from_pretrained(saved(model, tokenizer, tmp_path))
    made = model.generate(**batch, max_new_tokens=12, num_beams=beams, length_penalty=1.0)
    texts = tokenizer.batch_decode(made, skip_special_tokens=True)
    assert texts == ["sat on the mat", "in a tree"]
