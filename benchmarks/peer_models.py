"""Every installable encoder for long inputs, at matched sizes: (B, n, dim) -> (B, n, dim).

All have `depth` layers of attention and a feed-forward part of 4 * dim (ModernBERT's is gated and
has three matrices: 8/3 * dim, the same products), no dropout, and what they shorten, sample or
approximate with has k rows (landmarks, random features). They keep their own norms, positions and
biases. Those of transformers read `inputs_embeds`, so no vocabulary takes part.
"""

from __future__ import annotations

import importlib
import math
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from linformer_kit.core.encoder import LinformerEncoder
from linformer_kit.evidence.bench.implementations import IMPLEMENTATIONS, KIT

if TYPE_CHECKING:
    from collections.abc import Callable

    from linformer_kit.evidence.bench.settings import Point


class Peer(NamedTuple):
    """How to build one, and the package that must be installed for it."""

    build: Callable[[Point], nn.Module]
    package: str | None = None


class OnEmbeddings(nn.Module):
    """A model of transformers, from embeddings to its last hidden state."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.model(inputs_embeds=x).last_hidden_state
        return hidden


class FirstOf(nn.Module):
    """FNet's encoder; the model around it insists on token ids' types."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, x: Tensor) -> Tensor:
        hidden: Tensor = self.encoder(x).last_hidden_state
        return hidden


def build(name: str, point: Point, *, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return PEERS[name].build(point)


def _ours(point: Point) -> nn.Module:
    return LinformerEncoder(
        dim=point.dim,
        depth=point.depth,
        num_heads=point.num_heads,
        max_length=point.length,
        k=point.k,
        window=point.window,
        ff_dim=point.ff_dim,
        positions="learned",
    )


def _earlier(name: str) -> Callable[[Point], nn.Module]:
    return lambda point: IMPLEMENTATIONS[name].encoder(point, 0.0)


def _performer(point: Point) -> nn.Module:
    from performer_pytorch import Performer

    return cast(
        "nn.Module",
        Performer(
            dim=point.dim,
            depth=point.depth,
            heads=point.num_heads,
            dim_head=point.dim // point.num_heads,
            nb_features=point.k,
            feature_redraw_interval=None,
        ),
    )


def _nystrom_attention(point: Point) -> nn.Module:
    from nystrom_attention import Nystromformer

    return cast(
        "nn.Module",
        Nystromformer(
            dim=point.dim,
            depth=point.depth,
            heads=point.num_heads,
            dim_head=point.dim // point.num_heads,
            num_landmarks=point.k,
        ),
    )


def _transformers() -> Any:
    return importlib.import_module("transformers")


def _config(point: Point, **more: Any) -> dict[str, Any]:
    return {
        "vocab_size": 8,
        "hidden_size": point.dim,
        "num_hidden_layers": point.depth,
        "num_attention_heads": point.num_heads,
        "intermediate_size": point.ff_dim,
        "max_position_embeddings": point.length + 2,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "pad_token_id": 0,
        **more,
    }


def _bert(point: Point) -> nn.Module:
    config = _transformers().BertConfig(**_config(point), attn_implementation="sdpa")
    return OnEmbeddings(_transformers().BertModel(config, add_pooling_layer=False))


def _modernbert(point: Point) -> nn.Module:
    sizes = _config(point, intermediate_size=8 * point.dim // 3 // 8 * 8)
    for dropout in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        del sizes[dropout]
    ends = {"bos_token_id": 0, "eos_token_id": 0, "cls_token_id": 0, "sep_token_id": 0}
    config = _transformers().ModernBertConfig(**sizes, **ends, attn_implementation="sdpa")
    return OnEmbeddings(_transformers().ModernBertModel(config))


def _longformer(point: Point) -> nn.Module:
    config = _transformers().LongformerConfig(
        **_config(point),
        attention_window=[2 * point.window or _even(point.k)] * point.depth,
        bos_token_id=0,
    )
    return OnEmbeddings(_transformers().LongformerModel(config, add_pooling_layer=False))


def _bigbird(point: Point) -> nn.Module:
    # Shorter inputs than this are no longer sparse: the model itself would switch to full.
    sparse = point.length > 11 * 64 and point.length % 64 == 0
    kind = "block_sparse" if sparse else "original_full"
    config = _transformers().BigBirdConfig(
        **_config(point), attention_type=kind, block_size=64, sep_token_id=0
    )
    return OnEmbeddings(_transformers().BigBirdModel(config, add_pooling_layer=False))


def _nystromformer(point: Point) -> nn.Module:
    landmarks = math.gcd(point.k, point.length)
    config = _transformers().NystromformerConfig(
        **_config(point), num_landmarks=landmarks, segment_means_seq_len=point.length
    )
    return OnEmbeddings(_transformers().NystromformerModel(config))


def _fnet(point: Point) -> nn.Module:
    sizes = _config(point)
    del sizes["num_attention_heads"], sizes["attention_probs_dropout_prob"]
    return FirstOf(_transformers().FNetModel(_transformers().FNetConfig(**sizes)).encoder)


def _even(number: int) -> int:
    return max(2, number - number % 2)


PEERS: dict[str, Peer] = {
    KIT: Peer(_ours),
    "linformer": Peer(_earlier("linformer"), "linformer"),
    "linformer-pytorch": Peer(_earlier("linformer-pytorch"), "linformer_pytorch"),
    "performer-pytorch": Peer(_performer, "performer_pytorch"),
    "nystrom-attention": Peer(_nystrom_attention, "nystrom_attention"),
    "BERT (SDPA)": Peer(_bert, "transformers"),
    "ModernBERT": Peer(_modernbert, "transformers"),
    "Longformer": Peer(_longformer, "transformers"),
    "BigBird": Peer(_bigbird, "transformers"),
    "Nyströmformer": Peer(_nystromformer, "transformers"),
    "FNet": Peer(_fnet, "transformers"),
}
