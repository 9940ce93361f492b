"""The same number of tokens a batch, in ever longer inputs: Linformer stays flat, vanilla grows.

    python -m benchmarks.budget --quick

16,384 tokens as 64 inputs of 256 or as one of 16,384: Linformer's work is the same, the vanilla
Transformer's grows. Encoder alone, and encoder with decoder (a text of the same length, which
attends to the encoder's output). Inference of models of `depth` layers without embeddings. The
question is how the time of one model changes with the length, so a cell is one model, and all
lengths take turns, a Linformer in all rounds: the best of few rounds would vary more than the
lengths do. A large matrix product runs in the same rounds: cells are measured minutes apart, and it
shows whether the speed of the machine was the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.core.decoder import LinformerDecoder
from linformer_kit.core.encoder import LinformerEncoder
from linformer_kit.evidence.bench import script_results as results
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import GEMM_SIZE, Benchmark
from linformer_kit.evidence.bench.gemm import gemm
from linformer_kit.evidence.bench.settings import Settings, check_heads, check_memory
from linformer_kit.measure.cells import Cell
from linformer_kit.measure.step import layer_step
from linformer_kit.measure.timing import Say, alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

SHAPES = ("encoder", "encoder-decoder")


@dataclass(frozen=True, kw_only=True)
class BudgetSettings(Settings):
    """`k`: the Linformers; the vanilla Transformer is always measured."""

    lengths: tuple[int, ...] = options.lengths(
        (256, 512, 1024, 2048, 4096, 8192, 16384), quick=(256, 1024, 4096)
    )
    k: tuple[int, ...] = options.ks((32, 64, 128))
    shapes: tuple[str, ...] = options.option(SHAPES, "Models, with commas.", choices=SHAPES)
    tokens: int = options.size(16384, about="Tokens of every batch.", quick=4096, high=limits.COUNT)
    dim: int = options.dim(512, quick=64)
    heads: int = options.heads(8, quick=2)
    depth: int = options.depth(1)
    window: int = options.size(128, about="Tokens of a decoder's window.", high=limits.LENGTH)
    rounds: int = options.rounds(9, quick=3)
    threads: int = options.threads()

    def check(self) -> None:
        check_heads(self.dim, self.heads)
        for length in self.lengths:
            if self.tokens % length:
                raise ValueError(
                    f"every one of lengths must divide the tokens of a batch: got {length} and "
                    f"{self.tokens}. Change one of them."
                )
            if max(self.k) > length:
                raise ValueError(
                    f"k must be at most the length: got k={max(self.k)}, length={length}."
                )
        check_memory(
            values=2 * self.tokens * self.dim
            + self.depth * 12 * self.dim**2
            + max(self.k) * max(self.lengths),
            tokens=self.tokens,
            dim=self.dim,
            depth=self.depth,
        )


BENCHMARK = Benchmark(
    help="The same tokens a batch in ever longer inputs: Linformer stays flat, vanilla grows.",
    settings=BudgetSettings,
    module="benchmarks.budget",
    results=results.BUDGET,
)


class EncoderDecoder(nn.Module):
    """The decoder reads a text of the source's length, and attends to the encoded source."""

    def __init__(self, encoder: LinformerEncoder, decoder: LinformerDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x, context=self.encoder(x))


def cells(settings: BudgetSettings) -> list[Cell]:
    return [_cell(settings, shape, k) for shape in settings.shapes for k in (None, *settings.k)]


def build(settings: BudgetSettings, shape: str, length: int, k: int | None) -> nn.Module:
    """k None is the vanilla Transformer."""
    torch.manual_seed(settings.seed)
    encoder = LinformerEncoder(
        dim=settings.dim,
        depth=settings.depth,
        num_heads=settings.heads,
        max_length=length,
        k=k,
        projection="full" if k is None else "linear",
    )
    if shape == "encoder":
        return encoder.eval()
    decoder = LinformerDecoder(
        dim=settings.dim,
        depth=settings.depth,
        num_heads=settings.heads,
        k=64 if k is None else k,
        window=settings.window,
        attention="full" if k is None else "slots",
        cross_attention=True,
        context_projection="full" if k is None else "linear",
        context_k=k,
        context_max_length=length,
    )
    return EncoderDecoder(encoder, decoder).eval()


def _cell(settings: BudgetSettings, shape: str, k: int | None) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        generator = torch.Generator().manual_seed(settings.seed)
        flat = torch.randn(settings.tokens, settings.dim, generator=generator)
        runs: dict[str, Callable[[], object]] = {
            f"n {length}": layer_step(
                build(settings, shape, length, k), flat.view(-1, length, settings.dim), "inference"
            )
            for length in settings.lengths
        }
        runs["gemm"] = gemm(GEMM_SIZE)
        with fixed_threads(settings.threads):
            fewest = 2 if k is None else settings.rounds
            timings = alternate(runs, rounds=settings.rounds, fewest=fewest, say=say)
        return [timing.as_record() for timing in timings.values()]

    names = ("tokens", "dim", "depth", "window", "rounds")
    return Cell(
        name=f"{shape}, {'vanilla' if k is None else f'k {k}'}",
        settings={
            "shape": shape,
            "k": k,
            "lengths": list(settings.lengths),
            "num_heads": settings.heads,
            **{name: getattr(settings, name) for name in names},
        },
        variants=[{"length": length} for length in (*settings.lengths, None)],  # None: the product
        work=(3 if shape == "encoder-decoder" else 1) * (4.0 if k is None else 1.0),
        run=run,
    )


if __name__ == "__main__":
    main(BENCHMARK)
