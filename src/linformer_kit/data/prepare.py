"""Prepare: read the corpus, tokenize it and keep the rows under a fingerprint.

The fingerprint covers the files (path, size, time), the data and tokenizer options, the task, the
seed and what this code does. A folder appears under its name only when it is complete.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from filelock import FileLock
from transformers import PreTrainedTokenizerFast

from ..errors import UserError
from . import tokenizer as tokenizers
from .arrow import RowFile
from .corpus import PARTS, Corpus, Part
from .examples import Examples

if TYPE_CHECKING:
    from collections.abc import Callable

    from datasets import Dataset

    from ..config.schema import RunConfig

VERSION = 1  # raise it when the same inputs would be prepared differently
META = "meta.json"


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data."""

    folder: Path

    @property
    def meta(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads((self.folder / META).read_text(encoding="utf-8")))

    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """None where the inputs are features."""
        folder = self.folder / "tokenizer"
        return PreTrainedTokenizerFast.from_pretrained(folder) if folder.is_dir() else None

    def part(self, part: Part) -> Dataset | None:
        """The rows of a part, mapped into memory; None if it is empty."""
        from datasets import Dataset

        path = self.folder / f"{part}.arrow"
        return Dataset.from_file(str(path)) if path.is_file() else None


def fingerprint(config: RunConfig) -> str:
    """What prepared data is kept under."""
    data = config.data.model_dump(mode="json", exclude={"cache"})
    tokenizer: dict[str, Any] | None = config.tokenizer.model_dump(mode="json")
    corpus = Corpus.of(config)
    if corpus.has_features:
        tokenizer = None
    elif tokenizer is not None and config.tokenizer.path is not None:
        path = Path(config.tokenizer.path)
        file = path / "tokenizer.json" if path.is_dir() else path
        if file.is_file():
            tokenizer["content"] = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    parts = [VERSION, config.task, config.seed, data, tokenizer, corpus.identity()]
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.blake2b(text.encode(), digest_size=10).hexdigest()


def prepare(
    config: RunConfig, *, tell: Callable[[str, int, int], None] = lambda what, done, total: None
) -> Prepared:
    """The prepared data of a configuration, made unless it is there.

    `tell` is called with what is being done, and how many bytes of how many are read.
    """
    cache = Path(config.data.cache)
    name = fingerprint(config)
    folder = cache / name
    if (folder / META).is_file():
        return Prepared(folder)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with FileLock(cache / f"{name}.lock"):  # two processes may want the same
            if not (folder / META).is_file():
                _make(config, folder, tell)
    except OSError as error:
        raise UserError(
            f"cannot keep prepared data in {cache}: {error.strerror or error}. "
            "Name another folder with data.cache."
        ) from error
    return Prepared(folder)


def _make(config: RunConfig, folder: Path, tell: Callable[[str, int, int], None]) -> None:
    started = time.perf_counter()
    corpus = Corpus.of(config)
    total = corpus.size()
    building = folder.with_name(f"{folder.name}.partial")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir()
    try:
        labels = _labels(corpus)
        tokenizer = None
        if not corpus.has_features:
            tell("training the tokenizer", 0, 0)
            tokenizer = tokenizers.make(config.tokenizer, config.task, corpus.part("train"))
            if len(tokenizer) <= len(tokenizers.SPECIAL) and config.tokenizer.path is None:
                raise UserError(_empty(corpus))
            tokenizer.save_pretrained(building / "tokenizer")
        trained = time.perf_counter() - started
        makers = {
            part: Examples(
                task=config.task,
                max_length=config.data.max_length,
                tokenizer=tokenizer,
                pack=config.data.pack,
                labels=labels,
            )
            for part in PARTS
        }
        _write(corpus, makers, building, 0 if tokenizer is None else len(tokenizer), total, tell)
        if makers["train"].counts.rows == 0:
            raise UserError(_empty(corpus))
        seconds = time.perf_counter() - started
        meta = {
            "task": config.task,
            "max_length": config.data.max_length,
            "labels": labels,
            "feature_size": _width(building) if corpus.has_features else None,
            "vocab_size": None if tokenizer is None else len(tokenizer),
            "parts": {part: asdict(maker.counts) for part, maker in makers.items()},
            "seconds": {"tokenizer": round(trained, 2), "all": round(seconds, 2)},
        }
        (building / META).write_text(json.dumps(meta, indent=1) + "\n", encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)  # incomplete, from another version
        building.replace(folder)
    finally:
        shutil.rmtree(building, ignore_errors=True)


def _write(
    corpus: Corpus,
    makers: dict[Part, Examples],
    building: Path,
    vocab_size: int,
    total: int,
    tell: Callable[[str, int, int], None],
) -> None:
    """All parts; where validation and test are cut from training, it is read once for each."""
    done = 0
    again = sum(
        getattr(corpus.data, part) is None and getattr(corpus.data, f"{part}_share") > 0
        for part in PARTS[1:]
    )
    own = sum(path.stat().st_size for path in corpus.files("train"))
    total += again * own

    def advance(size: int) -> None:
        nonlocal done
        done += size
        tell("tokenizing", done, total)

    for part in PARTS:
        file = RowFile(building / f"{part}.arrow", vocab_size)
        file.add(makers[part].rows(corpus.part(part, tell=advance)))
        file.close()


def _labels(corpus: Corpus) -> list[str]:
    if corpus.task != "classify":
        return []
    names = {record["label"] for record in corpus.part("train")}
    if len(names) == 1:
        raise UserError(f"a classification needs at least two labels: got only {names.pop()!r}.")
    return sorted(names)


def _width(building: Path) -> int:
    from datasets import Dataset

    return int(Dataset.from_file(str(building / "train.arrow"))[0]["width"])


def _empty(corpus: Corpus) -> str:
    return f"the training corpus is empty: {_source(corpus)} holds no text."


def _source(corpus: Corpus) -> str:
    source = corpus.data.train
    return source if isinstance(source, str) else str(source)
