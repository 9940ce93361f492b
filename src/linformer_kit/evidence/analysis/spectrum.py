"""`linformer spectrum`: is the attention of a trained encoder low rank? The paper's Figure 1.

Every piece of text gives one attention matrix for each layer and head. Their curves of kept
singular values (`singular.py`) are averaged as they come: memory does not grow with the text.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from ...core import checks
from .encoders import TextEncoder, pieces
from .singular import EXACT_UP_TO, kept_by_rank, smallest_rank

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor

    from ...measure.records import Record

KIND = "spectrum"
SHARES = (0.9, 0.95, 0.99)


@dataclass(frozen=True, kw_only=True)
class SpectrumOptions:
    """length: tokens of a piece; pieces: how many are read; rank: of the heat map."""

    length: int = 512
    pieces: int = 16
    rank: int = 128
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("length", "pieces", "rank"):
            checks.positive(name, getattr(self, name))
        if self.rank > self.length:
            raise ValueError(
                f"--rank must be at most --length: got {self.rank} and {self.length}. Use a "
                "smaller rank."
            )


def spectrum(
    encoder: TextEncoder,
    texts: Sequence[str],
    options: SpectrumOptions,
    *,
    machine: Record,
    say: Callable[[str], None] = lambda _: None,
) -> Record:
    """The record of a model: mean curves of layers, and the values of heads that views need."""
    found = pieces(encoder, texts, options.length)
    return spectrum_of_pieces(encoder, found, options, texts=texts, machine=machine, say=say)


def spectrum_of_pieces(
    encoder: TextEncoder,
    rows: Iterable[list[int]],
    options: SpectrumOptions,
    *,
    texts: Sequence[str],
    machine: Record,
    say: Callable[[str], None] = lambda _: None,
) -> Record:
    """As `spectrum`, of token ids; `texts` are where they come from."""
    generator = torch.Generator().manual_seed(options.seed)
    sums: list[Tensor] = []  # of each layer: (H, r)
    columns: list[int] = []
    read = 0
    for piece in rows:
        for layer, weights in enumerate(encoder.attentions(piece)):
            say(f"piece {read + 1} of {options.pieces}, layer {layer + 1}")
            kept = kept_by_rank(weights, generator=generator).double()
            if read == 0:
                sums.append(kept)
                columns.append(weights.shape[-1])
            else:
                sums[layer] += kept
        read += 1
        if read == options.pieces:
            break
    curves = [total / read for total in sums]
    return {
        "kind": KIND,
        "model": encoder.name,
        "model_type": encoder.model.config.model_type,
        "texts": list(texts),
        "length": options.length,
        "columns": columns,
        "pieces": read,
        "rank": options.rank,
        "method": "exact" if min(options.length, *columns) <= EXACT_UP_TO else "randomised",
        "layers": [_layer(curve, options.rank) for curve in curves],
        "machine": machine,
    }


def suggested_k(layer: Record, length: int, share: float = 0.9) -> int | None:
    """A k for a layer: enough for the mean of its heads, as a multiple of 16.

    None where the ranks that were found do not reach the share.
    """
    needed = layer["smallest"][f"{share:g}"]
    if not needed:
        return None
    return min(length, 16 * math.ceil(needed / 16))


def _layer(curve: Tensor, rank: int) -> Record:
    """curve (H, r) as JSON. Ranks are those of the mean over heads; `heads` has each head's."""
    mean = curve.mean(0)
    at = min(rank, curve.shape[1]) - 1
    return {
        "curve": [round(float(value), 5) for value in mean],
        "smallest": {f"{share:g}": int(smallest_rank(mean, share)) for share in SHARES},
        "heads": {
            "kept": [round(float(value), 5) for value in curve[:, at]],
            "smallest": {
                f"{share:g}": [int(value) for value in smallest_rank(curve, share)]
                for share in SHARES
            },
        },
    }
