"""Calibration sets the weights of `pool` from the queries of real inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit.convert import calibrate, convert, distill, linformerize
from linformer_kit.convert.calibration import needs_calibration
from linformer_kit.convert.swapped import SwappedAttention

from .pretrained import batch, pretrained

if TYPE_CHECKING:
    import transformers


def contrasted() -> transformers.PreTrainedModel:
    """A BERT whose tokens differ, so that it matters which of them a query sees."""
    model = pretrained("Bert")
    with torch.no_grad():
        model.embeddings.word_embeddings.weight.mul_(4)
        for name, parameter in model.named_parameters():
            if name.endswith("LayerNorm.weight"):
                parameter.fill_(1.0)
    return model


def test_the_weights_are_the_mean_query_seen_through_the_keys():
    teacher = pretrained("Bert")
    student = convert(teacher, k=4, window=2, projection="pool")
    inputs = batch(20)
    assert needs_calibration(student)
    assert calibrate(student, [inputs]) == 3
    assert not needs_calibration(student)
    layer = student.encoder.layers[0].attention
    with torch.no_grad():  # the first layer reads the embeddings
        rows = teacher.embeddings(inputs["input_ids"])[inputs["attention_mask"].bool()]
        query = layer.q_proj(rows).mean(0)
        x = torch.randn(16)
        for head, weight in enumerate(layer.projection.weight[0]):
            own = slice(4 * head, 4 * head + 4)
            score = query[own] @ (layer.k_proj.weight[own] @ x) / 2
            assert_close(weight @ x, score, rtol=1e-4, atol=1e-5)


def test_calibrated_rows_are_nearer_to_the_original_than_means():
    teacher = contrasted()
    ids = torch.randint(5, 60, (8, 20), generator=torch.Generator().manual_seed(2))
    errors = {}
    for projection in ("mean", "pool"):
        student = convert(teacher, k=4, window=2, projection=projection).eval()
        calibrate(student, [ids[:4]])
        with torch.no_grad():
            ours, theirs = (model(ids[4:]).last_hidden_state for model in (student, teacher))
        errors[projection] = (ours - theirs).square().mean().item()
    assert errors["pool"] < 0.9 * errors["mean"]


def test_swapped_attention_has_the_weights_of_the_converted_model():
    """One reads keys, the other the input of W_k: the same segments, the same outputs."""
    teacher = contrasted()
    converted = convert(teacher, k=4, window=2, projection="pool").eval()
    swapped = linformerize(contrasted(), max_length=20, k=4, window=2, projection="pool")
    ids = torch.randint(5, 60, (2, 20), generator=torch.Generator().manual_seed(2))
    assert calibrate(converted, [ids]) == calibrate(swapped, [ids]) == 3
    with torch.no_grad():
        ours, theirs = (model(ids).last_hidden_state for model in (converted, swapped))
    assert_close(ours, theirs, rtol=1e-3, atol=1e-3)


def test_models_without_pool_are_left_alone():
    student = convert(pretrained("Bert"), k=4, window=2)
    before = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    assert not needs_calibration(student)
    assert calibrate(student, [batch()]) == 0
    for name, tensor in student.state_dict().items():
        assert_close(tensor, before[name], rtol=0, atol=0)


def test_distillation_calibrates_first():
    teacher = pretrained("Bert")
    student = convert(teacher, k=4, window=2, projection="pool")
    distill(student, teacher, [batch(20)], steps=1, lr=1e-8)
    expected = convert(teacher, k=4, window=2, projection="pool")
    calibrate(expected, [batch(20)])
    ours, wanted = (m.encoder.layers[0].attention.projection.weight for m in (student, expected))
    assert_close(ours, wanted, rtol=1e-4, atol=1e-4)


def transformer(seed: int = 0) -> nn.TransformerEncoder:
    torch.manual_seed(seed)
    layer = nn.TransformerEncoderLayer(16, 4, 24, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.4)
    return model


@pytest.mark.parametrize("projection", ["mean", "pool"])
def test_a_torch_encoder_is_distilled_in_place(projection):
    teacher, x = transformer(), torch.randn(4, 20, 16)
    student = linformerize(transformer(), max_length=20, k=2, window=1, projection=projection)
    before = {name: tensor.clone() for name, tensor in teacher.state_dict().items()}

    def error() -> float:
        with torch.no_grad():
            return float((student(x) - teacher(x)).square().mean())

    calibrate(student, [x])
    untrained = error()
    found = distill(student, teacher, [x], steps=30, lr=5e-3)
    assert error() < 0.5 * untrained
    assert 0 < found["token_cosine"] <= 1
    for name, tensor in teacher.state_dict().items():
        assert_close(tensor, before[name], rtol=0, atol=0)
    assert any(isinstance(module, SwappedAttention) for module in student.modules())


def test_a_hugging_face_model_is_distilled_in_place_and_padding_does_not_count():
    teacher, inputs = contrasted(), batch(20)
    student = linformerize(contrasted(), max_length=20, k=2, window=1, global_tokens=0)
    real = inputs["attention_mask"].bool()

    def error() -> float:
        with torch.no_grad():
            ours, theirs = (m(**inputs).last_hidden_state[real] for m in (student, teacher))
        return float((ours - theirs).square().mean())

    untrained = error()
    distill(student, teacher, [inputs], steps=30, lr=5e-3)
    assert error() < 0.5 * untrained
