"""Prepare: read the corpus, tokenize it and keep the rows under a fingerprint.

The fingerprint covers the files (path, size, time), the data and tokenizer options, the task, the
seed and what this code does. The digest in meta.json is of the content: of the rows, the tokenizer
and the labels.
"""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import PreTrainedTokenizerFast

from ..artifact import digest, json_bytes
from ..config.on_overflow import policy_for
from ..config.schema import LABELLED
from ..config.start import tokenizer_source
from ..errors import UserError, user_input
from . import store
from . import tokenizer as tokenizers
from .arrow import RowFile
from .corpus import PARTS, Corpus, Part
from .digest import RowDigest, names_digest, tokenizer_digest
from .examples import LEAST_TO_COMPARE, Examples
from .iob import label_names

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from datasets import Dataset

    from ..config.schema import RunConfig

    Tell = Callable[[str, int, int], None]

VERSION = 3  # raise it when the same inputs would be prepared differently
LEAST_TO_TAG = 8  # tokens of a row: its frame, and some that have labels
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A folder of prepared data."""

    folder: Path

    @property
    def meta(self) -> dict[str, Any]:
        with self._reading(store.META):
            return store.read_meta(self.folder)

    def tokenizer(self) -> PreTrainedTokenizerFast | None:
        """None where the inputs are features."""
        folder = self.folder / store.TOKENIZER
        with self._reading(store.TOKENIZER):
            if self.meta["vocab_size"] is None:
                return None
            return PreTrainedTokenizerFast.from_pretrained(folder, trust_remote_code=False)

    def part(self, part: Part) -> Dataset | None:
        """The rows of a part, mapped into memory; None if it is empty."""
        from datasets import Dataset

        path = self.folder / store.ROWS[part]
        with self._reading(path.name):
            if self.meta["parts"][part]["rows"] == 0:
                return None
            return Dataset.from_file(str(path))

    def _reading(self, name: str) -> Any:
        return user_input(
            f"cannot read the prepared data {self.folder / name}",
            remedy=f"Remove {self.folder}: it is prepared again.",
        )


@dataclass(frozen=True)
class Given:
    """What a run brings along: its own tokenizer and its labels. None is made from the corpus."""

    tokenizer: Path | None = None
    labels: tuple[str, ...] | None = None

    def check(self, corpus: Corpus) -> None:
        if self.tokenizer is not None and corpus.has_features:
            raise ValueError(f"features have no tokenizer: got the tokenizer {self.tokenizer}.")
        if self.labels and corpus.task not in LABELLED:
            raise ValueError(f"the task {corpus.task!r} has no labels: got {len(self.labels)}.")
        if self.labels is not None and len(set(self.labels)) != len(self.labels):
            raise UserError(f"labels must be different from each other: got {self.labels}.")

    def digests(self) -> dict[str, str]:
        found = {}
        if self.tokenizer is not None:
            found["tokenizer"] = tokenizer_digest(self.tokenizer)
        if self.labels:
            found["labels"] = names_digest(self.labels)
        return found


def fingerprint(
    config: RunConfig, *, tokenizer: Path | None = None, labels: Sequence[str] | None = None
) -> str:
    """What prepared data is kept under."""
    given = Given(tokenizer, None if labels is None else tuple(labels))
    return _fingerprint(config, given)


def _fingerprint(config: RunConfig, given: Given) -> str:
    data = config.data.model_dump(mode="json", exclude={"cache"})
    corpus = Corpus.of(config)
    tokenizer: dict[str, Any] | None = None
    if given.tokenizer is None and not corpus.has_features:
        tokenizer = config.tokenizer.model_dump(mode="json")
        if (source := tokenizer_source(config)) is not None:
            tokenizer["content"] = tokenizers.content_of(source)
    parts = [VERSION, config.task, config.seed, data, tokenizer, corpus.identity()]
    if digests := given.digests():
        parts.append(digests)
    text = json.dumps(parts, sort_keys=True, default=str)
    return digest(text, size=10)


def prepare(
    config: RunConfig,
    *,
    tell: Tell = lambda what, done, total: None,
    tokenizer: Path | None = None,
    labels: Sequence[str] | None = None,
) -> Prepared:
    """The prepared data of a configuration, made unless it is there.

    `tell` is called with what is being done, and how many bytes of how many are read.

    A run that is there already gives its own `tokenizer` (a folder with a tokenizer.json), so that
    none is trained, and its `labels`, whose places are the ids.
    """
    given = Given(tokenizer, None if labels is None else tuple(labels))
    given.check(Corpus.of(config))
    cache = Path(config.data.cache)
    if digests := given.digests():  # the same data may be there with the same tokenizer and labels
        made = Prepared(cache / _fingerprint(config, Given()))
        if made.folder.is_dir() and store.damage(made.folder) is None:
            known = made.meta["digest"]
            if all(known[name] == digest for name, digest in digests.items()):
                return made
    name = _fingerprint(config, given)
    folder = cache / name
    if folder.is_dir() and store.damage(folder) is None:
        return Prepared(folder)
    with store.locked(folder, lambda: tell("waiting for a process that prepares the same", 0, 0)):
        reason = store.damage(folder) if folder.is_dir() else ""
        if reason is None:
            return Prepared(folder)
        with store.building(folder) as building:
            if reason:
                log.warning("%s is damaged (%s): it is prepared again.", folder, reason)
            _make(config, given, building, tell)
            if _fingerprint(config, given) != name:
                raise UserError(
                    "the files of data.train, data.validation or data.test have changed while "
                    "they were read. Start again when they are complete."
                )
    return Prepared(folder)


def _make(config: RunConfig, given: Given, building: Path, tell: Tell) -> None:
    started = time.perf_counter()
    corpus = Corpus.of(config)
    if config.task in ("mlm", "clm") and config.data.max_length < 2:
        raise UserError(
            f"data.max_length must be at least 2 for the task {config.task}: got "
            f"{config.data.max_length}. One token has nothing to predict."
        )
    if config.task == "tag" and config.data.max_length < LEAST_TO_TAG:
        raise UserError(
            f"data.max_length must be at least {LEAST_TO_TAG} for the task tag: got "
            f"{config.data.max_length}."
        )
    labels = _labels(corpus) if given.labels is None else list(given.labels)
    tokenizer = None
    if not corpus.has_features:
        tell("training the tokenizer", 0, 0)
        tokenizer = _tokenizer(config, given, corpus)
        with store.writing(building.parent):
            tokenizer.save_pretrained(building / store.TOKENIZER)
    trained = time.perf_counter() - started
    pairs = config.task == "translate" or config.data.anchor is not None
    makers = {
        part: Examples(
            task=config.task,
            max_length=config.data.max_length,
            tokenizer=tokenizer,
            on_overflow=policy_for("train", config),
            instead="truncate" if pairs else "truncate or chunk",
            overlap=config.data.chunk_overlap,
            pack=config.data.pack,
            labels=labels,
        )
        for part in PARTS
    }
    vocab_size = 0 if tokenizer is None else len(tokenizer)
    digests: dict[str, str | None] = {}
    for part, rows in _write(corpus, makers, building, vocab_size, tell):
        digests[part] = rows
    digests["tokenizer"] = (
        None if tokenizer is None else tokenizer_digest(building / store.TOKENIZER)
    )
    digests["labels"] = names_digest(labels) if config.task in LABELLED else None
    seconds = time.perf_counter() - started
    meta = {
        "version": VERSION,
        "task": config.task,
        "max_length": config.data.max_length,
        "on_overflow": policy_for("train", config),
        "labels": labels,
        "feature_size": makers["train"].width,
        "vocab_size": None if tokenizer is None else vocab_size,
        "parts": {part: asdict(maker.counts) for part, maker in makers.items()},
        "digest": digests,
        "seconds": {"tokenizer": round(trained, 2), "all": round(seconds, 2)},
        "files": store.sizes(building),
    }
    with store.writing(building.parent):
        (building / store.META).write_bytes(json_bytes(meta))


def _tokenizer(config: RunConfig, given: Given, corpus: Corpus) -> PreTrainedTokenizerFast:
    if given.tokenizer is not None:
        return tokenizers.load(str(given.tokenizer), config.task)
    if (source := tokenizer_source(config)) is not None:
        return tokenizers.load(source, config.task)
    made = tokenizers.make(config.tokenizer, config.task, corpus.part("train"))
    if len(made) <= len(tokenizers.SPECIAL):
        raise UserError(_nothing(corpus))
    return made


def _write(
    corpus: Corpus, makers: dict[Part, Examples], building: Path, vocab_size: int, tell: Tell
) -> Iterator[tuple[Part, str]]:
    """Write all parts, each with its digest."""
    done, total = 0, corpus.size()

    def advance(size: int) -> None:
        nonlocal done
        done += size
        tell("tokenizing", done, total)

    for part in PARTS:
        maker, digest = makers[part], RowDigest()
        if others := corpus.left_out(part):
            maker.counts.left_out, maker.counts.first_left_out = len(others), others[0].name
        maker.width = makers["train"].width
        with RowFile(building / store.ROWS[part], vocab_size) as file:
            file.add(digest.through(maker.rows(corpus.part(part, tell=advance))))
        if maker.counts.rows == 0:
            _check_empty(corpus, part)
        yield part, digest.hex


def _check_empty(corpus: Corpus, part: Part) -> None:
    """Refuse an empty part that was asked for by name; say that a share has left one empty."""
    source, share = getattr(corpus.data, part), getattr(corpus.data, f"{part}_share", 0.0)
    if part == "train":
        raise UserError(_nothing(corpus))
    if source is not None:
        raise UserError(f"data.{part} is empty: {source} holds no text.")
    if share > 0:
        log.warning(
            "the %s part is empty: no record fell into data.%s_share = %s.", part, part, share
        )


def _labels(corpus: Corpus) -> list[str]:
    if corpus.task == "tag":
        types = {span.label for record in corpus.part("train") for span in record["spans"]}
        if not types:
            raise UserError("tagging needs at least one span: got none in the training part.")
        return label_names(sorted(types))
    if corpus.task != "classify":
        return []
    names = {record["label"] for record in corpus.part("train")}
    if len(names) == 1:
        raise UserError(
            f"a classification needs at least two labels: got only {names.pop()!r} in "
            "the training part."
        )
    return sorted(names)


def _nothing(corpus: Corpus) -> str:
    """Why there is nothing to train on."""
    source = corpus.data.train
    counts = corpus.tally()
    if not (records := sum(counts.values())):
        return f"the training corpus is empty: {source} holds no text."
    if counts["train"] and corpus.task == "embed" and corpus.data.anchor is None:
        return (
            f"there is nothing to compare: a text must have at least {LEAST_TO_COMPARE} tokens, of "
            f"which two parts are compared, and none of {source} has."
        )
    if counts["train"]:
        return f"the training corpus is empty: the tokenizer finds no token in {source}."
    shares = [f"data.{part}_share = {getattr(corpus.data, f'{part}_share')}" for part in PARTS[1:]]
    which = "the only record" if records == 1 else f"all {records:,} records"
    return (
        f"nothing is left to train on: {which} of {source} fell into validation or test by "
        f"{' and '.join(shares)}. Give more documents (data.documents says what one is), or lower "
        "the shares."
    )
