"""A Linformer encoder behind the interface of torch.nn.TransformerEncoder.

| torch.nn.TransformerEncoder        | LinformerEncoder                                  |
|------------------------------------|---------------------------------------------------|
| src (N, B, M), batch_first=False   | x (B, N, M)                                       |
| src_key_padding_mask, True=padding | mask, True = a real position                      |
| mask, is_causal                    | none: refused; LinformerDecoder is causal         |

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .encoder import EncoderLayer, LinformerEncoder

if TYPE_CHECKING:
    from .activations import Activation

_FUNCTIONS: dict[Any, Activation] = {F.relu: "relu", torch.relu: "relu", F.gelu: "gelu"}


class TransformerEncoderAdapter(nn.Module):
    """Call a `LinformerEncoder` as a torch.nn.TransformerEncoder is called.

    Args:
        encoder: the encoder to call.
        batch_first: whether src is (B, N, M); else it is (N, B, M), as in torch.

    Two things differ from torch: rows of the output at padded positions are always zero, and a
    sample of nothing but padding gives zeros instead of NaN.

    """

    def __init__(self, encoder: LinformerEncoder, *, batch_first: bool = False) -> None:
        super().__init__()
        self.encoder = encoder
        self.batch_first = batch_first

    @classmethod
    def from_transformer_encoder(
        cls,
        module: nn.TransformerEncoder,
        *,
        max_length: int | None = None,
        k: int | list[int] | None = None,
        **options: Any,
    ) -> TransformerEncoderAdapter:
        """A Linformer of the same sizes, with a copy of the weights of `module`.

        The projection is new and has to be trained; with projection="full" there is none, and the
        outputs are those of `module`. `options` are arguments of `LinformerEncoder`, such as
        projection, sharing and dropout_kind; sizes, norm, activation and dropout are `module`'s.
        """
        layers = [_checked_layer(layer) for layer in module.layers]
        sizes = _arguments_of(layers[0])
        fixed = sorted(sizes.keys() & options.keys())
        if fixed:
            raise TypeError(
                f"{', '.join(fixed)} must be those of the torch module: got "
                f"{', '.join(f'{name}={options[name]!r}' for name in fixed)}. Leave them out."
            )
        encoder = LinformerEncoder(
            **sizes, depth=len(layers), max_length=max_length, k=k, **options
        )
        weight = layers[0].linear1.weight
        encoder.to(device=weight.device, dtype=weight.dtype)  # before copying: float64 stays exact
        encoder.dropout = 0.0  # torch drops nothing of the input
        for ours, theirs in zip(encoder.layers, layers, strict=True):
            assert isinstance(ours, EncoderLayer)
            _copy_layer(ours, theirs)
        encoder.final_norm = _copied_norm(module.norm)
        adapter = cls(encoder, batch_first=layers[0].self_attn.batch_first)
        return adapter.train(module.training)

    def forward(
        self,
        src: Tensor,
        mask: Tensor | None = None,
        src_key_padding_mask: Tensor | None = None,
        is_causal: bool | None = None,
    ) -> Tensor:
        """src (N, B, M), (B, N, M) with batch_first, or (N, M) -> the same shape.

        src_key_padding_mask (B, N), or (N), is boolean and True at padding.
        """
        if mask is not None or is_causal:
            given = "is_causal=True" if mask is None else f"mask of shape {tuple(mask.shape)}"
            raise ValueError(
                "Linformer attention compresses all positions, so an attention mask for each pair "
                f"of positions cannot be applied: got {given}. Pass None; for padding use "
                "src_key_padding_mask, for causal attention LinformerDecoder."
            )
        real = None if src_key_padding_mask is None else ~_boolean(src_key_padding_mask)
        if src.dim() == 2:
            return self.encoder(src[None], mask=None if real is None else real[None])[0]
        if self.batch_first:
            return self.encoder(src, mask=real)
        return self.encoder(src.transpose(0, 1), mask=real).transpose(0, 1)


def _boolean(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        raise TypeError(
            f"src_key_padding_mask must be boolean, True = padding: got {mask.dtype}. Pass "
            "mask == float('-inf') for an additive mask, mask == 0 for one that is 1 at real "
            "positions."
        )
    return mask


def _checked_layer(layer: nn.Module) -> nn.TransformerEncoderLayer:
    if type(layer) is not nn.TransformerEncoderLayer:
        raise TypeError(
            "the layers must be torch.nn.TransformerEncoderLayer, whose weights are known: got "
            f"{type(layer).__module__}.{type(layer).__qualname__}."
        )
    if layer.norm1.eps != layer.norm2.eps:
        raise ValueError(
            f"both norms of a layer must have one eps: got {layer.norm1.eps} and {layer.norm2.eps}."
        )
    return layer


def _arguments_of(layer: nn.TransformerEncoderLayer) -> dict[str, Any]:
    attention = layer.self_attn
    return {
        "dim": attention.embed_dim,
        "num_heads": attention.num_heads,
        "ff_dim": layer.linear1.out_features,
        "norm": "pre" if layer.norm_first else "post",
        "norm_eps": layer.norm1.eps,
        "activation": _activation_of(layer),
        "bias": layer.linear1.bias is not None,
        "dropout": layer.dropout1.p,
        "attention_dropout": attention.dropout,
        "activation_dropout": layer.dropout.p,
    }


def _activation_of(layer: nn.TransformerEncoderLayer) -> Activation:
    function = layer.activation
    if isinstance(function, nn.ReLU):
        return "relu"
    if isinstance(function, nn.GELU) and function.approximate == "none":
        return "gelu"
    if function in _FUNCTIONS:
        return _FUNCTIONS[function]
    raise ValueError(
        f"the activation must be relu or gelu: got {getattr(function, '__name__', function)!r}."
    )


@torch.no_grad()
def _copy_layer(ours: EncoderLayer, theirs: nn.TransformerEncoderLayer) -> None:
    attention, source = ours.attention, theirs.self_attn
    query_key_value = (attention.q_proj, attention.k_proj, attention.v_proj)
    assert source.in_proj_weight is not None  # queries, keys and values have one size in a layer
    for linear, weight in zip(query_key_value, source.in_proj_weight.chunk(3), strict=True):
        linear.weight.copy_(weight)
    if source.in_proj_bias is not None:
        for linear, bias in zip(query_key_value, source.in_proj_bias.chunk(3), strict=True):
            linear.bias.copy_(bias)
    attention.out_proj.load_state_dict(source.out_proj.state_dict())
    ours.feed_forward.w_1.load_state_dict(theirs.linear1.state_dict())
    ours.feed_forward.w_2.load_state_dict(theirs.linear2.state_dict())
    ours.attention_norm = copy.deepcopy(theirs.norm1)  # it has a bias or not, as theirs
    ours.feed_forward_norm = copy.deepcopy(theirs.norm2)


def _copied_norm(norm: nn.Module | None) -> nn.LayerNorm | None:
    if norm is not None and not isinstance(norm, nn.LayerNorm):
        raise TypeError(
            f"the final norm must be a torch.nn.LayerNorm or None: got {type(norm).__name__}."
        )
    return copy.deepcopy(norm)
