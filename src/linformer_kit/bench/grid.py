"""`linformer bench grid`: the paper's Table 3 on this machine.

One encoder layer, inference, every length with every k, against the vanilla Transformer in two
forms: SDPA (PyTorch's fused attention, today's) and materialised (all n x n scores, the paper's
day). A time cell is one length: all forms take turns. A memory cell is one form at one length, in a
process of its own. What would need more memory than is free, or take too long, is skipped by
estimate, and its result says so.

Short inputs come in batches, so that every measurement reads at least `tokens` tokens.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from ..core import checks
from ..core.cost import encoder_flops
from ..core.encoder import LinformerEncoder
from ..machine_memory import require_memory
from ..measure import quantities
from ..measure.cells import Cell
from ..measure.machine import free_memory
from ..measure.memory import Work, peak_memory
from ..measure.timing import Timing, alternate, fixed_threads, positive_seconds
from .gemm import plans_of
from .paper import LENGTHS, ROWS
from .step import make_step
from .vanilla import MaterialisedEncoder, materialised_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..measure.records import Record
    from ..measure.timing import Say

Form = Literal["sdpa", "materialised", "linformer"]
BENCH = "grid"


@dataclass(frozen=True, kw_only=True)
class GridBench:
    """What to measure.

    tokens: the least number of tokens in a batch; lengths beyond it come one at a time.
    rounds: for what takes up to a second; slower forms have fewer, down to one.
    limit: a form of which one run would take more seconds, by estimate, is skipped.
    rate: FLOPs a second that the estimate of time reckons with.
    """

    lengths: tuple[int, ...] = LENGTHS
    ks: tuple[int, ...] = ROWS
    dim: int = 512
    num_heads: int = 8
    tokens: int = 4096
    rounds: int = 5
    threads: int = 2
    seed: int = 0
    limit: float = 240.0
    rate: float = 5e10
    memory: bool = True

    def __post_init__(self) -> None:
        for name in ("dim", "num_heads", "tokens", "rounds", "threads"):
            checks.positive(name, getattr(self, name))
        for length in self.lengths:
            checks.positive("lengths", length)
        for k in self.ks:
            checks.positive("k", k)
        if self.dim % self.num_heads:
            raise ValueError(
                f"dim must be divisible by the number of heads: got dim={self.dim}, "
                f"heads={self.num_heads}. Change one of them."
            )
        positive_seconds("limit", self.limit)
        for length in self.lengths:
            ends = 2 * self.batch(length) * length * self.dim
            require_memory(
                f"lengths={length}, dim={self.dim}, tokens={self.tokens}",
                4 * (ends + 12 * self.dim**2),
                remedy="Use smaller sizes.",
            )

    def forms(self, length: int) -> list[tuple[Form, int | None]]:
        """Who takes part at a length: only a k below it shortens."""
        return [
            ("sdpa", None),
            ("materialised", None),
            *(("linformer", k) for k in self.ks if k < length),
        ]

    def batch(self, length: int) -> int:
        return max(1, self.tokens // length)


def cells(bench: GridBench) -> list[Cell]:
    """Shortest lengths first."""
    found = []
    for length in sorted(bench.lengths):
        found.append(_time_cell(bench, length))
        if bench.memory:
            found += [_memory_cell(bench, length, form, k) for form, k in bench.forms(length)]
    return found


def build(form: Form, *, dim: int, num_heads: int, length: int, k: int | None) -> nn.Module:
    """One encoder layer; W_q, W_k, W_v without bias, a feed-forward part of 4 * dim."""
    if form == "materialised":
        return MaterialisedEncoder(dim=dim, depth=1, num_heads=num_heads, ff_dim=4 * dim)
    return LinformerEncoder(
        dim=dim,
        depth=1,
        num_heads=num_heads,
        max_length=length,
        k=k,
        projection="full" if form == "sdpa" else "linear",
        sharing="layerwise",
        qkv_bias=False,
    )


def _sizes(bench: GridBench, length: int) -> dict[str, Any]:
    return {
        "length": length,
        "batch": bench.batch(length),
        "dim": bench.dim,
        "num_heads": bench.num_heads,
    }


def _time_cell(bench: GridBench, length: int) -> Cell:
    forms = bench.forms(length)
    sizes = _sizes(bench, length)
    settings = {
        "what": "time",
        **sizes,
        "ks": [k for _, k in forms if k is not None],
        "rounds": bench.rounds,
    }

    def run(say: Say) -> list[Record]:
        x = _input(bench, length)
        notes = {
            _key(form, k): why
            for form, k in forms
            if (why := _why_skipped(bench, form, length, k)) is not None
        }
        runs: dict[str, Callable[[], object]] = {}
        for form, k in forms:
            if _key(form, k) not in notes:
                torch.manual_seed(bench.seed)
                model = build(form, dim=bench.dim, num_heads=bench.num_heads, length=length, k=k)
                runs[_key(form, k)] = make_step(model, x, "inference")
        with fixed_threads(bench.threads):
            # What takes seconds is nothing but large products: no warm-up shows beside them.
            timings = alternate(runs, rounds=bench.rounds, fewest=0, count_first_over=1.0, say=say)
        results = []
        for form, k in forms:
            timing = timings.get(_key(form, k), Timing(()))
            note = notes.get(_key(form, k)) or timing.note
            results.append({"form": form, "k": k, **timing.as_record(), "note": note})
        return results

    work = sum(_flops(bench, form, length, k) for form, k in forms) * (bench.rounds + 1)
    return Cell(name=f"n {length:,}, time", settings=settings, work=work, run=run)


def _memory_cell(bench: GridBench, length: int, form: Form, k: int | None) -> Cell:
    sizes = _sizes(bench, length)
    settings = {"what": "memory", **sizes, "form": form, "k": k}

    def run(say: Say) -> list[Record]:
        say("memory")
        if (why := _why_skipped(bench, form, length, k)) is not None:
            return [{"form": form, "k": k, "work": None, "total": None, "note": why}]
        peak = peak_memory(
            "linformer_kit.bench.grid:memory_of_form",
            {"form": form, "k": k, "seed": bench.seed, "threads": bench.threads, **sizes},
            timeout=60 + 10 * bench.limit,
        )
        found = asdict(peak)
        return [{"form": form, "k": k, "note": found.pop("problem"), **found}]

    name = f"n {length:,}, {_key(form, k)}, memory"
    work = _flops(bench, form, length, k) + 5 * bench.rate  # starting a process takes seconds
    return Cell(name=name, settings=settings, work=work, run=run)


def memory_of_form(
    *,
    form: Form,
    k: int | None,
    length: int,
    batch: int,
    dim: int,
    num_heads: int,
    seed: int,
    threads: int,
) -> Work:
    """For `memory.peak_memory`."""
    torch.set_num_threads(threads)

    def prepare(length: int, batch: int, k: int | None) -> Callable[[], object]:
        torch.manual_seed(seed)
        model = build(form, dim=dim, num_heads=num_heads, length=length, k=k)
        return make_step(model, torch.randn(batch, length, dim), "inference")

    short = min(256, length)
    return Work(
        warm_up=lambda: prepare(short, 1, None if k is None else min(k, short))(),
        prepare=lambda: prepare(length, batch, k),
    )


def _input(bench: GridBench, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(bench.seed)
    return torch.randn(bench.batch(length), length, bench.dim, generator=generator)


def _key(form: Form, k: int | None) -> str:
    return form if k is None else f"{form} k {k}"


def _why_skipped(bench: GridBench, form: Form, length: int, k: int | None) -> str | None:
    need, free = _bytes(bench, form, length, k), free_memory()
    if free is not None and need > free:
        return f"skipped: needs about {quantities.size(need)}, {quantities.size(free)} are free"
    seconds = _flops(bench, form, length, k) / bench.rate
    if seconds > bench.limit:
        return f"skipped: about {seconds:.0f} s a run, the limit is {bench.limit:g} s"
    return None


def _bytes(bench: GridBench, form: Form, length: int, k: int | None) -> int:
    """About what a run needs at its peak: a dozen tensors of the input's size, E, and scores."""
    batch = bench.batch(length)
    tensors = 12 * batch * length * bench.dim * 4
    if form == "materialised":
        return tensors + materialised_bytes(batch=batch, length=length, num_heads=bench.num_heads)
    return tensors + (0 if k is None else 4 * k * length)


def _flops(bench: GridBench, form: Form, length: int, k: int | None) -> float:
    with torch.device("meta"):
        like = "sdpa" if form == "materialised" else form
        model = build(like, dim=bench.dim, num_heads=bench.num_heads, length=length, k=k)
    assert isinstance(model, LinformerEncoder)
    shape = model.shape(batch=bench.batch(length), length=length)
    return float(encoder_flops(shape, plans_of(shape)))
