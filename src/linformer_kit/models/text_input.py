"""How a model reads text: the special tokens around it, and how many positions there are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..errors import UserError

# Model types whose first position is pad_token_id + 1, at least 2, as fairseq counted them.
COUNTED_FROM_PADDING = (
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "lilt",
    "longformer",
    "luke",
    "markuplm",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
)


class Frame(NamedTuple):
    """The special tokens before and after a text."""

    before: tuple[int, ...]
    after: tuple[int, ...]

    @classmethod
    def of(cls, tokenizer: Any) -> Frame:
        """What a tokenizer puts around a text itself."""
        if hasattr(tokenizer, "build_inputs_with_special_tokens"):
            whole = tokenizer.build_inputs_with_special_tokens([-1])
            place = whole.index(-1)
            return cls(tuple(whole[:place]), tuple(whole[place + 1 :]))
        alone = tokenizer("a", add_special_tokens=False, verbose=False)["input_ids"]
        framed = tokenizer("a", verbose=False)["input_ids"]
        for at in range(len(framed) - len(alone) + 1):
            end = at + len(alone)
            if alone and framed[at:end] == alone:
                return cls(tuple(framed[:at]), tuple(framed[end:]))
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
        return cls(() if first is None else (first,), () if last is None else (last,))

    def __call__(self, ids: Sequence[int]) -> list[int]:
        return [*self.before, *ids, *self.after]

    def row(self, ids: Sequence[int] | np.ndarray) -> np.ndarray:
        return np.concatenate([self.before, ids, self.after]).astype(np.int64)

    def removed(self, ids: Sequence[int]) -> list[int]:
        """Token ids of a text without its frame, which has to be there as a whole or not at all."""
        begins = self.before == tuple(ids[: len(self.before)])
        ends = self.after == tuple(ids[len(ids) - len(self.after) :])
        if begins and ends and len(ids) >= self.size:
            return list(ids[len(self.before) : len(ids) - len(self.after)])
        if {ids[0], ids[-1]} & {*self.before, *self.after}:
            raise UserError(
                f"token ids must have all of the special tokens around a text "
                f"({' '.join(map(str, self(())))}) or none of them, which are added, and no "
                f"padding: got ids from {ids[0]} to {ids[-1]}."
            )
        return list(ids)

    @property
    def size(self) -> int:
        return len(self.before) + len(self.after)


def longest(config: Any) -> int | None:
    """How many positions a model reads, as far as its configuration tells."""
    for name in ("max_position_embeddings", "max_source_positions"):
        found = getattr(config, name, None)
        if isinstance(found, int) and found > 0:
            padding = getattr(config, "pad_token_id", None) or 0
            counted = config.model_type in COUNTED_FROM_PADDING
            return found - (max(padding + 1, 2) if counted else 0)
    sizes = [getattr(config, name, None) for name in ("image_size", "patch_size")]
    if all(sizes):
        image, patch = (s if isinstance(s, Sequence) else (s, s) for s in sizes)
        return math.prod(a // b for a, b in zip(image, patch, strict=True)) + 1
    return None
