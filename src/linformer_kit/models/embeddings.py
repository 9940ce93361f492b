"""What a model reads, as rows: tokens or features, where they stand, and of which type they are.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor, nn

from ..core.cpu.linear import apply_linear
from ..core.positions import build_positions

if TYPE_CHECKING:
    from .config import LinformerConfig


class LinformerEmbeddings(nn.Module):
    """(B, N) tokens or (B, N, feature_size) features -> (B, N, M). Dropout is the encoder's part.

    There is no row of zeros for padding: the mask keeps padding out wherever it is read.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        size = config.embedding_width
        self.width = size
        self.feature_size = config.feature_size
        if config.feature_size is None:
            self.embed_tokens = nn.Embedding(config.vocab_size, size)
        else:
            self.feature_projection = nn.Linear(config.feature_size, size)
        self.positions = build_positions(config.positions, config.max_position_embeddings, size)
        self.token_types = (
            nn.Embedding(config.type_vocab_size, size) if config.type_vocab_size else None
        )
        self.norm = (
            nn.LayerNorm(size, eps=config.layer_norm_eps) if config.norms_embeddings else None
        )
        self.to_hidden = (
            None if config.embedding_size is None else nn.Linear(size, config.hidden_size)
        )

    def forward(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        *,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        """One of tokens (B, N) and vectors (B, N, M or feature_size)."""
        if (input_ids is None) == (inputs_embeds is None):
            given = "both" if input_ids is not None else "neither"
            raise ValueError(f"pass one of input_ids and inputs_embeds: got {given}.")
        x = self._rows(input_ids, inputs_embeds)
        if self.token_types is not None:
            if token_type_ids is None:
                x = x + self.token_types.weight[0]
            else:
                x = x + _looked_up(
                    self.token_types, token_type_ids, "token_type_ids", "type_vocab_size"
                )
        elif token_type_ids is not None:
            raise ValueError(
                "this model has no token types (type_vocab_size=0): got token_type_ids. Leave them "
                'out: tokenizer.model_input_names = ["input_ids", "attention_mask"].'
            )
        if self.positions is not None:
            x = self.positions(x, position_ids)
        elif position_ids is not None:
            raise ValueError(
                "this model adds no positions (position_embedding_type='none'): got position_ids. "
                "Leave them out."
            )
        x = x if self.norm is None else self.norm(x)
        return x if self.to_hidden is None else apply_linear(self.to_hidden, x)

    def _rows(self, input_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        if inputs_embeds is not None:
            name = "hidden_size" if self.feature_size is None else "feature_size"
            width = self.width if self.feature_size is None else self.feature_size
            if inputs_embeds.dim() != 3 or inputs_embeds.shape[-1] != width:
                raise ValueError(
                    f"inputs_embeds must have shape (batch, length, {name}={width}): got "
                    f"{tuple(inputs_embeds.shape)}."
                )
            if self.feature_size is None:
                return inputs_embeds
            return apply_linear(self.feature_projection, inputs_embeds)
        if self.feature_size is not None:
            raise ValueError(
                f"this model reads vectors of feature_size={self.feature_size}: got input_ids. "
                "Pass inputs_embeds."
            )
        assert input_ids is not None
        if input_ids.dim() != 2 or input_ids.is_floating_point():
            raise ValueError(
                "input_ids must be whole numbers of shape (batch, length): got "
                f"{tuple(input_ids.shape)} of {input_ids.dtype}."
            )
        return _looked_up(self.embed_tokens, input_ids, "input_ids", "vocab_size")


def _looked_up(table: nn.Embedding, ids: Tensor, name: str, size: str) -> Tensor:
    try:
        return table(ids)
    except IndexError as error:
        rows = table.weight.shape[0]
        wrong = ids[(ids < 0) | (ids >= rows)]
        raise ValueError(
            f"{name} must be at least 0 and below {size}={rows}: got {int(wrong[0])}. Use the "
            "tokenizer that the model was trained with."
        ) from error
