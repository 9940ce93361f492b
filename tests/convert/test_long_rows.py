"""Rows longer than the teacher reads: its states in overlapping chunks."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.convert import convert
from linformer_kit.convert.long_rows import (
    MASKED_LM_WEIGHT,
    chunk_starts,
    chunked_states,
    long_loss,
)
from linformer_kit.models.text_input import Frame

from .pretrained import pretrained

FRAME = Frame((2,), (3,))


@pytest.mark.parametrize(
    ("length", "chunk", "starts"),
    [
        (10, 18, [0]),
        (18, 18, [0]),
        (19, 18, [0, 1]),
        (40, 18, [0, 9, 18, 22]),
        (5, 1, [0, 1, 2, 3, 4]),
    ],
)
def test_chunks_overlap_by_half_and_cover_the_text(length, chunk, starts):
    assert chunk_starts(length, chunk) == starts
    covered = {place for start in starts for place in range(start, start + chunk)}
    assert covered >= set(range(length))


def test_a_token_has_the_state_of_the_chunk_where_it_is_nearest_to_the_middle():
    teacher = pretrained("Bert")
    text = torch.randint(5, 60, (2, 40), generator=torch.Generator().manual_seed(0))
    head, tail = torch.full((2, 1), 2), torch.full((2, 1), 3)
    ids = torch.cat([head, text, tail], dim=1)
    found = chunked_states(teacher, ids, chunk=20, frame=FRAME)
    assert found.shape == (2, 42, 16)
    starts = chunk_starts(40, 18)
    with torch.no_grad():
        states = [
            teacher(torch.cat([head, text[:, s : s + 18], tail], dim=1)).last_hidden_state
            for s in starts
        ]
    for place in range(40):
        # The chunk whose middle is nearest, by a loop over all of them.
        inside = [n for n, s in enumerate(starts) if s <= place < s + 18]
        distances = {n: abs(place + 0.5 - (starts[n] + 9)) for n in inside}
        best = min(distances.values())
        near = [n for n in inside if distances[n] <= best + 0.5]
        errors = [
            (found[:, 1 + place] - states[n][:, 1 + place - starts[n]]).abs().max() for n in near
        ]
        assert min(errors) < 1e-5
    torch.testing.assert_close(found[:, 0], states[0][:, 0])
    torch.testing.assert_close(found[:, -1], states[-1][:, -1])


def test_a_row_that_the_teacher_reads_at_once_is_one_chunk():
    teacher = pretrained("Bert")
    ids = torch.randint(5, 60, (2, 20))
    with torch.no_grad():
        expected = teacher(ids).last_hidden_state
    torch.testing.assert_close(chunked_states(teacher, ids, chunk=20, frame=FRAME), expected)


def test_the_loss_of_a_masked_language_model_is_its_own():
    teacher = pretrained("Bert", "ForMaskedLM")
    student = convert(teacher, max_length=40, k=4, window=4)
    ids = torch.randint(5, 60, (1, 40))
    labels = torch.full_like(ids, -100)
    labels[0, 7] = ids[0, 7]
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "labels": labels}
    loss = long_loss(student, teacher, batch, chunk=20, frame=FRAME)
    logits = student(ids).logits[0, 7]
    expected = torch.nn.functional.cross_entropy(logits[None], ids[0, 7:8])
    torch.testing.assert_close(loss, MASKED_LM_WEIGHT * expected)


def test_the_loss_of_other_models_has_a_gradient_in_the_new_positions():
    teacher = pretrained("Bert")
    student = convert(teacher, max_length=40, k=4, window=4)
    ids = torch.randint(5, 60, (1, 40))
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    long_loss(student, teacher, batch, chunk=20, frame=FRAME).backward()
    assert student.embeddings.positions.weight.grad[20:].abs().sum(1).min() > 0
