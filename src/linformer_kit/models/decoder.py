"""LinformerDecoderModel: embeddings and the core's decoder, with its state as the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions
from transformers.utils.generic import can_return_tuple

from ..core.cpu.predicate import eager_on_cpu
from ..core.decoder import LinformerDecoder
from ..errors import cut
from .base import LinformerPreTrainedModel, asked, real_positions
from .cache import LinformerCache
from .embeddings import LinformerEmbeddings
from .layers import mark_layers

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.decoder import DecoderTrace
    from .config import LinformerConfig


class LinformerDecoderModel(LinformerPreTrainedModel):
    """A causal model without a head; with `context_dim` it attends to an encoder's output too.

    attention_mask (B, N), or (B, past + N) with a cache, is 1 at real tokens. Padding may stand
    anywhere: a sample is as it were alone. Positions are those of its tokens, which the model
    counts itself, so there are no position_ids. cache_position (N), the columns of the new tokens,
    is counted by the cache too; if given, it must agree.
    """

    def __init__(self, config: LinformerConfig, *, context_dim: int | None = None) -> None:
        super().__init__(config if config.is_decoder else config.of_causal())
        self.embeddings = LinformerEmbeddings(self.config)
        self.decoder = LinformerDecoder(**self.config.decoder_arguments(context_dim=context_dim))
        mark_layers(self.decoder)
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
        cache_position: Tensor | None = None,
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
        _check_cache_position(cache_position, length, past=0 if cache is None else cache.columns)
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
        context = {"context": encoder_hidden_states, "context_mask": context_mask}
        looks_inside = {
            "attentions": asked(output_attentions, self.config.output_attentions),
            "hidden_states": asked(output_hidden_states, self.config.output_hidden_states),
        }
        if cache is not None:
            return self._continued(x, mask, context, cache, **looks_inside)
        if not any(looks_inside.values()):
            y = self.decoder(x, mask=mask, **context)
            return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=y)
        trace = self.decoder.trace(x, mask=mask, **context, attentions=looks_inside["attentions"])
        return _traced(trace, None, **looks_inside)

    def _continued(
        self,
        x: Tensor,
        mask: Tensor | None,
        context: dict[str, Tensor | None],
        cache: LinformerCache,
        *,
        attentions: bool,
        hidden_states: bool,
    ) -> BaseModelOutputWithPastAndCrossAttentions:
        if attentions:
            raise ValueError(
                "attention weights are known of a whole text, not of one that continues a cache: "
                "got output_attentions=True. Pass use_cache=False too."
            )
        state = cache.state
        if state is None:  # the context is shortened here, once for all that follows
            state = self.decoder.init_state(x.shape[0], **context)
        if hidden_states:
            trace = self.decoder.trace(x, mask=mask, state=state, attentions=False)
            cache.advance(trace.state, x.shape[1])
            return _traced(trace, cache, attentions=False, hidden_states=True)
        if x.shape[1] == 1 and mask is None:
            y, state = self.decoder.step(x, state)
        else:
            y, state = self.decoder(x, mask=mask, state=state)
        cache.advance(state, x.shape[1])
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


def _traced(
    trace: DecoderTrace, cache: LinformerCache | None, *, attentions: bool, hidden_states: bool
) -> BaseModelOutputWithPastAndCrossAttentions:
    return BaseModelOutputWithPastAndCrossAttentions(
        last_hidden_state=trace.output,
        past_key_values=cache,
        hidden_states=trace.hidden_states if hidden_states else None,
        attentions=trace.attentions if attentions else None,
        cross_attentions=trace.cross_attentions or None,
    )


def _checked(cache: object) -> LinformerCache | None:
    if cache is None or isinstance(cache, LinformerCache):
        return cache
    raise TypeError(
        "past_key_values must be a LinformerCache, as a model returns it with use_cache=True: got "
        f"{type(cache).__name__}."
    )


def _check_cache_position(cache_position: Tensor | None, length: int, *, past: int) -> None:
    """Refuse columns that are not the next ones: the state can only be continued."""
    if cache_position is None:
        return
    expected = torch.arange(past, past + length, device=cache_position.device)
    same = cache_position.shape == expected.shape
    if same and eager_on_cpu(cache_position):
        same = bool((cache_position == expected).all())
    if not same:
        known = cache_position.dim() == 1 and cache_position.device.type != "meta"
        got = (
            cut(str(cache_position[:30].tolist()))
            if known
            else f"a tensor of shape {tuple(cache_position.shape)}"
        )
        raise ValueError(
            f"cache_position must be {past} ... {past + length - 1}, the columns after the "
            f"{past} in the cache: got {got}. Leave it out: the cache counts."
        )
