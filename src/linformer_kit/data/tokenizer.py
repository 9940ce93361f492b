"""Tokenizers: trained on the corpus or loaded, always an ordinary fast Hugging Face tokenizer."""

from __future__ import annotations

import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import tokenizers as tk
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from ..artifact import digest
from ..errors import UserError, user_input
from ..hub import require_hub
from ..machine_memory import require_memory
from ..models.text_input import Frame
from .digest import MAX_TOKENIZER, TOKENIZER_FILE, tokenizer_digest
from .files import MB, size_of
from .tables import TEXTS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from ..config.schema import Task, TokenizerKind, TokenizerSection
    from .tables import Record

SPECIAL = {
    "pad_token": "<pad>",
    "unk_token": "<unk>",
    "bos_token": "<s>",
    "eos_token": "</s>",
    "mask_token": "<mask>",
}
BPE_BYTES = 90  # of a token, which the trainer allocates at once
TOKENIZER_HINT = "Name a folder written by save_pretrained, a tokenizer.json or a hub id."
CONFIG_FILES = (
    TOKENIZER_FILE,
    "tokenizer_config.json",
    "special_tokens_map.json",
    "vocab.txt",
    "vocab.json",
    "merges.txt",
)
# How a text is framed. A model sees in use what it has seen in training.
TEMPLATES: dict[Task, str] = {
    "mlm": "<s> $A </s>",
    "classify": "<s> $A </s>",
    "tag": "<s> $A </s>",
    "embed": "<s> $A </s>",
    "translate": "$A </s>",
    "clm": "<s> $A",
}


def frame_of(tokenizer: PreTrainedTokenizerFast, task: Task, *, prompt: bool = False) -> Frame:
    """How texts are framed in training, and therefore in use: <s> ... </s>, or [CLS] ... [SEP].

    The source of a translation has an end only, and a `prompt` that is continued a beginning only.
    """
    first, last = tokenizer.bos_token_id, tokenizer.eos_token_id
    if first is None and last is None:
        first, last = tokenizer.cls_token_id, tokenizer.sep_token_id
    begins = task != "translate" and first is not None
    ends = not prompt and last is not None
    return Frame((first,) if begins else (), (last,) if ends else ())


