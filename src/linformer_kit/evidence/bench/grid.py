"""`linformer bench grid`: the paper's Table 3 on this machine.

One encoder layer, inference, every length with every k, against the vanilla Transformer in two
forms: SDPA (PyTorch's fused attention) and materialised (all n x n scores, as in 2020). A time cell
is one length: all models take turns. A memory cell is one model at one length, in a process of its
own. What would need more memory than is free, or take too long, is skipped by estimate, with a
note.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from ...core.cost import encoder_flops
from ...core.encoder import LinformerEncoder
from ...measure import quantities
from ...measure.cells import Cell, memory_cell
from ...measure.machine import free_memory
from ...measure.memory import Work
from ...measure.step import layer_step
from ...measure.timing import Say, Timing, alternate, fixed_threads
from .gemm import plans_of
from .vanilla import MaterialisedEncoder, materialised_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...measure.records import Record
    from .catalog import GridSettings

RATE = 5e10  # FLOPs a second that the estimate of time assumes


@dataclass(frozen=True)
class Form:
    """One model at one length; only Linformer has a k."""

    model: str
    k: int | None
    length: int
    batch: int
    dim: int
    num_heads: int

    @property
    def name(self) -> str:
        return self.model if self.k is None else f"{self.model} k {self.k}"

    def build(self) -> nn.Module:
        """One encoder layer; W_q, W_k, W_v without bias, a feed-forward part of 4 * dim."""
        sizes: dict[str, Any] = {"dim": self.dim, "depth": 1, "num_heads": self.num_heads}
        if self.model == "materialised":
            return MaterialisedEncoder(**sizes, ff_dim=4 * self.dim)
        return LinformerEncoder(
            **sizes,
            max_length=self.length,
            k=self.k,
            projection="full" if self.model == "sdpa" else "linear",
            sharing="layerwise",
            qkv_bias=False,
        )

    def flops(self) -> float:
        like = "sdpa" if self.model == "materialised" else self.model
        with torch.device("meta"):
            model = Form(**{**vars(self), "model": like}).build()
        assert isinstance(model, LinformerEncoder)
        shape = model.shape(batch=self.batch, length=self.length)
        return float(encoder_flops(shape, plans_of(shape)))

    def bytes(self) -> int:
        """About the peak of a run: a dozen tensors of the input's size, E, and scores."""
        tensors = 12 * self.batch * self.length * self.dim * 4
        if self.model == "materialised":
            sizes = {"batch": self.batch, "length": self.length, "num_heads": self.num_heads}
            return tensors + materialised_bytes(**sizes)
        return tensors + (0 if self.k is None else 4 * self.k * self.length)

    def why_skipped(self, limit: float) -> str | None:
        need, free = self.bytes(), free_memory()
        if free is not None and need > free:
            return f"skipped: needs about {quantities.size(need)}, {quantities.size(free)} are free"
        seconds = self.flops() / RATE
        if seconds > limit:
            return f"skipped: about {seconds:.0f} s a run, the limit is {limit:g} s"
        return None


def cells(settings: GridSettings) -> list[Cell]:
    """Shortest lengths first."""
    found = []
    for length in sorted(settings.lengths):
        forms = forms_at(settings, length)
        found.append(_time_cell(settings, forms))
        if settings.memory:
            found += [_memory_cell(settings, form) for form in forms]
    return found


def forms_at(settings: GridSettings, length: int) -> list[Form]:
    """The models at a length: only a k below it shortens."""
    sizes = (length, settings.batch(length), settings.dim, settings.heads)
    return [
        Form("sdpa", None, *sizes),
        Form("materialised", None, *sizes),
        *(Form("linformer", k, *sizes) for k in settings.k if k < length),
    ]


def _sizes(form: Form) -> Record:
    return {name: value for name, value in vars(form).items() if name not in ("model", "k")}


def _time_cell(settings: GridSettings, forms: list[Form]) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        generator = torch.Generator().manual_seed(settings.seed)
        first = forms[0]
        x = torch.randn(first.batch, first.length, first.dim, generator=generator)
        skipped = {form.name: form.why_skipped(settings.limit) for form in forms}
        runs: dict[str, Callable[[], object]] = {}
        for form in forms:
            if skipped[form.name] is None:
                torch.manual_seed(settings.seed)
                runs[form.name] = layer_step(form.build(), x, "inference")
        with fixed_threads(settings.threads):
            # A run of seconds consists of large products: its warm-up is negligible.
            timings = alternate(
                runs, rounds=settings.rounds, fewest=0, count_first_over=1.0, say=say
            )
        return [
            timings.get(name, Timing((), note=why)).as_record() for name, why in skipped.items()
        ]

    return Cell(
        name=f"n {forms[0].length:,}, time",
        settings={
            "what": "time",
            **_sizes(forms[0]),
            "ks": [form.k for form in forms if form.k is not None],
            "rounds": settings.rounds,
        },
        variants=[{"model": form.model, "k": form.k} for form in forms],
        work=sum(form.flops() for form in forms) * (settings.rounds + 1),
        run=run,
    )


def _memory_cell(settings: GridSettings, form: Form) -> Cell:
    return memory_cell(
        f"n {form.length:,}, {form.name}, memory",
        vars(form),
        "linformer_kit.evidence.bench.grid:memory_of_form",
        {"seed": settings.seed, "threads": settings.threads, "form": vars(form)},
        work=form.flops() + 5 * RATE,  # starting a process takes seconds
        timeout=60 + 10 * settings.limit,
        why_skipped=lambda: form.why_skipped(settings.limit),
    )


def memory_of_form(*, form: Record, seed: int, threads: int) -> Work:
    """For `peak_memory`."""
    torch.set_num_threads(threads)

    def prepare(form: Form) -> Callable[[], object]:
        torch.manual_seed(seed)
        x = torch.randn(form.batch, form.length, form.dim)
        return layer_step(form.build(), x, "inference")

    short = min(256, form["length"])
    k = None if form["k"] is None else min(form["k"], short)
    warm = Form(**{**form, "length": short, "batch": 1, "k": k})
    return Work(warm_up=lambda: prepare(warm)(), prepare=lambda: prepare(Form(**form)))
