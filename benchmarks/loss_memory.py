"""Peak memory and time of a training step with the loss in chunks, beside the plain form.

One encoder layer or decoder layer and a head of a large vocabulary, so that the head is what is
seen. `chunked` is the model as it is; `plain` makes the logits of all positions first
(`return_logits=True`). Both take turns in one process; memory is that of one step in a fresh one.
One JSON record a line.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linformer_kit.measure.machine import describe
from linformer_kit.measure.memory import Work, peak_memory
from linformer_kit.measure.timing import alternate, fixed_threads
from linformer_kit.models import LinformerConfig, LinformerForCausalLM, LinformerForMaskedLM

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).stem
MODELS = {"masked": LinformerForMaskedLM, "causal": LinformerForCausalLM}
MASKED = 0.15  # of the positions are asked for in a masked language model


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


def memory_of_step(
    *, kind: str, form: str, length: int, sizes: dict[str, int], threads: int
) -> Work:
    torch.set_num_threads(threads)
    return Work(
        warm_up=step(kind, form, 256, sizes | {"vocab_size": 100}),
        prepare=lambda: step(kind, form, length, sizes),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", default=list(MODELS))
    parser.add_argument("--length", type=int, default=16384)
    parser.add_argument("--vocabulary", type=int, default=32000)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=1)
    parser.add_argument("--chunk", type=int, default=LinformerConfig.loss_chunk)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    sizes = {
        "vocab_size": arguments.vocabulary,
        "hidden_size": arguments.hidden,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.hidden // 64,
        "intermediate_size": 4 * arguments.hidden,
        "loss_chunk": arguments.chunk,
    }
    machine = describe(seed=0, threads=arguments.threads)
    for kind in arguments.kinds:
        forms = ("chunked", "plain")
        runs = {form: step(kind, form, arguments.length, sizes) for form in forms}
        with fixed_threads(arguments.threads):
            losses = {form: run().item() for form, run in runs.items()}
            timings = alternate(runs, rounds=arguments.rounds, fewest=2)
        del runs
        for form in forms:
            peak = peak_memory(
                f"{HERE}:memory_of_step",
                {
                    "kind": kind,
                    "form": form,
                    "length": arguments.length,
                    "sizes": sizes,
                    "threads": arguments.threads,
                },
            )
            record = {
                "bench": HERE,
                "kind": kind,
                "form": form,
                "length": arguments.length,
                **sizes,
                "loss": losses[form],
                "seconds": timings[form].seconds,
                "best": timings[form].best,
                "memory_work": peak.work,
                "memory_method": peak.method,
                "note": peak.problem,
                "machine": machine,
            }
            print(json.dumps(record), flush=True)


if __name__ == "__main__":
    main()
