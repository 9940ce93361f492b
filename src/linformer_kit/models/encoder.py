"""LinformerModel: embeddings and the core's encoder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, BaseModelOutputWithPooling
from transformers.utils.generic import can_return_tuple

from ..core.cpu.linear import apply_linear
from ..core.encoder import LinformerEncoder
from .base import LinformerPreTrainedModel, asked, real_positions
from .embeddings import LinformerEmbeddings
from .layers import mark_layers

if TYPE_CHECKING:
    from .config import LinformerConfig


class LinformerModel(LinformerPreTrainedModel):
    """An encoder without a head: tokens, or vectors, to rows that have read all of the input.

    attention_mask (B, N) is 1 at real positions; what stands elsewhere changes nothing, and the
    output is zero there. `position_ids` say which position is added to a row; E belongs to the
    places of the rows themselves.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.is_decoder or config.is_encoder_decoder:
            kind, use = (
                ("a causal model", "LinformerForCausalLM or AutoModelForCausalLM")
                if config.is_decoder
                else (
                    "an encoder with a decoder",
                    "LinformerSeq2SeqModel or LinformerForConditionalGeneration",
                )
            )
            raise ValueError(
                f"{type(self).__name__} is an encoder, and this is the configuration of {kind}: "
                f"got is_decoder={config.is_decoder}, "
                f"is_encoder_decoder={config.is_encoder_decoder}. Use {use}."
            )
        if config.feature_size is not None:
            self.main_input_name = "inputs_embeds"
        self.embeddings = LinformerEmbeddings(config)
        self.encoder = LinformerEncoder(**config.encoder_arguments())
        mark_layers(self.encoder)
        self.pooler = Pooler(config.hidden_size) if config.pooler else None
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutput | BaseModelOutputWithPooling:
        x = self.embeddings(
            input_ids, inputs_embeds, token_type_ids=token_type_ids, position_ids=position_ids
        )
        mask = real_positions(attention_mask, batch=x.shape[0], length=x.shape[1])
        attentions = asked(output_attentions, self.config.output_attentions)
        hidden_states = asked(output_hidden_states, self.config.output_hidden_states)
        if attentions or hidden_states:
            trace = self.encoder.trace(x, mask=mask, attentions=attentions)
            output = BaseModelOutput(
                last_hidden_state=trace.output,
                hidden_states=trace.hidden_states if hidden_states else None,
                attentions=trace.attentions if attentions else None,
            )
        else:
            output = BaseModelOutput(last_hidden_state=self.encoder(x, mask=mask))
        if self.pooler is None:
            return output
        first = self._pooled(output.last_hidden_state, mask, "cls")
        return BaseModelOutputWithPooling(pooler_output=self.pooler(first), **output)


class Pooler(nn.Module):
    """tanh(W x), as BERT's on the first row."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(size, size)

    def forward(self, x: Tensor) -> Tensor:
        return apply_linear(self.dense, x).tanh()
