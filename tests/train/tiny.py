"""A run small enough to be trained in a second, and processes that train it."""

from __future__ import annotations

import json
import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from pathlib import Path

MODEL = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 32,
}
# Where runs must agree whose batches are cut differently: dropout is drawn for a whole batch.
NO_DROPOUT = ["model.hidden_dropout_prob=0.0", "model.attention_probs_dropout_prob=0.0"]
SENTENCES = [
    f"The {size} {animal} {verb} over the {place} {times} times."
    for size in ("small", "large", "old")
    for animal in ("dog", "cat", "horse", "bird")
    for verb in ("runs", "jumps", "looks")
    for place in ("house", "river", "hill")
    for times in ("two", "three")
]


def values(folder: Path, task: str = "mlm", **train: Any) -> dict[str, Any]:
    """The configuration of a tiny run whose files are in `folder`."""
    data: dict[str, Any] = {
        "train": str(folder / "text.txt"),
        "documents": "line",
        "max_length": 32,
        "validation_share": 0.1,
        "test_share": 0.1,
        "cache": str(folder / "prepared"),
    }
    if task == "translate":
        data["train"] = {"source": str(folder / "text.txt"), "target": str(folder / "upper.txt")}
    if task == "classify":
        data["train"] = str(folder / "labels.csv")
    if task == "tag":
        data["train"] = str(folder / "spans.jsonl")
    encoder = {} if task == "clm" else {"k": 8}
    slots = {"num_slots": 4, "window": 8} if task == "clm" else {}
    return {
        "task": task,
        "run": str(folder / "run"),
        "data": data,
        "tokenizer": {"kind": "character", "vocab_size": 100},
        "model": {**MODEL, **encoder, **slots},
        "train": {
            "steps": 12,
            "batch_size": 8,
            "lr": 0.01,
            "warmup": 2,
            "log_every": 2,
            "eval_every": 6,
            "save_every": 2,
            "threads": 1,
            **train,
        },
        "evaluate": {"batch_size": 8, "beams": 2, "max_new_tokens": 8, "max_examples": 8},
    }


def write(folder: Path, task: str = "mlm", **train: Any) -> Path:
    """The files of a tiny run; its configuration."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "text.txt").write_text("\n".join(SENTENCES) + "\n")
    (folder / "upper.txt").write_text("\n".join(SENTENCES).upper() + "\n")
    rows = [f'"{line}",{"yes" if "dog" in line else "no"}' for line in SENTENCES]
    (folder / "labels.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    found = [(line, line.split()[2]) for line in SENTENCES]
    tagged = [
        {"text": line, "spans": [[at := line.index(name), at + len(name), "animal"]]}
        for line, name in found
    ]
    (folder / "spans.jsonl").write_text("\n".join(map(json.dumps, tagged)) + "\n")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump(values(folder, task, **train)))
    return path


def train_it(path: Path, *overrides: str) -> None:
    """What a process does."""
    os.environ["OMP_NUM_THREADS"] = "1"
    from linformer_kit.config.load import load
    from linformer_kit.train.run import train

    train(load(path, overrides))


def start(path: Path, *overrides: str) -> Any:
    """A process of its own that trains; forked from one that has imported everything."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["linformer_kit.train.run", "linformer_kit.evaluate.evaluation"])
    process = context.Process(target=train_it, args=(path, *overrides))
    process.start()
    return process
