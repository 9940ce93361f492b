"""LinformerForMaskedLM: words from what stands around them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn
from transformers.modeling_outputs import MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from ..core.activations import ACTIVATIONS
from ..core.cpu.linear import apply_linear
from .base import LinformerPreTrainedModel
from .encoder import LinformerModel
from .labels import token_labels
from .language_model import loss_of, wants_logits
from .loss import IGNORED

if TYPE_CHECKING:
    from .config import LinformerConfig


class MaskedLMTransform(nn.Module):
    """What stands between an encoder and the table of words: a layer, an activation
    and a norm.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        width = config.embedding_width
        usual = "gelu_tanh" if config.hidden_act == "gelu_tanh" else "gelu"
        self.activation = config.lm_act or usual
        self.dense = nn.Linear(config.hidden_size, width)
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(ACTIVATIONS[self.activation](apply_linear(self.dense, x)))


class LinformerForMaskedLM(LinformerPreTrainedModel):
    """A masked language model.

    labels (B, N) are -100 where nothing is asked. In training the head runs where something is,
    and nowhere else; `return_logits` asks for the logits of all positions.
    """

    _tied_weights_keys = {"lm_head.weight": "linformer.embeddings.embed_tokens.weight"}  # noqa: RUF012 - theirs
    accepts_loss_kwargs = True

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.feature_size is not None:
            raise ValueError(
                f"a masked language model reads tokens: got feature_size={config.feature_size}."
            )
        self.linformer = LinformerModel(config)
        self.transform = MaskedLMTransform(config) if config.lm_transform else nn.Identity()
        width = config.embedding_width if config.lm_transform else config.hidden_size
        self.lm_head = nn.Linear(width, config.vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_logits: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> MaskedLMOutput:
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        hidden = outputs.last_hidden_state
        if labels is not None:
            size = self.config.vocab_size
            labels = token_labels(labels, hidden, limit=size, limit_name="vocab_size")
        logits = loss = None
        if wants_logits(self, labels, return_logits):
            logits = apply_linear(self.lm_head, self.transform(hidden))
            if labels is not None:
                loss = loss_of(self, hidden, self.lm_head, logits, labels, num_items_in_batch)
        elif labels is not None:
            asked = labels != IGNORED
            rows = self.transform(hidden[asked])
            loss = loss_of(self, rows, self.lm_head, None, labels[asked], num_items_in_batch)
        return MaskedLMOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )
