"""How PyTorch's fused attention is written in ONNX.

The exporter's own translation passes the mask on as it is. onnxruntime wants one with a row for
each query, where ours, the same for all queries, has one row: (B, 1, 1, R).
"""

from __future__ import annotations

from typing import Any

OPSET = 23  # the first with an operator for attention


def translations() -> dict[Any, Any]:
    """For `torch.onnx.export(custom_translation_table=...)`."""
    import torch
    from onnxscript import opset23

    op: Any = opset23  # its types know no tensor that is not yet known

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        del dropout_p, enable_gqa  # not in inference; and the operator sees the number of heads
        if attn_mask is not None:
            rows = op.Concat(
                op.Constant(value_ints=[1, 1]),
                op.Shape(query, start=2, end=3),
                op.Shape(key, start=2, end=3),
                axis=0,
            )
            attn_mask = op.Expand(attn_mask, rows)
        mixed, _, _, _ = op.Attention(
            query, key, value, attn_mask, scale=scale, is_causal=int(is_causal)
        )
        return mixed

    return {torch.ops.aten.scaled_dot_product_attention.default: attention}
