"""Texts that are written token by token, against decoding them whole."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from linformer_kit.serve.generation import Sampling, TorchDecoder, Writing, _NewText, _Stops


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens, skip_special_tokens=True):
        return bytes(tokens).decode("utf-8", "replace")


@given(st.text(max_size=9), st.text(max_size=40))
@settings(max_examples=30, deadline=None)
def test_pieces_join_to_the_text(before, text):
    new = _NewText(Bytes(), list(before.encode())[-8:])
    pieces = [new.add(byte) for byte in text.encode()]
    assert "".join(pieces) + new.rest() == text


@given(
    st.lists(st.text("ab", max_size=4), max_size=8),
    st.lists(st.text("ab", min_size=1, max_size=3), max_size=3),
)
@settings(max_examples=100, deadline=None)
def test_text_ends_before_the_first_stop_string(pieces, stops):
    held = _Stops(stops)
    made = ""
    for piece in pieces:
        made += held.add(piece)
    made += held.rest()
    whole = "".join(pieces)
    # Stops are looked for as the text grows: the one that is complete first ends it.
    ends = [end for end in range(len(whole) + 1) if any(whole[:end].endswith(s) for s in stops)]
    if not ends:
        assert made == whole
        assert not held.found
    else:
        assert held.found
        assert whole.startswith(made)
        assert not any(stop in made for stop in stops)


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
