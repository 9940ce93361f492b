"""The encoder on the positions of one rank: what `parallelize` adds to its classes.

Norms, feed-forward, dropout and residuals are of single rows, so they are the core's. Attention
exchanges compressed rows and halos; the short convolution a halo of its width; the moving average
the sums at the ends of each part.

Legend: B batch, S positions of this rank, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch.utils.checkpoint import checkpoint

from ..core import checks
from ..core.compressed_kv import fold
from ..core.cpu.blocks import map_row_blocks
from ..core.dropout import drop_rows, dropout
from ..core.encoder import EncoderLayer, LinformerEncoder
from ..core.plain_sdpa import zero_padding
from ..core.plan import plan_for
from .collectives import all_reduce
from .compress import compress
from .parts import Part, agree
from .window import attend_with_window

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.distributed import ProcessGroup

    from ..core.attention import LinformerAttention
    from ..core.compressed_kv import ContextKV
    from ..core.moving_average import MovingAverage
    from ..core.projection import Projection


class ParallelEncoderLayer(EncoderLayer):
    """A layer on the positions of one rank."""

    def forward(  # type: ignore[override]
        self, x: Tensor, part: Part, projection: Projection | None
    ) -> Tensor:
        """x (B, S, M) -> (B, S, M)."""
        source, attention = self.attention_input(x), self.attention
        width = max(attention.dim, attention.num_heads * attention.head_dim)
        blocks: Any = {"width": width, "training": self.training}
        if attention.has_exact_keys:
            attended = attend_with_window(attention, source, part, projection)
            return map_row_blocks(
                lambda _, *rows: self.after_attention(*rows), x, attended, **blocks
            )
        source = zero_padding(source, part.mask)
        kv = compress_folded(attention, source, part, projection, queries=x.shape[1])

        def rest(samples: slice, rows: Tensor, source_rows: Tensor) -> Tensor:
            attended = attention.attend(source_rows, kv.samples(samples))
            return self.after_attention(rows, attended)

        return map_row_blocks(rest, x, source, **blocks)


def compress_folded(
    attention: LinformerAttention,
    x: Tensor,
    part: Part,
    projection: Projection | None,
    *,
    queries: int,
) -> ContextKV:
    """The compressed keys and values that queries attend to: with dropout, folded if cheaper."""
    kv, _ = compress(attention, x, part, projection)
    if attention.dropout_kind == "rows":
        kv = kv._replace(value=drop_rows(kv.value, attention.dropout, attention.training))
    if plan_for(attention, x, queries).attend == "absorbed":
        return fold(kv, attention.q_proj, attention.out_proj, num_heads=attention.num_heads)
    return kv


def _with_moving_average(average: MovingAverage, x: Tensor, part: Part) -> Tensor:
    """As its forward pass. A rank sends the sums at the ends of its part: (B, M)."""
    sums = average.sums(average.inputs(x, part.mask))
    ends = average.ends(sums)
    slot = torch.arange(len(part.held), device=x.device) == part.rank
    of_ranks = all_reduce(slot[:, None, None] * ends, part.group)  # (ranks, B, M)
    rate, back = average.rate(), average.looks_back()
    around = torch.zeros_like(ends)
    for rank, (start, end) in enumerate(part.held):
        if rank != part.rank:
            gap = part.start - end if rank < part.rank else start - part.end
            seen = back if rank < part.rank else ~back
            around = around + of_ranks[rank] * torch.exp(-rate * gap) * seen
    return average.added(x, sums + average.carried(around, x.shape[1]), part.mask)


class ParallelEncoder(LinformerEncoder):
    """An encoder on the positions of one rank: `forward` takes and returns this rank's part."""

    sequence_group: ProcessGroup

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (B, S, dim) -> (B, S, dim); mask (B, S) bool, True = a real position.

        Ranks of a sequence group hold parts of the same samples; parts may differ in length.
        """
        part = agree(
            self.sequence_group,
            x,
            mask,
            lambda: checks.sequence("x", x, self.dim, mask=mask),
        )
        x = self._embed_part(x, part)
        for layer in self.layers:
            x = self._run_part(layer, x, part)
        return self._finish(x, part.mask)

    def _embed_part(self, x: Tensor, part: Part) -> Tensor:
        if self.positions is not None:
            x = self.positions(x, part.positions(x.device))
        x = zero_padding(x, part.mask)
        if self.neighbours is not None:
            reach = self.neighbours.weight.shape[1] // 2
            around, (first, _) = part.halo(x, lambda start, end: (start - reach, end + reach))
            x = self.neighbours(around)[:, part.start - first : part.end - first]
        if self.moving_average is not None:
            x = _with_moving_average(self.moving_average, x, part)
        return dropout(x, self.dropout, self.training)

    def _run_part(self, layer: nn.Module, x: Tensor, part: Part) -> Tensor:
        """One layer, checkpointed if that is asked for."""
        if self.gradient_checkpointing and self.training:
            return checkpoint(layer, x, part, self.projection, use_reentrant=False)
        return layer(x, part, self.projection)

    def trace(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise no_weights()


def no_weights() -> ValueError:
    return ValueError(
        "hidden states and attention weights of a sequence that is cut over ranks are not "
        "returned: got a call that asks for them. Ask a model that was not parallelized."
    )
