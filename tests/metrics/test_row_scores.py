"""Scores of rows do not depend on how a batch is cut."""

from __future__ import annotations

import torch

from linformer_kit.metrics import row_scores as module
from linformer_kit.metrics.row_scores import row_scores
from linformer_kit.models import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM


def test_scores_are_the_same_in_pieces_and_without_logits(monkeypatch):
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_slots=4, window=4, is_decoder=True,
    )  # fmt: skip
    model = LinformerForCausalLM(config).eval()
    ids = torch.randint(1, 30, (5, 12))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": ids}
    whole = row_scores(model, batch, "clm", 30)
    monkeypatch.setattr(module, "LOGIT_BYTES", 2 * 4 * 30 * 12)  # two rows at a time
    torch.testing.assert_close(row_scores(model, batch, "clm", 30), whole)
    monkeypatch.setattr(module, "LOGIT_BYTES", 1)  # not even one
    alone = row_scores(model, batch, "clm", 30)
    torch.testing.assert_close(alone[:, :2], whole[:, :2], rtol=1e-5, atol=1e-5)
    assert alone[:, 2].isnan().all()


def test_a_row_whose_logits_do_not_fit_has_a_loss_in_masked_language_modelling(monkeypatch):
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=30, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, k=4, max_position_embeddings=12,
    )  # fmt: skip
    model = LinformerForMaskedLM(config).eval()
    ids = torch.randint(1, 30, (3, 12))
    labels = torch.where(torch.rand(3, 12) < 0.4, ids, -100)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    whole = row_scores(model, batch, "mlm", 30)
    monkeypatch.setattr(module, "LOGIT_BYTES", 1)
    alone = row_scores(model, batch, "mlm", 30)
    torch.testing.assert_close(alone[:, :2], whole[:, :2], rtol=1e-5, atol=1e-5)
    assert alone[:, 2].isnan().all()
