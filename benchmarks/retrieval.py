"""Retrieval over long documents with exact gold: the two halves of each document.

    python -m benchmarks.retrieval --original MiniLM --converted minilm-4k --texts reviews.jsonl.xz

The first half of a document is the query, the second halves of all documents are the candidates;
the right one is its own. Compared are

    truncated   the original, reading the first `--limit` tokens of a half
    chunks      the original, reading all of it in overlapping pieces, whose vectors are averaged
    converted   the converted model, reading all of it at once (or in pieces of what it reads)

With --piece N every text is cut into documents of N tokens first, as novels have to be. With
--timing N nothing is scored: N halves are read by each in turn, and the time and the peak memory
(in a fresh process) of one half are printed. Records are appended to --out.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from linformer_kit.data.overflow import Overflow, mean_of_pieces
from linformer_kit.data.tokenizer import encode_whole
from linformer_kit.measure.machine import describe
from linformer_kit.measure.memory import Work, peak_memory
from linformer_kit.measure.records import RecordFile
from linformer_kit.measure.timing import alternate
from linformer_kit.metrics.retrieval import ranks, retrieval_metrics
from linformer_kit.search.embedder import Embedder

from .convert_text import texts_of

METHODS = {"truncated": "truncate", "chunks": "chunk", "converted": "chunk"}
OVERLAP = 0.125


class Reader:
    """One way of turning token ids into a vector."""

    def __init__(self, name: str, folder: str, limit: int | None) -> None:
        self.embedder = Embedder(Path(folder))
        self.limit = limit or self.embedder.longest
        self.overflow = Overflow(METHODS[name], self.limit, self.embedder.frame.size, OVERLAP)  # type: ignore[arg-type]

    def vector(self, ids: list[int]) -> np.ndarray:
        """The vector of a text, one at a time: no padding, and equal batches for all."""
        pieces = self.overflow.pieces(len(ids))
        rows = [np.asarray(self.embedder.frame(ids[p.start : p.stop])) for p in pieces]
        return mean_of_pieces(self.embedder.vectors(rows), [len(piece) for piece in pieces])

    def read(self, ids: list[int]) -> int:
        return self.overflow.reading(len(ids), self.overflow.pieces(len(ids))).tokens_read


def reader(name: str, given: argparse.Namespace) -> Reader:
    """The reader of a method."""
    folder = given.converted if name == "converted" else given.original
    return Reader(name, folder, None if name == "converted" else given.limit)


def halves_of(given: argparse.Namespace, tokenizer: Any) -> list[tuple[list[int], list[int]]]:
    """Token ids of the first and second halves, drawn from all documents that are long enough."""
    found = []
    for path in given.texts:
        for text in texts_of(path):
            (encoded,) = encode_whole(tokenizer, [text])
            size = given.piece or len(encoded.ids)
            for start in range(0, len(encoded.ids) - size + 1, size):
                ids = encoded.ids[start : start + size]
                if len(ids) >= given.min_tokens:
                    found.append((ids[: len(ids) // 2], ids[len(ids) // 2 :]))
    order = np.random.default_rng(given.seed).permutation(len(found))[: given.documents]
    return [found[place] for place in sorted(order)]


def score(given: argparse.Namespace, name: str) -> dict[str, Any]:
    """Recall and its relatives of one method."""
    one = reader(name, given)
    halves = halves_of(given, one.embedder.tokenizer)
    one.vector(halves[0][0])  # warm-up
    started = time.perf_counter()
    queries, documents = (
        np.stack([one.vector(pair[side]) for pair in halves]).astype(np.float32) for side in (0, 1)
    )
    seconds = (time.perf_counter() - started) / (2 * len(halves))
    scores = retrieval_metrics(ranks(queries, documents))
    lengths = [len(half) + one.embedder.frame.size for pair in halves for half in pair]
    return {
        "method": name,
        "reads": one.limit,
        "documents": len(halves),
        "tokens_of_a_half": {
            "median": int(np.median(lengths)), "least": min(lengths), "most": max(lengths),
        },
        "share_read": round(
            sum(one.read(half) for pair in halves for half in pair) / sum(lengths), 4
        ),
        "seconds_a_half": round(seconds, 4),
        **{key: round(value, 4) for key, value in scores.items()},
    }  # fmt: skip


def memory_work(name: str, original: str, converted: str, limit: int, tokens: int) -> Work:
    """One text of `tokens` tokens, for a fresh process."""
    torch.set_num_threads(1)
    given = argparse.Namespace(original=original, converted=converted, limit=limit)
    one = reader(name, given)
    return Work(
        warm_up=lambda: one.vector([5] * 16),
        prepare=lambda: lambda: one.vector([5] * tokens),
    )


def time_them(given: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds and bytes for a half, the methods in turn."""
    readers = {name: reader(name, given) for name in given.methods}
    first = next(iter(readers.values()))
    halves = [pair[0] for pair in halves_of(given, first.embedder.tokenizer)[: given.timing]]

    def run(name: str) -> None:
        for ids in halves:
            readers[name].vector(ids)

    times = alternate(
        {name: lambda name=name: run(name) for name in readers},  # type: ignore[misc]
        rounds=given.rounds, fewest=given.rounds,
    )  # fmt: skip
    tokens = int(np.median([len(half) for half in halves]))
    arguments = {"original": given.original, "converted": given.converted, "limit": given.limit}
    records = []
    for name, timing in times.items():
        peak = peak_memory(
            "benchmarks.retrieval:memory_work", {"name": name, **arguments, "tokens": tokens}
        )
        records.append(
            {
                "method": name,
                "halves": len(halves),
                "tokens_of_a_half": tokens,
                "seconds_a_half": [round(taken / len(halves), 4) for taken in timing.seconds],
                "peak_bytes": peak.work,
                "peak_with_model": peak.total,
                "problem": peak.problem or timing.note,
            }
        )
    return records


def main(arguments: list[str] | None = None) -> list[dict[str, Any]]:
    """Measure, and print the records."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--original", required=True, help="a folder of sentence-transformers")
    parser.add_argument("--converted", required=True, help="what linformer convert made of it")
    parser.add_argument("--texts", type=Path, nargs="+", required=True, help="JSON lines: text")
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--limit", type=int, default=512, help="what the original reads")
    parser.add_argument("--min-tokens", type=int, default=1024, help="of a document")
    parser.add_argument("--piece", type=int, help="cut texts into documents of so many tokens")
    parser.add_argument("--documents", type=int, default=300, help="at most")
    parser.add_argument("--timing", type=int, default=0, help="time so many halves instead")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args(arguments)
    torch.set_num_threads(given.threads)
    made = time_them(given) if given.timing else [score(given, name) for name in given.methods]
    about = {
        "kind": "retrieval",
        "texts": [path.name for path in given.texts],
        "piece": given.piece,
        "machine": describe(seed=given.seed, threads=given.threads),
    }
    records = [{**about, **one} for one in made]
    for record in records:
        sys.stdout.write(json.dumps(record) + "\n")
    if given.out is not None:
        with RecordFile(given.out) as file:
            for record in records:
                file.append(record)
    return records


if __name__ == "__main__":
    main()
