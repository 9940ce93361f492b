"""Small models of other families with random weights."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

if TYPE_CHECKING:
    from pathlib import Path

WORDS = [
    "the",
    "cat",
    "sat",
    "on",
    "a",
    "mat",
    "and",
    "saw",
    "one",
    "dog",
    "run",
    "far",
    "from",
    "its",
    "own",
    "small",
    "red",
    "house",
]

_SIZES = {
    "vocab_size": 60,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 20,
}
_ROBERTA = {**_SIZES, "pad_token_id": 1}
_NARROW = {**_SIZES, "embedding_size": 8}
FAMILIES: dict[str, dict[str, Any]] = {
    "Bert": _SIZES,
    "Roberta": _ROBERTA,
    "XLMRoberta": _ROBERTA,
    "Camembert": _ROBERTA,
    "DistilBert": {
        "vocab_size": 60,
        "dim": 16,
        "n_layers": 3,
        "n_heads": 4,
        "hidden_dim": 24,
        "max_position_embeddings": 20,
    },
    "Electra": _NARROW,
    "Albert": _NARROW,
}
HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": {"num_labels": 3},
    "ForTokenClassification": {"num_labels": 3},
    "ForQuestionAnswering": {},
    "ForMultipleChoice": {},
}


def pretrained(family: str, head: str = "Model", **options: Any) -> transformers.PreTrainedModel:
    """In evaluation mode, with every weight drawn anew: biases and norms are not zero and one."""
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family] | HEADS[head] | options)
    model = getattr(transformers, f"{family}{head}")(config).eval()
    torch.manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def batch(length: int = 14, *, pad: int = 0, choices: bool = False) -> dict[str, torch.Tensor]:
    """Two samples, the second padded on the right."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (2, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, length - 5 :] = 0
    ids[1, length - 5 :] = pad
    if choices:
        ids, mask = ids[:, None].repeat(1, 2, 1), mask[:, None].repeat(1, 2, 1)
    return {"input_ids": ids, "attention_mask": mask}


def word_tokenizer(length: int = 20) -> transformers.PreTrainedTokenizerFast:
    """A tokenizer of words, with the special tokens of BERT."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: n for n, word in enumerate([*special, *dict.fromkeys(WORDS)])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        model_max_length=length,
    )


def write_model(folder: Path, family: str = "Bert", head: str = "ForMaskedLM") -> Path:
    """A folder with a pretrained model and a tokenizer of words."""
    pretrained(family, head).save_pretrained(folder)
    word_tokenizer().save_pretrained(folder)
    return folder


def write_text(path: Path, words: int = 1200, seed: int = 0) -> Path:
    """A text of random words, ten a line."""
    draw = random.Random(seed)
    lines = [" ".join(draw.choices(WORDS, k=10)) for _ in range(words // 10)]
    path.write_text("\n".join(lines) + "\n")
    return path
