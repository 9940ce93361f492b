"""The batch of a step follows from the seed, the step and the progress."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from linformer_kit.convert.step_batches import LONG_EVERY, StepBatches, StepNumbers, lengths_up_to
from linformer_kit.convert.training_text import read_text
from linformer_kit.data.masking import Masking

from .pretrained import word_tokenizer, write_text


@pytest.fixture
def text(tmp_path):
    file = write_text(tmp_path / "a.txt", 2000)
    return read_text([str(file)], word_tokenizer(), length=20, longest=80)


def batches(text, **options):
    options = {"longest": 80, "batch_size": 4, "progress": lambda step: step / 40, **options}
    return StepBatches(text, pad_id=0, seed=0, **options)


@pytest.mark.parametrize(
    ("short", "longest", "lengths"),
    [
        (20, 20, [20]),
        (20, 30, [20, 30]),
        (20, 80, [20, 40, 80]),
        (512, 3000, [512, 1024, 2048, 3000]),
    ],
)
def test_lengths_double(short, longest, lengths):
    assert lengths_up_to(short, longest) == lengths


def test_long_rows_follow_the_layers_and_take_turns(text):
    found = [batches(text)[step]["input_ids"].shape for step in range(40)]
    assert {shape[1] for shape in found[:8]} == {20}  # the first fifth: layers
    long = {step: shape for step, shape in enumerate(found) if shape[1] > 20}
    assert [step for step in range(8, 40) if step % LONG_EVERY == LONG_EVERY - 1] == list(long)
    assert {tuple(shape) for shape in long.values()} == {(2, 40), (1, 80)}  # 80 tokens a step


def test_a_batch_is_the_same_whenever_it_is_asked_for(text):
    first, again = batches(text), batches(text)
    for step in (31, 3, 17, 3):
        for name, tensor in first[step].items():
            assert torch.equal(tensor, again[step][name])
    other = StepBatches(
        text, longest=80, batch_size=4, pad_id=0, seed=1, progress=lambda step: step / 40
    )
    assert not torch.equal(other[0]["input_ids"], first[0]["input_ids"])


def test_long_rows_of_masked_language_models_are_masked(text):
    masking = Masking(mask_id=4, vocab_size=20, special_ids=(0, 1, 2, 3, 4))
    found = batches(text, masking=masking)
    assert "labels" not in found[0]
    batch = found[11]
    asked = batch["labels"] != -100
    assert 0.05 < asked.float().mean() < 0.3
    assert (batch["input_ids"][asked] == 4).float().mean() > 0.5
    rows = {tuple(row.tolist()) for row in text.rows(batch["input_ids"].shape[1])}
    restored = torch.where(asked, batch["labels"], batch["input_ids"])
    assert all(tuple(row.tolist()) in rows for row in restored)


def test_steps_are_numbered():
    assert list(StepNumbers(3)) == [[0], [1], [2]]
    assert len(StepNumbers(3)) == 3


def test_short_rows_are_all_read(text):
    found = batches(text, longest=20, progress=lambda _: 0.0)
    rows = {tuple(row.tolist()) for row in text.rows(20)}
    steps = -(-len(text.rows(20)) // 4)
    seen = {tuple(row.tolist()) for n in range(steps) for row in found[n]["input_ids"]}
    assert seen == rows
    assert np.mean([len(row) for row in text.rows(20)]) == 20
