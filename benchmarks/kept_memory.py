"""What does `keep_memory()` bring, and what does it cost? Training steps with it and without.

    python -m benchmarks.kept_memory --length 16384 --dropout 0.1 --rounds 3

It cannot be undone, so every measurement is a process of its own; processes with and without take
turns. Each trains a small encoder for some steps and measures the time of a step, the new pages of
the last step, and its peak memory.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import torch

from linformer_kit import LinformerEncoder, keep_memory
from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.results import megabytes
from linformer_kit.evidence.bench.settings import Point, Settings
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from linformer_kit.measure.records import Record
    from linformer_kit.measure.timing import Say

VARIANTS = ("without", "with")


@dataclass(frozen=True, kw_only=True)
class KeptSettings(Settings):
    """An encoder of dim 512."""

    length: int = options.size(16384, about="Length n.", quick=256, high=limits.LENGTH)
    k: int = options.k(256, quick=32)
    depth: int = options.depth(2)
    dropout: float = options.option(0.1, "Rate of dropout.", low=0, below=1)
    steps: int = options.size(6, about="Training steps of a process.", quick=2, high=limits.COUNT)
    rounds: int = options.rounds(3, quick=1, about="Processes of each kind.")
    threads: int = options.threads()

    def check(self) -> None:
        Point(dim=512, num_heads=8, k=self.k, length=self.length, depth=self.depth).check_fits()


BENCHMARK = Benchmark(
    help="Training steps with keep_memory() and without: time, new pages, peak memory.",
    settings=KeptSettings,
    module="benchmarks.kept_memory",
    results=Results(
        bench="kept_memory",
        keys=("length", "k", "keep_memory"),
        sizes=("depth", "dropout"),
        caption="{depth} encoder layers of dim 512, dropout {dropout}; medians of processes",
        tables=(
            Table(
                title="Training with keep_memory() and without",
                rows=(("n", "length"), ("k", "k")),
                across="keep_memory",
                columns=tuple(
                    Column(f"{title}, {name}", field, show, of=name)
                    for title, field, show in (
                        ("time", "best", quantities.seconds),
                        ("new pages", "new_pages", "{:,.0f}".format),
                        ("peak", "peak_bytes", megabytes),
                    )
                    for name in VARIANTS
                ),
            ),
        ),
    ),
)


def train(settings: KeptSettings, variant: str) -> dict[str, float]:
    """Train in this process."""
    torch.set_num_threads(settings.threads)
    torch.manual_seed(settings.seed)
    if variant == "with":
        keep_memory()
    encoder = LinformerEncoder(
        dim=512,
        depth=settings.depth,
        num_heads=8,
        max_length=settings.length,
        k=settings.k,
        dropout=settings.dropout,
    )
    optimizer = torch.optim.AdamW(encoder.parameters())
    x = torch.randn(1, settings.length, 512)
    seconds, pages = [], 0
    for _ in range(settings.steps):
        pages = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start = time.perf_counter()
        encoder(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.perf_counter() - start)
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "best": min(seconds),
        "median": statistics.median(seconds),
        "new_pages": usage.ru_minflt - pages,
        "peak_bytes": usage.ru_maxrss * 1024,
    }


def cells(settings: KeptSettings) -> list[Cell]:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        found: dict[str, list[dict[str, float]]] = {variant: [] for variant in VARIANTS}
        for number in range(1, settings.rounds + 1):
            for variant, processes in found.items():
                say(f"{variant}, process {number} of {settings.rounds}")
                processes.append(_in_process(settings, variant))
        return [
            {name: statistics.median(one[name] for one in processes) for name in processes[0]}
            | {"processes": processes}
            for processes in found.values()
        ]

    names = ("length", "k", "depth", "dropout", "steps", "rounds")
    return [
        Cell(
            name=f"n {settings.length:,}",
            settings={name: getattr(settings, name) for name in names},
            variants=[{"keep_memory": variant} for variant in VARIANTS],
            run=run,
        )
    ]


def _in_process(settings: KeptSettings, variant: str) -> dict[str, float]:
    code = (
        "import json, sys; from benchmarks.kept_memory import KeptSettings, train; "
        "given = json.load(sys.stdin); print(json.dumps(train(KeptSettings(**given[0]), given[1])))"
    )
    child = subprocess.run(
        [sys.executable, "-c", code],
        input=json.dumps([asdict(settings), variant]),
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, float] = json.loads(child.stdout)
    return found


if __name__ == "__main__":
    main(BENCHMARK)
