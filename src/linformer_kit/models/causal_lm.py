"""LinformerForCausalLM: text, token by token, from a state that does not grow."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_outputs import CausalLMOutputWithCrossAttentions
from transformers.modeling_utils import slice_logits_to_keep
from transformers.utils.generic import can_return_tuple

from ..core.cpu.linear import apply_linear
from .base import LinformerPreTrainedModel
from .decoder import LinformerDecoderModel
from .labels import token_labels
from .language_model import LinformerGenerationMixin, loss_of, wants_logits
from .loss import IGNORED

if TYPE_CHECKING:
    from .cache import LinformerCache
    from .config import LinformerConfig


class LinformerForCausalLM(LinformerGenerationMixin, LinformerPreTrainedModel):
    """A causal language model.

    With labels (the tokens themselves; they are shifted here) it gives the loss, for which the
    logits are made `loss_chunk` positions at a time. In training that is all it gives, unless
    `return_logits` asks for the logits too.
    """

    _tied_weights_keys = {"lm_head.weight": "linformer.embeddings.embed_tokens.weight"}  # noqa: RUF012 - theirs
    accepts_loss_kwargs = True

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config if config.is_decoder else config.of_causal())
        self.linformer = LinformerDecoderModel(self.config)
        self.lm_head = nn.Linear(self.config.hidden_size, self.config.vocab_size, bias=False)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        cache_position: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> CausalLMOutputWithCrossAttentions:
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            inputs_embeds=inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            cache_position=cache_position,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        logits = None
        if wants_logits(self, labels, return_logits):
            logits = apply_linear(self.lm_head, slice_logits_to_keep(hidden, logits_to_keep))
        loss = None
        if labels is not None:
            size = self.config.vocab_size
            labels = token_labels(labels, hidden, limit=size, limit_name="vocab_size")
            following = self._following(labels)
            whole = isinstance(logits_to_keep, int) and logits_to_keep == 0
            loss = loss_of(
                self, hidden, self.lm_head, logits if whole else None, following, num_items_in_batch
            )
        return CausalLMOutputWithCrossAttentions(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )

    def _following(self, labels: Tensor) -> Tensor:
        """The label of the next position, for each (B, N); none for the last."""
        return F.pad(labels[:, 1:], (0, 1), value=IGNORED)
