"""What `auto` chooses: layers that keep full attention, and k for each layer.

Choices are made on held-out rows of their own; scores are measured on the others.
"""

from __future__ import annotations

import copy
import math
import statistics
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from ..errors import UserError
from ..evidence.analysis.encoders import TextEncoder
from ..evidence.analysis.spectrum import SpectrumOptions, spectrum_of_pieces, suggested_k
from ..measure.machine import describe
from .distillation import relative_error
from .quality import spread

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np

    from ..measure.records import Record
    from .source import Settings, Source

MUCH = 2.0  # times the median error
SHARE = 0.25  # of the layers, at most
ERROR_ROWS, SPECTRUM_ROWS = 4, 4
RULE = (
    f"A layer keeps full attention if exchanging it alone gives more than {MUCH:g} times the "
    f"median error of the layers, for at most {SHARE:.0%} of them (rounded up), the worst first. "
    "The error is |difference|² / |variation|² of the last hidden states."
)


def halves(rows: Sequence[np.ndarray]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Held-out rows to choose on, and rows to measure on."""
    if len(rows) < 2:
        raise UserError(
            "auto needs two held-out rows, one to choose on and one to measure on: the text has "
            f"{len(rows)}. Give more text with --text."
        )
    return list(rows[::2]), list(rows[1::2])


@torch.inference_mode()
def errors_alone(
    source: Source,
    settings: Settings,
    rows: Sequence[np.ndarray],
    say: Callable[[str], None] = lambda _: None,
) -> list[float]:
    """For each layer, the error of the last hidden states if it alone is exchanged."""
    from .long_rows import last_states

    batches = []
    for row in spread(rows, ERROR_ROWS):
        ids = torch.from_numpy(row)[None]
        batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        batches.append((batch, last_states(source.teacher, batch)))
    found = []
    for layer in range(source.layers):
        say(f"layer {layer + 1} of {source.layers} alone")
        others = [number for number in range(source.layers) if number != layer]
        student, _ = source.build(replace(settings, full_layers=others))
        errors = [
            float(relative_error(last_states(student, batch), theirs, batch["attention_mask"]))
            for batch, theirs in batches
        ]
        found.append(sum(errors) / len(errors))
    return found


def worst_layers(errors: Sequence[float]) -> list[int]:
    """The layers that keep full attention, by `RULE`."""
    limit = MUCH * statistics.median(errors)
    worst = sorted(range(len(errors)), key=lambda layer: -errors[layer])
    most = min(math.ceil(SHARE * len(errors)), len(errors) - 1)
    return sorted(layer for layer in worst[:most] if errors[layer] > limit)


def spectrum_of(
    source: Source,
    rows: Sequence[np.ndarray],
    *,
    seed: int,
    say: Callable[[str], None] = lambda _: None,
) -> Record:
    """The spectrum of the original's attention, see `linformer spectrum`."""
    model: Any = copy.deepcopy(source.teacher)
    model.set_attn_implementation("eager")  # returns its weights
    chosen = spread(rows, SPECTRUM_ROWS)
    length = len(chosen[0])
    options = SpectrumOptions(
        length=length, pieces=len(chosen), rank=min(128, max(1, length // 4)), seed=seed
    )
    encoder = TextEncoder(source.name, model, source.tokenizer, source.longest)
    machine = describe(seed=seed, threads=torch.get_num_threads())
    pieces = ([int(token) for token in row] for row in chosen)
    return spectrum_of_pieces(encoder, pieces, options, texts=(), machine=machine, say=say)


def k_by_spectrum(record: Record, max_length: int) -> list[int]:
    """k for each layer: the rank that keeps 90% of its singular values, as a multiple of 16.

    Where no rank was found that keeps them, the length that was read.
    """
    length = record["length"]
    return [min(max_length, suggested_k(layer, length) or length) for layer in record["layers"]]
