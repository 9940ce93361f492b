"""Whether a peer computes the same as ours, with its weights copied into ours.

Where the mathematics is the same (the two earlier Linformers, and BERT against our vanilla), the
weights of the peer's layers are copied into a `LinformerEncoder` built alike and both read the same
input. The other peers compute something else, so there is nothing to copy.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from benchmarks.peer_models import build
from linformer_kit.core.encoder import EncoderLayer, LinformerEncoder
from linformer_kit.core.projection import LinearProjection

if TYPE_CHECKING:
    from collections.abc import Callable

    from linformer_kit.core.projection_kinds import ProjectionKind, Sharing
    from linformer_kit.evidence.bench.settings import Point


def largest_difference(name: str, point: Point, *, seed: int) -> float | None:
    """Between the outputs, which are of size 1; None where the weights cannot be copied."""
    if name not in COPIES:
        return None
    theirs = build(name, point, seed=seed).eval()
    with torch.no_grad():
        ours, core = COPIES[name](theirs, point)
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2, point.length, point.dim, generator=generator)
        return float((ours.eval()(x) - core(x)).abs().max())


def _alike(
    point: Point, *, projection: ProjectionKind, sharing: Sharing, post: bool, eps: float = 1e-5
) -> LinformerEncoder:
    return LinformerEncoder(
        dim=point.dim,
        depth=point.depth,
        num_heads=point.num_heads,
        max_length=point.length,
        k=point.k,
        ff_dim=point.ff_dim,
        projection=projection,
        sharing=sharing,
        qkv_bias=projection == "full",
        norm="post" if post else "pre",
        norm_eps=eps,
    )


def _of_linformer(theirs: Any, point: Point) -> tuple[nn.Module, nn.Module]:
    ours = _alike(point, projection="linear", sharing="headwise", post=False)
    ours.final_norm = None  # it has none
    for layer, (attention, feed_forward) in zip(_layers(ours), theirs.net.layers, strict=True):
        weights = dict(attention.fn.named_parameters())
        layer.attention.q_proj.weight.copy_(weights["to_q.weight"])
        layer.attention.k_proj.weight.copy_(weights["to_k.weight"])
        layer.attention.v_proj.weight.copy_(weights["to_v.weight"])
        _copy(layer.attention.out_proj, attention.fn.to_out)
        matrix = _matrix(layer)
        matrix[0, 0].copy_(weights["proj_k"].T)
        matrix[1, 0].copy_(weights["proj_v"].T)
        _copy(layer.attention_norm, attention.norm)
        _copy(layer.feed_forward_norm, feed_forward.norm)
        _copy(layer.feed_forward.w_1, feed_forward.fn.w1)
        _copy(layer.feed_forward.w_2, feed_forward.fn.w2)
    return ours, theirs


def _of_linformer_pytorch(theirs: Any, point: Point) -> tuple[nn.Module, nn.Module]:
    """Its E has a bias, which the paper's has not; it is set to zero for the comparison."""
    ours = _alike(point, projection="linear", sharing="kv", post=True)
    blocks = list(theirs.seq)
    for number, layer in enumerate(_layers(ours)):
        attention, feed_forward = blocks[2 * number], blocks[2 * number + 1]
        for name, linear in (("to_q", "q_proj"), ("to_k", "k_proj"), ("to_v", "v_proj")):
            parts = [head.weight for head in getattr(attention.fn, name)]
            getattr(layer.attention, linear).weight.copy_(torch.cat(parts))
        shorten = attention.fn.heads[0].E
        shorten.bias.zero_()
        _matrix(layer)[0, 0].copy_(shorten.weight)
        _copy(layer.attention.out_proj, attention.fn.w_o)
        _copy(layer.attention_norm, attention.norm)
        _copy(layer.feed_forward_norm, feed_forward.norm)
        _copy(layer.feed_forward.w_1, feed_forward.fn.w_1)
        _copy(layer.feed_forward.w_2, feed_forward.fn.w_2)
    return ours, theirs


class _BertLayers(nn.Module):
    """BERT without its embeddings, which add positions of their own."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(x).last_hidden_state
        return hidden


def _of_bert(theirs: Any, point: Point) -> tuple[nn.Module, nn.Module]:
    bert = theirs.model
    eps = float(bert.config.layer_norm_eps)
    ours = _alike(point, projection="full", sharing="kv", post=True, eps=eps)
    for layer, its in zip(_layers(ours), bert.encoder.layer, strict=True):
        attention = its.attention
        _copy(layer.attention.q_proj, attention.self.query)
        _copy(layer.attention.k_proj, attention.self.key)
        _copy(layer.attention.v_proj, attention.self.value)
        _copy(layer.attention.out_proj, attention.output.dense)
        _copy(layer.attention_norm, attention.output.LayerNorm)
        _copy(layer.feed_forward.w_1, its.intermediate.dense)
        _copy(layer.feed_forward.w_2, its.output.dense)
        _copy(layer.feed_forward_norm, its.output.LayerNorm)
    return ours, _BertLayers(bert.encoder)


COPIES: dict[str, Callable[[Any, Point], tuple[nn.Module, nn.Module]]] = {
    "linformer": _of_linformer,
    "linformer-pytorch": _of_linformer_pytorch,
    "BERT (SDPA)": _of_bert,
}


def _layers(encoder: LinformerEncoder) -> list[EncoderLayer]:
    return [layer for layer in encoder.layers if isinstance(layer, EncoderLayer)]


def _matrix(layer: EncoderLayer) -> Tensor:
    projection = layer.attention.projection
    assert isinstance(projection, LinearProjection)
    return projection.weight


def _copy(to: nn.Module, source: nn.Module) -> None:
    to.load_state_dict(source.state_dict())
