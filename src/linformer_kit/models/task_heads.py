"""What is decided from an encoder: of a sequence, of each token, of a span, of one among several.

Legend: B batch, N positions, C choices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from transformers.modeling_outputs import (
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from ..core.cpu.linear import apply_linear
from ..core.dropout import dropout
from .base import LinformerPreTrainedModel, real_positions
from .encoder import LinformerModel
from .labels import choice_labels, sequence_labels, span_positions, token_labels
from .loss import logits_loss
from .pooling import ClassificationHead, classifier_dropout

if TYPE_CHECKING:
    from .config import LinformerConfig


class EncoderWithHead(LinformerPreTrainedModel):
    """An encoder, and what a subclass builds on it."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.linformer = LinformerModel(config)
        self.main_input_name = self.linformer.main_input_name
        self._build_head()
        self.post_init()

    def _build_head(self) -> None:
        raise NotImplementedError

    def _pooled_rows(self, hidden: Tensor, attention_mask: Tensor | None) -> Tensor:
        mask = real_positions(attention_mask, batch=hidden.shape[0], length=hidden.shape[1])
        return self._pooled(hidden, mask, self.config.pooling)


class LinformerForSequenceClassification(EncoderWithHead):
    """A label, several, or numbers for a sequence, by `config.pooling` of its rows.

    Inputs may be tokens, `inputs_embeds`, or features (`config.feature_size`).
    """

    def _build_head(self) -> None:
        self.num_labels = self.config.num_labels
        self.classifier = ClassificationHead(self.config, self.num_labels)

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
    ) -> SequenceClassifierOutput:
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        logits = self.classifier(self._pooled_rows(outputs.last_hidden_state, attention_mask))
        loss = None
        if labels is not None:
            labels = sequence_labels(labels, logits, self.config)
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForTokenClassification(EncoderWithHead):
    """A label for each token; labels (B, N) are -100 where nothing is asked."""

    def _build_head(self) -> None:
        self.num_labels = self.config.num_labels
        self.classifier = nn.Linear(self.config.hidden_size, self.num_labels)

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
    ) -> TokenClassifierOutput:
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        drop = classifier_dropout(self.config)
        logits = apply_linear(
            self.classifier, dropout(outputs.last_hidden_state, drop, self.training)
        )
        loss = None
        if labels is not None:
            count = self.config.num_labels
            labels = token_labels(labels, logits, limit=count, limit_name="num_labels")
            loss = logits_loss(logits, labels)
        return TokenClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForQuestionAnswering(EncoderWithHead):
    """Where an answer begins and ends in the sequence."""

    def _build_head(self) -> None:
        self.qa_outputs = nn.Linear(self.config.hidden_size, 2)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        start_positions: Tensor | None = None,
        end_positions: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
    ) -> QuestionAnsweringModelOutput:
        """A position outside the sequence (an answer that was cut off) adds nothing to the loss."""
        outputs = self.linformer(
            input_ids,
            attention_mask=attention_mask,
            token_type_ids=token_type_ids,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        start, end = apply_linear(self.qa_outputs, outputs.last_hidden_state).unbind(-1)
        if (start_positions is None) != (end_positions is None):
            missing = "end_positions" if end_positions is None else "start_positions"
            raise ValueError(f"a span has a beginning and an end: got no {missing}.")
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(
                start,
                end,
                span_positions("start_positions", start_positions, start),
                span_positions("end_positions", end_positions, end),
            )
        return QuestionAnsweringModelOutput(
            loss=loss,
            start_logits=start,
            end_logits=end,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class LinformerForMultipleChoice(EncoderWithHead):
    """Which of C sequences it is: inputs (B, C, N), labels (B)."""

    def _build_head(self) -> None:
        self.classifier = ClassificationHead(self.config, 1)

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
    ) -> MultipleChoiceModelOutput:
        given: dict[str, Any] = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        choices = _choices(input_ids, inputs_embeds)
        flat = {name: None if t is None else t.flatten(0, 1) for name, t in given.items()}
        outputs = self.linformer(
            **flat,
            output_attentions=output_attentions,
            output_hidden_states=output_hidden_states,
        )
        rows = self._pooled_rows(outputs.last_hidden_state, flat["attention_mask"])
        logits = self.classifier(rows).view(-1, choices)  # (B, C)
        loss = None
        if labels is not None:
            loss = nn.functional.cross_entropy(logits, choice_labels(labels, logits))
        return MultipleChoiceModelOutput(
            loss=loss,
            logits=logits,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


def _choices(input_ids: Tensor | None, inputs_embeds: Tensor | None) -> int:
    """C, of (B, C, N) tokens or (B, C, N, M) vectors."""
    for name, given, axes in (("input_ids", input_ids, 3), ("inputs_embeds", inputs_embeds, 4)):
        if given is not None:
            if given.dim() != axes:
                shape = "(batch, choices, length" + (")" if axes == 3 else ", size)")
                raise ValueError(f"{name} must have shape {shape}: got {tuple(given.shape)}.")
            return given.shape[1]
    raise ValueError("pass one of input_ids and inputs_embeds: got neither.")
