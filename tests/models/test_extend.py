"""A model for longer inputs: what is interpolated, and what is not touched."""

from __future__ import annotations

import copy

import pytest
import torch

from linformer_kit.core.resize import resize_max_length
from linformer_kit.models import LinformerConfig, LinformerForMaskedLM
from linformer_kit.models.extend import extended, extended_length


def model(**options):
    torch.manual_seed(0)
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LinformerConfig(
        **sizes, intermediate_size=8, k=4, max_position_embeddings=8, **options
    )
    return LinformerForMaskedLM(config).eval()


@pytest.mark.parametrize(("length", "expected"), [(1, 8), (8, 8), (9, 16), (16, 16), (17, 32)])
def test_the_length_is_doubled_until_the_text_fits(length, expected):
    assert extended_length(length, 8) == expected


@pytest.mark.parametrize(
    "projection", ["linear", "conv", "mean", "max", "fixed", "dynamic", "full"]
)
@pytest.mark.parametrize("positions", ["learned", "sinusoidal"])
@torch.no_grad()
def test_an_extended_model_reads_longer_and_the_original_is_as_it_was(projection, positions):
    original = model(projection=projection, position_embedding_type=positions)
    before = copy.deepcopy(original.state_dict())
    longer = extended(original, 32)
    ids = torch.randint(1, 20, (1, 27))
    found = longer(ids).logits
    if projection in ("dynamic", "full") and positions == "sinusoidal":
        torch.testing.assert_close(found, original(ids).logits)  # nothing in it has a length
    else:
        torch.testing.assert_close(
            found, resize_max_length(copy.deepcopy(original), 32)(ids).logits
        )
    assert longer.config.max_position_embeddings == 32
    assert original.config.max_position_embeddings == 8
    for name, tensor in original.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_a_model_that_reads_enough_is_itself():
    original = model()
    assert extended(original, 8) is original


def test_a_text_too_long_for_the_memory_is_refused(monkeypatch):
    monkeypatch.setattr("linformer_kit.machine_memory.total_memory", lambda: 1000)
    with pytest.raises(ValueError, match=r"reading 1,024 tokens at once needs .*chunk or truncate"):
        extended(model(), 1024)
