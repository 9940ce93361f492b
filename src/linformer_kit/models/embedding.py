"""One vector for a text, trained by comparing pairs.

Legend: B batch, M model size.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.nn.functional as F
from torch import Tensor, nn
from transformers.utils.generic import ModelOutput

from .base import real_positions
from .pooling import pooled
from .sentence_files import write_sentence_files
from .task_heads import EncoderWithHead

if TYPE_CHECKING:
    from collections.abc import Sequence

SCALE = 20.0  # of cosines in the loss: 1 / temperature


@dataclass
class EmbeddingOutput(ModelOutput):
    """The loss, if there were pairs, and the vectors (B, M) of norm 1."""

    loss: Tensor | None = None
    embeddings: Tensor | None = None


class LinformerForEmbedding(EncoderWithHead):
    """The pooled rows of an encoder as a vector of norm 1.

    With positives (and negatives) it also gives the loss of in-batch negatives: of all positives
    and negatives of the batch, the own positive of a text must be the nearest. The losses are those
    of sentence-transformers: `MultipleNegativesRankingLoss`, in `MatryoshkaLoss` if the first
    components alone are to be vectors too (`matryoshka`, sizes).
    """

    matryoshka: tuple[int, ...] = ()
    scale: float = SCALE

    def _build_head(self) -> None:
        """Nothing is learned beyond the encoder."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        positive_input_ids: Tensor | None = None,
        positive_attention_mask: Tensor | None = None,
        negative_input_ids: Tensor | None = None,
        negative_attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
    ) -> EmbeddingOutput:
        embeddings = self.embed(input_ids, attention_mask, token_type_ids)
        loss = None
        if positive_input_ids is not None:
            others = [self.embed(positive_input_ids, positive_attention_mask)]
            if negative_input_ids is not None:
                others.append(self.embed(negative_input_ids, negative_attention_mask))
            loss = pair_loss([embeddings, *others], self.matryoshka, self.scale)
        return EmbeddingOutput(loss=loss, embeddings=embeddings)

    def save_pretrained(self, save_directory: Any, *args: Any, **options: Any) -> None:
        """As PreTrainedModel's, as a folder that `SentenceTransformer` reads too."""
        super().save_pretrained(save_directory, *args, **options)
        write_sentence_files(Path(save_directory), self.config)

    def embed(
        self,
        input_ids: Tensor | None,
        attention_mask: Tensor | None,
        token_type_ids: Tensor | None = None,
    ) -> Tensor:
        """(B, M), each of norm 1."""
        hidden = self.linformer(
            input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids
        ).last_hidden_state
        mask = real_positions(attention_mask, batch=hidden.shape[0], length=hidden.shape[1])
        return F.normalize(pooled(hidden, mask, self.config.pooling), dim=-1)


class _Embedded(nn.Module):
    """Vectors that are there already, as a model of sentence-transformers."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size

    def get_embedding_dimension(self) -> int:
        return self.size

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": features["vectors"]}


def pair_loss(columns: Sequence[Tensor], sizes: Sequence[int], scale: float) -> Tensor:
    """The loss of vectors (B, M): of texts, of their positives and, if given, of negatives.

    Pairs alone are compared in both directions.
    """
    from sentence_transformers.sentence_transformer import losses

    model: Any = _Embedded(columns[0].shape[-1])
    both: dict[str, Any] = {
        "directions": ("query_to_doc", "doc_to_query"),
        "partition_mode": "per_direction",
    }
    loss: Any = losses.MultipleNegativesRankingLoss(
        model, scale=scale, **(both if len(columns) == 2 else {})
    )
    if sizes:
        loss = losses.MatryoshkaLoss(model, loss, list(sizes))
    return loss([{"vectors": column} for column in columns], None)
