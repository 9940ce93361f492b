"""Who takes part: this package, full attention, and the implementations that came before.

Each builds an attention layer, or an encoder whose layers are attention and a feed-forward part of
4 * dim with gelu. All map (batch, length, dim) to the same shape; W_q, W_k, W_v have no bias. They
are as near to each other as their options allow; what differs:

- linformer-kit: E = F. Pre-norm, and a last norm. Drops rows of the attention, the hidden layer,
  the branches and the input.
- full: the plain Transformer on the fused attention of PyTorch, else as linformer-kit.
- linformer: E and F (its share_kv would make values = keys). Pre-norm. Drops weights of the
  attention and the hidden layer.
- linformer-pytorch: E = F, with a bias. Post-norm. Drops weights of the attention, the hidden layer
  and the branches.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from ..core import checks
from ..core.attention import LinformerAttention
from ..core.encoder import LinformerEncoder
from ..machine_memory import require_memory

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.projection_kinds import ProjectionKind
    from .names import LayerKind

OURS = "linformer-kit"
FULL = "full"


@dataclass(frozen=True, kw_only=True)
class Point:
    """The sizes of one measurement."""

    dim: int
    num_heads: int
    k: int
    length: int
    batch: int = 1
    depth: int = 1  # of the encoder

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "k", "length", "batch", "depth"):
            checks.positive(name, getattr(self, name))
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim must be divisible by the number of heads: got dim={self.dim}, "
                f"heads={self.num_heads}. Change one of them."
            )
        if self.k > self.length:
            raise ValueError(
                f"k must be at most the length, for it shortens: got k={self.k}, "
                f"length={self.length}. Use a smaller k, or longer inputs."
            )

    @property
    def ff_dim(self) -> int:
        return 4 * self.dim

    def check_fits(self) -> None:
        """Refuse sizes beyond the machine's memory: input, output, E and the weights alone."""
        ends = 2 * self.batch * self.length * self.dim
        weights = self.depth * 12 * self.dim**2 + self.k * self.length
        require_memory(
            f"length={self.length}, k={self.k}, dim={self.dim}, batch={self.batch}, "
            f"depth={self.depth}",
            4 * (ends + weights),
            remedy="Use smaller sizes.",
        )


@dataclass(frozen=True)
class Contestant:
    """How to build one, with a rate of dropout. `package` is what must be installed for it."""

    attention: Callable[[Point, float], nn.Module]
    encoder: Callable[[Point, float], nn.Module]
    package: str | None = None


def why_missing(name: str) -> str | None:
    """None if the contestant can take part, else why not and what to do about it."""
    package = CONTESTANTS[name].package
    if package is None:
        return None
    try:
        importlib.import_module(package)
    except ImportError as error:
        return f"cannot be imported ({error}); pip install 'linformer-kit[peers]'"
    return None


def build(name: str, layer: LayerKind, point: Point, *, dropout: float, seed: int) -> nn.Module:
    """A contestant with its own initialisation from the seed."""
    torch.manual_seed(seed)
    contestant = CONTESTANTS[name]
    builder = contestant.attention if layer == "attention" else contestant.encoder
    return builder(point, dropout)


def _our_attention(projection: ProjectionKind) -> Callable[[Point, float], nn.Module]:
    return lambda point, dropout: LinformerAttention(
        dim=point.dim,
        num_heads=point.num_heads,
        max_length=point.length,
        k=point.k,
        projection=projection,
        sharing="kv",
        bias=False,
        out_bias=True,
        dropout=dropout,
    )


def _our_encoder(projection: ProjectionKind) -> Callable[[Point, float], nn.Module]:
    return lambda point, dropout: LinformerEncoder(
        dim=point.dim,
        depth=point.depth,
        num_heads=point.num_heads,
        max_length=point.length,
        k=point.k,
        ff_dim=point.ff_dim,
        projection=projection,
        sharing="kv",
        qkv_bias=False,
        dropout=dropout,
        activation_dropout=dropout,
    )


def _linformer_attention(point: Point, dropout: float) -> nn.Module:
    from linformer.linformer import LinformerSelfAttention

    return cast(
        "nn.Module",
        LinformerSelfAttention(
            point.dim, point.length, k=point.k, heads=point.num_heads, dropout=dropout
        ),
    )


def _linformer_encoder(point: Point, dropout: float) -> nn.Module:
    from linformer.linformer import Linformer

    return cast(
        "nn.Module",
        Linformer(
            point.dim,
            point.length,
            point.depth,
            k=point.k,
            heads=point.num_heads,
            dropout=dropout,
        ),
    )


def _linformer_pytorch_attention(point: Point, dropout: float) -> nn.Module:
    from linformer_pytorch import MHAttention

    return cast(
        "nn.Module",
        MHAttention(
            input_size=point.length,
            dim=point.dim // point.num_heads,
            channels=point.dim,
            dim_k=point.k,
            nhead=point.num_heads,
            dropout=dropout,
            checkpoint_level="C0",
            parameter_sharing="kv",
            E_proj=None,  # it makes its own, unless the sharing is layerwise
            F_proj=None,
            full_attention=False,
            causal_mask=None,
        ),
    )


def _linformer_pytorch_encoder(point: Point, dropout: float) -> nn.Module:
    from linformer_pytorch import Linformer

    return cast(
        "nn.Module",
        Linformer(
            input_size=point.length,
            channels=point.dim,
            dim_k=point.k,
            dim_ff=point.ff_dim,
            dropout_ff=dropout,
            nhead=point.num_heads,
            depth=point.depth,
            dropout=dropout,
            activation="gelu",
            parameter_sharing="kv",
        ),
    )


CONTESTANTS: dict[str, Contestant] = {
    OURS: Contestant(_our_attention("linear"), _our_encoder("linear")),
    FULL: Contestant(_our_attention("full"), _our_encoder("full")),
    "linformer": Contestant(_linformer_attention, _linformer_encoder, package="linformer"),
    "linformer-pytorch": Contestant(
        _linformer_pytorch_attention, _linformer_pytorch_encoder, package="linformer_pytorch"
    ),
}
