"""`linformer heads`: the attention of a trained Linformer to its k rows and to its window, its E,
and what each row is made of.

Row j of the compressed text is sum_i E_ji x_i: E_ji^2 tells which positions it is made of, the
attention weights in column j what it is used for.

Legend: n tokens, k rows, H heads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...core import checks
from ...core.encoder import EncoderLayer, LinformerEncoder
from ...core.projection_kinds import NOT_A_MATRIX
from .encoders import pieces
from .tokens import token_texts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ...core.attention import LinformerAttention
    from ...measure.records import Record
    from .encoders import TextEncoder

KIND = "heads"
PIXELS = 128  # the most rows and columns an image keeps
TOKENS = 6  # that a row is described with


@dataclass(frozen=True, kw_only=True)
class HeadsOptions:
    """layer and head count from 1; length None is the longest the model takes."""

    layer: int = 1
    head: int = 1
    length: int | None = None

    def __post_init__(self) -> None:
        checks.positive("layer", self.layer)
        checks.positive("head", self.head)
        if self.length is not None:
            checks.positive("length", self.length)


def analyse_head(
    encoder: TextEncoder, texts: Sequence[str], options: HeadsOptions, *, machine: Record
) -> Record:
    """The record of one head on the first piece of text, with the E of its layer."""
    _chosen_layer(encoder, options.layer, options.head)
    length = options.length or min(512, encoder.longest or 512)
    piece = next(pieces(encoder, texts, length))
    return {
        "kind": KIND,
        "model": encoder.name,
        "texts": list(texts),
        "length": length,
        **look_at_head(encoder, piece, layer=options.layer, head=options.head),
        "machine": machine,
    }


def look_at_head(
    encoder: TextEncoder, piece: list[int], *, layer: int, head: int, all_matrices: bool = True
) -> Record:
    """The attention of one head on token ids, and what the rows are made of.

    layer and head count from 1. `all_matrices`: E of all heads of the layer, else of this one.
    """
    chosen = _chosen_layer(encoder, layer, head)
    tokens = token_texts(encoder.tokenizer, piece)
    with torch.inference_mode():
        weights = list(encoder.attentions(piece))[layer - 1][head - 1]
        matrices = matrices_of(encoder, chosen, piece)  # (sides, heads, k, n)
    own = min(head - 1, matrices.shape[1] - 1)  # one E may be for all heads
    matrix = matrices[0, own]
    rows, exact = weights.tensor_split([len(matrix)], dim=1)  # (n, k), and (n, n) with a window
    used = rows.mean(0)  # (k)
    shown = range(matrices.shape[1]) if all_matrices else [own]
    return {
        "layer": layer,
        "head": head,
        "projection": chosen.attention.kind,
        "sharing": chosen.attention.sharing,
        "attention": _image(rows, squares=False),
        **_exact(exact, chosen.attention),
        "matrices": [
            {"name": _name(side, one, matrices), **_image(matrices[side, one], squares=True)}
            for side in range(matrices.shape[0])
            for one in shown
        ],
        "rows": [_row(matrix[row], tokens, float(used[row])) for row in range(len(matrix))],
    }


def _exact(weights: Tensor, attention: LinformerAttention) -> Record:
    """What a head with a window sees exactly, and how its attention is shared out."""
    if not attention.has_exact_keys:
        return {}
    on_global = float(weights[:, : attention.global_tokens].sum(1).mean())
    on_exact = float(weights.sum(1).mean())
    return {
        "window": attention.window,
        "global_tokens": attention.global_tokens,
        "exact": _image(weights, squares=False),
        "shares": {
            "rows": round(1 - on_exact, 4),
            "window": round(on_exact - on_global, 4),
            "global tokens": round(on_global, 4),
        },
    }


def matrices_of(encoder: TextEncoder, layer: EncoderLayer, piece: list[int]) -> Tensor:
    """E and F as they are applied to this text: (sides, heads, k, n).

    A projection applied to the identity is its matrix, wherever it comes from.
    """
    core: LinformerEncoder = encoder.model.encoder
    number = list(core.layers).index(layer)
    projection = layer.attention.projection or core.projection
    assert projection is not None
    ids = torch.tensor([piece], device=encoder.model.device)
    hidden = encoder.model(
        input_ids=ids, attention_mask=torch.ones_like(ids), output_hidden_states=True
    ).hidden_states[number]
    compression = projection(layer.attention_input(hidden), None, rows=layer.attention.k)
    identity = torch.eye(len(piece), device=ids.device)[None]
    matrices: Tensor = compression.compress_input(identity)[0]
    return matrices


def layers_with_matrix(encoder: TextEncoder) -> dict[int, EncoderLayer]:
    """The layers that have an E to look at, by their numbers from 1; a ValueError if none has."""
    core = getattr(encoder.model, "encoder", None)
    if not isinstance(core, LinformerEncoder):
        raise ValueError(
            f"{encoder.name} is no Linformer, and has no E to look at: got model_type "
            f"{encoder.model.config.model_type!r}. `linformer spectrum` looks into any encoder."
        )
    layers = [layer for layer in core.layers if isinstance(layer, EncoderLayer)]
    found = {
        number: layer
        for number, layer in enumerate(layers, start=1)
        if layer.attention.k and layer.attention.kind not in ("full", *NOT_A_MATRIX)
    }
    if found:
        return found
    kinds = {layer.attention.kind for layer in layers} - {"full"}
    if kinds and not kinds & set(NOT_A_MATRIX):
        raise ValueError(
            f"{encoder.name} has k=0 in every layer, a window and no E to look at. "
            "`linformer spectrum` looks into it."
        )
    kind = next(iter(kinds), "full")
    reason = "the vanilla Transformer" if kind == "full" else "which is no matrix"
    raise ValueError(
        f"{encoder.name} has projection={kind!r}, {reason}: there is no E to look at. "
        "`linformer spectrum` looks into it."
    )


def _chosen_layer(encoder: TextEncoder, layer: int, head: int) -> EncoderLayer:
    found = layers_with_matrix(encoder)
    _within("layer", layer, len(encoder.model.encoder.layers))
    if layer not in found:
        raise ValueError(
            f"layer {layer} of {encoder.name} has no E to look at, as it has full attention or "
            f"k=0. Use --layer {', '.join(map(str, found))}."
        )
    _within("head", head, found[layer].attention.num_heads)
    return found[layer]


def _within(name: str, value: int, most: int) -> None:
    if value > most:
        raise ValueError(f"--{name} must be at most {most}: got {value}.")


def _name(side: int, head: int, matrices: Tensor) -> str:
    sides, heads = matrices.shape[:2]
    letter = ("E" if side == 0 else "F") if sides == 2 else "E = F"
    return letter if heads == 1 else f"{letter}, head {head + 1}"


def _image(matrix: Tensor, *, squares: bool) -> dict[str, Any]:
    """(rows, columns) in at most PIXELS each: the mean of a block, or root mean square of it."""
    rows, columns = matrix.shape
    values = matrix.float()[None, None]
    size = (min(rows, PIXELS), min(columns, PIXELS))
    whole = size == (rows, columns)
    if not whole:
        pool = torch.nn.functional.adaptive_avg_pool2d
        values = pool(values.square(), size).sqrt() if squares else pool(values, size)
    return {
        "rows": rows,
        "columns": columns,
        "pooled": not whole,
        "values": [[round(float(value), 5) for value in row] for row in values[0, 0]],
    }


def _row(row: Tensor, tokens: list[str], used: float) -> Record:
    """A row of E: mean and standard deviation of positions under E_j^2, and its heaviest tokens."""
    share = row.double().square()
    share = share / share.sum().clamp_min(1e-30)
    place = torch.arange(len(row), dtype=torch.float64)
    middle = float((share * place).sum())
    width = float((share * (place - middle) ** 2).sum().sqrt())
    heaviest = share.topk(min(TOKENS, len(row)))
    return {
        "used": round(used, 6),
        "middle": round(middle, 1),
        "width": round(width, 1),
        "positions_in_use": round(1 / float((share**2).sum()), 1),  # 1 to n
        "tokens": [
            {
                "text": tokens[int(i)],
                "position": int(i),
                "share": round(float(s), 4),
                "sign": 1 if float(row[int(i)]) >= 0 else -1,
            }
            for s, i in zip(*heaviest, strict=True)
        ],
    }
