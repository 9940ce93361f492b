"""How fast is the causal Linformer? Against full causal attention on PyTorch's fused kernel.

    python -m benchmarks.causal_speed

One attention layer of each, same sizes, taking turns in one process: a forward pass and a training
step at growing lengths, then one step of generation after contexts of growing length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.core.causal import CausalLinformerAttention
from linformer_kit.core.full_causal import CausalFullAttention
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.settings import Settings, check_heads, check_memory
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell
from linformer_kit.measure.step import layer_step
from linformer_kit.measure.timing import Say, alternate, fixed_threads, times_faster

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from linformer_kit.measure.records import Record

SLOTS, FULL = "slots", "full"


@dataclass(frozen=True, kw_only=True)
class SpeedSettings(Settings):
    """One attention layer."""

    lengths: tuple[int, ...] = options.lengths((2048, 4096, 16384, 65536), quick=(512, 1024))
    alone: tuple[int, ...] = options.lengths(
        (131072,), about="Lengths of ours only, with commas.", quick=(2048,)
    )
    longest_training: int = options.size(
        16384, about="Longest length of a training step.", high=limits.LENGTH
    )
    contexts: tuple[int, ...] = options.lengths(
        (1024, 4096, 16384, 65536), about="Tokens before, with commas.", quick=(256, 1024)
    )
    dim: int = options.dim(512, quick=64)
    heads: int = options.heads(8, quick=4)
    k: int = options.size(64, about="Slots.", high=limits.LENGTH)
    window: int = options.size(128, about="Tokens of a window.", high=limits.LENGTH)
    steps: int = options.size(32, about="Tokens of one timed run.", high=limits.COUNT)
    rounds: int = options.rounds(6, quick=2)
    threads: int = options.threads()

    def check(self) -> None:
        check_heads(self.dim, self.heads)
        longest = max(*self.lengths, *self.alone, *self.contexts)
        check_memory(values=4 * longest * self.dim, lengths=longest, dim=self.dim)
        if self.steps > min(self.contexts):
            raise ValueError(
                f"steps must be at most the shortest of contexts: got {self.steps} and "
                f"{min(self.contexts)}."
            )


BENCHMARK = Benchmark(
    help="The causal Linformer against full causal attention: forward, training, generation.",
    settings=SpeedSettings,
    module="benchmarks.causal_speed",
    results=Results(
        bench="causal speed",
        keys=("what", "length", "attention"),
        sizes=("dim", "heads", "k", "window"),
        caption="one layer, dim {dim}, {heads} heads, {k} slots, window {window}",
        tables=(
            Table(
                title="Time of a token",
                rows=(("what", "what"), ("n", "length")),
                across="attention",
                columns=(
                    Column(
                        "full attention",
                        "best_per_token",
                        lambda value: f"{value * 1e6:.1f} us",
                        of=FULL,
                    ),
                    Column(
                        "Linformer",
                        "best_per_token",
                        lambda value: f"{value * 1e6:.1f} us",
                        of=SLOTS,
                    ),
                    Column("times faster", "times_faster", quantities.ratio, of=FULL),
                ),
            ),
        ),
    ),
)


def model_of(settings: SpeedSettings, name: str) -> Any:
    torch.manual_seed(settings.seed)
    sizes = {"dim": settings.dim, "num_heads": settings.heads}
    if name == FULL:
        return CausalFullAttention(**sizes)
    return CausalLinformerAttention(**sizes, k=settings.k, window=settings.window)


def generation(model: Any, context: Tensor, steps: int) -> Callable[[], object]:
    """Some steps from the same state, made of the context beforehand."""
    batch, length, _ = context.shape
    with torch.inference_mode():
        empty = model.init_state(batch, device=context.device, dtype=context.dtype)
        position = torch.zeros(batch, dtype=torch.int64)
        _, state = model.extend(context, position + length, empty, position)

    def run() -> None:
        past, place = state, position + length
        with torch.inference_mode():
            for i in range(steps):
                _, past = model.step(context[:, i : i + 1], past, place)
                place = place + 1

    return run


def cells(settings: SpeedSettings) -> list[Cell]:
    found = []
    for length in (*settings.lengths, *settings.alone):
        names = [SLOTS] if length in settings.alone else [SLOTS, FULL]
        found.append(_pass_cell(settings, names, length, "inference"))
        if length <= settings.longest_training:
            found.append(_pass_cell(settings, names, length, "training"))
    return found + [_generation_cell(settings, name) for name in (SLOTS, FULL)]


def _sizes(settings: SpeedSettings) -> Record:
    return {name: getattr(settings, name) for name in ("dim", "heads", "k", "window", "rounds")}


def _pass_cell(settings: SpeedSettings, names: list[str], length: int, mode: str) -> Cell:
    what = "forward" if mode == "inference" else mode

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        torch.manual_seed(settings.seed)
        x = torch.randn(1, length, settings.dim)
        runs = {name: layer_step(model_of(settings, name), x, mode) for name in names}
        with fixed_threads(settings.threads):
            timings = alternate(runs, rounds=settings.rounds, fewest=2, say=say)
        return [
            {
                **timing.as_record(),
                "best_per_token": None if timing.best is None else timing.best / length,
                "times_faster": times_faster(timings[SLOTS], timing),
            }
            for timing in timings.values()
        ]

    return Cell(
        name=f"{what}, n {length:,}",
        settings={"what": what, "length": length, **_sizes(settings)},
        variants=[{"attention": name} for name in names],
        work=length * (3.0 if mode == "training" else 1.0),
        run=run,
    )


def _generation_cell(settings: SpeedSettings, name: str) -> Cell:
    """All contexts of one kind take turns, so that they can be compared with each other."""

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        model = model_of(settings, name)
        runs = {
            str(length): generation(model, torch.randn(1, length, settings.dim), settings.steps)
            for length in settings.contexts
        }
        with fixed_threads(settings.threads):
            timings = alternate(runs, rounds=settings.rounds, say=say)
        return [
            {
                **timing.as_record(),
                "best_per_token": None if timing.best is None else timing.best / settings.steps,
            }
            for timing in timings.values()
        ]

    return Cell(
        name=f"generation, {name}",
        settings={"what": "generation", "attention": name, **_sizes(settings)}
        | {"steps": settings.steps, "contexts": settings.contexts},
        variants=[{"length": length} for length in settings.contexts],
        work=max(settings.contexts),
        run=run,
    )


if __name__ == "__main__":
    main(BENCHMARK)
