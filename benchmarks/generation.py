"""Time for a token and peak memory of generate(), while a text grows from 1k to 32k tokens.

    python -m benchmarks.generation

A causal language model writes with `generate()`. At each length of `--at` the time of the last
`--over` tokens is recorded, and the peak memory, beyond the weights, of a fresh process that
generates so many. With `--read` the tokens before the timed ones are also read as a prompt, which
is the same to the model and faster to measure; the bytes of the cache are recorded then. Weights
are not trained: nothing here depends on them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers.generation.streamers import BaseStreamer

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.results import megabytes
from linformer_kit.evidence.bench.settings import Settings, check_heads
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell, memory_result
from linformer_kit.measure.memory import Work
from linformer_kit.measure.timing import Say, fixed_threads
from linformer_kit.models import LinformerConfig, LinformerForCausalLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

PROJECTIONS = ("linear", "full")


@dataclass(frozen=True, kw_only=True)
class GenerationSettings(Settings):
    """A causal language model."""

    projection: tuple[str, ...] = options.option(
        PROJECTIONS, "Kinds of attention, with commas.", choices=PROJECTIONS
    )
    at: tuple[int, ...] = options.lengths(
        (1024, 2048, 4096, 8192, 16384, 32768), about="Tokens, with commas.", quick=(64, 128)
    )
    over: int = options.size(
        256, about="Tokens before each of --at that are timed.", quick=16, high=limits.LENGTH
    )
    time: bool = options.option(True, "Time while generating.", names=("--time/--no-time",))
    read: bool = options.option(False, "Also time after reading a prompt.")
    memory: bool = options.memory()
    hidden: int = options.dim(128, quick=32)
    layers: int = options.depth(2)
    heads: int = options.heads(4)
    slots: int = options.size(64, about="Slots.", high=limits.LENGTH)
    window: int = options.size(128, about="Tokens of a window.", high=limits.LENGTH)
    vocabulary: int = options.size(1000, about="Size of the vocabulary.", high=limits.VOCABULARY)
    threads: int = options.threads(1)

    def check(self) -> None:
        check_heads(self.hidden, self.heads)
        if self.over >= min(self.at):
            raise ValueError(
                f"over must be less than each of at: got {self.over} and {min(self.at)}."
            )

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "intermediate_size": 4 * self.hidden,
            "num_slots": self.slots,
            "window": self.window,
            "max_position_embeddings": 65536,
        }


BENCHMARK = Benchmark(
    help="Time for a token and peak memory of generate(), while a text grows.",
    settings=GenerationSettings,
    module="benchmarks.generation",
    results=Results(
        bench="generation",
        keys=("what", "projection", "tokens"),
        sizes=("vocab_size", "hidden_size", "num_hidden_layers", "num_slots", "window"),
        caption="{num_hidden_layers} layers, hidden size {hidden_size}, {num_slots} slots, window "
        "{window}, vocabulary {vocab_size:,}; memory beyond the weights",
        tables=(
            Table(
                title="generate()",
                rows=(("what", "what"), ("tokens", "tokens")),
                across="projection",
                columns=tuple(
                    Column(f"{title}, {name}", field, show, of=name)
                    for title, field, show in (
                        ("a token", "seconds_per_token", quantities.seconds),
                        ("cache", "cache_bytes", megabytes),
                        ("memory", "memory_work", megabytes),
                    )
                    for name in PROJECTIONS
                ),
            ),
        ),
    ),
)


class Marks(BaseStreamer):
    """A stream that records when some tokens were generated."""

    def __init__(self, at: Sequence[int]) -> None:
        self.at = set(at)
        self.count = -1  # the prompt comes first
        self.times: dict[int, float] = {}

    def put(self, value: torch.Tensor) -> None:
        del value
        self.count += 1
        if self.count in self.at:
            self.times[self.count] = time.perf_counter()

    def end(self) -> None:
        pass


def model_of(projection: str, sizes: dict[str, int]) -> LinformerForCausalLM:
    torch.manual_seed(0)
    config = LinformerConfig(**sizes, projection=projection, eos_token_id=None)
    return LinformerForCausalLM(config).eval()


def generate(
    model: LinformerForCausalLM, count: int, streamer: Marks | None = None, *, read: int = 1
) -> int:
    """The bytes of the cache after reading some tokens and writing `count`."""
    output = model.generate(
        torch.zeros(1, read, dtype=torch.long),
        attention_mask=torch.ones(1, read, dtype=torch.long),
        max_new_tokens=count,
        do_sample=False,
        streamer=streamer,
        return_dict_in_generate=True,
    )
    return output.past_key_values.nbytes


def cells(settings: GenerationSettings) -> list[Cell]:
    found = []
    for projection in settings.projection:
        if settings.read:
            found += [_reading_cell(settings, projection, tokens) for tokens in settings.at]
        if settings.time:
            found.append(_time_cell(settings, projection))
        if settings.memory:
            found += [_memory_cell(settings, projection, tokens) for tokens in settings.at]
    return found


def _warm_model(settings: GenerationSettings, projection: str) -> LinformerForCausalLM:
    model = model_of(projection, settings.sizes)
    generate(model, 300)
    return model


def _time_cell(settings: GenerationSettings, projection: str) -> Cell:
    """One text for all lengths."""

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("generating")
        marks = Marks([at - before for at in settings.at for before in (0, settings.over)])
        with fixed_threads(settings.threads):
            generate(_warm_model(settings, projection), max(settings.at), marks)
        times = marks.times
        return [
            {"seconds_per_token": (times[at] - times[at - settings.over]) / settings.over}
            for at in settings.at
        ]

    return Cell(
        name=f"{projection}, time",
        settings={"what": "time", "projection": projection, **settings.sizes},
        variants=[{"tokens": at} for at in settings.at],
        work=max(settings.at),
        run=run,
    )


def _reading_cell(settings: GenerationSettings, projection: str, tokens: int) -> Cell:
    over = settings.over

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("reading and generating")
        marks = Marks([1, over + 1])
        with fixed_threads(settings.threads):
            model = _warm_model(settings, projection)
            cache = generate(model, over + 1, marks, read=tokens - over)
        seconds = (marks.times[over + 1] - marks.times[1]) / over
        return [{"seconds_per_token": seconds, "cache_bytes": cache}]

    own = {"what": "time after reading", "projection": projection, "tokens": tokens}
    return Cell(
        name=f"{projection}, {tokens:,} tokens, reading",
        settings={**own, **settings.sizes},
        work=over,
        run=run,
    )


def _memory_cell(settings: GenerationSettings, projection: str, tokens: int) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        say("memory")
        arguments = {"projection": projection, "sizes": settings.sizes, "count": tokens}
        peak = memory_result(
            "benchmarks.generation:memory_of_generation",
            {**arguments, "threads": settings.threads},
            timeout=280,
        )
        names = {"memory_work": "work", "memory_method": "method", "note": "note"}
        return [{name: peak[field] for name, field in names.items()}]

    own = {"what": "memory", "projection": projection, "tokens": tokens}
    return Cell(
        name=f"{projection}, {tokens:,} tokens, memory",
        settings={**own, **settings.sizes},
        work=tokens,
        run=run,
    )


def memory_of_generation(
    *, projection: str, sizes: dict[str, int], count: int, threads: int
) -> Work:
    """For `peak_memory`."""
    torch.set_num_threads(threads)

    def prepare() -> Callable[[], object]:
        model = model_of(projection, sizes)
        return lambda: generate(model, count)

    return Work(warm_up=lambda: generate(model_of(projection, sizes), 4), prepare=prepare)


if __name__ == "__main__":
    main(BENCHMARK)
