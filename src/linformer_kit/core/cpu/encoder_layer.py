"""An encoder layer in inference on a CPU, by groups of samples and blocks of rows.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .blocks import map_row_blocks, map_sample_groups

if TYPE_CHECKING:
    from torch import Tensor

    from ..encoder import EncoderLayer
    from ..projection import Projection


def encoder_layer_in_blocks(
    layer: EncoderLayer, x: Tensor, mask: Tensor | None, projection: Projection | None
) -> Tensor:
    """x (B, N, M) -> (B, N, M). Only where `use_row_blocks`.

    Samples are processed in groups; what follows the compression, or the attention with a window,
    in blocks of rows.
    """
    attention = layer.attention
    width = max(attention.dim, attention.num_heads * attention.head_dim)
    blocks: Any = {"width": width, "training": layer.training}

    def forward(samples: slice) -> Tensor:
        some, source = x[samples], layer.attention_input(x[samples])
        real = None if mask is None else mask[samples]
        if attention.has_exact_keys:
            attended = attention(source, mask=real, projection=projection)
            return map_row_blocks(
                lambda _, *rows: layer.after_attention(*rows), some, attended, **blocks
            )
        kv, source = attention.compress_self(source, mask=real, projection=projection)

        def rest(part: slice, rows: Tensor, source_rows: Tensor) -> Tensor:
            return layer.after_attention(rows, attention.attend(source_rows, kv.samples(part)))

        return map_row_blocks(rest, some, source, **blocks)

    return map_sample_groups(forward, x, **blocks)
