"""Start values of `pool` from data: the query that each segment is pooled for.

A row of `pool` is the best stand-in for its segment near one query u of each head, see
`core/segments.py`. Calibration sets u to the mean query of the head on real inputs. Nothing
is trained: a few forward passes.

Legend: B batch, N positions, H heads, G key/value heads, D head size, M model size.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from ..core.attention import LinformerAttention
from ..core.segments import PoolProjection
from .batches import BATCH, batches_of, call
from .swapped import SwappedAttention

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CALIBRATION = 4  # batches
PASSES = 2  # the queries of later layers depend on the weights of earlier ones


def calibrate(
    model: nn.Module,
    data: Sequence[str] | Iterable[Any],
    *,
    tokenizer: Any = None,
    length: int | None = None,
    seed: int = 0,
) -> int:
    """Set the weights of every `pool` projection of a model from data; their number is returned.

    Args:
        model: a converted model, or one with swapped attention.
        data: texts (with `tokenizer`), of which a few rows of `length` tokens are read, or batches,
            as for `distill`.
        tokenizer: of the model.
        length: tokens of a row, for texts; by default as many as the model reads.
        seed: of the choice of rows.

    A layer without a window and global tokens, and layers that share one projection, are left as
    they are.

    """
    layers = [m for m in model.modules() if isinstance(_projection(m), PoolProjection)]
    if not layers:
        return 0
    batches = batches_of(data, tokenizer, [model], BATCH, length, seed)
    few = list(itertools.islice(batches, CALIBRATION))
    trained = model.training
    model.eval()
    try:
        for _ in range(PASSES):
            for module, query in _mean_queries(model, layers, few).items():
                _set(module, query)
    finally:
        model.train(trained)
    return len(layers)


def needs_calibration(model: nn.Module) -> bool:
    """Whether there are `pool` projections, and all of them are as they started."""
    found = [p for m in model.modules() if isinstance(p := _projection(m), PoolProjection)]
    return bool(found) and not any(bool(p.weight.any()) for p in found)


@torch.no_grad()
def _mean_queries(
    model: nn.Module, layers: list[nn.Module], batches: list[Any]
) -> dict[nn.Module, Tensor]:
    """The mean query (H, D) of each layer that was called."""
    totals: dict[nn.Module, Tensor] = {}
    counts: dict[nn.Module, int] = {}

    def watch(module: nn.Module, args: tuple[Any, ...], options: dict[str, Any]) -> None:
        total, count = _queries(module, args, options)
        totals[module] = totals.get(module, 0.0) + total
        counts[module] = counts.get(module, 0) + count

    hooks = [m.register_forward_pre_hook(watch, with_kwargs=True) for m in layers]
    try:
        for batch in batches:
            call(model, batch)
    finally:
        for hook in hooks:
            hook.remove()
    return {module: total / max(1, counts[module]) for module, total in totals.items()}


def _projection(module: nn.Module) -> nn.Module | None:
    own = isinstance(module, LinformerAttention | SwappedAttention)
    return module.projection if own else None  # type: ignore[return-value]


def _queries(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[Tensor, int]:
    """The sum of the queries (H, D) of a call over its real positions, and their number."""
    first = args[0]
    mask = kwargs.get("mask") if isinstance(module, LinformerAttention) else args[3]
    real = torch.ones(first.shape[:2], dtype=torch.bool) if mask is None else mask
    rows = first[real.to(first.device)].float()  # (count, M) or (count, H, D)
    if isinstance(module, LinformerAttention):
        mean = rows.mean(0).to(first.dtype)
        query = module.q_proj(mean).float().unflatten(0, (module.num_heads, -1))
        return query * len(rows), len(rows)
    return rows.sum(0), len(rows)


def _set(module: nn.Module, query: Tensor) -> None:
    """w = W_k^T u / sqrt(D) of each key/value head, u the mean of its queries (H, D)."""
    projection = _projection(module)
    assert isinstance(projection, PoolProjection)
    weight = projection.weight.data
    _, heads, width = weight.shape
    if isinstance(module, LinformerAttention):
        groups = module.num_kv_heads
    else:
        groups = width // query.shape[1]
    query = query.unflatten(0, (groups, -1)).mean(1) / query.shape[1] ** 0.5  # (G, D)
    if isinstance(module, LinformerAttention):
        keys = module.k_proj.weight.float().unflatten(0, (groups, -1))  # (G, D, M)
        found = torch.einsum("gd,gdm->gm", query, keys)
    else:  # the input is the keys of all heads: each head has its own block
        found = torch.zeros(groups, groups, query.shape[1])
        found[range(groups), range(groups)] = query
        found = found.flatten(1)
    if heads == 1:
        found = found.mean(0, keepdim=True)
    weight.copy_(found.expand_as(weight))
