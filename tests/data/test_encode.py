"""Long texts: the tokens of the whole, window by window; where the work stops."""

from __future__ import annotations

import random

import pytest
import tokenizers as tk
from tokenizers import Regex, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from linformer_kit.data import encode
from linformer_kit.data.encode import Bounds, LongEncoding, encode_long
from linformer_kit.data.overflow import Overflow
from linformer_kit.data.tokenizer import encode_whole
from linformer_kit.errors import UserError

from .test_tokenizer import make

SPLIT_AS_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
VARIED = (
    "the old dog runs over hill don't it's we're Größe 5 µm naïve 3.14 1,000 foo_bar U.S.A. "
    "e\u0301le\u0300ve A\u030a 東京 日本語テキスト 한국어 \u1100\u1161\u11a8 🙂 "
    "\U0001f468\u200d\U0001f469 <mask> </s> ﷺ ½ \ufb01ne a\x00b"
)
WORDS = VARIED.split(" ")
SPACES = [*" " * 12, "\n", "\n\n", "  ", "\t", ", ", ". ", "-", "\u3000", "\r\n", "     ", "。", ""]


def mixed(length, seed=0):
    draw = random.Random(seed)
    text = ""
    while len(text) < length:
        text += draw.choice(WORDS) + draw.choice(SPACES)
    return text[:length]


# Texts, and whether there must be places to cut them in a tokenizer that splits at spaces.
TEXTS = {
    "mixed": (mixed(9000), True),
    "more": (mixed(9000, seed=1), True),
    "words": ("word " * 1800, True),
    "lines": ("ab cd, ef.\n" * 800, True),
    "masks": ("<mask> a  <mask>" * 500, True),
    "quotes": ("'s 't don't " * 700, True),
    "controls": ("a\x00b\u200dc \x07" * 1000, True),
    "blanks": (("\n" + " " * 700) * 9 + "x", False),
    "spaces": ("x" + " " * 5000 + "y z", False),
    "letters": ("a" * 5000, False),
    "emoji": ("🙂" * 5000, False),
    "ideographs": ("日本語東京、。" * 700, False),
    "marks": ("e" + "\u0301" * 5000, False),
}


def changed(kind, *, split=None, normalizer=None, end=None):
    """A trained tokenizer with other parts."""
    made = tk.Tokenizer.from_str(make(kind, vocab_size=400).backend_tokenizer.to_str())
    if split is not None:
        made.pre_tokenizer = split
    if normalizer is not None:
        made.normalizer = normalizer
    if end is not None:
        made.post_processor = end
    mask = tk.AddedToken("<mask>", lstrip=True, special=True)
    return PreTrainedTokenizerFast(tokenizer_object=made, mask_token=mask, pad_token="<pad>")


def levels(*first, **options):
    return pre_tokenizers.Sequence([*first, pre_tokenizers.ByteLevel(**options)])


TOKENIZERS = {
    **{kind: lambda kind=kind: make(kind) for kind in ("bpe", "unigram", "wordpiece", "byte")},
    "character": lambda: make("character", vocab_size=40),
    "word": lambda: make("word"),
    "bert": lambda: changed("wordpiece", normalizer=normalizers.BertNormalizer()),
    "roberta": lambda: changed("bpe", end=processors.RobertaProcessing(("</s>", 2), ("<s>", 1))),
    "space before": lambda: changed(
        "bpe", split=levels(add_prefix_space=True), end=processors.ByteLevel(trim_offsets=True)
    ),
    "gpt4": lambda: changed(
        "bpe",
        split=levels(
            pre_tokenizers.Split(Regex(SPLIT_AS_GPT4), "isolated"),
            add_prefix_space=False,
            use_regex=False,
        ),
        normalizer=normalizers.NFC(),
    ),
    "t5": lambda: changed(
        "unigram",
        split=pre_tokenizers.Metaspace(prepend_scheme="always"),
        normalizer=normalizers.Sequence(
            [normalizers.NFKC(), normalizers.Strip(), normalizers.Replace(Regex(" {2,}"), "▁")]
        ),
    ),
    "xlm": lambda: changed(
        "unigram",
        split=pre_tokenizers.Sequence(
            [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]
        ),
    ),
    "not split": lambda: changed(
        "unigram", split=pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    ),
}


@pytest.fixture
def windows(monkeypatch):
    """Small windows; the list of their sizes."""
    sizes = []

    def recorded(tokenizer, texts):
        sizes.extend(map(len, texts))
        return encode_whole(tokenizer, texts)

    monkeypatch.setattr(encode, "WINDOW", 1000)
    monkeypatch.setattr(encode, "encode_whole", recorded)
    return sizes


@pytest.mark.parametrize("name", TOKENIZERS)
def test_windows_have_the_tokens_of_the_whole_text(name, windows):
    tokenizer = TOKENIZERS[name]()
    for kind, (text, has_cuts) in TEXTS.items():
        (whole,) = encode_whole(tokenizer, [text])
        windows.clear()
        made = encode_long(tokenizer, text)
        assert list(made.ids) == whole.ids, kind
        assert made.offsets == whole.offsets, kind
        assert made.word_ids == whole.word_ids, kind
        if has_cuts and name != "not split":
            assert isinstance(made, LongEncoding)
            assert max(windows) <= 2000, kind


def test_a_short_text_is_one_window(windows):
    text = "the old dog " * 80
    (whole,) = encode_whole(make("bpe"), [text])
    assert encode_long(make("bpe"), text).ids == whole.ids
    assert windows == [len(text)]


def test_the_check_stops_between_windows(windows):
    counted = []

    def check(tokens):
        counted.append(tokens)
        if tokens > 2000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        encode_long(make("character"), "the dog " * 5000, Bounds(check=check))
    assert counted[0] == 0
    assert counted == sorted(counted)
    assert len(windows) < 8


@pytest.mark.parametrize("text", ["a" * 100_000, "🙂" * 30_000, "x" + " " * 100_000 + "y"])
def test_a_text_in_which_no_word_ends_is_refused_within_bounds(text, windows):
    text = "the dog " * 300 + text
    with pytest.raises(UserError, match=r"more than 8,000 bytes in a row .* got more from charac"):
        encode_long(make("bpe"), text, Bounds(widest=8000))
    assert max(windows) <= 8000
    assert max(windows) * 4 < 16_000 or "🙂" not in text


def test_a_word_within_the_bounds_is_read_whole(windows):
    text = "the dog " * 300 + "a" * 7000 + " dog" * 900
    (whole,) = encode_whole(make("byte"), [text])
    assert list(encode_long(make("byte"), text, Bounds(widest=8000)).ids) == whole.ids


def test_a_lone_surrogate_in_a_long_text_is_told(windows):
    with pytest.raises(UserError, match=r"must be valid Unicode"):
        encode_long(make("byte"), "the dog " * 2000 + "\udce9")


def test_a_part_that_is_too_long_is_refused_as_the_whole_would_be():
    overflow = Overflow("error", 100, 2)
    overflow.check_part(98)
    with pytest.raises(UserError, match=r"at most data.max_length = 100 tokens: got at least 101"):
        overflow.check_part(99)
    Overflow("chunk", 100, 2).check_part(10_000)
