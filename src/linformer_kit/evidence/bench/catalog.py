"""The benchmarks of `linformer bench`: their settings and results.

Imports no torch. The cells of a benchmark are made by `cells(settings)` of its module, which is
imported when it runs; `notes(settings)` there, if any, are lines to print after the tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...config import limits
from . import paper, results, words
from . import settings as options
from .settings import Point, Settings, check_heads, check_includes, check_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...measure.records import Record
    from .views import Results

LAYERS = ("attention", "encoder")
MODES = ("inference", "training", "dropout")  # dropout: training with it
IMPLEMENTATIONS = ("linformer-kit", "full", "linformer", "linformer-pytorch")
GEMM_SIZE = 2048  # of the product that rates are compared with; a larger one is not faster


@dataclass(frozen=True, kw_only=True)
class Benchmark:
    """One command.

    results: how its records are shown; its name is that of the command.
    module: has `cells(settings)`.
    words: a sentence about the records, printed last.
    live: whether the table is shown while it grows.
    """

    help: str
    settings: type[Settings]
    module: str
    results: Results
    words: Callable[[Sequence[Record]], str | None] = lambda records: None
    live: bool = False

    @property
    def name(self) -> str:
        return self.results.bench


@dataclass(frozen=True, kw_only=True)
class AttentionSettings(Settings):
    lengths: tuple[int, ...] = options.lengths((4096, 16384), quick=(1024,))
    k: tuple[int, ...] = options.ks((256, 32), quick=(64,))
    dim: int = options.dim(512, quick=128)
    heads: int = options.heads(8, quick=4)
    window: int = options.window()
    batch: int = options.batch(1)
    layers: tuple[str, ...] = options.option(LAYERS, "Kinds of layer, with commas.", choices=LAYERS)
    modes: tuple[str, ...] = options.option(
        MODES, "Modes, with commas; `dropout` is training with it.", choices=MODES
    )
    models: tuple[str, ...] = options.option(
        IMPLEMENTATIONS,
        "Implementations, with commas.",
        choices=IMPLEMENTATIONS,
        names=("--models", "--contestants"),
    )
    rounds: int = options.rounds(10, quick=3)
    threads: int = options.threads()
    dropout: float = options.option(0.1, "Rate of dropout of the mode `dropout`.", low=0, below=1)
    limit: float = options.option(
        60.0, "Leave out an implementation that takes more seconds a run.", above=0
    )
    gemm_size: int = options.size(
        GEMM_SIZE, about="Size of the matrix product to compare with.", quick=512, high=2**15
    )
    memory: bool = options.option(False, "Also measure the peak memory of a training step.")
    keep_memory: bool = options.option(False, "Let the process keep freed memory, for all.")

    def check(self) -> None:
        check_includes("models", self.models, results.KIT)
        check_memory(values=3 * self.gemm_size**2, gemm_size=self.gemm_size)
        super().check()

    @property
    def points(self) -> list[Point]:
        return [
            Point(
                dim=self.dim, num_heads=self.heads, k=k, length=length, batch=self.batch,
                window=self.window,
            )
            for length in self.lengths
            for k in self.k
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GrowthSettings(Settings):
    lengths: tuple[int, ...] = options.lengths(
        (512, 1024, 2048, 4096, 8192, 16384, 32768), quick=(512, 1024, 2048)
    )
    dim: int = options.dim(256, quick=64)
    heads: int = options.heads(4)
    k: int = options.k(128)
    window: int = options.window()
    depth: int = options.depth(1)
    batch: int = options.batch(1)
    full: bool = options.option(True, "Compare with full attention.", names=("--full/--no-full",))
    budget: float = options.option(
        20.0, "Skip full attention where a run would take more seconds.", above=0
    )
    rounds: int = options.rounds(5, quick=3)
    threads: int = options.threads()

    @property
    def points(self) -> list[Point]:
        return [
            Point(
                dim=self.dim, num_heads=self.heads, k=self.k, length=length, batch=self.batch,
                depth=self.depth, window=self.window,
            )
            for length in sorted(self.lengths)
        ]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class GridSettings(Settings):
    lengths: tuple[int, ...] = options.lengths(paper.LENGTHS, quick=(512, 2048, 8192))
    k: tuple[int, ...] = options.ks(paper.ROWS, quick=(128, 256))
    dim: int = options.dim(512, quick=128)
    heads: int = options.heads(8, quick=4)
    tokens: int = options.size(
        4096, about="Short inputs come in batches of so many tokens.", quick=2048, high=limits.COUNT
    )
    rounds: int = options.rounds(5, quick=3)
    threads: int = options.threads()
    limit: float = options.option(
        240.0, "Skip what would take more seconds a run, by estimate.", above=0
    )
    memory: bool = options.memory()

    def check(self) -> None:
        check_heads(self.dim, self.heads)
        for length in self.lengths:
            check_memory(
                values=2 * self.batch(length) * length * self.dim + 12 * self.dim**2,
                lengths=length,
                dim=self.dim,
                tokens=self.tokens,
            )

    def batch(self, length: int) -> int:
        return max(1, self.tokens // length)


@dataclass(frozen=True, kw_only=True)
class DecodeSettings(Settings):
    contexts: tuple[int, ...] = options.size(
        (1024, 4096, 16384, 65536),
        about="Tokens before, with commas.",
        quick=(512, 4096),
        high=limits.LENGTH,
    )
    dim: int = options.dim(512, quick=64)
    heads: int = options.heads(8, quick=2)
    depth: int = options.depth(2, quick=1)
    k: int = options.size(64, about="Slots.", high=limits.LENGTH)
    window: int = options.size(128, about="Tokens of a window.", high=limits.LENGTH)
    batch: int = options.batch(1)
    steps: int = options.size(16, about="Tokens of one timed run.", high=limits.LENGTH)
    rounds: int = options.rounds(5, quick=3)
    threads: int = options.threads()
    memory: bool = options.memory()

    def check(self) -> None:
        check_heads(self.dim, self.heads)
        cache = 2 * self.depth * self.batch * (max(self.contexts) + self.steps) * self.dim
        state = 2 * self.depth * self.batch * (self.k + self.window) * self.dim
        check_memory(
            values=cache + state + self.depth * 12 * self.dim**2,
            contexts=max(self.contexts),
            k=self.k,
            window=self.window,
            dim=self.dim,
            batch=self.batch,
            depth=self.depth,
            steps=self.steps,
        )


BENCHMARKS = (
    Benchmark(
        help="Time one layer against full attention and the earlier implementations.",
        settings=AttentionSettings,
        module="linformer_kit.evidence.bench.attention",
        results=results.ATTENTION,
    ),
    Benchmark(
        help="See how time and memory grow with the length: Linformer and full attention.",
        settings=GrowthSettings,
        module="linformer_kit.evidence.bench.growth",
        results=results.GROWTH,
        words=words.growth_in_words,
        live=True,
    ),
    Benchmark(
        help="The paper's Table 3 on this machine: lengths and k against the vanilla Transformer.",
        settings=GridSettings,
        module="linformer_kit.evidence.bench.grid",
        results=results.GRID,
    ),
    Benchmark(
        help="Time and memory of one generated token, over how many came before.",
        settings=DecodeSettings,
        module="linformer_kit.evidence.bench.decode",
        results=results.DECODE,
    ),
)
