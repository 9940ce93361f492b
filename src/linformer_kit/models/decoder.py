"""LinformerDecoderModel: embeddings and the core's decoder, with its state as the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from ..core.decoder import LinformerDecoder
from .base import LinformerPreTrainedModel, real_positions
from .cache import LinformerCache
from .embeddings import LinformerEmbeddings

if TYPE_CHECKING:
    from torch import Tensor

    from .config import LinformerConfig


class LinformerDecoderModel(LinformerPreTrainedModel):
    """A causal model without a head; with `context_dim` it attends to an encoder's output too.

    attention_mask (B, N), or (B, past + N) with a cache, is 1 at real tokens. Padding may stand
    anywhere: a sample is as it were alone. Positions are those of its tokens, which the model
    counts itself, so there are no position_ids.
    """

    def __init__(self, config: LinformerConfig, *, context_dim: int | None = None) -> None:
        super().__init__(config if config.is_decoder else config.of_causal())
        self.embeddings = LinformerEmbeddings(self.config)
        self.decoder = LinformerDecoder(**self.config.decoder_arguments(context_dim=context_dim))
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        encoder_hidden_states: Tensor | None = None,
        encoder_attention_mask: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        rows = input_ids if inputs_embeds is None else inputs_embeds
        batch, length = (0, 0) if rows is None else rows.shape[:2]
        mask = real_positions(attention_mask, batch=batch, length=length)
        cache = _checked(past_key_values)
        if cache is None and use_cache:
            cache = LinformerCache()
        x = self.embeddings(
            input_ids,
            inputs_embeds,
            token_type_ids=token_type_ids,
            position_ids=self._positions(mask, cache, batch, length, rows),
        )
        context_mask = None
        if encoder_hidden_states is not None:
            context_mask = real_positions(
                encoder_attention_mask, batch=batch, length=encoder_hidden_states.shape[1]
            )
        if cache is None:
            y = self.decoder(x, mask=mask, context=encoder_hidden_states, context_mask=context_mask)
            return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=y)
        state = cache.state
        if state is None:  # the context is shortened here, once for all that follows
            state = self.decoder.init_state(
                batch, context=encoder_hidden_states, context_mask=context_mask
            )
        if length == 1 and mask is None:
            y, state = self.decoder.step(x, state)
        else:
            y, state = self.decoder(x, mask=mask, state=state)
        cache.advance(state, length)
        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=y, past_key_values=cache)

    def _positions(
        self,
        mask: Tensor | None,
        cache: LinformerCache | None,
        batch: int,
        length: int,
        rows: Tensor | None,
    ) -> Tensor | None:
        """Where the tokens stand, (B, N), if the embeddings have to know."""
        past = None if cache is None or cache.state is None else cache.state.position[:, None]
        if rows is None or self.embeddings.positions is None or (mask is None and past is None):
            return None
        if mask is None:
            place = torch.arange(length, device=rows.device).expand(batch, -1)
        else:
            place = (mask.cumsum(1) - 1).clamp_min(0)
        return place if past is None else place + past


def _checked(cache: object) -> LinformerCache | None:
    if cache is None or isinstance(cache, LinformerCache):
        return cache
    raise TypeError(
        "past_key_values must be a LinformerCache, as a model returns it with use_cache=True: got "
        f"{type(cache).__name__}."
    )
