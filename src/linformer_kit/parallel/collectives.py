"""Differentiable collectives of one process group, and a count of what they send.

Every backward pass is the exact transpose of its forward pass: what is differentiated is the sum of
the losses of all ranks. A loss that all ranks have in common is therefore counted once for each
rank, and the mean over the ranks of the gradients of a parameter, which DDP and FSDP compute, is
the gradient of that loss.

All ranks of a group call the same collectives in the same order, forward and backward.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..core.numerics import at_least_float32

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Range = tuple[int, int]  # first position, and the one after the last


@dataclass
class Traffic:
    """What this rank handed to collectives: calls, and bytes of payload, by their name.

    The payload of an all-reduce is its tensor. What goes over the wire depends on the algorithm: a
    ring all-reduce of p ranks sends 2 (p - 1) / p times the payload.
    """

    calls: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, sent: int) -> None:
        self.calls[name] += 1
        self.bytes[name] += sent


_counting: list[Traffic] = []


@contextmanager
def count_traffic() -> Iterator[Traffic]:
    """Count the calls and bytes of sequence-parallel collectives inside the block."""
    traffic = Traffic()
    _counting.append(traffic)
    try:
        yield traffic
    finally:
        _counting.remove(traffic)


def _record(name: str, sent: int) -> None:
    for traffic in _counting:
        traffic.add(name, sent)


def _reduced(x: Tensor, group: dist.ProcessGroup, op: Any = dist.ReduceOp.SUM) -> Tensor:
    """A new tensor: x reduced over the group."""
    x = x.clone(memory_format=torch.contiguous_format)
    if group.size() > 1:
        _record("all_reduce", x.nbytes)
        dist.all_reduce(x, op=op, group=group)
    return x


def _gathered(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """(...) -> (ranks, ...)"""
    if group.size() == 1:
        return x[None]
    x = x.contiguous()
    _record("all_gather", x.nbytes)
    parts = [torch.empty_like(x) for _ in range(group.size())]
    dist.all_gather(parts, x, group=group)
    return torch.stack(parts)


class _AllReduce(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _reduced(x, group)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _reduced(grads[0], ctx.group), None


def all_reduce(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of x over the ranks."""
    return _AllReduce.apply(x, group)


def all_reduce_together(tensors: Sequence[Tensor], group: dist.ProcessGroup) -> list[Tensor]:
    """The sums of several tensors over the ranks, by one all-reduce in at least float32."""
    wide = [at_least_float32(each).reshape(-1) for each in tensors]
    total = all_reduce(torch.cat(wide), group)
    parts = total.split([each.numel() for each in wide])
    return [part.view(each.shape).to(each.dtype) for part, each in zip(parts, tensors, strict=True)]


@torch.no_grad()
def all_reduce_max(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The maximum of x over the ranks, as a constant."""
    return _reduced(x.detach(), group, dist.ReduceOp.MAX)


@torch.no_grad()
def all_reduce_count(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of whole numbers over the ranks."""
    return _reduced(x, group)


@torch.no_grad()
def all_gather(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """x (...) of every rank: (ranks, ...), as a constant."""
    return _gathered(x, group)


class _ExclusiveScan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return _gathered(x, group)[: group.rank()].sum(0)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return _gathered(grads[0], ctx.group)[ctx.group.rank() + 1 :].sum(0), None


def exclusive_scan(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The sum of x over the ranks before this one; zero on the first."""
    return _ExclusiveScan.apply(x, group)


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, held: list[Range], needed: list[Range], group: dist.ProcessGroup
    ) -> Tensor:
        ctx.held, ctx.needed, ctx.group = held, needed, group
        rank, ranks = group.rank(), range(group.size())
        start = held[rank][0]
        sent = {
            peer: _narrow(x, common(held[rank], needed[peer]), start)
            for peer in ranks
            if peer != rank
        }
        sizes = {peer: common(held[peer], needed[rank]) for peer in ranks if peer != rank}
        received = _swap(sent, {peer: last - first for peer, (first, last) in sizes.items()}, group)
        own = _narrow(x, common(held[rank], needed[rank]), start)
        return torch.cat([own if peer == rank else received[peer] for peer in ranks], dim=1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        held, needed, group = ctx.held, ctx.needed, ctx.group
        rank, ranks = group.rank(), range(group.size())
        (start, end), grad = held[rank], grads[0]
        offset = needed[rank][0]
        sent = {
            peer: _narrow(grad, common(held[peer], needed[rank]), offset)
            for peer in ranks
            if peer != rank
        }
        ranges = {peer: common(held[rank], needed[peer]) for peer in ranks}
        sizes = {peer: last - first for peer, (first, last) in ranges.items() if peer != rank}
        received = _swap(sent, sizes, group)
        result = grad.new_zeros(grad.shape[0], end - start, *grad.shape[2:])
        received[rank] = _narrow(grad, ranges[rank], offset)
        for peer, rows in received.items():
            _narrow(result, ranges[peer], start).add_(rows)
        return result, None, None, None


def exchange(x: Tensor, held: list[Range], needed: list[Range], group: dist.ProcessGroup) -> Tensor:
    """The positions that this rank needs, sent by the ranks that hold them.

    x (B, N, ...) are the positions held[rank]; returns those of needed[rank] (B, L, ...). Ranks
    send to each other only what the other needs, usually to their neighbours alone.
    """
    return _Exchange.apply(x, held, needed, group)


def common(a: Range, b: Range) -> Range:
    """The intersection of two ranges; an empty one if there is none."""
    first = max(a[0], b[0])
    return first, max(first, min(a[1], b[1]))


def _narrow(x: Tensor, positions: Range, start: int) -> Tensor:
    """The positions of a range, of x (B, N, ...) that begins with position `start`."""
    first, last = positions
    return x[:, :0] if last == first else x[:, first - start : last - start]


def _swap(
    sent: dict[int, Tensor], sizes: dict[int, int], group: dist.ProcessGroup
) -> dict[int, Tensor]:
    """Send rows (B, L, ...) to each rank and receive `sizes` rows from each; no empty messages."""
    operations, received = [], {}
    for peer, rows in sent.items():
        received[peer] = rows.new_empty(rows.shape[0], sizes[peer], *rows.shape[2:])
        place = dist.get_global_rank(group, peer)
        if rows.shape[1]:
            rows = rows.contiguous()
            _record("send", rows.nbytes)
            operations.append(dist.P2POp(dist.isend, rows, place, group))
        if sizes[peer]:
            operations.append(dist.P2POp(dist.irecv, received[peer], place, group))
    if operations:
        for request in dist.batch_isend_irecv(operations):
            request.wait()
    return received
