"""How long the Keras layer predicts, beside Keras' own MultiHeadAttention, taking turns.

python -m benchmarks.keras_time --sequence-length 2000 --batch-size 25 --backend torch
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.errors import UserError
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.settings import Settings, check_memory
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.cells import Cell
    from linformer_kit.measure.records import Record
    from linformer_kit.measure.timing import Say

OURS, STOCK = "LinearMultiHeadAttention", "MultiHeadAttention"


@dataclass(frozen=True, kw_only=True)
class KerasSettings(Settings):
    """Named as Keras names them; `hidden_dim` is its key_dim."""

    sequence_length: tuple[int, ...] = options.size(
        (2000,), about="Positions; several with commas give a table.", high=limits.LENGTH
    )
    batch_size: int = options.batch(25)
    embedding_dim: int = options.dim(256, about="Channels of the input.")
    projection_dim: int = options.k(64)
    num_heads: int = options.heads(8)
    hidden_dim: int = options.dim(128, about="The size of a head, Keras' key_dim.")
    backend: str = options.option(
        "torch",
        "What Keras computes with.",
        choices=("torch", "jax", "tensorflow"),
        envvar="KERAS_BACKEND",
    )
    stock: bool = options.option(
        True, "Also time Keras' MultiHeadAttention.", names=("--stock/--no-stock",)
    )
    rounds: int = options.rounds(5)

    def check(self) -> None:
        longest = max(self.sequence_length)
        if min(self.sequence_length) < self.projection_dim:
            raise ValueError(
                "projection_dim must be at most the sequence length, for it shortens: got "
                f"projection_dim={self.projection_dim}, "
                f"sequence_length={min(self.sequence_length)}."
            )
        check_memory(
            values=2 * self.batch_size * longest * self.embedding_dim
            + 4 * self.embedding_dim * self.num_heads * self.hidden_dim,
            sequence_length=longest,
            batch_size=self.batch_size,
            embedding_dim=self.embedding_dim,
        )

    @property
    def threads(self) -> int:
        """Keras' backends choose their own number."""
        import torch

        return torch.get_num_threads() if self.backend == "torch" else os.cpu_count() or 1


BENCHMARK = Benchmark(
    help="Time the prediction of Keras' attention layer, linear and stock, in turn.",
    settings=KerasSettings,
    module="benchmarks.keras_time",
    results=Results(
        bench="keras-time",
        keys=("backend", "length", "model"),
        sizes=("backend", "batch", "embedding_dim", "num_heads", "hidden_dim"),
        caption="batch {batch}, embedding {embedding_dim}, {num_heads} heads of {hidden_dim}; "
        "Keras on {backend}",
        tables=(
            Table(
                title="Prediction time",
                rows=(("positions", "length"),),
                across="model",
                columns=(
                    Column(OURS, "best", quantities.seconds, of=OURS),
                    Column(STOCK, "best", quantities.seconds, of=STOCK),
                    Column("times faster", "times_faster", quantities.ratio, of=STOCK),
                ),
            ),
        ),
    ),
)


def import_keras(backend: str) -> Any:
    """Keras with this backend, which cannot change later."""
    if sys.modules.get("keras") is not None:
        running = sys.modules["keras"].backend.backend()
        if running != backend:
            raise UserError(
                f"Keras runs on {running} in this process already: got --backend {backend}. "
                "Start a process of its own."
            )
    os.environ["KERAS_BACKEND"] = backend  # of this process, which is ours
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # TensorFlow's notes about the CPU
    try:
        import linformer_kit.keras  # noqa: F401 - checks Keras and its backend
    except ModuleNotFoundError as error:
        raise UserError(str(error)) from error
    return sys.modules["keras"]


def model_of(settings: KerasSettings, length: int, projection_dim: int | None) -> Any:
    """The layer alone, attending to its own input."""
    keras = import_keras(settings.backend)
    from linformer_kit.keras import LinearMultiHeadAttention

    x = keras.Input((length, settings.embedding_dim))
    layer = LinearMultiHeadAttention(
        settings.num_heads, settings.hidden_dim, projection_dim=projection_dim
    )
    return keras.Model(x, layer(x, x))


def machine(settings: KerasSettings) -> Record:
    from linformer_kit.measure.machine import version_of

    keras = import_keras(settings.backend)
    return {"keras": keras.__version__, settings.backend: version_of(settings.backend)}


def notes(settings: KerasSettings) -> list[str]:
    """Keras' summary of the layer."""
    lines: list[str] = []
    model = model_of(settings, settings.sequence_length[0], settings.projection_dim)
    model.summary(print_fn=lambda text, **_: lines.append(text))
    return lines


def cells(settings: KerasSettings) -> list[Cell]:
    import_keras(settings.backend).utils.set_random_seed(settings.seed)
    return [_cell(settings, length) for length in settings.sequence_length]


def _cell(settings: KerasSettings, length: int) -> Cell:
    from linformer_kit.measure.cells import Cell
    from linformer_kit.measure.timing import alternate, times_faster

    k = settings.projection_dim
    variants = {OURS: k, STOCK: None} if settings.stock else {OURS: k}

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        import numpy as np

        draw = np.random.default_rng(settings.seed)
        shape = (settings.batch_size, length, settings.embedding_dim)
        x = draw.standard_normal(shape, dtype="float32")
        models = {name: model_of(settings, length, k) for name, k in variants.items()}
        runs = {name: _prediction(model, x) for name, model in models.items()}
        timings = alternate(runs, rounds=settings.rounds, say=say)
        return [
            {
                "parameters": models[name].count_params(),
                **timing.as_record(),
                "times_faster": times_faster(timings[OURS], timing),
            }
            for name, timing in timings.items()
        ]

    return Cell(
        name=f"{length:,} positions",
        settings={
            "backend": settings.backend,
            "length": length,
            "batch": settings.batch_size,
            "embedding_dim": settings.embedding_dim,
            "num_heads": settings.num_heads,
            "hidden_dim": settings.hidden_dim,
            "rounds": settings.rounds,
        },
        variants=[{"model": name, "projection_dim": k} for name, k in variants.items()],
        work=length,
        run=run,
    )


def _prediction(model: Any, x: Any) -> Callable[[], object]:
    return lambda: model.predict(x, batch_size=len(x), verbose=0)


if __name__ == "__main__":
    main(BENCHMARK)
