"""How near a converted text encoder is to the original: untrained, calibrated, and distilled.

    python -m benchmarks.convert_text MODEL --train train.jsonl --test test.jsonl --steps 600

MODEL is the folder of a BERT-like encoder, the texts are the field `text` of JSON lines. Cosines to
the original are taken on pieces of the test texts, which nothing is trained on. `--time` measures
instead how long one step takes on this machine, so that steps can be given as minutes.

Records are appended to --out, one JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import lzma
import time
from pathlib import Path
from typing import Any

import torch
from torch import nn

from linformer_kit.convert import calibrate, convert, distill
from linformer_kit.convert.compare_outputs import compare_on_texts
from linformer_kit.convert.distillation import LAYERS_FIRST
from linformer_kit.convert.teacher import load_teacher, save_converted
from linformer_kit.measure.machine import describe
from linformer_kit.measure.records import RecordFile


def texts_of(path: Path) -> list[str]:
    """The field `text` of JSON lines, xz-compressed or not."""
    with lzma.open(path, "rt") if path.suffix == ".xz" else path.open() as file:
        return [json.loads(line)["text"] for line in file]


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("convert.jsonl"))
    parser.add_argument("--save", type=Path, help="folder for the trained model")
    parser.add_argument("--max-length", type=int)
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--global-tokens", type=int, default=1)
    parser.add_argument("--projection", default="pool")
    parser.add_argument("--positions", default="copy")
    parser.add_argument("--length", type=int, default=512, help="tokens of a piece")
    parser.add_argument("--steps", type=int, default=0)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--layers-first", type=float, default=LAYERS_FIRST)
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--pieces", type=int, default=16, help="for the test")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time", action="store_true", help="time ten steps, and nothing else")
    return parser


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    teacher, tokenizer = load_teacher(str(given.model))
    train, test = texts_of(given.train), texts_of(given.test)
    student = convert(
        teacher,
        max_length=given.max_length,
        k=given.k,
        window=given.window,
        global_tokens=given.global_tokens,
        projection=given.projection,
        positions=given.positions,
    )
    setting = {
        name: getattr(given, name)
        for name in (
            "k",
            "window",
            "global_tokens",
            "projection",
            "positions",
            "length",
            "lr",
            "layers_first",
        )
    } | {"max_length": student.config.max_position_embeddings, "batch_size": given.batch_size}
    machine = describe(seed=given.seed, threads=given.threads)
    training: dict[str, Any] = {
        "tokenizer": tokenizer,
        "batch_size": given.batch_size,
        "length": given.length,
        "layers_first": given.layers_first,
        "seed": given.seed,
    } | ({} if given.lr is None else {"lr": given.lr})

    with RecordFile(given.out) as file:

        def record(stage: str, **found: Any) -> None:
            line = {"bench": "convert", "model": given.model.name, "stage": stage}
            file.append(line | setting | found | {"machine": machine})
            print(stage, found, flush=True)

        def score(stage: str, **more: Any) -> None:
            found = compare_on_texts(
                student, teacher, tokenizer, test, length=given.length, pieces=given.pieces
            )
            record(stage, **found, **more)

        if given.time:
            record("step", **step_time(student, teacher, train[:1], training))
            return
        score("converted")
        if calibrate(student, train, tokenizer=tokenizer, length=given.length, seed=given.seed):
            score("calibrated")
        if given.steps:
            started = time.monotonic()
            distill(student, teacher, train, steps=given.steps, say=print, **training)
            minutes = round((time.monotonic() - started) / 60, 1)
            score("distilled", steps=given.steps, minutes=minutes)
    if given.save:
        options = setting | {"steps": given.steps}
        save_converted(
            student,
            tokenizer,
            given.save,
            source=str(given.model),
            record={"source": given.model.name, "options": options},
        )


def step_time(
    student: nn.Module, teacher: nn.Module, texts: list[str], training: dict[str, Any]
) -> dict[str, float]:
    """Seconds of one step: ten steps after two that are not counted."""
    distill(student, teacher, texts, steps=2, **training)
    started = time.perf_counter()
    distill(student, teacher, texts, steps=10, **training)
    seconds = (time.perf_counter() - started) / 10
    return {"seconds_per_step": seconds, "steps_in_10_minutes": int(600 / seconds)}


if __name__ == "__main__":
    main()
