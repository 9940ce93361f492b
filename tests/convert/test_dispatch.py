"""The attention implementations that are registered with transformers."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
import transformers as T
from transformers import AttentionInterface
from transformers.masking_utils import create_bidirectional_mask, create_causal_mask

from linformer_kit.convert import linformerize

from .test_in_place import TEXT, B, M, N

PADDING = torch.ones(B, N, dtype=torch.long)
PADDING[1, 40:] = 0


def swapped(implementation: str = "sdpa") -> T.BertModel:
    torch.manual_seed(0)
    model = T.BertModel(T.BertConfig(**TEXT, attn_implementation=implementation)).eval()
    return linformerize(model, max_length=N, k=5, window=4)


@pytest.mark.parametrize("base", ["sdpa", "eager"])
def test_masks_of_padding_have_one_number_for_each_position(base: str) -> None:
    config = swapped(base).config
    assert config._attn_implementation == f"linformer_{base}"
    x = torch.randn(B, N, M)
    mask = create_bidirectional_mask(config, x, PADDING)
    assert mask.tolist() == PADDING.bool().tolist()
    assert create_bidirectional_mask(config, x, torch.ones(B, N)) is None
    assert create_bidirectional_mask(config, x, None) is None


@pytest.mark.parametrize("base", ["sdpa", "eager"])
def test_other_masks_are_those_of_the_implementation_before(base: str) -> None:
    ours = swapped(base).config
    theirs = copy.deepcopy(ours)
    theirs._attn_implementation = base
    x, context = torch.randn(B, N, M), torch.randn(B, N + 3, M)
    for make in (
        lambda config: create_causal_mask(config, x, PADDING, None),
        lambda config: create_bidirectional_mask(config, x, PADDING[:, :7], context[:, :7]),
        lambda config: create_bidirectional_mask(
            config, x, PADDING, allow_is_bidirectional_skip=False
        ),
    ):
        torch.testing.assert_close(make(ours), make(theirs))


def test_implementations_that_cannot_be_extended_become_sdpa() -> None:
    model = T.BertModel(T.BertConfig(**TEXT))
    model.config._attn_implementation = "flex_attention"
    linformerize(model, max_length=N, k=5, window=4)
    assert model.config._attn_implementation == "linformer_sdpa"
    assert "linformer" not in model.config.to_json_string()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"is_causal": True}, "is_causal"),
        ({"position_bias": torch.zeros(1)}, "position_bias"),
        ({"softcap": 30.0}, "softcap"),
        ({"sliding_window": 8}, "sliding_window"),
    ],
)
def test_calls_that_cannot_be_compressed_are_refused(given: dict[str, Any], message: str) -> None:
    attention = swapped().encoder.layer[0].attention.self
    attend = AttentionInterface()["linformer_sdpa"]
    heads = [torch.randn(B, 4, N, 8) for _ in range(3)]
    with pytest.raises(ValueError, match=rf"BertSelfAttention cannot.*{message}.*keep_full"):
        attend(attention, *heads, None, **given)
    with pytest.raises(ValueError, match="1 queries and 60 keys"):
        attend(attention, heads[0][:, :, :1], *heads[1:], None)


def test_the_scale_of_the_module_is_used() -> None:
    attention = swapped().encoder.layer[0].attention.self
    attend = AttentionInterface()["linformer_sdpa"]
    query, key, value = (torch.randn(B, 4, N, 8) for _ in range(3))
    expected, weights = attend(attention, query * 3.0, key, value, None)
    assert weights is None
    for scaling, factor in ((3.0 / 8**0.5, 1.0), (1.0, 3.0 / 8**0.5)):
        found = attend(attention, query * factor, key, value, None, scaling=scaling)[0]
        torch.testing.assert_close(found, expected)


def test_one_mask_for_all_samples_is_broadcast() -> None:
    attention = swapped().encoder.layer[0].attention.self
    attend = AttentionInterface()["linformer_sdpa"]
    heads = [torch.randn(B, 4, N, 8) for _ in range(3)]
    mask = torch.ones(1, 1, N, N, dtype=torch.bool)
    mask[..., N - 5 :] = False
    expected = attend(attention, *heads, mask.expand(B, 1, N, N))[0]
    torch.testing.assert_close(attend(attention, *heads, mask)[0], expected)
