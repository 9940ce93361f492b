"""Translations are scored by sacrebleu, and are no longer than the model allows."""

from __future__ import annotations

import pytest

from linformer_kit.evaluate.translations import bleu_and_chrf, room
from linformer_kit.models import LinformerConfig, LinformerForCausalLM


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
