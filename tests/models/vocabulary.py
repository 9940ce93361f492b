"""A tokenizer of the ecosystem's own kind, of a few words, made on the spot."""

from __future__ import annotations

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

SPECIAL = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WORDS = "the a cat dog bird sat slept ran on under mat tree in Paris London Anna lives good bad"


def tokenizer_of(*, pairs: bool = False) -> PreTrainedTokenizerFast:
    """`pairs` puts [CLS] a [SEP] b [SEP] around texts, for encoders."""
    vocabulary = {word: i for i, word in enumerate([*SPECIAL, *WORDS.split()])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    if pairs:
        tokenizer.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]",
            pair="[CLS] $A [SEP] $B:1 [SEP]:1",
            special_tokens=[(name, vocabulary[name]) for name in ("[CLS]", "[SEP]")],
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        bos_token="[BOS]",
        eos_token="[EOS]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        padding_side="right" if pairs else "left",
    )
