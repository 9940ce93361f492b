"""`linformer predict --file` on documents of mixed length: memory, throughput, a kill on the way.

    python -m benchmarks.predict_file --folder /tmp/mixed

writes documents of 1 to 50,000 tokens (log-uniform) to FOLDER/documents.csv, trains a small
classifier for one step that reads them whole (segment means, k 64), and then

1. compares, on a sample and in turn, batches by length with naive padding: the same documents in
   the order of the file, `--naive-rows` at a time, padded to the longest of them;
2. answers the whole file by the command, kills it (SIGKILL) after a third, and resumes it: the rows
   must be those of the input, each once. The peak memory of the process is told for every tenth of
   the rows: VmHWM, set back at the start of each tenth.

One JSON record is printed and appended to --out.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import yaml

from linformer_kit.config.load import load
from linformer_kit.measure import machine
from linformer_kit.predict.answers import Options, Predictor
from linformer_kit.predict.file_job import POOL
from linformer_kit.train.run import train

if TYPE_CHECKING:
    from linformer_kit.runs.folder import RunFolder

WORDS = [f"{first}{second}" for first in "bdfgklmnprst" for second in "aeiou"]


def write_documents(path: Path, count: int, longest: int, seed: int) -> None:
    """A table of documents, one at a time; not written again if it is there."""
    if path.exists():
        return
    draw = random.Random(seed)
    staging = path.with_suffix(".writing")
    with staging.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(("id", "text"))
        for number in range(count):
            length = min(longest, int(math.exp(draw.uniform(0, math.log(longest + 1)))))
            table.writerow((number, " ".join(draw.choices(WORDS, k=length))))
    staging.replace(path)


def small_run(folder: Path, longest: int, hidden: int, layers: int, seed: int) -> RunFolder:
    """A classifier that reads the longest document whole, trained for one step."""
    table = folder / "labels.csv"
    draw = random.Random(seed)
    rows = [
        " ".join(draw.choices(WORDS, k=40)) + f",{'yes' if n % 2 else 'no'}" for n in range(200)
    ]
    table.write_text("text,label\n" + "\n".join(rows) + "\n")
    values = {
        "task": "classify",
        "run": str(folder / "run"),
        "data": {"train": str(table), "max_length": longest + 2, "cache": str(folder / "prepared")},
        "tokenizer": {"kind": "word", "vocab_size": 100},
        "model": {
            "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": 2,
            "intermediate_size": 2 * hidden, "projection": "mean", "k": 64,
            "position_embedding_type": "sinusoidal", "pooling": "mean",
        },
        "train": {"steps": 1, "eval_every": 1, "threads": 1, "keep_memory": False},
    }  # fmt: skip
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(values))
    made = train(load(path))
    assert made is not None
    return made


def compare_padding(
    run: RunFolder, documents: Path, *, sample: int, rounds: int, naive_rows: int, budget: int
) -> dict[str, Any]:
    """Tokens a second of both, best of the rounds, on the first documents; the same answers."""
    predictor = Predictor(run, options=Options(top=1), tokens_per_batch=budget)
    with documents.open(newline="", encoding="utf-8") as file:
        texts = [row["text"] for _, row in zip(range(sample), csv.DictReader(file), strict=False)]
    questions = [predictor.question(text) for text in texts]
    tokens = sum(question.reading.tokens_total for question in questions)

    def by_length() -> list[Any]:
        found: list[Any] = []
        pool: list[Any] = []
        for question in questions:
            pool.append(question)
            if sum(len(q.pieces[0]) for q in pool) >= POOL * budget:
                found += predictor.answer(pool)
                pool = []
        return found + (list(predictor.answer(pool)) if pool else [])

    def naive() -> list[Any]:
        found: list[Any] = []
        with torch.no_grad():
            for start in range(0, len(questions), naive_rows):
                some = questions[start : start + naive_rows]
                pieces = [question.pieces[0] for question in some]
                outputs = predictor.task.forward(pieces, predictor.model, [(None, 0)] * len(pieces))
                found += [
                    predictor.task.merge(q, [output])
                    for q, output in zip(some, outputs, strict=True)
                ]
        return found

    seconds: dict[str, list[float]] = {"by_length": [], "naive": []}
    answers = {}
    for _ in range(rounds):
        for name, work in (("by_length", by_length), ("naive", naive)):
            started = time.perf_counter()
            answers[name] = work()
            seconds[name].append(time.perf_counter() - started)
    labels = [[one[0]["text"] for one in answers[name]] for name in seconds]
    best = {name: min(times) for name, times in seconds.items()}
    return {
        "sample": len(questions),
        "sample_tokens": tokens,
        "padded_tokens_naive": sum(
            len(questions[start : start + naive_rows])
            * max(len(q.pieces[0]) for q in questions[start : start + naive_rows])
            for start in range(0, len(questions), naive_rows)
        ),
        "tokens_per_second": {name: round(tokens / took) for name, took in best.items()},
        "times_faster": round(best["naive"] / best["by_length"], 2),
        "same_labels": labels[0] == labels[1],
    }


def peak(process: subprocess.Popen[bytes]) -> int:
    """VmHWM of a process in bytes, 0 if it has ended."""
    try:
        lines = Path(f"/proc/{process.pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM")), 0)


def reset_peak(process: subprocess.Popen[bytes]) -> None:
    """Let VmHWM of a process start again from what it holds now."""
    try:
        Path(f"/proc/{process.pid}/clear_refs").write_text("5")
    except OSError:  # it has ended
        return


def answer_killed_and_resumed(run: RunFolder, documents: Path, out: Path, budget: int) -> Any:
    """The command on the whole file, killed after a third of the documents."""
    line = [sys.executable, "-m", "linformer_kit.cli", "predict", str(run.path)]
    line += ["--file", str(documents), "--out", str(out), "--tokens-per-batch", str(budget)]
    journal = out.with_name(f"{out.name}.predict.json")
    total = sum(1 for _ in csv.reader(documents.open(newline="", encoding="utf-8"))) - 1
    peaks: dict[str, dict[int, int]] = {}
    started = time.perf_counter()
    killed_at = None
    for start in ("killed", "resumed"):
        process = subprocess.Popen(line)
        tenths = peaks.setdefault(start, {})
        while process.poll() is None:
            done = json.loads(journal.read_bytes())["totals"]["rows"] if journal.exists() else 0
            tenth = min(10 * done // total, 9)
            if tenths and tenth not in tenths:
                reset_peak(process)
            tenths[tenth] = max(tenths.get(tenth, 0), peak(process))
            if start == "killed" and done >= total / 3:
                os.kill(process.pid, signal.SIGKILL)
                process.wait()
                killed_at = done
            time.sleep(0.05)
    seconds = time.perf_counter() - started
    with out.open(newline="", encoding="utf-8") as file:
        found = [int(row["id"]) for row in csv.DictReader(file)]
    totals = json.loads(journal.read_bytes())["totals"]
    return {
        "documents": total,
        "killed_after_rows": killed_at,
        "every_row_once_and_in_order": found == list(range(total)),
        "totals": totals,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(totals["tokens_total"] / seconds),
        "peak_mb_of_tenths": {
            name: {f"{10 * tenth} %": round(size / 1e6) for tenth, size in sizes.items()}
            for name, sizes in peaks.items()
        },
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure, and print the record."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="where documents and run are")
    parser.add_argument("--documents", type=int, default=10_000)
    parser.add_argument("--longest", type=int, default=50_000, help="tokens")
    parser.add_argument("--hidden", type=int, default=64, help="width of the model")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sample", type=int, default=256, help="documents of the comparison")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--naive-rows", type=int, default=16)
    parser.add_argument("--tokens-per-batch", type=int, default=65_536)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="JSON lines to append the record to")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    os.environ["OMP_NUM_THREADS"] = "1"
    given.folder.mkdir(parents=True, exist_ok=True)
    documents = given.folder / "documents.csv"
    write_documents(documents, given.documents, given.longest, given.seed)
    run = small_run(given.folder, given.longest, given.hidden, given.layers, given.seed)
    padding = compare_padding(
        run,
        documents,
        sample=given.sample,
        rounds=given.rounds,
        naive_rows=given.naive_rows,
        budget=given.tokens_per_batch,
    )
    whole = answer_killed_and_resumed(
        run, documents, given.folder / "answers.csv", given.tokens_per_batch
    )
    record = {
        "kind": "predict_file",
        "hidden": given.hidden,
        "layers": given.layers,
        "longest": given.longest,
        "tokens_per_batch": given.tokens_per_batch,
        "naive_rows": given.naive_rows,
        "padding": padding,
        "file": whole,
        "machine": machine.describe(seed=given.seed, threads=1),
    }
    text = json.dumps(record)
    sys.stdout.write(text + "\n")
    if given.out is not None:
        with given.out.open("a", encoding="utf-8") as file:
            file.write(text + "\n")
    return record


if __name__ == "__main__":
    main()
