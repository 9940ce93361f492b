"""Time for a token and peak memory of generate(), while a text grows from 1k to 32k tokens.

    python -m benchmarks.generation

A causal language model writes with `generate()`. At each of `--at` the time of the last `--over`
tokens is recorded, and the peak memory, beyond the weights, of a fresh process that generates so
many. With `--read` the tokens before the timed ones are read as a prompt, which is the same to the
model and faster to measure; the bytes of the cache are recorded then. Weights are not trained:
nothing here depends on them. One JSON record a line.
"""

from __future__ import annotations

import argparse
import json
import time

import torch
from transformers.generation.streamers import BaseStreamer

from linformer_kit.measure.machine import describe
from linformer_kit.measure.memory import Work, peak_memory
from linformer_kit.models import LinformerConfig, LinformerForCausalLM


class Marks(BaseStreamer):
    """A stream that writes nothing down but when some tokens were there."""

    def __init__(self, at: list[int]) -> None:
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


def memory_of_generation(
    *, projection: str, sizes: dict[str, int], count: int, threads: int
) -> Work:
    torch.set_num_threads(threads)

    def prepare():
        model = model_of(projection, sizes)
        return lambda: generate(model, count)

    return Work(warm_up=lambda: generate(model_of(projection, sizes), 4), prepare=prepare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--projection", nargs="+", default=["linear", "full"])
    parser.add_argument("--at", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384, 32768])
    parser.add_argument("--over", type=int, default=256, help="tokens before a mark to be timed")
    parser.add_argument("--memory", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--time", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--read", action="store_true", help="time after reading, too")
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--vocabulary", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    sizes = {
        "vocab_size": arguments.vocabulary,
        "hidden_size": arguments.hidden,
        "num_hidden_layers": arguments.layers,
        "num_attention_heads": arguments.heads,
        "intermediate_size": 4 * arguments.hidden,
        "num_slots": arguments.slots,
        "window": arguments.window,
        "max_position_embeddings": 65536,
    }
    machine = describe(seed=0, threads=arguments.threads)

    def report(**values: object) -> None:
        print(
            json.dumps({"bench": "generation", **values, **sizes, "machine": machine}), flush=True
        )

    for projection in arguments.projection:
        model = model_of(projection, sizes)
        generate(model, 300)
        for mark in arguments.at if arguments.read else []:
            marks = Marks([1, arguments.over + 1])
            cache = generate(model, arguments.over + 1, marks, read=mark - arguments.over)
            report(
                what="time after reading",
                projection=projection,
                tokens=mark,
                seconds_per_token=(marks.times[arguments.over + 1] - marks.times[1])
                / arguments.over,
                cache_bytes=cache,
            )
        if arguments.time:
            marks = Marks(
                [mark - before for mark in arguments.at for before in (0, arguments.over)]
            )
            generate(model, max(arguments.at), marks)
            for mark in arguments.at:
                spent = marks.times[mark] - marks.times[mark - arguments.over]
                report(
                    what="time",
                    projection=projection,
                    tokens=mark,
                    seconds_per_token=spent / arguments.over,
                )
        for mark in arguments.at if arguments.memory else []:
            peak = peak_memory(
                "benchmarks.generation:memory_of_generation",
                {
                    "projection": projection,
                    "sizes": sizes,
                    "count": mark,
                    "threads": arguments.threads,
                },
                timeout=280,
            )
            report(
                what="memory",
                projection=projection,
                tokens=mark,
                memory_work=peak.work,
                memory_method=peak.method,
                note=peak.problem,
            )


if __name__ == "__main__":
    main()
