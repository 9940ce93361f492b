"""The original with extended positions: the baseline for a converted model's time and memory."""

from __future__ import annotations

import copy
from typing import Any

import torch

from ..models.text_input import longest
from .families import FAMILIES
from .positions import extend_positions
from .rehome import POSITIONS


def extended_encoder(model: Any, length: int) -> Any:
    """The encoder of a pretrained model, reading `length` positions: the table is repeated."""
    encoder = model.base_model
    if length <= (longest(model.config) or 0):
        return encoder
    family = FAMILIES[model.config.model_type]
    config = copy.deepcopy(encoder.config)
    config.max_position_embeddings = length + family.first_position
    name = family.tensors[POSITIONS]
    state = dict(encoder.state_dict())
    table = state[name]
    first = family.first_position
    longer = extend_positions(table[first:], length)
    state[name] = torch.cat([table[:first], longer])
    state = {k: v for k, v in state.items() if not k.endswith("position_ids")}
    extended = type(encoder)(config)
    if getattr(encoder, "pooler", None) is None and hasattr(extended, "pooler"):
        extended.pooler = None  # the encoder of a model with a head has none
    missing = extended.load_state_dict(state, strict=False).missing_keys
    unset = [key for key in missing if not key.endswith(("position_ids", "token_type_ids"))]
    if unset:
        raise ValueError(f"the extended model lacks {', '.join(unset[:4])}.")
    return extended.eval()
