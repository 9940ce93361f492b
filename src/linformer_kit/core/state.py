"""What a decoder remembers between two calls.

A plain value: tensors in a fixed order, with the batch first in each. It can be moved, saved,
reordered for beam search, and put together with others to a batch. A call returns a new state and
leaves the one it was given as it was, so a saved one can be continued more than once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .cached import CacheState
from .causal import SlotState
from .memory import FoldedMemory, Memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

LayerState = SlotState | CacheState
ContextMemory = Memory | FoldedMemory


@dataclass(frozen=True)
class DecoderState:
    """The past of every layer, and the shortened context where there is cross-attention."""

    position: Tensor  # (B): how many tokens each sample has had
    layers: tuple[LayerState, ...]
    memories: tuple[ContextMemory, ...] = ()

    def map(self, change: Callable[[Tensor], Tensor]) -> DecoderState:
        """A state with `change` applied to every tensor."""

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
            if tensor.stride(0) == 0:  # one and the same for all samples: nothing to copy
                return tensor[:1].expand(index.shape[0], *tensor.shape[1:])
            return tensor.index_select(0, index)

        return self.map(reordered)

    def spoiled(self, which: Tensor) -> DecoderState:
        """NaN in all that the samples marked in `which` (B) remember."""

        def spoil(tensor: Tensor) -> Tensor:
            here = which.view(-1, *(1,) * (tensor.dim() - 1))
            return tensor.masked_fill(here, float("nan"))

        layers = tuple(type(layer)(*map(spoil, layer)) for layer in self.layers)
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
        """The tensors that `tensors()` gave, in the structure of this state."""
        expected = self.tensors().keys()
        if expected != tensors.keys():
            odd = sorted(expected ^ tensors.keys())
            raise ValueError(
                f"the tensors are not those of this decoder's state: {odd[0]!r} is in one of them "
                "only. Load them with the model that made them."
            )

        def restored(kind: str, number: int, part: LayerState | ContextMemory) -> dict[str, Tensor]:
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
    """One state of the samples of all, which may stand at different positions."""
    if not states:
        raise ValueError("there must be at least one state to join: got none.")

    return DecoderState(
        torch.cat([state.position for state in states]),
        tuple(_joined(parts) for parts in zip(*(s.layers for s in states), strict=True)),
        tuple(_joined_memories(parts) for parts in zip(*(s.memories for s in states), strict=True)),
    )


def _joined(parts: tuple[Any, ...]) -> Any:
    if isinstance(parts[0], CacheState):  # caches are as long as their samples
        longest = max(part.key.shape[1] for part in parts)
        parts = tuple(
            CacheState(*(F.pad(t, (0, 0, 0, 0, 0, longest - t.shape[1])) for t in part))
            for part in parts
        )
    return type(parts[0])(*map(torch.cat, zip(*parts, strict=True)))


def _joined_memories(parts: tuple[Any, ...]) -> Memory:
    """Contexts of different lengths, some with padding: what one lacks of another is hidden."""
    if not all(isinstance(part, Memory) for part in parts):
        raise ValueError(
            "memories that a plan has folded cannot be joined: make the states with plan=None."
        )
    longest = max(part.key.shape[2] for part in parts)
    keep = None
    if any(part.keep is not None or part.key.shape[2] < longest for part in parts):
        keep = torch.cat([_padded_keep(part, longest) for part in parts])

    def rows(name: str) -> Tensor:
        tensors = [getattr(part, name) for part in parts]
        return torch.cat([F.pad(t, (0, 0, 0, longest - t.shape[2])) for t in tensors])

    return Memory(rows("key"), rows("value"), keep)


def _padded_keep(memory: Memory, rows: int) -> Tensor:
    batch, _, present, _ = memory.key.shape
    keep = memory.keep
    if keep is None:
        keep = torch.ones(batch, present, dtype=torch.bool, device=memory.key.device)
    return F.pad(keep, (0, rows - present))
