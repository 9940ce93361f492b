"""The prediction-time experiment: one layer against the stock layer, taking turns, warm."""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import keras
import numpy as np
import torch

from ..core import checks
from ..measure.machine import describe, version_of
from ..measure.timing import Say, alternate, say_nothing
from .attention import LinearMultiHeadAttention

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..measure.records import Record

OURS, STOCK = "LinearMultiHeadAttention", "MultiHeadAttention"


@dataclass(frozen=True, kw_only=True)
class PredictionTime:
    """What to measure: `hidden_dim` is Keras' key_dim, the size of a head."""

    sequence_lengths: tuple[int, ...] = (2000,)
    batch_size: int = 25
    embedding_dim: int = 256
    projection_dim: int = 64
    num_heads: int = 8
    hidden_dim: int = 128
    rounds: int = 5
    seed: int = 0
    stock: bool = True

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if name not in ("sequence_lengths", "seed", "stock"):
                checks.positive(name, value)
        for length in self.sequence_lengths:
            checks.positive("sequence_length", length)
            if length < self.projection_dim:
                raise ValueError(
                    "projection_dim must be at most the sequence length, for it shortens: got "
                    f"projection_dim={self.projection_dim}, sequence_length={length}."
                )

    def model(self, length: int, projection_dim: int | None) -> Any:
        """The layer alone, attending to its own input."""
        x = keras.Input((length, self.embedding_dim))
        layer = LinearMultiHeadAttention(
            self.num_heads, self.hidden_dim, projection_dim=projection_dim
        )
        return keras.Model(x, layer(x, x))


def measure(settings: PredictionTime, *, say: Say = say_nothing) -> Iterator[Record]:
    """A record for each length and layer."""
    keras.utils.set_random_seed(settings.seed)
    backend = keras.backend.backend()
    threads = torch.get_num_threads() if backend == "torch" else os.cpu_count() or 1
    machine = describe(seed=settings.seed, threads=threads) | {
        "keras": keras.__version__,
        backend: version_of(backend),
    }
    draw = np.random.default_rng(settings.seed)
    for length in settings.sequence_lengths:
        shape = (settings.batch_size, length, settings.embedding_dim)
        x = draw.standard_normal(shape, dtype="float32")
        contestants = {OURS: settings.model(length, settings.projection_dim)}
        if settings.stock:
            contestants[STOCK] = settings.model(length, None)
        runs = {name: _prediction(model, x) for name, model in contestants.items()}

        def say_where(what: str, length: int = length) -> None:
            say(f"{length:,} positions: {what}")

        timings = alternate(runs, rounds=settings.rounds, say=say_where)
        for name, timing in timings.items():
            yield {
                "bench": "keras-time",
                "contestant": name,
                "backend": backend,
                "length": length,
                "batch": settings.batch_size,
                "embedding_dim": settings.embedding_dim,
                "projection_dim": settings.projection_dim if name == OURS else None,
                "num_heads": settings.num_heads,
                "hidden_dim": settings.hidden_dim,
                "parameters": contestants[name].count_params(),
                "seconds": timing.seconds,
                "best": timing.best,
                "median": timing.median,
                "spread": timing.spread,
                "note": timing.note,
                "machine": machine,
            }


def _prediction(model: Any, x: Any) -> Callable[[], object]:
    return lambda: model.predict(x, batch_size=len(x), verbose=0)
