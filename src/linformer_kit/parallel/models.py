"""Hugging Face models on the positions of one rank: positions, losses and pooling of the whole.

Every rank passes its part of input_ids (or inputs_embeds), attention_mask and labels. A loss is
that of the whole sequence, the same on all ranks.

Legend: B batch, S positions of this rank, M model size.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup  # noqa: TC002 - transformers evaluates annotations

from ..core.plain_sdpa import zero_padding
from ..models.base import LinformerPreTrainedModel
from ..models.causal_lm import LinformerForCausalLM
from ..models.decoder import LinformerDecoderModel
from ..models.encoder import LinformerModel
from ..models.loss import IGNORED
from ..models.masked_lm import LinformerForMaskedLM
from ..models.pooling import pooled
from ..models.seq2seq import LinformerForConditionalGeneration, LinformerSeq2SeqModel
from ..models.task_heads import (
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from .collectives import all_reduce
from .decoder import no_state
from .parts import Part, agree, sum_of_ranks


class _Parallel(LinformerPreTrainedModel):
    """Base of the classes below."""

    sequence_group: ProcessGroup

    def _part(self, rows: Tensor, mask: Tensor | None = None) -> Part:
        return agree(self.sequence_group, rows, mask)

    def _pooled(self, hidden: Tensor, mask: Tensor | None, pooling: str) -> Tensor:
        """Of the whole sequence, on all ranks: hidden (B, S, M) -> (B, M)."""
        part = self._part(hidden, mask)
        count = part.count_real(hidden.device)  # (ranks, B or 1)
        if pooling == "mean":
            total = all_reduce(zero_padding(hidden, part.mask).sum(1), part.group)
            return total / count.sum(0).clamp_min(1)[:, None]
        own = pooled(hidden, part.mask, pooling)
        if pooling == "cls":
            first = (
                (count > 0).int().argmax(0)
            )  # the rank of the first real row, 0 if there is none
            return all_reduce(own * (first == part.rank)[:, None], part.group)
        parts = hidden.new_zeros(len(part.held), *own.shape)
        parts = parts.index_add(0, torch.tensor([part.rank], device=hidden.device), own[None])
        none = (count == 0)[..., None]
        everywhere = all_reduce(parts, part.group).masked_fill(none, torch.finfo(own.dtype).min)
        return everywhere.amax(0).masked_fill(none.all(0), 0.0)

    def generate(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_state()


class ParallelModel(_Parallel, LinformerModel):
    """Rows of the encoder; positions are counted from the beginning of the whole sequence."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _arguments(LinformerModel, args, kwargs)
        if self.embeddings.positions is not None and given.get("position_ids") is None:
            rows = _rows(given)
            if rows is not None:
                given["position_ids"] = self._part(rows).positions(rows.device)
        return super().forward(**given)


class ParallelDecoderModel(_Parallel, LinformerDecoderModel):
    """Rows of the decoder, without a cache."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _arguments(LinformerDecoderModel, args, kwargs)
        if given.get("past_key_values") is not None or given.get("use_cache"):
            raise no_state()
        return super().forward(**given)

    def _positions(
        self,
        mask: Tensor | None,
        cache: Any,
        batch: int,
        length: int,
        rows: Tensor | None,
    ) -> Tensor | None:
        if rows is None or self.embeddings.positions is None:
            return None
        return self._part(rows).positions(rows.device)


class _ParallelLanguageModel(_Parallel):
    """A mean over labelled tokens, of all ranks."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _arguments(_plain(type(self)), args, kwargs)
        labels = given.get("labels")
        if labels is None:
            return super().forward(**given)
        if given.get("num_items_in_batch") is None:
            asked = int((self._asked(labels) != IGNORED).sum())
            count = sum_of_ranks(asked, self.sequence_group, labels.device)
            given["num_items_in_batch"] = max(1, count)
        return _with_whole_loss(super().forward, given, 1.0, self.sequence_group)

    def _asked(self, labels: Tensor) -> Tensor:
        """The labels that the loss is made of."""
        return labels


