"""Implementations that are compared: this package, full attention, and earlier Linformers.

Each builds an attention layer, or an encoder whose layers are attention and a feed-forward part of
4 * dim with gelu. All map (batch, length, dim) to the same shape; W_q, W_k, W_v have no bias. Their
options are set as close to each other as possible; what differs:

- linformer-kit: E = F. Pre-norm and a final norm. Dropout on rows of the attention, the hidden
  layer, the branches and the input.
- full: the plain Transformer on PyTorch's fused attention, otherwise as linformer-kit.
- linformer: E and F (its share_kv would make values = keys). Pre-norm. Dropout on weights of the
  attention and the hidden layer.
- linformer-pytorch: E = F, with a bias. Post-norm. Dropout on weights of the attention, the hidden
  layer and the branches.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from ...core.attention import LinformerAttention
from ...core.encoder import LinformerEncoder
from ...measure.memory import Work
from ...measure.step import layer_step
from .settings import Point

if TYPE_CHECKING:
    from collections.abc import Callable

    from ...core.projection_kinds import ProjectionKind

KIT, FULL = "linformer-kit", "full"
MEMORY_OF_STEP = "linformer_kit.evidence.bench.implementations:memory_of_step"


class Implementation(NamedTuple):
    """Builders of a layer and of an encoder, from sizes and a rate of dropout."""

    attention: Callable[[Point, float], nn.Module]
    encoder: Callable[[Point, float], nn.Module]
    package: str | None = None  # that must be installed


def missing(packages: dict[str, str | None]) -> dict[str, str]:
    """Of implementations and their packages, those that cannot be imported, with the reason."""
    reasons = {}
    for name, package in packages.items():
        try:
            if package is not None:
                importlib.import_module(package)
        except ImportError as error:
            reasons[name] = f"cannot be imported ({error}); pip install 'linformer-kit[peers]'"
    return reasons


def build(name: str, layer: str, point: Point, *, dropout: float, seed: int) -> nn.Module:
    """An implementation with its own initialisation from the seed."""
    torch.manual_seed(seed)
    chosen = IMPLEMENTATIONS[name]
    return (chosen.attention if layer == "attention" else chosen.encoder)(point, dropout)


def make_input(point: Point, *, seed: int) -> Tensor:
    """The same input for all models: (batch, length, dim)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(point.batch, point.length, point.dim, generator=generator)


def small(point: Point) -> Point:
    """A small point to warm up with, long enough for all threads to allocate their buffers."""
    length = min(256, point.length)
    return replace(point, batch=1, length=length, k=min(point.k, length))


def rate_in(mode: str, dropout: float) -> float:
    """The dropout rate of a model in this mode."""
    return dropout if mode == "dropout" else 0.0


def memory_of_step(
    *, model: str, layer: str, mode: str, dropout: float, seed: int, threads: int,
    point: dict[str, Any],
) -> Work:  # fmt: skip
    """For `peak_memory`. The warm-up is a model of its own: some take one length only."""
    torch.set_num_threads(threads)

    def prepare(point: Point) -> Callable[[], object]:
        built = build(model, layer, point, dropout=rate_in(mode, dropout), seed=seed)
        return layer_step(built, make_input(point, seed=seed), mode)

    whole = Point(**point)
    return Work(warm_up=lambda: prepare(small(whole))(), prepare=lambda: prepare(whole))


def _kit(projection: ProjectionKind) -> Implementation:
    def common(point: Point, dropout: float) -> dict[str, Any]:
        return {
            "dim": point.dim, "num_heads": point.num_heads, "max_length": point.length,
            "k": point.k, "projection": projection, "sharing": "kv", "dropout": dropout,
            "window": 0 if projection == "full" else point.window,
        }  # fmt: skip

    return Implementation(
        lambda point, dropout: LinformerAttention(
            **common(point, dropout), bias=False, out_bias=True
        ),
        lambda point, dropout: LinformerEncoder(
            **common(point, dropout), depth=point.depth, ff_dim=point.ff_dim, qkv_bias=False,
            activation_dropout=dropout,
        ),
    )  # fmt: skip


def _of_package(
    package: str, name: str, options: Callable[[Point, float], dict[str, Any]]
) -> Callable[[Point, float], nn.Module]:
    """A class of another package, which is imported when it is built."""

    def make(point: Point, dropout: float) -> nn.Module:
        made = getattr(importlib.import_module(package), name)(**options(point, dropout))
        return cast("nn.Module", made)

    return make


def _linformer(point: Point, dropout: float) -> dict[str, Any]:
    return {
        "dim": point.dim,
        "seq_len": point.length,
        "k": point.k,
        "heads": point.num_heads,
        "dropout": dropout,
    }


def _linformer_pytorch(point: Point, dropout: float) -> dict[str, Any]:
    return {
        "input_size": point.length,
        "channels": point.dim,
        "dim_k": point.k,
        "nhead": point.num_heads,
        "dropout": dropout,
        "parameter_sharing": "kv",
    }


IMPLEMENTATIONS: dict[str, Implementation] = {
    KIT: _kit("linear"),
    FULL: _kit("full"),
    "linformer": Implementation(
        _of_package("linformer.linformer", "LinformerSelfAttention", _linformer),
        _of_package(
            "linformer.linformer",
            "Linformer",
            lambda point, dropout: {**_linformer(point, dropout), "depth": point.depth},
        ),
        package="linformer",
    ),
    "linformer-pytorch": Implementation(
        _of_package(
            "linformer_pytorch",
            "MHAttention",
            lambda point, dropout: {
                **_linformer_pytorch(point, dropout),
                "dim": point.dim // point.num_heads,
                "checkpoint_level": "C0",
                "E_proj": None,  # it makes its own, unless the sharing is layerwise
                "F_proj": None,
                "full_attention": False,
                "causal_mask": None,
            },
        ),
        _of_package(
            "linformer_pytorch",
            "Linformer",
            lambda point, dropout: {
                **_linformer_pytorch(point, dropout),
                "dim_ff": point.ff_dim,
                "dropout_ff": dropout,
                "depth": point.depth,
                "activation": "gelu",
            },
        ),
        package="linformer_pytorch",
    ),
}
