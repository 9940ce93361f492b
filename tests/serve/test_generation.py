"""Texts that are written token by token, against decoding them whole."""

from __future__ import annotations

import pytest

from linformer_kit.serve.generation import Sampling, TorchDecoder, Writing


@pytest.fixture
def model(models):
    return models["clm"].predictor


def written(model, prompt, **sampling):
    tokenizer = model.tokenizer
    ids = tokenizer(prompt)["input_ids"]
    pieces = []
    writing = Writing(
        TorchDecoder(model.model), tokenizer, ids, Sampling(**sampling), [tokenizer.eos_token_id]
    )
    while writing.advance(pieces.append, lambda: False):
        pass
    return "".join(pieces), writing


def test_pauses_change_nothing(model):
    options = {"max_new_tokens": 20, "temperature": 1.0, "seed": 4}
    whole, _ = written(model, "The old dog", **options)
    ids = model.tokenizer("The old dog")["input_ids"]
    pieces = []
    writing = Writing(
        TorchDecoder(model.model), model.tokenizer, ids, Sampling(**options),
        [model.tokenizer.eos_token_id],
    )  # fmt: skip
    rounds = 0
    while writing.advance(pieces.append, lambda: True):
        rounds += 1
    assert "".join(pieces) == whole
    assert rounds >= 10


def test_a_small_top_p_is_greedy(model):
    greedy, _ = written(model, "The ", max_new_tokens=12)
    drawn, _ = written(model, "The ", max_new_tokens=12, temperature=1.0, top_p=0.0, seed=1)
    assert drawn == greedy


def test_the_state_does_not_grow(model):
    sizes = []
    for tokens in (40, 120):
        _, writing = written(model, "The ", max_new_tokens=tokens, temperature=0.0)
        sizes.append(writing.decoder.cache.nbytes)
    assert sizes[0] == sizes[1]
