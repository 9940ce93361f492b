"""`linformer bench decode`: time and memory of one more token, over how many came before.

A decoder stands at a context and generates. Linformer's state is a window and k slots, whatever the
context; the vanilla Transformer's cache holds every token. A time cell is one context: both take
turns, each generating `steps` tokens from the same state. Only the size of a cache matters to the
time of a step, so the vanilla one is filled with noise; reading would take the square of the
context. The Linformer reads all of it.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch

from ..core import checks
from ..core.decoder import LinformerDecoder
from ..core.decoder_layer import DecoderLayer
from ..core.full_causal import CacheState, CausalFullAttention
from ..core.state import DecoderState
from ..machine_memory import require_memory
from .cells import Cell
from .memory import Work, peak_memory
from .timing import alternate, fixed_threads

if TYPE_CHECKING:
    from collections.abc import Callable

    from .records import Record
    from .timing import Say

BENCH = "decode"
Decoder = Literal["linformer", "vanilla"]


@dataclass(frozen=True, kw_only=True)
class DecodeBench:
    """What to measure."""

    contexts: tuple[int, ...] = (1024, 4096, 16384, 65536)
    dim: int = 512
    num_heads: int = 8
    depth: int = 2
    k: int = 64
    window: int = 128
    batch: int = 1
    steps: int = 16
    rounds: int = 5
    threads: int = 2
    seed: int = 0
    memory: bool = True

    def __post_init__(self) -> None:
        sizes = ("dim", "num_heads", "depth", "k", "window", "batch", "steps", "rounds", "threads")
        for name in sizes:
            checks.positive(name, getattr(self, name))
        for context in self.contexts:
            checks.positive("contexts", context)
        cache = 2 * self.depth * self.batch * max(self.contexts) * self.dim
        state = 2 * self.depth * self.batch * (self.k + self.window) * self.dim
        require_memory(
            f"contexts={max(self.contexts)}, k={self.k}, window={self.window}, dim={self.dim}, "
            f"batch={self.batch}, depth={self.depth}",
            4 * (cache + state + self.depth * 12 * self.dim**2),
            remedy="Use smaller sizes.",
        )
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim must be divisible by the number of heads: got dim={self.dim}, "
                f"heads={self.num_heads}. Change one of them."
            )

    @property
    def sizes(self) -> dict[str, Any]:
        names = ("dim", "num_heads", "depth", "k", "window", "batch", "steps")
        return {name: getattr(self, name) for name in names}


def cells(bench: DecodeBench) -> list[Cell]:
    found = []
    for context in sorted(bench.contexts):
        found.append(_time_cell(bench, context))
        if bench.memory:
            found += [_memory_cell(bench, context, kind) for kind in get_args(Decoder)]
    return found


def build(kind: Decoder, *, seed: int, sizes: dict[str, Any]) -> LinformerDecoder:
    torch.manual_seed(seed)
    return LinformerDecoder(
        dim=sizes["dim"],
        depth=sizes["depth"],
        num_heads=sizes["num_heads"],
        k=sizes["k"],
        window=sizes["window"],
        attention="slots" if kind == "linformer" else "full",
    ).eval()


@torch.inference_mode()
def state_at(decoder: LinformerDecoder, context: int, *, batch: int) -> DecoderState:
    """A state that `context` tokens have led to."""
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


def _time_cell(bench: DecodeBench, context: int) -> Cell:
    def run(say: Say) -> list[Record]:
        runs, sizes = {}, {}
        for kind in get_args(Decoder):
            decoder = build(kind, seed=bench.seed, sizes=bench.sizes)
            state = state_at(decoder, context, batch=bench.batch)
            sizes[kind] = state.nbytes
            runs[kind] = generate(decoder, state, bench.steps)
        with fixed_threads(bench.threads):
            timings = alternate(runs, rounds=bench.rounds, say=say)
        return [
            {"decoder": kind, **timing.as_record(), "state": sizes[kind], "note": timing.note}
            for kind, timing in timings.items()
        ]

    settings = {"what": "time", "context": context, **bench.sizes, "rounds": bench.rounds}
    return Cell(
        name=f"context {context:,}, time", settings=settings, work=1 + context / 8192, run=run
    )


def _memory_cell(bench: DecodeBench, context: int, kind: Decoder) -> Cell:
    def run(say: Say) -> list[Record]:
        say("memory")
        peak = peak_memory(
            "linformer_kit.bench.decode:memory_of_steps",
            {
                "kind": kind,
                "context": context,
                "seed": bench.seed,
                "threads": bench.threads,
                "sizes": bench.sizes,
            },
        )
        found = asdict(peak)
        return [{"decoder": kind, "note": found.pop("problem"), **found}]

    settings = {"what": "memory", "context": context, "decoder": kind, **bench.sizes}
    return Cell(name=f"context {context:,}, {kind}, memory", settings=settings, work=3, run=run)


def memory_of_steps(
    *, kind: Decoder, context: int, seed: int, threads: int, sizes: dict[str, Any]
) -> Work:
    """For `memory.peak_memory`; the total holds the state."""
    torch.set_num_threads(threads)
    decoder = build(kind, seed=seed, sizes=sizes)

    def prepare(context: int) -> Callable[[], object]:
        state = state_at(decoder, context, batch=sizes["batch"])
        return generate(decoder, state, sizes["steps"])

    return Work(warm_up=lambda: prepare(min(context, 256))(), prepare=lambda: prepare(context))
