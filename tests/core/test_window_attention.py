"""The exact window and the global tokens of the encoder's attention."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import nn

from linformer_kit import LinformerAttention
from linformer_kit.core import chunk_attention, reference_window
from linformer_kit.core.projection_kinds import SEGMENT_KINDS

from .oracle import compress_of, weights_of

KINDS = ("linear", "fixed", "dynamic", "conv", "mean", "max")


def built(**options) -> LinformerAttention:
    sizes = {"dim": 8, "num_heads": 4, "num_kv_heads": 2, "max_length": 8, "k": 3}
    layer = LinformerAttention(**sizes | options).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer


def expected(layer: LinformerAttention, x: torch.Tensor, mask: torch.Tensor | None):
    key = value = segment = None
    if layer.k:
        key, value = (compress_of(layer, side, layer.projection) for side in (0, 1))
        segment = layer.projection.width if layer.kind in SEGMENT_KINDS else None
    return reference_window.window_attention(
        x,
        weights_of(layer),
        num_heads=layer.num_heads,
        num_kv_heads=layer.num_kv_heads,
        compress_key=key,
        compress_value=value,
        compress_inputs=layer.kind == "max",
        window=layer.window,
        global_tokens=layer.global_tokens,
        row_bias=layer.row_bias,
        segment=segment,
        mask=mask,
    )


@pytest.mark.parametrize("path", ["cpu", "plain"])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sharing", ["none", "headwise", "kv"])
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference_in_outputs_and_gradients(kind, sharing, masked, path, monkeypatch):
    if path == "plain":
        monkeypatch.setattr(chunk_attention, "use_cpu_chunks", lambda *_: False)
    torch.manual_seed(0)
    for window, seen, length in itertools.product((0, 1, 3, 9), (0, 2), (1, 5, 8)):
        if not window and not seen:
            continue
        layer = built(projection=kind, sharing=sharing, window=window, global_tokens=seen)
        x = torch.randn(2, length, 8, dtype=torch.double, requires_grad=True)
        mask = None
        if masked:
            mask = torch.rand(2, length) > 0.4
            mask[0] = True
        inputs = [x, *layer.parameters()]
        oracle, answer = expected(layer, x, mask), layer(x, mask=mask)
        torch.testing.assert_close(answer, oracle, rtol=1e-9, atol=1e-9)
        upstream = torch.randn_like(oracle)
        for ours, theirs, tensor in zip(
            torch.autograd.grad(answer, inputs, upstream, allow_unused=True),
            torch.autograd.grad(oracle, inputs, upstream, allow_unused=True),
            inputs,
            strict=True,
        ):
            zero = torch.zeros_like(tensor)
            torch.testing.assert_close(
                zero if ours is None else ours,
                zero if theirs is None else theirs,
                rtol=1e-8,
                atol=1e-8,
            )
