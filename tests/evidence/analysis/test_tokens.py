"""Tokens are shown as the text they stand for, whatever the tokenizer writes them as."""

from __future__ import annotations

import re

import pytest
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data import tokenizer as tokenizers
from linformer_kit.evidence.analysis.tokens import token_texts, visible

TEXT = "“The café\u2019s\n\tmenu” — naïve ▁ # 日本 🙂 the running runner runs"


def made(kind, size=400):
    section = TokenizerSection(kind=kind, vocab_size=size)
    return tokenizers.make(section, "mlm", [{"text": TEXT}] * 4)


def bytes_of(text):
    """The bytes that a text stands for, its escapes undone."""
    parts = re.split(r"\\x([0-9a-f]{2})", text)
    return b"".join(
        bytes.fromhex(part) if place % 2 else part.encode() for place, part in enumerate(parts)
    )


@pytest.mark.parametrize("kind", ["bpe", "byte"])
def test_bytes_are_characters_where_they_are_whole(kind):
    tokenizer = made(kind)
    ids = tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    texts = token_texts(tokenizer, ids)
    assert b"".join(map(bytes_of, texts)) == TEXT.encode()
    assert not any(character in "".join(texts) for character in "ĠĊâĢĿ")
    if kind == "byte":
        assert texts[:3] == ["\\xe2", "\\x80", "\\x9c"]
        assert "T" in texts
        assert "\n" in texts


@pytest.mark.parametrize("size", [60, 300])
def test_unigram_writes_spaces(size):
    tokenizer = made("unigram", size)
    ids = tokenizer("the running café", add_special_tokens=False)["input_ids"]
    joined = "".join(token_texts(tokenizer, ids))
    assert joined.strip() == "the running café"
    assert "▁" not in joined


def test_wordpiece_has_no_signs_of_continuation():
    tokenizer = made("wordpiece", 60)
    ids = tokenizer("the running runner", add_special_tokens=False)["input_ids"]
    assert any(name.startswith("##") for name in tokenizer.convert_ids_to_tokens(ids))
    assert "".join(token_texts(tokenizer, ids)) == "therunningrunner"


@pytest.mark.parametrize("kind", ["character", "word"])
def test_plain_text_stays_as_it_is(kind):
    tokenizer = made(kind)
    ids = tokenizer("the ▁ # runs", add_special_tokens=False)["input_ids"]
    assert token_texts(tokenizer, ids) == tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "character"])
def test_special_tokens_have_their_names(kind):
    tokenizer = made(kind)
    ids = tokenizer("the")["input_ids"]
    texts = token_texts(tokenizer, ids)
    assert (texts[0], texts[-1]) == ("<s>", "</s>")
    assert token_texts(tokenizer, [tokenizer.mask_token_id]) == ["<mask>"]


def test_byte_fallback_tokens_are_bytes():
    tokenizer = Tokenizer(models.WordLevel({"<0xE2>": 0, "<0x41>": 1, "▁a": 2, "u": 3}, "u"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback()])
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer)
    assert token_texts(fast, [0, 1, 2]) == ["\\xe2", "A", " a"]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (" the", "the"),
        (" ", "␣"),
        ("   ", "␣"),
        ("\n", "↵"),
        ("\r\n\n", "↵↵"),
        ("\t", "⇥"),
        ("\\xe2", "\\xe2"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\u202e", "\\u202e"),
        ("”", "”"),
        ("", ""),
    ],
)
def test_what_cannot_be_seen_is_shown_by_signs(text, shown):
    assert visible(text) == shown
