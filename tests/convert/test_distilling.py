"""Distillation moves a converted model towards its teacher, which stays as it is."""

from __future__ import annotations

import pytest
import torch

from linformer_kit.convert import convert, distill
from linformer_kit.convert.distillation import agreement, hidden_loss, relative_error

from .pretrained import batch, pretrained


def test_the_student_comes_nearer_and_the_teacher_is_not_changed():
    teacher = pretrained("Bert")
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}
    student = convert(teacher, k=4, window=2, global_tokens=0)
    inputs = batch(20)
    mask = inputs["attention_mask"]

    def score() -> float:
        with torch.no_grad():
            ours, theirs = student(**inputs), teacher(**inputs)
        return agreement(ours.last_hidden_state, theirs.last_hidden_state, mask)["token_cosine"]

    untrained = score()
    lines: list[str] = []
    found = distill(student, teacher, [inputs], steps=60, lr=3e-3, say=lines.append)
    assert score() > untrained + 0.5 * (1 - untrained)
    assert found["token_cosine"] > untrained
    assert lines[0].startswith("step 0")
    assert not student.training
    for name, tensor in teacher.state_dict().items():
        torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)


def test_equal_states_have_no_loss_and_padding_does_not_count():
    states = [torch.randn(2, 6, 4) for _ in range(3)]
    mask = torch.ones(2, 6)
    mask[1, 4:] = 0
    changed = [state.clone() for state in states]
    for state in changed:
        state[1, 4:] = 100.0
    assert hidden_loss(changed, states, mask) == pytest.approx(0.0, abs=1e-6)
    shifted = states[1] + (states[1] - states[1].mean()) * 0
    assert relative_error(shifted, states[1], mask) == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "give one of minutes and steps"),
        ({"steps": 3, "minutes": 1.0}, "give one of minutes and steps"),
        ({"minutes": 0}, "minutes must be above 0: got 0"),
        ({"steps": 0}, "steps must be at least 1: got 0"),
    ],
)
def test_how_long_is_checked(options, message):
    teacher = pretrained("Bert")
    with pytest.raises(ValueError, match=message):
        distill(convert(teacher, k=4, window=2), teacher, [batch()], **options)


def test_data_is_needed_and_texts_need_a_tokenizer():
    teacher = pretrained("Bert")
    student = convert(teacher, k=4, window=2)
    with pytest.raises(ValueError, match="need data: got none"):
        distill(student, teacher, [], steps=1)
    with pytest.raises(ValueError, match="texts need a tokenizer"):
        distill(student, teacher, ["a text"], steps=1)
