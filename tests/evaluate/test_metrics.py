"""Metrics against scikit-learn and against sums done by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from sklearn.metrics import confusion_matrix, f1_score

from linformer_kit.evaluate import scores
from linformer_kit.evaluate.metrics import Metrics, classification
from linformer_kit.evaluate.translations import bleu_and_chrf, room
from linformer_kit.models import LinformerConfig, LinformerForCausalLM


def test_classification_agrees_with_scikit_learn():
    random = np.random.default_rng(0)
    truth, guess = random.integers(0, 4, 200), random.integers(0, 4, 200)
    found = classification(np.stack([np.ones(200), truth, guess], 1), 4)
    assert found["confusion"] == confusion_matrix(truth, guess).tolist()
    assert found["macro_f1"] == pytest.approx(f1_score(truth, guess, average="macro"))
    assert found["accuracy"] == pytest.approx((truth == guess).mean())


def test_perplexity_and_bits_per_byte():
    rows = np.array([[math.log(8) * 10, 10, 4], [math.log(2) * 10, 10, 2]])
    found = Metrics(task="clm", tokens=100, bytes=400)(rows)
    assert found["perplexity"] == pytest.approx(4.0)
    assert found["accuracy"] == pytest.approx(0.3)
    assert found["bits_per_byte"] == pytest.approx(2.0 * 100 / 400)


def test_scores_are_the_same_in_pieces_and_without_logits(monkeypatch):
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_slots=4, window=4, is_decoder=True,
    )  # fmt: skip
    model = LinformerForCausalLM(config).eval()
    ids = torch.randint(1, 30, (5, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    whole = scores.row_scores(model, batch, "clm", 30)
    monkeypatch.setattr(scores, "LOGIT_BYTES", 2 * 4 * 30 * 12)  # two rows at a time
    torch.testing.assert_close(scores.row_scores(model, batch, "clm", 30), whole)
    monkeypatch.setattr(scores, "LOGIT_BYTES", 1)  # not even one
    alone = scores.row_scores(model, batch, "clm", 30)
    torch.testing.assert_close(alone[:, :2], whole[:, :2], rtol=1e-5, atol=1e-5)
    assert alone[:, 2].isnan().all()


def test_bleu_comes_with_its_signature():
    found = bleu_and_chrf(["Ein Hund läuft schnell."], ["Ein Hund läuft schnell."])
    assert found["bleu"] == pytest.approx(100.0)
    assert "tok:13a" in found["signatures"]["bleu"]
    assert "case:lc" in found["signatures"]["bleu_lowercased"]


@pytest.mark.parametrize(("kind", "allowed"), [("learned", 15), ("none", 99)])
def test_no_more_is_written_than_there_are_learned_positions(kind, allowed):
    config = LinformerConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, max_position_embeddings=16, is_decoder=True,
        position_embedding_type=kind,
    )  # fmt: skip
    assert room(LinformerForCausalLM(config), 99) == allowed
