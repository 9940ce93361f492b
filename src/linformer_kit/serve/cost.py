"""What an encoder costs by the closed forms of `core/cost.py`, and with full attention instead."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import torch

from ..core.cost import (
    Attend,
    EncoderShape,
    Shorten,
    attention_flops,
    encoder_flops,
)
from ..core.encoder import LinformerEncoder
from ..core.plan import Plan, check_plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..core.cost import AttentionShape


class EncoderCost:
    """The sizes of an encoder, without its weights."""

    def __init__(self, encoder: LinformerEncoder) -> None:
        self.encoder = encoder

    @classmethod
    def of(cls, kind: Any, config: Any) -> EncoderCost | None:
        """Of a model of this package that is an encoder with or without a head, else None."""
        if getattr(config, "is_decoder", False) or getattr(config, "is_encoder_decoder", False):
            return None
        with torch.device("meta"):
            model = kind(config)
        found = [part for part in model.modules() if isinstance(part, LinformerEncoder)]
        return cls(found[0]) if len(found) == 1 else None

    def flops(self, pieces: Sequence[int], whole: int) -> tuple[int, int]:
        """Of pieces of these lengths as they are, and of the whole with full attention."""
        ours = sum(self._flops(length) for length in pieces)
        return ours, self._flops(whole, full=True)

    def _flops(self, length: int, *, full: bool = False) -> int:
        shape = EncoderShape.of(self.encoder, batch=1, length=length)
        if full:
            layers = tuple(
                replace(layer, projection="full", k=None, window=0, global_tokens=0)
                for layer in shape.layers
            )
            shape = replace(shape, layers=layers)
        return encoder_flops(shape, tuple(map(_cheapest, shape.layers)))


def _cheapest(shape: AttentionShape) -> tuple[Shorten, Attend]:
    plans: list[tuple[Shorten, Attend]] = []
    for shorten in get_args(Shorten):
        for attend in get_args(Attend):
            try:
                check_plan(Plan(shorten, attend), shape.projection, exact_keys=shape.has_exact_keys)
            except ValueError:
                continue
            plans.append((shorten, attend))
    if shape.projection == "full":
        plans = [("keys", "fused")]
    return min(plans, key=lambda plan: attention_flops(shape, shorten=plan[0], attend=plan[1]))
