"""Texts that are written token by token: the tokens of a seed stay, whoever writes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from linformer_kit.export.runtime import OnnxDecoder, OnnxModel
from linformer_kit.generation import ShownText
from linformer_kit.serve.generation import Sampling, TorchDecoder, Writing

SIZE, END = 26, 2


class Letters:
    """A tokenizer of one letter a token."""

    def decode(self, tokens, skip_special_tokens=True):
        return "".join(chr(97 + int(token)) for token in tokens)


class Exported(OnnxModel):
    """Logits from a table by the last token and the sum of all; nothing is computed, so that the
    same tokens are written on every processor."""

    kind = "causal"
    facts = {"eos_token_id": END, "pad_token_id": 0}  # noqa: RUF012

    def __init__(self):
        table = (
            np.random.default_rng(3).integers(-8, 9, (SIZE, SIZE, SIZE)) / 4 + np.arange(SIZE) / 32
        )
        table[..., END] -= 1.0
        self.table = table.astype("float32")

    def first_state(self, batch=1, **source):
        return {"sum": np.zeros((batch, 1), "int64")}

    def step(self, token, state):
        total = state["sum"] + token[:, None]
        return self.table[token, total[:, 0] % SIZE], {"sum": total}


class InTorch:
    """The same as a causal model in torch."""

    device = "cpu"

    def __init__(self):
        self.graph = Exported()
        self.state = self.graph.first_state()

    def __call__(self, *, input_ids, past_key_values, use_cache, logits_to_keep):
        for token in input_ids[0].numpy():
            logits, self.state = self.graph.step(np.array([token]), self.state)
        return SimpleNamespace(logits=torch.from_numpy(logits)[:, None])


DECODERS = {"torch": lambda: TorchDecoder(InTorch()), "onnx": lambda: OnnxDecoder(Exported())}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize(
    ("sampling", "text", "reason", "count"),
    [
        ({}, "zlzmsvnvouxntxrkqxzy", "length", 20),
        ({"temperature": 1.0, "seed": 4}, "nzxfitmrvguakjbrmoup", "length", 20),
        ({"temperature": 1.0, "seed": 5}, "wjxavsoqbkasgqwixohs", "length", 20),
        ({"temperature": 0.7, "top_p": 0.6, "seed": 4}, "pwxpblttenwbnmvroyep", "length", 20),
        ({"temperature": 2.0, "top_p": 0.9, "seed": 1}, "atu", "stop", 4),
        ({"temperature": 3.0, "seed": 1, "max_new_tokens": 3}, "ajh", "length", 3),
        ({"temperature": 3.0, "seed": 1, "stop": ("rg", "o", "ka")}, "ajh", "stop", 4),
    ],
)
def test_a_served_text_is_that_of_its_seed(decoder, sampling, text, reason, count):
    pieces = []
    writing = Writing(
        DECODERS[decoder](),
        Letters(),
        [3, 5, 7],
        Sampling(**{"max_new_tokens": 20} | sampling),
        [END],
    )
    while writing.advance(pieces.append, lambda: True):
        pass
    assert ("".join(pieces), writing.finish_reason, writing.written) == (text, reason, count)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [[25, 11, 25, 12, 18, 21, 13, 21, 14], [25, 21, 13, 22, 18, 4, 15, 22, 20]]),
        (
            {"temperature": 1.0, "seed": 4},
            [[25, 24, 16, 17, 23, 24, 12, 25, 25], [17, 0, 14, 5, 20, 19, 20, 14, 24]],
        ),
        (
            {"temperature": 0.5, "seed": 5},
            [[25, 11, 6, 16, 0, 22, 17, 23, 18], [25, 17, 11, 3, 23, 14, 25, 25, 21]],
        ),
        (
            {"num_beams": 3},
            [[11, 25, 13, 18, 15, 19, 25, 22, 19], [25, 20, 22, 18, 11, 11, 19, 17, 12]],
        ),
        (
            {"num_beams": 2, "length_penalty": 0.0, "eos_token_id": [2, 5]},
            [[15, 22, 20, 17, 15, 18, 6, 4, 25], [25, 21, 13, 22, 18, 4, 20, 22, 18]],
        ),
    ],
)
def test_an_exported_model_writes_the_tokens_of_its_seed(options, expected):
    ids = np.array([[3, 5, 7], [0, 4, 9]])
    made = Exported().generate(ids, np.array([[1, 1, 1], [0, 1, 1]]), max_new_tokens=9, **options)
    assert made.tolist() == expected


class Bytes:
    """A tokenizer whose tokens are bytes."""

    def decode(self, tokens, skip_special_tokens=True):
        return bytes(tokens).decode("utf-8", "replace")


@given(st.text(max_size=9), st.text(max_size=40))
@settings(max_examples=30, deadline=None)
def test_pieces_join_to_the_text(before, text):
    shown = ShownText(Bytes(), list(before.encode()))
    pieces = [shown.add(byte) for byte in text.encode()]
    assert "".join(pieces) + shown.rest() == text


@given(st.text("ab", max_size=32), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3))
@settings(max_examples=100, deadline=None)
def test_text_ends_before_the_first_stop_string(text, stops):
    shown = ShownText(Bytes(), [], stops)
    made = "".join(shown.add(byte) for byte in text.encode()) + shown.rest()
    # Stops are looked for as the text grows: the one that is complete first ends it.
    ends = [end for end in range(len(text) + 1) if any(text[:end].endswith(s) for s in stops)]
    assert shown.stopped == bool(ends)
    if not ends:
        assert made == text
    else:
        assert text.startswith(made)
        assert not any(stop in made for stop in stops)
