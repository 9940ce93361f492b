"""What auto chooses: layers that keep full attention, and k for each layer."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit.convert import convert
from linformer_kit.convert.choices import (
    errors_alone,
    halves,
    k_by_spectrum,
    spectrum_of,
    worst_layers,
)
from linformer_kit.convert.distillation import relative_error
from linformer_kit.convert.source import Rehomed, Settings
from linformer_kit.errors import UserError

from .pretrained import pretrained, word_tokenizer

SETTINGS = Settings(
    max_length=20, k=2, window=1, global_tokens=0, projection="mean", full_layers=[],
    positions="copy",
)  # fmt: skip


@pytest.fixture(scope="module")
def source():
    return Rehomed("bert", pretrained("Bert"), word_tokenizer(), 20)


@pytest.fixture(scope="module")
def rows():
    draw = np.random.default_rng(0)
    return [draw.integers(5, 20, size=20) for _ in range(4)]


def test_the_error_of_a_layer_is_that_of_the_model_with_this_layer_alone_exchanged(source, rows):
    found = errors_alone(source, SETTINGS, rows)
    assert len(found) == 3
    for layer, error in enumerate(found):
        others = [n for n in range(3) if n != layer]
        student = convert(source.teacher, k=2, window=1, global_tokens=0, full_layers=others).eval()
        ids = torch.tensor(np.stack(rows))
        with torch.no_grad():
            ours, theirs = (m(ids).last_hidden_state for m in (student, source.teacher))
        mask = torch.ones(1, 20)
        each = [relative_error(a[None], b[None], mask) for a, b in zip(ours, theirs, strict=True)]
        assert error == pytest.approx(float(torch.stack(each).mean()), rel=1e-3)


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ([1.0, 1.0, 1.0, 1.0], []),
        ([5.0, 1.0, 1.0, 1.0], [0]),
        ([5.0, 1.0, 6.0, 1.0, 1.0, 1.0], [0, 2]),  # at most a quarter, rounded up: 2 of 6
        ([5.0, 1.0, 6.0, 7.0, 1.0, 1.0, 1.0, 1.0], [2, 3]),
        ([1.9, 1.0, 1.0, 1.0], []),
        ([9.0], []),  # something has to be exchanged
    ],
)
def test_layers_far_above_the_median_keep_full_attention(errors, kept):
    assert worst_layers(errors) == kept


def test_rows_to_choose_on_are_not_those_to_measure_on(rows):
    choose, measure = halves(rows)
    assert [id(row) for row in (*choose, *measure)] == [id(rows[n]) for n in (0, 2, 1, 3)]
    with pytest.raises(UserError, match="auto needs two held-out rows"):
        halves(rows[:1])


def test_k_is_the_rank_that_keeps_90_percent_of_the_singular_values(source, rows):
    record = spectrum_of(source, rows, seed=0)
    ids = torch.tensor(np.stack(rows))
    model = pretrained("Bert")
    model.set_attn_implementation("eager")
    with torch.no_grad():
        weights = model(ids, output_attentions=True).attentions
    expected = []
    for layer in weights:  # (B, H, N, N)
        values = torch.linalg.svdvals(layer.double())
        kept = (values.cumsum(-1) / values.sum(-1, keepdim=True)).mean((0, 1))
        rank = int((kept < 0.9).sum()) + 1
        expected.append(min(20, 16 * -(-rank // 16)))
    assert k_by_spectrum(record, 20) == expected
    assert k_by_spectrum(record, 8) == [8, 8, 8]
