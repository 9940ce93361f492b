"""Order, masking and padding: functions of (seed, step), the same for any number of processes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from linformer_kit.data.collate import Collate, pad
from linformer_kit.data.masking import IGNORED, Masking
from linformer_kit.data.order import POOL, TrainingOrder

LENGTHS = np.random.default_rng(0).integers(1, 100, size=50)


def order(micro=4, *, lengths=None, steps=40, rows=50, seed=0):
    return TrainingOrder(
        rows=rows, steps=steps, batch_size=8, micro=micro, seed=seed, lengths=lengths
    )


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_every_row_is_drawn_equally_often(lengths):
    steps = POOL * 50 // 8 * 8  # whole pools and whole epochs
    draws = [row for batch in order(lengths=lengths, steps=steps) for row, _ in batch]
    counts = np.bincount(draws, minlength=50)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("lengths", [None, LENGTHS])
def test_a_step_is_the_same_for_any_number_of_micro_batches(lengths):
    whole = list(order(8, lengths=lengths))
    halves = list(order(4, lengths=lengths))
    assert [a + b for a, b in zip(halves[::2], halves[1::2], strict=True)] == whole
    assert order(8, lengths=lengths).step(17) == whole[17]
    assert whole != list(order(8, lengths=lengths, seed=1))


def test_buckets_hold_rows_of_similar_length():
    rows = np.random.default_rng(1).integers(1, 1000, size=2000)

    def spread(lengths):
        batches = list(order(8, lengths=lengths, rows=2000, steps=POOL))
        return np.mean([np.ptp([rows[row] for row, _ in batch]) for batch in batches])

    assert spread(rows) < spread(None) / 10


def masking(**options):
    return Masking(mask_id=4, vocab_size=100, special_ids=(0, 1, 2, 3, 4), **options)


@given(st.integers(2, 200), st.integers(0, 10**9), st.booleans())
def test_masks_follow_from_the_draw_and_leave_special_tokens(length, draw, whole_words):
    random = np.random.default_rng(length)
    ids = random.integers(0, 100, size=length)
    starts = random.random(length) < 0.5
    mask = masking(whole_words=whole_words)
    seen, labels = mask(ids, starts, draw)
    again = mask(ids, starts, draw)
    np.testing.assert_array_equal(seen, again[0])
    chosen = labels != IGNORED
    np.testing.assert_array_equal(labels[chosen], ids[chosen])
    np.testing.assert_array_equal(seen[~chosen], ids[~chosen])
    assert not chosen[ids < 5].any()
    assert chosen.any() == (ids >= 5).any()


def test_the_shares_are_those_of_the_paper():
    ids = np.full(100_000, 50)
    seen, labels = masking()(ids, np.ones(len(ids), dtype=bool), 0)
    chosen = labels != IGNORED
    assert chosen.mean() == pytest.approx(0.15, abs=0.01)
    assert (seen[chosen] == 4).mean() == pytest.approx(0.8, abs=0.02)
    assert (seen[chosen] == 50).mean() == pytest.approx(0.1, abs=0.02)


def test_whole_words_are_masked_as_a_whole():
    starts = np.tile([True, False, False], 100)
    _, labels = masking(whole_words=True)(np.full(300, 50), starts, 7)
    chosen = (labels != IGNORED).reshape(100, 3)
    assert (chosen.all(1) == chosen.any(1)).all()
    assert chosen.mean() == pytest.approx(0.15, abs=0.02)


def test_a_batch_is_padded_to_its_longest():
    examples = [{"input_ids": np.array(ids), "labels": 1, "draw": 0} for ids in ([5, 6], [7, 8, 9])]
    batch = Collate("classify", pad_id=0)(examples)
    assert batch["input_ids"].tolist() == [[5, 6, 0], [7, 8, 9]]
    assert batch["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert pad([np.array([1])], 0).shape == (1, 1)
    causal = Collate("clm", pad_id=0)(examples)
    assert causal["labels"].tolist() == [[5, 6, IGNORED], [7, 8, 9]]
