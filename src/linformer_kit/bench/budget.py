"""`linformer bench budget`: the same number of tokens a batch, in ever longer pieces.

16,384 tokens as 64 inputs of 256 or as one of 16,384: Linformer's work is the same, the vanilla
Transformer's grows. Encoder alone, and encoder with decoder (a text of the same length, which
attends to the encoder's output). Inference of models of `depth` layers without embeddings. What is
asked is how the time of one model changes with the length, so a cell is one model, and all lengths
take turns, a Linformer in all rounds: the best of few would differ by more than lengths do. The
yardstick of `gemm.py` runs in the same rounds: cells are measured minutes apart,
and it tells whether the machine was the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, get_args

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.decoder import LinformerDecoder
from ..core.encoder import LinformerEncoder
from ..machine_memory import require_memory
from ..measure.cells import Cell
from ..measure.timing import alternate, fixed_threads
from .gemm import SIZE, gemm
from .names import Shape

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..measure.records import Record
    from ..measure.timing import Say

BENCH = "budget"


@dataclass(frozen=True, kw_only=True)
class BudgetBench:
    """What to measure. `ks`: the Linformers; the vanilla Transformer always takes part."""

    lengths: tuple[int, ...] = (256, 512, 1024, 2048, 4096, 8192, 16384)
    ks: tuple[int, ...] = (32, 64, 128)
    shapes: tuple[Shape, ...] = get_args(Shape)
    tokens: int = 16384
    dim: int = 512
    num_heads: int = 8
    depth: int = 1
    window: int = 128
    rounds: int = 9
    threads: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("tokens", "dim", "num_heads", "depth", "window", "rounds", "threads"):
            checks.positive(name, getattr(self, name))
        for shape in self.shapes:
            checks.one_of("shape", shape, get_args(Shape))
        for length in self.lengths:
            checks.positive("lengths", length)
            if self.tokens % length:
                raise ValueError(
                    f"every length must divide the tokens of a batch: got {length} and "
                    f"{self.tokens}. Change one of them."
                )
            for k in self.ks:
                checks.positive("k", k)
                if k > length:
                    raise ValueError(f"k must be at most the length: got k={k}, length={length}.")
        ends = 2 * self.tokens * self.dim
        weights = self.depth * 12 * self.dim**2 + max(self.ks) * max(self.lengths)
        require_memory(
            f"tokens={self.tokens}, dim={self.dim}, depth={self.depth}",
            4 * (ends + weights),
            remedy="Use smaller sizes.",
        )


class EncoderDecoder(nn.Module):
    """The decoder reads a text of the source's length, and attends to the encoded source."""

    def __init__(self, encoder: LinformerEncoder, decoder: LinformerDecoder) -> None:
        super().__init__()
        self.encoder = encoder
        self.decoder = decoder

    def forward(self, x: Tensor) -> Tensor:
        return self.decoder(x, context=self.encoder(x))


def cells(bench: BudgetBench) -> list[Cell]:
    return [_cell(bench, shape, k) for shape in bench.shapes for k in (None, *bench.ks)]


def build(bench: BudgetBench, shape: Shape, length: int, k: int | None) -> nn.Module:
    """k None is the vanilla Transformer."""
    torch.manual_seed(bench.seed)
    encoder = LinformerEncoder(
        dim=bench.dim,
        depth=bench.depth,
        num_heads=bench.num_heads,
        max_length=length,
        k=k,
        projection="full" if k is None else "linear",
    )
    if shape == "encoder":
        return encoder.eval()
    decoder = LinformerDecoder(
        dim=bench.dim,
        depth=bench.depth,
        num_heads=bench.num_heads,
        k=64 if k is None else k,
        window=bench.window,
        attention="full" if k is None else "slots",
        cross_attention=True,
        context_projection="full" if k is None else "linear",
        context_k=k,
        context_max_length=length,
    )
    return EncoderDecoder(encoder, decoder).eval()


def _cell(bench: BudgetBench, shape: Shape, k: int | None) -> Cell:
    settings = {
        "shape": shape,
        "k": k,
        "lengths": list(bench.lengths),
        "tokens": bench.tokens,
        "dim": bench.dim,
        "num_heads": bench.num_heads,
        "depth": bench.depth,
        "window": bench.window,
        "rounds": bench.rounds,
    }

    def run(say: Say) -> list[Record]:
        generator = torch.Generator().manual_seed(bench.seed)
        flat = torch.randn(bench.tokens, bench.dim, generator=generator)
        runs: dict[str, Callable[[], object]] = {}
        for length in bench.lengths:
            x = flat.view(-1, length, bench.dim)
            runs[f"n {length}"] = _forward(build(bench, shape, length, k), x)
        runs["gemm"] = gemm(SIZE)
        with fixed_threads(bench.threads):
            fewest = 2 if k is None else bench.rounds
            timings = alternate(runs, rounds=bench.rounds, fewest=fewest, say=say)
        lengths: list[int | None] = [*bench.lengths, None]  # None: the yardstick
        return [
            {"length": length, **timing.as_record(), "note": timing.note}
            for length, timing in zip(lengths, timings.values(), strict=True)
        ]

    work = (3 if shape == "encoder-decoder" else 1) * (4.0 if k is None else 1.0)
    name = f"{shape}, {'vanilla' if k is None else f'k {k}'}"
    return Cell(name=name, settings=settings, work=work, run=run)


def _forward(model: nn.Module, x: Tensor) -> Callable[[], object]:
    def run() -> object:
        with torch.inference_mode():
            return model(x)

    return run
