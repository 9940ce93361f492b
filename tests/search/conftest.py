"""A tiny model folder of sentence-transformers, and documents."""

from __future__ import annotations

import pytest
import tokenizers
import torch
from transformers import PreTrainedTokenizerFast

from linformer_kit.models import LinformerConfig, LinformerForEmbedding

WORDS = (
    "the", "a", "of", "dog", "cat", "bird", "fish", "house", "river", "hill", "tree", "road", "two",
    "three", "runs", "sleeps", "old", "new",
)  # fmt: skip


def save_model(folder, seed=0):
    vocab = {w: place for place, w in enumerate(["<pad>", "<unk>", "<s>", "</s>", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>", unk_token="<unk>", bos_token="<s>", eos_token="</s>",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(seed)
    config = LinformerConfig(
        vocab_size=len(vocab), hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=24, k=8, pooling="mean", pad_token_id=0,
        type_vocab_size=0,
    )  # fmt: skip
    LinformerForEmbedding(config).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def documents(tmp_path):
    folder = tmp_path / "documents"
    (folder / "sub").mkdir(parents=True)
    (folder / "dog.txt").write_text("the dog runs of the old road. " * 3)
    house = "the house of the tree " * 30
    (folder / "sub/cat.md").write_bytes(f"a cat sleeps.\r\n{house}\n🐟 fish".encode())
    (folder / "bird.txt").write_text("two bird three bird")
    (folder / "photo.png").write_bytes(b"\x89PNG")
    return folder