def encode_whole(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[tk.Encoding]:
    """The encodings of texts, whole and without frame.

    A tokenizer.json may say that texts are truncated or padded, as those of sentence-transformers
    do. What is not read must be counted, so neither is done here.
    """
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    try:
        return list(backend.encode_batch(list(texts), add_special_tokens=False))
    except TypeError as error:
        raise UserError(
            "a text must be valid Unicode: got a lone surrogate, as from a byte that is not UTF-8. "
            "Convert the text to UTF-8."
        ) from error


def texts_of(record: Record) -> Iterator[str]:
    """All text of a record."""
    for name in TEXTS:
        if name in record:
            yield record[name]


def make(
    section: TokenizerSection, task: Task, records: Iterable[Record]
) -> PreTrainedTokenizerFast:
    """Load the tokenizer the section names, or train one on the first `train_mb` of the records."""
    if section.path is not None:
        return load(section.path, task)
    trained = train(section, _first(records, section.train_mb * MB))
    return _wrap(trained, task)


def load(path: str, task: Task) -> PreTrainedTokenizerFast:
    """A folder written by `save_pretrained`, a `tokenizer.json`, or (with a network) a hub id.

    A `tokenizer.json` alone does not say which tokens are special: those of `SPECIAL` are.
    """
    with user_input(f"cannot load the tokenizer {path}", remedy=TOKENIZER_HINT), _no_panic():
        if not path.strip():
            raise ValueError("its name is empty")
        where = Path(path).expanduser()
        if os.path.lexists(where):
            _check_files(where)
        if where.is_file():
            loaded = PreTrainedTokenizerFast(tokenizer_file=str(where))
            known = loaded.get_vocab()
            loaded.add_special_tokens(
                {name: token for name, token in SPECIAL.items() if token in known}
            )
        else:
            require_hub(path, "tokenizer.json")
            fast = not where.is_dir() or (where / TOKENIZER_FILE).is_file()
            kind = PreTrainedTokenizerFast if fast else AutoTokenizer  # of a vocab.txt
            loaded = cast("Any", kind).from_pretrained(
                str(where) if where.is_dir() else path, trust_remote_code=False
            )
            if not loaded.is_fast:
                raise ValueError("it has no tokenizer.json and cannot be converted to one")
        loaded("a")  # some mistakes in a tokenizer.json show only when it is used
        ids = loaded.get_vocab().values()
        if max(ids, default=-1) >= len(loaded):
            raise ValueError(
                f"its ids must be 0 to {len(loaded) - 1}, one for each token: got {max(ids)}"
            )
    needed = {"pad_token"}
    needed |= {"mask_token"} if task == "mlm" else set()
    needed |= {"eos_token"} if task in ("clm", "translate") else set()
    for name in sorted(needed):
        if getattr(loaded, name) is None:
            raise UserError(
                f"the tokenizer {path} has no {name}, which the task {task} needs. "
                "Name it in its tokenizer_config.json."
            )
    return loaded


def content_of(path: str) -> dict[str, str]:
    """Digests of the files of a tokenizer; empty for a hub id."""
    where = Path(path).expanduser()
    with user_input(f"cannot load the tokenizer {path}", remedy=TOKENIZER_HINT):
        if where.is_dir():
            found = [where / name for name in CONFIG_FILES if (where / name).is_file()]
        else:
            found = [where] if os.path.lexists(where) else []
        for file in found:
            if size_of(file) > MAX_TOKENIZER:
                raise ValueError(f"{file.name} is larger than {MAX_TOKENIZER // MB} MB")
        return {file.name: digest(file) for file in found}


def _check_files(path: Path) -> None:
    """Refuse a tokenizer.json that is no regular file, no JSON object or far too large."""
    if path.is_dir() and not (path / TOKENIZER_FILE).exists():
        return  # some tokenizers have other files
    tokenizer_digest(path)


@contextmanager
def _no_panic() -> Iterator[None]:
    """The package tokenizers reports some mistakes by a panic of Rust, which is no Exception."""
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise ValueError(str(error)) from error


def train(section: TokenizerSection, texts: Iterable[str]) -> tk.Tokenizer:
    """A `tokenizers.Tokenizer`, special tokens first."""
    special = [
        # A mask hides the space before it too, as in "the <mask>".
        tk.AddedToken(token, lstrip=name == "mask_token", normalized=False, special=True)
        for name, token in SPECIAL.items()
    ]
    tokenizer, trainer = _recipe(section.kind, section.vocab_size, special)
    if section.lowercase:
        lower = normalizers.Lowercase()
        old = tokenizer.normalizer
        tokenizer.normalizer = lower if old is None else normalizers.Sequence([old, lower])
    with (
        user_input(
            f"cannot train the tokenizer (tokenizer.kind {section.kind}, vocab_size "
            f"{section.vocab_size})",
            remedy="Raise tokenizer.vocab_size, or use another tokenizer.kind.",
        ),
        _no_panic(),
    ):
        tokenizer.train_from_iterator(texts, trainer=trainer)
    return tokenizer


def _recipe(kind: TokenizerKind, size: int, special: list[Any]) -> tuple[tk.Tokenizer, Any]:
    common: dict[str, Any] = {"special_tokens": special, "show_progress": False}
    if kind in ("bpe", "byte"):
        tokenizer = tk.Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
        least = len(alphabet) + len(special)
        if kind == "bpe" and size < least:
            raise UserError(
                f"tokenizer.vocab_size must be at least {least} for bpe, which begins with all "
                f"bytes: got {size}. Use kind: character for a smaller one."
            )
        asked = least if kind == "byte" else size
        with user_input("tokenizer.vocab_size is too large"):
            require_memory(
                f"a vocabulary of {asked:,} tokens", BPE_BYTES * asked, remedy="Use a smaller one."
            )
        return tokenizer, trainers.BpeTrainer(vocab_size=asked, initial_alphabet=alphabet, **common)
    if kind in ("character", "word") and size <= len(special):
        raise UserError(
            f"tokenizer.vocab_size must be at least {len(special) + 1} for {kind}: got {size}. "
            f"{len(special)} tokens are special ones."
        )
    unknown = SPECIAL["unk_token"]
    if kind == "unigram":
        tokenizer = tk.Tokenizer(models.Unigram())
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        tokenizer.decoder = decoders.Metaspace()
        return tokenizer, trainers.UnigramTrainer(vocab_size=size, unk_token=unknown, **common)
    if kind == "wordpiece":
        tokenizer = tk.Tokenizer(models.WordPiece(unk_token=unknown))
        tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece()
        return tokenizer, trainers.WordPieceTrainer(vocab_size=size, **common)
    tokenizer = tk.Tokenizer(models.WordLevel(unk_token=unknown))
    if kind == "character":
        every = tk.Regex(r"[\s\S]")
        tokenizer.pre_tokenizer = pre_tokenizers.Split(every, "isolated")
        tokenizer.decoder = decoders.Fuse()
    else:
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer, trainers.WordLevelTrainer(vocab_size=size, **common)


def _wrap(tokenizer: tk.Tokenizer, task: Task) -> PreTrainedTokenizerFast:
    template = TEMPLATES[task]
    special = [(token, tokenizer.token_to_id(token)) for token in ("<s>", "</s>")]
    framing = processors.TemplateProcessing(single=template, special_tokens=special)
    tokenizer.post_processor = framing
    left = task == "clm"  # a prompt must end where the answer begins
    mask = tk.AddedToken(SPECIAL["mask_token"], lstrip=True, normalized=False, special=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        padding_side="left" if left else "right",
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "attention_mask"],
        **{**SPECIAL, "mask_token": mask},
    )


def _first(records: Iterable[Record], limit: int) -> Iterator[str]:
    """Texts until `limit` bytes are reached."""
    size = 0
    for record in records:
        for text in texts_of(record):
            yield text
            size += len(text.encode("utf-8"))
        if size >= limit:
            return
