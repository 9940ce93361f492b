"""Which positions of a sequence a rank holds.

A sequence of N positions is cut into consecutive parts, one for each rank of the sequence group.
Parts may differ in length; each has at least one position.

Legend: B batch, N positions of the whole sequence, S positions of this rank.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core.projection import Span
from .collectives import Range, all_gather, all_reduce_count, all_reduce_max, exchange

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh

SEQUENCE = "sequence"  # the name of the mesh dimension
Found = TypeVar("Found")


def bounds(length: int, ranks: int, *, multiple_of: int = 1) -> list[Range]:
    """A sequence of `length` positions in `ranks` parts, as equal as possible.

    Boundaries are multiples of `multiple_of` if the sequence is long enough: with a window, parts
    that begin with a chunk need the smallest halo.
    """
    if length < ranks:
        raise ValueError(
            f"a sequence needs at least one position for each of its ranks: got {length} positions "
            f"and {ranks} ranks. Use fewer sequence ranks, or pad the input and pass a mask."
        )
    units = -(-length // multiple_of)
    if units < ranks:
        units, multiple_of = length, 1
    share, more = divmod(units, ranks)
    starts = [(rank * share + min(rank, more)) * multiple_of for rank in range(ranks)]
    return list(zip(starts, [*starts[1:], length], strict=True))


def local_part(x: Tensor, mesh: DeviceMesh, *, dim: int = 1, multiple_of: int = 1) -> Tensor:
    """The part of a whole tensor that this rank holds, cut along `dim` by `bounds`: a view."""
    own = sequence_mesh(mesh)
    start, end = bounds(x.shape[dim], own.size(), multiple_of=multiple_of)[own.get_local_rank()]
    return x.narrow(dim, start, end - start)


def sequence_mesh(mesh: DeviceMesh) -> DeviceMesh:
    """The dimension `sequence` of a mesh."""
    names = mesh.mesh_dim_names or ()
    if SEQUENCE not in names:
        raise ValueError(
            f"the mesh must have a dimension named {SEQUENCE!r}: got {names}. Make it with "
            "init_device_mesh(device, (data, sequence), mesh_dim_names=('data', 'sequence'))."
        )
    return mesh[SEQUENCE] if len(names) > 1 else mesh


@dataclass(eq=False, kw_only=True)
class Part(Span):
    """The positions of this rank, in one forward call."""

    held: list[Range]  # of all ranks
    rank: int
    group: ProcessGroup
    _known: dict[Any, Any] = field(default_factory=dict)

    def halo(self, x: Tensor, needed: Callable[[int, int], Range]) -> tuple[Tensor, Range]:
        """x (B, S, ...) with the positions around it: (B, L, ...), and which positions these are.

        needed(start, end) are the positions that a rank with start ... end needs.
        """
        ranges = [(max(0, a), min(self.length, b)) for a, b in (needed(*h) for h in self.held)]
        return exchange(x, self.held, ranges, self.group), ranges[self.rank]

    def gathered(self, x: Tensor) -> Tensor:
        """x (B, S, ...) of all ranks: (B, N, ...)."""
        return self.halo(x, lambda start, end: (0, self.length))[0]

    def following(self, labels: Tensor, *, last: int) -> Tensor:
        """For each position of labels (B, S) the next one; `last` after the last of all."""
        extended, _ = self.halo(labels, lambda start, end: (start, end + 1))
        return F.pad(extended, (0, labels.shape[1] + 1 - extended.shape[1]), value=last)[:, 1:]

    def once(self, key: Any, compute: Callable[[], Found]) -> Found:
        """compute(), once for all layers: what follows from the mask alone."""
        if key not in self._known:
            self._known[key] = compute()
        return self._known[key]

    def count_real(self, device: torch.device) -> Tensor:
        """The real positions of each sample on each rank: (ranks, B or 1)."""
        return self.once("real", lambda: all_gather(self.real(device).sum(1), self.group))


def agree(
    group: ProcessGroup, x: Tensor, mask: Tensor | None, check: Callable[[], None] = lambda: None
) -> Part:
    """The parts of all ranks, for x (B, S, ...) and mask (B, S) of this rank.

    `check` raises if the input of this rank is invalid. All ranks then raise an error: otherwise
    the others would wait for this one.
    """
    problem: Exception | None = None
    try:
        if x.dim() < 2:
            raise ValueError(f"an input must have shape (batch, length, ...): got {tuple(x.shape)}")
        if x.shape[1]:  # a rank without positions is refused below, on all ranks alike
            check()
    except (ValueError, TypeError) as error:
        problem = error
    own = [0, 0, 0, 1] if problem is not None else [*x.shape[:2], mask is not None, 0]
    numbers = all_gather(torch.tensor(own, device=x.device), group).tolist()
    if problem is not None:
        raise problem
    refused = [rank for rank, (*_, bad) in enumerate(numbers) if bad]
    if refused:
        raise ValueError(f"the input was refused by sequence rank {refused[0]}, see its message.")
    batches, lengths, padded, _ = zip(*numbers, strict=True)
    if min(lengths) < 1:
        raise ValueError(
            f"each of the {len(lengths)} sequence ranks must hold at least one position: got parts "
            f"of lengths {list(lengths)}. Use fewer sequence ranks, or pad the input and pass a "
            "mask."
        )
    if len(set(batches)) > 1:
        raise ValueError(
            "the ranks of a sequence group must hold parts of the same samples: got batches of "
            f"sizes {list(batches)}. Load the same rows on all of them."
        )
    ends = torch.tensor(lengths).cumsum(0).tolist()
    held = list(zip([0, *ends[:-1]], ends, strict=True))
    if any(padded) and mask is None:
        mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
    start, end = held[group.rank()]
    return Part(
        start=start,
        end=end,
        length=held[-1][1],
        mask=mask,
        highest=lambda own: all_reduce_max(own, group),
        held=held,
        rank=group.rank(),
        group=group,
    )


def sum_of_ranks(count: int, group: ProcessGroup, device: torch.device) -> int:
    """The sum of a whole number over the ranks."""
    return int(all_reduce_count(torch.tensor(count, device=device), group))
