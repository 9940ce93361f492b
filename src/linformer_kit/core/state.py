"""The state of a decoder between two calls.

A plain value: tensors in a fixed order, each with the batch first. It can be moved, saved,
reordered for beam search, and joined with others to a batch. A call returns a new state and does
not change the one it was given, so one state can be continued more than once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .causal import SlotState
from .compressed_kv import CompressedKV, ContextKV
from .full_causal import CacheState

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LayerState = SlotState | CacheState


@dataclass(frozen=True)
class DecoderState:
    """The state of every layer, and the compressed context if there is cross-attention."""

    position: Tensor  # (B): the number of tokens so far of each sample
    layers: tuple[LayerState, ...]
    memories: tuple[ContextKV, ...] = ()  # one for each layer with cross-attention

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderState:
        """The state with `change` applied to every tensor."""

        def changed(part: Any) -> Any:
            return type(part)(*(None if t is None else change(t) for t in part))

        return DecoderState(
            change(self.position),
            tuple(map(changed, self.layers)),
            tuple(map(changed, self.memories)),
        )

    def to(self, device: torch.device | str) -> DecoderState:
        return self.map(lambda tensor: tensor.to(device))

    def detach(self) -> DecoderState:
        return self.map(torch.Tensor.detach)

    def reorder(self, index: Tensor) -> DecoderState:
        """The samples at `index`: any order, any number of times (beam search)."""

        def reordered(tensor: Tensor) -> Tensor:
            if tensor.stride(0) == 0:  # expanded, the same for all samples: nothing to copy
                return tensor[:1].expand(index.shape[0], *tensor.shape[1:])
            return tensor.index_select(0, index)

        return self.map(reordered)

    def with_nan(self, which: Tensor) -> DecoderState:
        """The state with NaN in every layer of the samples marked in `which` (B)."""

        def filled(tensor: Tensor) -> Tensor:
            here = which.view(-1, *(1,) * (tensor.dim() - 1))
            return tensor.masked_fill(here, float("nan"))

        layers = tuple(type(layer)(*map(filled, layer)) for layer in self.layers)
        return DecoderState(self.position, layers, self.memories)

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor by name, for safetensors."""
        named = {"position": self.position}
        for kind, parts in (("layers", self.layers), ("memories", self.memories)):
            for number, part in enumerate(parts):
                for name, tensor in part._asdict().items():
                    if tensor is not None:
                        named[f"{kind}.{number}.{name}"] = tensor.contiguous()
        return named

    def with_tensors(self, tensors: dict[str, Tensor]) -> DecoderState:
        """A state like this one with the tensors that `tensors()` returned."""
        expected = self.tensors().keys()
        if expected != tensors.keys():
            odd = sorted(expected ^ tensors.keys())
            raise ValueError(
                f"the tensors are not those of this decoder's state: {odd[0]!r} is in one of them "
                "only. Load them with the model that made them."
            )

        def restored(kind: str, number: int, part: LayerState | ContextKV) -> dict[str, Tensor]:
            names = (f"{kind}.{number}.{name}" for name in part._fields)
            return {n.rsplit(".", 1)[1]: tensors[n] for n in names if n in tensors}

        return DecoderState(
            tensors["position"],
            tuple(p._replace(**restored("layers", i, p)) for i, p in enumerate(self.layers)),
            tuple(p._replace(**restored("memories", i, p)) for i, p in enumerate(self.memories)),
        )

    @property
    def nbytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors().values())


def join_states(states: Sequence[DecoderState]) -> DecoderState:
    """One state of the samples of all states; positions may differ."""
    if not states:
        raise ValueError("there must be at least one state to join: got none.")

    return DecoderState(
        torch.cat([state.position for state in states]),
        tuple(_joined(parts) for parts in zip(*(s.layers for s in states), strict=True)),
        tuple(_joined_context(parts) for parts in zip(*(s.memories for s in states), strict=True)),
    )


def _joined(parts: tuple[Any, ...]) -> Any:
    if isinstance(parts[0], CacheState):  # caches of different lengths are padded
        longest = max(part.key.shape[1] for part in parts)
        parts = tuple(
            CacheState(*(F.pad(t, (0, 0, 0, 0, 0, longest - t.shape[1])) for t in part))
            for part in parts
        )
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def _joined_context(parts: tuple[Any, ...]) -> CompressedKV:
    """Contexts of different lengths, some with padding: added rows are masked."""
    if not all(isinstance(part, CompressedKV) for part in parts):
        raise ValueError("folded keys and values cannot be joined: make the states with plan=None.")
    longest = max(part.key.shape[2] for part in parts)
    keep = None
    if any(part.keep is not None or part.key.shape[2] < longest for part in parts):
        keep = torch.cat([_padded_keep(part, longest) for part in parts])

    def rows(name: str) -> Tensor:
        tensors = [getattr(part, name) for part in parts]
        return torch.cat([F.pad(t, (0, 0, 0, longest - t.shape[2])) for t in tensors])

    return CompressedKV(rows("key"), rows("value"), keep)


def _padded_keep(kv: CompressedKV, rows: int) -> Tensor:
    batch, _, present, _ = kv.key.shape
    keep = kv.keep
    if keep is None:
        keep = torch.ones(batch, present, dtype=torch.bool, device=kv.key.device)
    return F.pad(keep, (0, rows - present))
