"""What does the toolkit cost? Tokens a second of `linformer train` beside a bare PyTorch loop.

    python -m benchmarks.training_throughput --length 1024 --dim 256 --rounds 3 --steps 6

The same model and rows, in one process and in turns: some steps by the toolkit's trainer, some by a
loop that does nothing but forward, backward and update on batches made beforehand. Also prints the
share of the trainer's time that is not forward, backward or update. JSON, a line a round.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import yaml

from linformer_kit.config.load import load
from linformer_kit.data.prepare import Prepared, prepare
from linformer_kit.data.rows import Rows
from linformer_kit.measure import machine
from linformer_kit.training.build import build_model
from linformer_kit.training.setup import collator, make_trainer, training_order


def configuration(arguments: argparse.Namespace, folder: Path) -> Any:
    path = folder / "config.yaml"
    values = {
        "task": "mlm",
        "run": str(folder / "run"),
        "data": {"train": "python-docs", "max_length": arguments.length, "cache": arguments.cache},
        "tokenizer": {"vocab_size": arguments.vocabulary},
        "model": {
            "hidden_size": arguments.dim,
            "num_hidden_layers": arguments.depth,
            "num_attention_heads": 4,
            "intermediate_size": 4 * arguments.dim,
            "k": arguments.k,
        },
        "train": {
            "steps": arguments.steps,
            "batch_size": arguments.batch,
            "log_every": 1,
            "eval_every": 10**6,
            "save_every": 10**6,
            "threads": arguments.threads,
        },
    }
    path.write_text(yaml.safe_dump(values))
    return load(path)


class Clock:
    """Seconds spent in some functions."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Any) -> Any:
        def timed(*args: Any, **kwargs: Any) -> Any:
            started = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - started

        return timed


def by_the_toolkit(config: Any, prepared: Prepared, folder: Path) -> tuple[float, int, float]:
    """Seconds of the training loop, tokens, and seconds of forward, backward and update in it."""
    tokenizer = prepared.tokenizer()
    model = build_model(config, prepared, tokenizer)
    trainer = make_trainer(config, prepared, model, tokenizer, output=folder / "checkpoints")
    trainer.args.save_strategy = trainer.args.eval_strategy = "no"
    model_clock = Clock()
    trainer.training_step = model_clock.around(trainer.training_step)
    create = trainer.create_optimizer

    def create_and_time(*args: Any, **kwargs: Any) -> Any:
        optimizer = create(*args, **kwargs)
        optimizer.step = model_clock.around(optimizer.step)
        return optimizer

    trainer.create_optimizer = create_and_time
    clock = Clock()
    trainer._run_epoch = clock.around(trainer._run_epoch)
    trainer.train()
    return clock.seconds, trainer.tokens_seen, model_clock.seconds


def by_a_bare_loop(config: Any, prepared: Prepared) -> tuple[float, int]:
    tokenizer = prepared.tokenizer()
    model = build_model(config, prepared, tokenizer).train()
    rows = Rows(prepared.part("train"))
    order, collate = training_order(config, rows, 1), collator(config, tokenizer)
    batches = [collate(rows.__getitems__(order.step(step))) for step in range(order.steps)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    started = time.perf_counter()
    for batch in batches:
        model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
    seconds = time.perf_counter() - started
    return seconds, sum(int(batch["attention_mask"].sum()) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    for name, usual in (
        ("length", 1024), ("dim", 256), ("depth", 4), ("k", 128), ("batch", 4),
        ("vocabulary", 8000), ("steps", 6), ("rounds", 3), ("threads", 2),
    ):  # fmt: skip
        parser.add_argument(f"--{name}", type=int, default=usual)
    parser.add_argument("--cache", default="runs/.prepared")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(json.dumps({**machine.describe(seed=0, threads=arguments.threads), **vars(arguments)}))
    found: dict[str, list[float]] = {"toolkit": [], "bare": [], "share": []}
    with tempfile.TemporaryDirectory() as name:
        config = configuration(arguments, Path(name))
        prepared = prepare(config)
        for number in range(1 + arguments.rounds):
            seconds, tokens, model_seconds = by_the_toolkit(config, prepared, Path(name))
            bare_seconds, bare_tokens = by_a_bare_loop(config, prepared)
            if number == 0:
                continue  # warms up
            found["toolkit"].append(tokens / seconds)
            found["bare"].append(bare_tokens / bare_seconds)
            found["share"].append(1 - model_seconds / seconds)
            print(json.dumps({name: round(values[-1], 4) for name, values in found.items()}))
    median = {name: round(statistics.median(values), 4) for name, values in found.items()}
    print(json.dumps({"median": median}))


if __name__ == "__main__":
    main()
