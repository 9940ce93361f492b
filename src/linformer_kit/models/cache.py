"""What `generate()` keeps between two tokens: the core's state, as a transformers cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from transformers import Cache

if TYPE_CHECKING:
    from torch import Tensor

    from ..core.state import DecoderState


class LinformerCache(Cache):
    """A `DecoderState` and how many columns it has read, padding included.

    With slots its size does not depend on that. The state itself is never changed: a copy of the
    cache (`copy`) may be continued on its own.
    """

    def __init__(self, state: DecoderState | None = None, columns: int = 0) -> None:
        super().__init__(layers=[])
        self.state = state
        self.columns = columns

    def copy(self) -> LinformerCache:
        return LinformerCache(self.state, self.columns)

    def advance(self, state: DecoderState, columns: int) -> None:
        """Put the state after `columns` more in place of the one before."""
        self.state = state
        self.columns += columns

    def __len__(self) -> int:
        return 0 if self.state is None else len(self.state.layers)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(columns={self.columns}, nbytes={self.nbytes})"

    @property
    def nbytes(self) -> int:
        return 0 if self.state is None else self.state.nbytes

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.columns

    def get_max_length(self, layer_idx: int | None = None) -> int:
        return -1  # there is none

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def reset(self) -> None:
        self.state, self.columns = None, 0

    def reorder_cache(self, beam_idx: Tensor) -> None:
        if self.state is not None:
            self.state = self.state.reorder(beam_idx.to(self.state.position.device))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.reorder_cache(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.state is not None:
            place = self.state.position
            samples = torch.arange(place.shape[0], device=place.device)
            self.state = self.state.reorder(samples.repeat_interleave(repeats))

    def crop(self, tokens_to_remove: int) -> None:
        if tokens_to_remove:
            raise ValueError(
                "a Linformer's cache is a summary, from which tokens cannot be taken back: got "
                f"crop({tokens_to_remove}). Keep a copy of the cache from before them."
            )

    def update(self, *_: Any, **__: Any) -> NoReturn:
        raise NotImplementedError("the layers of a Linformer keep their state themselves")

    @property
    def batch_size(self) -> int:
        return -1 if self.state is None else self.state.position.shape[0]

    @property
    def is_initialized(self) -> bool:
        return self.state is not None

    @property
    def is_compileable(self) -> bool:
        return False

    @property
    def is_croppable(self) -> bool:
        return False
