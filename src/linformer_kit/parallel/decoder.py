"""The causal decoder on the positions of one rank: what `parallelize` adds to its classes.

The mathematics is that of `core/causal.py`. Chunks of `window` tokens are counted from the
beginning of the whole sequence. A rank receives the tokens from the beginning of the chunk before
its first one (the halo), and the slot sums of all tokens before these: an exclusive scan over the
ranks of (k x F) values, whatever N is.

Padding must be at the end of a sample: moving padding there, as one process does, would move tokens
between ranks.

Legend: B batch, S tokens of this rank, L tokens with the halo, C chunks, W window, K slots, F the
values summed for a slot, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn, cast

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..core import checks
from ..core.chunks import Keys
from ..core.decoder import LinformerDecoder
from ..core.decoder_layer import DecoderLayer
from ..core.dropout import dropout
from ..core.plain_sdpa import hidden_bias, zero_padding
from .collectives import all_reduce_count, exclusive_scan
from .encoder import compress_folded, no_weights
from .parts import Part, agree

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from ..core.causal import CausalLinformerAttention
    from ..core.compressed_kv import ContextKV
    from .collectives import Range


class ParallelDecoderLayer(DecoderLayer):
    """A layer on the tokens of one rank."""

    def forward(self, x: Tensor, kv: ContextKV | None, part: Part) -> Tensor:  # type: ignore[override]
        """x (B, S, M) -> (B, S, M)."""
        attention = cast("CausalLinformerAttention", self.attention)
        return self._after_attention(x, attend_causal(attention, self._source(x), part), kv)

    def extend(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_state()

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_state()


class ParallelDecoder(LinformerDecoder):
    """A decoder on the tokens of one rank: `forward` takes and returns this rank's part.

    A context is cut over the same ranks, at positions of its own.
    """

    sequence_group: ProcessGroup

    def forward(  # type: ignore[override]
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        state: None = None,
    ) -> Tensor:
        """x (B, S, dim) -> (B, S, dim); mask (B, S): padding at the end of a sample only."""
        if state is not None:
            raise no_state()
        group = self.sequence_group
        part = agree(group, x, mask, lambda: checks.sequence("x", x, self.dim, mask=mask))
        _check_padding_at_end(part, x.device)
        context_kv = self._compress_part(context, context_mask, queries=x.shape[1], batch=len(x))
        x = dropout(zero_padding(x, part.mask), self.dropout, self.training)
        for layer, kv in zip(self.layers, context_kv, strict=True):
            if self.gradient_checkpointing and self.training:
                x = checkpoint(layer, x, kv, part, use_reentrant=False)
            else:
                x = layer(x, kv, part)
        x = x if self.final_norm is None else self.final_norm(x)
        return zero_padding(x, part.mask)

    def _compress_part(
        self, context: Tensor | None, mask: Tensor | None, *, queries: int, batch: int
    ) -> list[ContextKV | None]:
        """The compressed context of each layer; None for each without cross-attention."""
        crossing = [layer.cross_attention for layer in self._each_layer()]
        if crossing[0] is None or context is None or context.shape[0] != batch:
            return super()._compress_context(context, mask, batch, queries)  # or its error
        width, given = crossing[0].context_dim, context
        part = agree(
            self.sequence_group,
            given,
            mask,
            lambda: checks.sequence("context", given, width, mask=mask, mask_name="context_mask"),
        )
        context = zero_padding(context, part.mask)
        return [
            compress_folded(cross, context, part, self.context_projection, queries=queries)
            for cross in crossing
            if cross is not None
        ]

    def trace(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_weights()

    def init_state(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_state()

    def step(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_state()


def attend_causal(layer: CausalLinformerAttention, x: Tensor, part: Part) -> Tensor:
    """Causal attention: x (B, S, M) -> (B, S, M)."""
    window = layer.window

    def chunk_before(start: int) -> int:
        return max(0, start // window - 1) * window

    def needed(start: int, end: int) -> Range:
        return chunk_before(start), end

    around, (origin, _) = part.halo(x, needed)  # (B, L, M)
    position = torch.arange(origin, part.end, device=x.device)[None]
    query, key, plain_key, value = layer.rotated_heads(around, position)
    weight = layer._slot_weights(around)
    grid = -(-around.shape[1] // window)  # chunks from `origin` on
    missing = grid * window - around.shape[1]
    query, key, plain_key, value, weight = (
        F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing)).unflatten(1, (grid, window))
        for rows in (query, key, plain_key, value, weight)
    )
    sums = layer._chunk_sums(weight, plain_key, value)  # (B, grid, K, F); F.pad gives no weight
    # Rank r adds the chunks from its own origin to that of the next rank, which it has complete.
    following = [chunk_before(start) for start, _ in part.held[1:]]
    until = following[part.rank] if part.rank < len(following) else origin
    added = sums[:, : (until - origin) // window].sum(1)  # (B, K, F)
    earlier_sums = exclusive_scan(added, part.group) if layer.k else added
    # The slots of chunk c of the grid are made of the tokens before chunk c - 1.
    prefix = earlier_sums[:, None] + F.pad(sums.cumsum(1), (0, 0, 0, 0, 2, 0))[:, :grid]
    slot_key, slot_value = layer._slots(prefix, dtype=x.dtype)
    number = origin // window + torch.arange(grid, device=x.device)[None]  # (1, grid)
    # Chunk 0 of the sequence has no chunk before it, and chunks 0 and 1 have no slots.
    skipped = (part.start - origin) // window  # chunks of the halo
    padded_key, padded_value = (F.pad(rows, (0, 0) * 3 + (1, 0)) for rows in (key, value))
    no_previous = (number < 1)[..., None] & (torch.arange(2 * window, device=x.device) < window)
    near_bias = layer._causal_bias(x) + hidden_bias(~no_previous, x.dtype)[:, :, None, None]
    slot_bias = hidden_bias(number >= 2, x.dtype)[:, :, None, None].expand(-1, -1, -1, layer.k)
    mixed = layer._attend_chunks(
        query[:, skipped:],
        Keys(padded_key[:, skipped:], padded_value[:, skipped:], near_bias[:, skipped:]),
        Keys(slot_key[:, skipped:], slot_value[:, skipped:], slot_bias[:, skipped:]),
    )
    first = part.start - origin - skipped * window
    mixed = mixed[:, first : first + x.shape[1]]
    return layer.out_proj(mixed.flatten(2))


def _check_padding_at_end(part: Part, device: torch.device) -> None:
    """On all ranks alike: a real token after padding, on this rank or on a later one."""
    if part.mask is None:
        return
    mask = part.mask
    count = part.count_real(device)  # (ranks, B)
    rises = (mask[:, 1:] & ~mask[:, :-1]).any().long()  # a real token after padding on this rank
    wrong = int(all_reduce_count(rises, part.group))
    lengths = torch.tensor([end - start for start, end in part.held], device=device)[:, None]
    full = (count == lengths).long().cumprod(0).bool()
    if wrong or bool(((count[1:] > 0) & ~full[:-1]).any()):
        raise ValueError(
            "a causal sequence that is cut over ranks may have padding at its end only: got "
            "padding before a real token. Pad on the right."
        )


def no_state() -> ValueError:
    return ValueError(
        "a decoder whose sequence is cut over ranks has no state: it is for training and scoring. "
        "Generate with a model that was not parallelized."
    )
