"""Vectors of texts, and their losses against the formulas."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from linformer_kit.models import LinformerConfig, LinformerForEmbedding
from linformer_kit.models.embedding import pair_loss


@pytest.fixture
def model():
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=24, k=8, pooling="mean",
        pad_token_id=0, type_vocab_size=0,
    )  # fmt: skip
    return LinformerForEmbedding(config).eval()


def batch(rows, length, pad=0):
    ids = torch.randint(5, 50, (rows, length))
    return F.pad(ids, (0, pad)), F.pad(torch.ones_like(ids), (0, pad))


def test_vectors_have_norm_1_and_ignore_padding(model):
    ids, mask = batch(3, 10, pad=6)
    found = model(ids, attention_mask=mask).embeddings
    torch.testing.assert_close(found.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(model(ids[:, :10]).embeddings, found, atol=1e-5, rtol=1e-5)
    hidden = model.linformer(ids[:, :10]).last_hidden_state
    torch.testing.assert_close(F.normalize(hidden.mean(1), dim=-1), found, atol=1e-5, rtol=1e-5)


def test_the_loss_of_pairs_is_that_of_in_batch_negatives():
    one, other = torch.randn(2, 5, 16)
    cosines = 20 * F.normalize(one, dim=1) @ F.normalize(other, dim=1).T
    right = torch.arange(5)
    both = F.cross_entropy(cosines, right) + F.cross_entropy(cosines.T, right)
    torch.testing.assert_close(pair_loss([one, other], (), 20.0), both / 2)
    wrong = torch.randn(5, 16)
    more = torch.cat([cosines, 20 * F.normalize(one, dim=1) @ F.normalize(wrong, dim=1).T], 1)
    expected = F.cross_entropy(more, right)
    torch.testing.assert_close(pair_loss([one, other, wrong], (), 20.0), expected)


def test_matryoshka_adds_the_losses_of_the_first_components():
    one, other = torch.randn(2, 5, 16)
    sizes = (16, 4)
    expected = sum(pair_loss([one[:, :size], other[:, :size]], (), 20.0) for size in sizes)
    torch.testing.assert_close(pair_loss([one, other], sizes, 20.0), expected)


def test_both_sides_have_a_gradient(model):
    model.train()
    (ids, mask), (others, other_mask) = batch(4, 8), batch(4, 12)
    loss = model(ids, mask, positive_input_ids=others, positive_attention_mask=other_mask).loss
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_a_saved_folder_is_one_of_sentence_transformers(model, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    vocab = {f"w{place}": place for place in range(50)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="w1"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=made, pad_token="w0", unk_token="w1").save_pretrained(
        tmp_path
    )
    model.save_pretrained(tmp_path)
    loaded = sentence_transformers.SentenceTransformer(str(tmp_path), device="cpu")
    assert loaded.max_seq_length == 24
    found = loaded.encode(["w7 w8 w9", "w5 w5"])
    for text, vector in (("w7 w8 w9", found[0]), ("w5 w5", found[1])):
        ids = torch.tensor([[int(word[1:]) for word in text.split()]])
        with torch.no_grad():
            own = model(ids).embeddings[0].numpy()
        np.testing.assert_allclose(vector, own, atol=1e-5)