class ParallelForMaskedLM(_ParallelLanguageModel, LinformerForMaskedLM):
    """A masked language model."""


class ParallelForCausalLM(_ParallelLanguageModel, LinformerForCausalLM):
    """A causal language model: the last token of a rank predicts the first of the next."""

    def _asked(self, labels: Tensor) -> Tensor:
        return self._following(labels)

    def _following(self, labels: Tensor) -> Tensor:
        return self._part(labels).following(labels, last=IGNORED)


class ParallelForConditionalGeneration(_ParallelLanguageModel, LinformerForConditionalGeneration):
    """Sequence to sequence: source and target are cut over the same ranks."""

    def prepare_decoder_input_ids_from_labels(self, labels: Tensor) -> Tensor:
        part = self._part(labels)
        extended, _ = part.halo(labels, lambda start, end: (start - 1, end))
        shifted = super().prepare_decoder_input_ids_from_labels(extended)
        return shifted[:, extended.shape[1] - labels.shape[1] :]


class ParallelForTokenClassification(_Parallel, LinformerForTokenClassification):
    """A label for each token."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        given = _arguments(LinformerForTokenClassification, args, kwargs)
        labels = given.get("labels")
        if labels is None:
            return super().forward(**given)
        own = int((labels != IGNORED).sum())
        count = sum_of_ranks(own, self.sequence_group, labels.device)
        return _with_whole_loss(super().forward, given, own / max(1, count), self.sequence_group)


class ParallelForSequenceClassification(_Parallel, LinformerForSequenceClassification):
    """A label for a sequence, by pooling over all ranks."""


class ParallelForMultipleChoice(_Parallel, LinformerForMultipleChoice):
    """One of several sequences, by pooling over all ranks."""


class ParallelSeq2SeqModel(_Parallel, LinformerSeq2SeqModel):
    """An encoder and a decoder without a head."""


class ParallelForQuestionAnswering(_Parallel, LinformerForQuestionAnswering):
    """Not defined on a part: a span is a softmax over all positions."""

    def forward(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise ValueError(
            "LinformerForQuestionAnswering chooses among all positions, and cannot be cut over "
            "ranks. Use one rank a sequence."
        )


MODELS: tuple[tuple[type[nn.Module], type[nn.Module]], ...] = (
    (LinformerModel, ParallelModel),
    (LinformerDecoderModel, ParallelDecoderModel),
    (LinformerSeq2SeqModel, ParallelSeq2SeqModel),
    (LinformerForMaskedLM, ParallelForMaskedLM),
    (LinformerForCausalLM, ParallelForCausalLM),
    (LinformerForConditionalGeneration, ParallelForConditionalGeneration),
    (LinformerForTokenClassification, ParallelForTokenClassification),
    (LinformerForSequenceClassification, ParallelForSequenceClassification),
    (LinformerForMultipleChoice, ParallelForMultipleChoice),
    (LinformerForQuestionAnswering, ParallelForQuestionAnswering),
)


def _with_whole_loss(forward: Any, given: dict[str, Any], share: float, group: ProcessGroup) -> Any:
    """The output of a call with the sum over the ranks of `share` times its loss."""
    as_tuple = given.get("return_dict") is False
    output = forward(**{**given, "return_dict": True})
    output["loss"] = all_reduce(output["loss"] * share, group)
    return output.to_tuple() if as_tuple else output


def _arguments(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """All arguments of a call by name."""
    return {**dict(zip(_names(kind), args, strict=False)), **kwargs}


@cache
def _names(kind: Any) -> tuple[str, ...]:
    return tuple(inspect.signature(kind.forward).parameters)[1:]


def _plain(kind: type) -> type[nn.Module]:
    """The class of models/ that a parallel class is made of."""
    return next(plain for plain, parallel in MODELS if issubclass(kind, parallel))


def _rows(given: dict[str, Any]) -> Tensor | None:
    rows = given.get("input_ids")
    return given.get("inputs_embeds") if rows is None else rows
