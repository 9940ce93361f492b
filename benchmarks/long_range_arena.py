"""The data of two tasks of Long Range Arena (Tay et al. 2020), as files for `linformer train`.

    python -m benchmarks.long_range_arena listops DATA [--short 30000 --middle 15000 --long 25000]
    python -m benchmarks.long_range_arena text DATA --reviews REVIEWS.jsonl

listops  nested lists of operations on digits. validation.jsonl and test.jsonl hold 2,000
         expressions each of 501 to 1,999 tokens, the task's own lengths. train.jsonl holds the
         given number of expressions of 6 to 119 (short), 120 to 500 (middle) and 501 to 1,999
         tokens (long); the task itself has 96,000 long ones and no others.
text     reviews (JSON lines with the fields text and label; .xz is read too) cut into
         train, validation and test, 8 : 1 : 1, by a hash of the text. The task reads their bytes.

Every file depends on the arguments alone. A file that exists is left alone. Name the files as
data.train, data.validation and data.test of the shipped configurations `listops` and `documents`
(for text with tokenizer.kind=byte).
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import lzma
from pathlib import Path
from typing import TYPE_CHECKING

from linformer_kit.artifact import check_replaceable, write_atomic
from linformer_kit.data.builtin import listops
from linformer_kit.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator

HELD_OUT = 2000  # expressions to validate with, and as many to test with
# Options of the generator, whose bounds are exclusive, and the seed of each kind.
LENGTHS = {
    "short": ({"min_length": 5, "max_length": 120}, 2),
    "middle": ({"min_length": 119, "max_length": 501}, 3),
    "long": ({"min_length": 500, "max_length": 2000}, 4),
}
Parts = dict[str, list[dict[str, str]]]


def listops_parts(counts: dict[str, int], *, held_out: int = HELD_OUT) -> Parts:
    """Expressions by part. No expression of the training part is in another part."""
    others = listops.records({"examples": 2 * held_out}, 1)
    parts = {name: list(itertools.islice(others, held_out)) for name in ("validation", "test")}
    known = {record["text"] for part in parts.values() for record in part}
    drawn: list[dict[str, str]] = []
    for kind, count in counts.items():
        options, seed = LENGTHS[kind]
        drawn += listops.records({"examples": count, **options}, seed) if count else []
    parts["train"] = [record for record in drawn if record["text"] not in known]
    return parts


def text_parts(path: Path) -> Parts:
    """Reviews by part: two tenths of the hashes of their texts are validation and test."""
    parts: Parts = {"train": [], "validation": [], "test": []}
    for record in _records(path):
        tenth = int(hashlib.sha256(record["text"].encode()).hexdigest(), 16) % 10
        name = ("validation", "test")[tenth] if tenth < 2 else "train"
        parts[name].append({"text": record["text"], "label": str(record["label"])})
    return parts


def _records(path: Path) -> Iterator[dict[str, str]]:
    opened = lzma.open if path.suffix == ".xz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def write_parts(parts: Parts, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    paths = {name: folder / f"{name}.jsonl" for name in parts}
    for path in paths.values():
        check_replaceable(path, lambda _: False, remedy="Name another folder.")
    for name, records in parts.items():
        lines = "".join(json.dumps(record) + "\n" for record in records)
        write_atomic(paths[name], lines)
        print(f"{paths[name]}: {len(records):,} rows")


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    tasks = parser.add_subparsers(dest="task", required=True)
    of_listops = tasks.add_parser("listops")
    of_text = tasks.add_parser("text")
    for task in (of_listops, of_text):
        task.add_argument("folder", type=Path)
    for kind, count in (("short", 0), ("middle", 0), ("long", 96_000)):
        of_listops.add_argument(f"--{kind}", type=int, default=count)
    of_text.add_argument("--reviews", type=Path, required=True)
    chosen = parser.parse_args(arguments)
    try:
        if chosen.task == "listops":
            parts = listops_parts({kind: getattr(chosen, kind) for kind in LENGTHS})
        else:
            parts = text_parts(chosen.reviews)
        write_parts(parts, chosen.folder)
    except UserError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
