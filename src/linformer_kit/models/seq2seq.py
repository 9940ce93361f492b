"""Encoder and decoder in one model, without a head and with a language model's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput, Seq2SeqLMOutput, Seq2SeqModelOutput
from transformers.utils.generic import can_return_tuple

from ..core.cpu.linear import apply_linear
from .base import LinformerPreTrainedModel
from .decoder import LinformerDecoderModel
from .encoder import LinformerModel
from .labels import class_numbers, token_labels
from .language_model import LinformerGenerationMixin, loss_of, wants_logits
from .loss import IGNORED

if TYPE_CHECKING:
    from .cache import LinformerCache
    from .config import LinformerConfig

_ENCODER_TABLE = "encoder.embeddings.embed_tokens.weight"
_DECODER_TABLE = "decoder.embeddings.embed_tokens.weight"


class _EncoderAndDecoder(LinformerPreTrainedModel):
    """What both models below have in common: a table that may be shared."""

    encoder: LinformerModel
    decoder: LinformerDecoderModel

    def get_expanded_tied_weights_keys(self, all_submodels: bool = False) -> dict[str, str]:
        """Whatever tie_word_embeddings says: that is for the head alone."""
        del all_submodels  # the encoder and the decoder tie nothing themselves
        return self._tied_weights_keys

    def get_input_embeddings(self) -> nn.Module:
        return self.encoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.encoder.set_input_embeddings(value)
        if self.config.shares_embeddings:
            self.decoder.set_input_embeddings(value)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        if not self.config.shares_embeddings:
            raise ValueError(
                "this model has a table for its encoder and another for its decoder: got "
                "share_embeddings=False. Which of them shall be resized is not said; make a new "
                "model with the sizes you want and copy the rows."
            )
        table = super().resize_token_embeddings(*args, **kwargs)
        for module in self.modules():
            if isinstance(module, LinformerPreTrainedModel):
                module.config.vocab_size = table.num_embeddings
        return table


class LinformerSeq2SeqModel(_EncoderAndDecoder):
    """An encoder and a decoder without a head: the rows of the decoder."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config if config.is_encoder_decoder else config.of_both())
        self.encoder = LinformerModel(self.config.of_encoder())
        own = self.config.of_decoder()
        self.decoder = LinformerDecoderModel(own, context_dim=self.config.hidden_size)
        self.main_input_name = self.encoder.main_input_name
        self.post_init()

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
        return {_DECODER_TABLE: _ENCODER_TABLE} if self.config.shares_embeddings else {}

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        cache_position: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> Seq2SeqModelOutput:
        if encoder_outputs is None:
            encoder_outputs = self.encoder(
                input_ids,
                attention_mask=attention_mask,
                token_type_ids=token_type_ids,
                position_ids=position_ids,
                inputs_embeds=inputs_embeds,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
            )
        if not isinstance(encoder_outputs, BaseModelOutput):
            encoder_outputs = BaseModelOutput(*encoder_outputs)
        outputs = self.decoder(
            decoder_input_ids,
            attention_mask=decoder_attention_mask,
            inputs_embeds=decoder_inputs_embeds,
            past_key_values=past_key_values,
            use_cache=use_cache,
            cache_position=cache_position,
            encoder_hidden_states=encoder_outputs.last_hidden_state,
            encoder_attention_mask=attention_mask,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        return Seq2SeqModelOutput(
            last_hidden_state=outputs.last_hidden_state,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.hidden_states,
            decoder_attentions=outputs.attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=encoder_outputs.last_hidden_state,
            encoder_hidden_states=encoder_outputs.hidden_states,
            encoder_attentions=encoder_outputs.attentions,
        )


class LinformerForConditionalGeneration(LinformerGenerationMixin, _EncoderAndDecoder):
    """Sequence to sequence. The decoder shortens the encoder's output once, however long it writes.

    With labels (B, N) it gives the loss, for which the logits are made `loss_chunk` positions at a
    time; the decoder then reads the labels themselves, shifted by one, unless decoder_input_ids
    are given. In training that is all it gives, unless `return_logits` asks for the logits too.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config if config.is_encoder_decoder else config.of_both())
        self.linformer = LinformerSeq2SeqModel(self.config)
        own = self.decoder.config
        self.lm_head = nn.Linear(own.hidden_size, own.vocab_size, bias=False)
        self.main_input_name = self.linformer.main_input_name
        self.post_init()

    @property
    def encoder(self) -> LinformerModel:  # type: ignore[override]
        return self.linformer.encoder

    @property
    def decoder(self) -> LinformerDecoderModel:  # type: ignore[override]
        return self.linformer.decoder

    @property
    def _tied_weights_keys(self) -> dict[str, str]:  # type: ignore[override]
        """Encoder and decoder may share a table, and the decoder's may be the head's."""
        shared = self.config.shares_embeddings
        table = f"linformer.{_ENCODER_TABLE if shared else _DECODER_TABLE}"
        tied = {f"linformer.{_DECODER_TABLE}": table} if shared else {}
        return tied | ({"lm_head.weight": table} if self.config.tie_word_embeddings else {})

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        encoder_outputs: BaseModelOutput | tuple[Tensor, ...] | None = None,
        labels: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        cache_position: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Seq2SeqLMOutput:
        size = self.lm_head.weight.shape[0]
        if labels is not None and decoder_input_ids is None and decoder_inputs_embeds is None:
            decoder_input_ids = self.prepare_decoder_input_ids_from_labels(labels)
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            decoder_input_ids=decoder_input_ids,
            decoder_attention_mask=decoder_attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            decoder_inputs_embeds=decoder_inputs_embeds,
            encoder_outputs=encoder_outputs,
            past_key_values=past_key_values,
            use_cache=use_cache,
            cache_position=cache_position,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        logits = None
        if wants_logits(self, labels, return_logits):
            logits = apply_linear(self.lm_head, hidden)
        loss = None
        if labels is not None:
            labels = token_labels(labels, hidden, limit=size, limit_name="vocab_size")
            loss = loss_of(self, hidden, self.lm_head, logits, labels, num_items_in_batch)
        return Seq2SeqLMOutput(
            loss=loss,
            logits=logits,
            past_key_values=outputs.past_key_values,
            decoder_hidden_states=outputs.decoder_hidden_states,
            decoder_attentions=outputs.decoder_attentions,
            cross_attentions=outputs.cross_attentions,
            encoder_last_hidden_state=outputs.encoder_last_hidden_state,
            encoder_hidden_states=outputs.encoder_hidden_states,
            encoder_attentions=outputs.encoder_attentions,
        )

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        """The labels, one place later, behind the token that starts a text."""
        start, pad = self.config.decoder_start_token_id, self.config.pad_token_id
        if start is None or pad is None:
            raise ValueError(
                "the decoder reads the labels behind decoder_start_token_id, and pad_token_id "
                f"where there is none: got {start} and {pad}. Set both in the configuration, or "
                "pass decoder_input_ids."
            )
        if labels.dim() != 2:
            raise ValueError(f"labels must have shape (batch, length): got {tuple(labels.shape)}.")
        limit = self.lm_head.weight.shape[0]
        labels = class_numbers("labels", labels, limit=limit, limit_name="vocab_size")
        shifted = labels.roll(1, dims=1)
        shifted[:, 0] = start
        return shifted.masked_fill(shifted == IGNORED, pad)
