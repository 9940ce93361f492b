"""`linformer bench decode`: time and memory of one more token, over how many came before.

A decoder generates from a state after `context` tokens. Linformer's state is a window and k slots,
whatever the context; the cache of the vanilla Transformer holds every token. A time cell is one
context: both take turns, each generating `steps` tokens from the same state. The time of a step
depends only on the size of the cache, so the vanilla one is filled with noise; reading would take
the square of the context. The Linformer reads the whole context.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ...core.decoder import LinformerDecoder
from ...core.decoder_layer import DecoderLayer
from ...core.full_causal import CacheState, CausalFullAttention
from ...core.state import DecoderState
from ...measure.cells import Cell, memory_cell
from ...measure.memory import Work
from ...measure.timing import Say, alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...measure.records import Record
    from .catalog import DecodeSettings

MODELS = ("linformer", "vanilla")


def cells(settings: DecodeSettings) -> list[Cell]:
    found = []
    for context in sorted(settings.contexts):
        found.append(_time_cell(settings, context))
        if settings.memory:
            found += [_memory_cell(settings, context, model) for model in MODELS]
    return found


def sizes_of(settings: DecodeSettings) -> dict[str, Any]:
    names = ("dim", "depth", "k", "window", "batch", "steps")
    return {name: getattr(settings, name) for name in names} | {"num_heads": settings.heads}


def build(model: str, *, seed: int, sizes: dict[str, Any]) -> LinformerDecoder:
    torch.manual_seed(seed)
    return LinformerDecoder(
        dim=sizes["dim"],
        depth=sizes["depth"],
        num_heads=sizes["num_heads"],
        k=sizes["k"],
        window=sizes["window"],
        attention="slots" if model == "linformer" else "full",
    ).eval()


@torch.inference_mode()
def state_at(decoder: LinformerDecoder, context: int, *, batch: int) -> DecoderState:
    """The state after `context` tokens."""
    state = decoder.init_state(batch)
    first = decoder.layers[0]
    assert isinstance(first, DecoderLayer)
    attention = first.attention
    if isinstance(attention, CausalFullAttention):
        shape = (batch, context, attention.num_kv_heads, attention.head_dim)
        caches = tuple(
            CacheState(key=torch.randn(shape), value=torch.randn(shape)) for _ in decoder.layers
        )
        return DecoderState(torch.full_like(state.position, context), caches)
    _, state = decoder(torch.randn(batch, context, decoder.dim), state=state)
    return state


def generate(decoder: LinformerDecoder, state: DecoderState, steps: int) -> Callable[[], object]:
    """`steps` tokens, each the decoder's last output."""
    first = torch.randn(state.position.shape[0], 1, decoder.dim)

    def run() -> object:
        x, now = first, state
        with torch.inference_mode():
            for _ in range(steps):
                x, now = decoder.step(x, now)
        return x

    return run


def _time_cell(settings: DecodeSettings, context: int) -> Cell:
    sizes = sizes_of(settings)

    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        runs, bytes_of = {}, {}
        for model in MODELS:
            decoder = build(model, seed=settings.seed, sizes=sizes)
            state = state_at(decoder, context, batch=settings.batch)
            bytes_of[model] = state.nbytes
            runs[model] = generate(decoder, state, settings.steps)
        with fixed_threads(settings.threads):
            timings = alternate(runs, rounds=settings.rounds, say=say)
        return [
            {**timing.as_record(), "state": bytes_of[model]} for model, timing in timings.items()
        ]

    return Cell(
        name=f"context {context:,}, time",
        settings={"what": "time", "context": context, **sizes, "rounds": settings.rounds},
        variants=[{"model": model} for model in MODELS],
        work=1 + context / 8192,
        run=run,
    )


def _memory_cell(settings: DecodeSettings, context: int, model: str) -> Cell:
    own, sizes = {"model": model, "context": context}, sizes_of(settings)
    return memory_cell(
        f"context {context:,}, {model}, memory",
        {**own, **sizes},
        "linformer_kit.evidence.bench.decode:memory_of_steps",
        {**own, "sizes": sizes, "seed": settings.seed, "threads": settings.threads},
        work=3,
    )


def memory_of_steps(
    *, model: str, context: int, seed: int, threads: int, sizes: dict[str, Any]
) -> Work:
    """For `peak_memory`; the total includes the state."""
    torch.set_num_threads(threads)
    decoder = build(model, seed=seed, sizes=sizes)

    def prepare(context: int) -> Callable[[], object]:
        state = state_at(decoder, context, batch=sizes["batch"])
        return generate(decoder, state, sizes["steps"])

    return Work(warm_up=lambda: prepare(min(context, 256))(), prepare=lambda: prepare(context))
