"""Peak memory and time of a training step with the loss in chunks, beside the plain form.

    python -m benchmarks.loss_memory --rounds 2

One encoder layer or decoder layer and a head of a large vocabulary, so that the head dominates.
`chunked` is the model as it is; `plain` makes the logits of all positions first
(`return_logits=True`). Both take turns in one process; memory is that of one step in a fresh one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from linformer_kit.cli.bench import main
from linformer_kit.config import limits
from linformer_kit.evidence.bench import settings as options
from linformer_kit.evidence.bench.catalog import Benchmark
from linformer_kit.evidence.bench.results import megabytes
from linformer_kit.evidence.bench.settings import Settings
from linformer_kit.evidence.bench.views import Column, Results, Table
from linformer_kit.measure import quantities
from linformer_kit.measure.cells import Cell, memory_result
from linformer_kit.measure.memory import Work
from linformer_kit.measure.timing import Say, alternate, fixed_threads
from linformer_kit.models import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from linformer_kit.measure.records import Record

MODELS = {"masked": LinformerForMaskedLM, "causal": LinformerForCausalLM}
FORMS = ("chunked", "plain")
MASKED = 0.15  # of the positions are predicted by a masked language model


@dataclass(frozen=True, kw_only=True)
class LossSettings(Settings):
    """A language model of one layer."""

    kinds: tuple[str, ...] = options.option(
        tuple(MODELS), "Language models, with commas.", choices=tuple(MODELS)
    )
    length: int = options.size(
        16384, about="Tokens of an input.", quick=512, low=256, high=limits.LENGTH
    )
    vocabulary: int = options.size(
        32000, about="Size of the vocabulary.", quick=1000, high=limits.VOCABULARY
    )
    hidden: int = options.dim(256, quick=64)
    layers: int = options.depth(1)
    chunk: int = options.size(
        LinformerConfig.loss_chunk, about="Positions of a chunk of the loss.", high=limits.LENGTH
    )
    rounds: int = options.rounds(3, quick=2)
    threads: int = options.threads()

    def check(self) -> None:
        if self.hidden % 64:
            raise ValueError(f"hidden must be a multiple of 64: got {self.hidden}.")

    @property
    def sizes(self) -> dict[str, int]:
        return {
            "vocab_size": self.vocabulary,
            "hidden_size": self.hidden,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.hidden // 64,
            "intermediate_size": 4 * self.hidden,
            "loss_chunk": self.chunk,
        }


BENCHMARK = Benchmark(
    help="Peak memory and time of a training step with the loss in chunks, and the plain form.",
    settings=LossSettings,
    module="benchmarks.loss_memory",
    results=Results(
        bench="loss_memory",
        keys=("kind", "form", "length"),
        sizes=("vocab_size", "hidden_size", "num_hidden_layers", "loss_chunk"),
        caption="vocabulary {vocab_size:,}, hidden size {hidden_size}, {num_hidden_layers} layers, "
        "chunks of {loss_chunk}; memory beyond weights and input",
        tables=(
            Table(
                title="A training step",
                rows=(("model", "kind"), ("n", "length")),
                across="form",
                columns=tuple(
                    Column(f"{title}, {form}", field, show, of=form)
                    for title, field, show in (
                        ("time", "best", quantities.seconds),
                        ("memory", "memory_work", megabytes),
                        ("loss", "loss", "{:.4f}".format),
                    )
                    for form in FORMS
                ),
            ),
        ),
    ),
)


def step(kind: str, form: str, length: int, sizes: dict[str, int]) -> Callable[[], torch.Tensor]:
    """A training step: the loss and its gradients."""
    torch.manual_seed(0)
    config = LinformerConfig(
        **sizes,
        max_position_embeddings=length,
        hidden_dropout_prob=0.0,  # so that the losses of both forms can be compared
        attention_probs_dropout_prob=0.0,
    )
    model: Any = MODELS[kind](config).train()
    ids = torch.randint(sizes["vocab_size"], (1, length))
    labels = ids
    if kind == "masked":
        labels = ids.masked_fill(torch.rand(1, length) >= MASKED, -100)

    def run() -> torch.Tensor:
        model.zero_grad(set_to_none=True)
        loss = model(ids, labels=labels, return_logits=form == "plain").loss
        loss.backward()
        return loss.detach()

    return run


def cells(settings: LossSettings) -> list[Cell]:
    return [_cell(settings, kind) for kind in settings.kinds]


def _cell(settings: LossSettings, kind: str) -> Cell:
    def run(say: Say, _: Sequence[Record]) -> list[Record]:
        runs = {form: step(kind, form, settings.length, settings.sizes) for form in FORMS}
        with fixed_threads(settings.threads):
            losses = {form: run().item() for form, run in runs.items()}
            timings = alternate(runs, rounds=settings.rounds, fewest=2, say=say)
        runs.clear()
        results = []
        for form in FORMS:
            say(f"{form}, memory")
            arguments = {"kind": kind, "form": form, "length": settings.length}
            common = {"sizes": settings.sizes, "threads": settings.threads}
            peak = memory_result("benchmarks.loss_memory:memory_of_step", arguments | common)
            results.append(
                {
                    **timings[form].as_record(),
                    "loss": losses[form],
                    "memory_work": peak["work"],
                    "memory_method": peak["method"],
                    "note": timings[form].note or peak["note"],
                }
            )
        return results

    return Cell(
        name=kind,
        settings={
            "kind": kind,
            "length": settings.length,
            **settings.sizes,
            "rounds": settings.rounds,
        },
        variants=[{"form": form} for form in FORMS],
        run=run,
    )


def memory_of_step(
    *, kind: str, form: str, length: int, sizes: dict[str, int], threads: int
) -> Work:
    """For `peak_memory`."""
    torch.set_num_threads(threads)
    return Work(
        warm_up=step(kind, form, 256, sizes | {"vocab_size": 100}),
        prepare=lambda: step(kind, form, length, sizes),
    )


if __name__ == "__main__":
    main(BENCHMARK)
