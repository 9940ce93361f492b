"""Exported files give what the model gives: every class, any length, with padding, step by step."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch

from linformer_kit import LinformerAttention, LinformerDecoder, LinformerEncoder, models
from linformer_kit.export import ExportError, exporter
from linformer_kit.export.exporter import TRACED, export_onnx
from linformer_kit.export.runtime import OnnxModel

from .tiny import CAUSAL, ENCODERS, SEQ2SEQ, tiny, tokens

# An export takes ten seconds; two heads are tried each time, all of them by `make test-slow`.
QUICK = ("LinformerForMaskedLM", "LinformerForSequenceClassification")
EACH_ENCODER = [
    name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in ENCODERS
]
MASK = (torch.arange(11) < torch.tensor([[11], [6]])).long()


def test_every_class_of_models_is_here():
    assert {*ENCODERS, *CAUSAL, *SEQ2SEQ, "LinformerConfig", "LinformerCache"} == {*models.__all__}


@pytest.mark.parametrize("name", EACH_ENCODER)
def test_an_encoder_and_its_head_at_other_lengths_with_padding(name, tmp_path):
    model = tiny(name, neighbours=5, moving_average=True)
    (file,) = export_onnx(model, tmp_path / "model.onnx")
    assert file.difference.largest <= 1e-4
    assert TRACED[1] not in file.difference.lengths
    running = OnnxModel(file.path)
    assert running.facts["class"] == name
    ids, mask = tokens(2, 11), MASK
    if name == "LinformerForMultipleChoice":
        ids, mask = ids[:, None].repeat(1, 2, 1), mask[:, None].repeat(1, 2, 1)
    with torch.no_grad():
        expected = model(ids, attention_mask=mask)
    outputs = running(input_ids=ids.numpy(), attention_mask=mask.numpy())
    assert list(outputs) == list(expected)
    for output, tensor in outputs.items():
        np.testing.assert_allclose(tensor, expected[output].numpy(), atol=1e-4)
    changed = torch.where(mask.bool(), ids, 7)
    again = running(input_ids=changed.numpy(), attention_mask=mask.numpy())
    first = next(iter(outputs))
    np.testing.assert_array_equal(again[first], outputs[first])
    if name == "LinformerForMaskedLM":
        alone = running(input_ids=ids[1:, :6].numpy())  # the mask of ones may be left out
        np.testing.assert_allclose(alone["logits"][0], outputs["logits"][1, :6], atol=1e-4)


def test_features_instead_of_tokens(tmp_path):
    model = tiny("LinformerForSequenceClassification", feature_size=3, pooling="mean")
    (file,) = export_onnx(model, tmp_path / "model.onnx")
    x = torch.randn(2, 9, 3)
    with torch.no_grad():
        expected = model(inputs_embeds=x).logits.numpy()
    np.testing.assert_allclose(
        OnnxModel(file.path)(inputs_embeds=x.numpy())["logits"], expected, atol=1e-4
    )


def until(row, ends: list[int]) -> list[int]:
    """A text with its end. (After it torch's beams are filled with an end token, not padding.)"""
    text = [int(token) for token in row]
    return text[: next((i + 1 for i, token in enumerate(text) if token in ends), None)]


def test_a_causal_model_writes_what_it_writes_in_torch(tmp_path):
    model = tiny("LinformerForCausalLM")
    (file,) = export_onnx(model, tmp_path / "model.onnx")
    assert file.difference.largest <= 1e-4
    running = OnnxModel(file.path)
    prompt = tokens(2, 11)
    mask = MASK.flip(1)  # padding on the left
    expected = model.generate(prompt, attention_mask=mask, max_new_tokens=20, do_sample=False)
    made = running.generate(prompt.numpy(), mask.numpy(), max_new_tokens=20)
    np.testing.assert_array_equal(made, expected[:, 11:].numpy())
    ends = [int(made[0, 3]), int(made[1, 6])]  # any of several tokens may end a text
    for how in ({}, {"num_beams": 2, "length_penalty": 1.0}):
        asked = {"max_new_tokens": 20, "eos_token_id": ends, **how}
        torch_s = model.generate(prompt, attention_mask=mask, do_sample=False, **asked)[:, 11:]
        ours = running.generate(prompt.numpy(), mask.numpy(), **asked)
        assert [until(row, ends) for row in ours] == [until(row, ends) for row in torch_s]
    drawn = [
        running.generate(prompt.numpy(), max_new_tokens=8, temperature=2.0, seed=seed)
        for seed in (1, 1, 2)
    ]
    assert (drawn[0] == drawn[1]).all()
    assert drawn[0].tolist() != drawn[2].tolist()
    coldest = running.generate(prompt.numpy(), max_new_tokens=8, temperature=1e-320)
    assert (coldest == running.generate(prompt.numpy(), max_new_tokens=8)).all()
    state = running.first_state(2)
    size = sum(part.nbytes for part in state.values())
    _, state = running.read(tokens(2, 30).numpy(), None, state)
    assert sum(part.nbytes for part in state.values()) == size


def test_learned_positions_end_the_text_of_a_causal_model(tmp_path):
    model = tiny("LinformerForCausalLM", position_embedding_type="learned")
    export_onnx(model, tmp_path / "model.onnx")
    running = OnnxModel(tmp_path / "model.onnx")
    assert running.generate(tokens(1, 40).numpy(), max_new_tokens=1).shape == (1, 1)
    with pytest.raises(ExportError, match=r"at most 40 positions: got 41. Shorten the input, or"):
        running.generate(tokens(1, 41).numpy(), max_new_tokens=1)
    with pytest.raises(ExportError, match=r"at most 40 positions: got 38 and 4 to write"):
        running.generate(tokens(1, 38).numpy(), max_new_tokens=4)


def test_a_translation_is_the_same_as_in_torch_greedy_and_by_beams(tmp_path):
    model = tiny("LinformerForConditionalGeneration")
    files = export_onnx(model, tmp_path / "model.onnx")
    assert {file.graph: file.path.name for file in files} == {
        "step": "model.onnx",
        "encoder": "model.encoder.onnx",
    }
    assert all(file.difference.largest <= 1e-4 for file in files)
    running = OnnxModel(tmp_path / "model.onnx")
    with pytest.raises(ExportError, match="at most 40 positions: got 41"):
        running.generate(tokens(1, 41).numpy(), max_new_tokens=1)
    source = tokens(2, 11)
    for options in ({}, {"num_beams": 3, "length_penalty": 1.0}):
        expected = model.generate(
            source, attention_mask=MASK, max_new_tokens=12, do_sample=False, **options
        )[:, 1:]
        made = running.generate(source.numpy(), MASK.numpy(), max_new_tokens=12, **options)
        assert made.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "projection",
    ["linear"]
    + [
        pytest.param(kind, marks=pytest.mark.slow)
        for kind in ("conv", "mean", "max", "pool", "fixed", "dynamic", "full")
    ],
)
def test_the_core_s_encoder_with_grouped_heads(projection, tmp_path):
    encoder = LinformerEncoder(
        dim=32,
        depth=2,
        num_heads=4,
        num_kv_heads=2,
        max_length=40,
        k=[4, 4] if projection == "conv" else [4, 3],
        projection=projection,
        positions="sinusoidal",
        activation="swiglu",
    )
    (file,) = export_onnx(encoder, tmp_path / "model.onnx")
    x, mask = torch.randn(3, 40, 32), torch.arange(40) < torch.tensor([[40], [9], [0]])
    with torch.no_grad():
        expected = encoder.eval()(x, mask=mask).numpy()
    np.testing.assert_allclose(
        OnnxModel(file.path)(x=x.numpy(), mask=mask.numpy())["y"], expected, atol=1e-4
    )


@pytest.mark.parametrize(
    "options",
    [
        {"cross_attention": True, "context_projection": "mean", "context_max_length": 16},
        pytest.param({"attention": "full"}, marks=pytest.mark.slow),
        pytest.param(
            {"cross_attention": True, "context_projection": "full", "context_dim": 8},
            marks=pytest.mark.slow,
        ),
    ],
)
def test_the_core_s_decoder_goes_on_from_its_own_state(options, tmp_path):
    decoder = LinformerDecoder(dim=32, depth=2, num_heads=4, k=4, window=4, **options).eval()
    export_onnx(decoder, tmp_path / "model.onnx")
    running = OnnxModel(tmp_path / "model.onnx")
    x = torch.randn(2, 14, 32)
    context = torch.randn(2, 11, options.get("context_dim", 32))
    given = {"context": context} if "cross_attention" in options else {}
    with torch.no_grad():
        expected = decoder(x, **given)
    state = running.first_state(2, **{name: tensor.numpy() for name, tensor in given.items()})
    for place in range(14):
        row, state = running.step(x[:, place].numpy(), state)
        np.testing.assert_allclose(row, expected[:, place].numpy(), atol=1e-4)


def test_eight_bits_cost_little_and_are_told(tmp_path):
    sizes = {"vocab_size": 8000, "hidden_size": 256, "intermediate_size": 1024}
    model = tiny("LinformerForMaskedLM", **sizes, initializer_range=0.1).bfloat16()
    (file,) = export_onnx(model, tmp_path / "model.onnx", int8=True)
    assert next(model.parameters()).dtype == torch.bfloat16  # left as it was
    assert file.int8.path == tmp_path / "model.int8.onnx"
    assert file.int8.size < 0.3 * file.size
    assert 0 < file.int8.cost.mean < 0.1 * file.int8.cost.output
    assert file.int8.cost.same > 0.8
    ids = tokens(1, 9).numpy()
    exact, rounded = (OnnxModel(p)(input_ids=ids)["logits"] for p in (file.path, file.int8.path))
    assert 0 < np.abs(exact - rounded).max() <= 2 * file.int8.cost.largest


def test_what_differs_from_the_model_is_not_written(tmp_path, monkeypatch):
    monkeypatch.setattr(exporter, "TOLERANCE", 0.0)
    encoder = LinformerEncoder(dim=8, depth=1, num_heads=2, max_length=8, k=2)
    with pytest.raises(ExportError, match=r"differs from the model by .* nothing was written"):
        export_onnx(encoder, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_exported_is_refused(tmp_path):
    attention = LinformerAttention(dim=8, num_heads=2, max_length=8, k=2)
    with pytest.raises(ExportError, match=r"linformer_kit.models: got LinformerAttention"):
        export_onnx(attention, tmp_path / "model.onnx")
    encoder = LinformerEncoder(dim=8, depth=1, num_heads=2, max_length=8, k=2)
    with pytest.raises(ExportError, match=r"must end in .onnx: got .*model.pt"):
        export_onnx(encoder, tmp_path / "model.pt")
    (tmp_path / "folder.onnx").mkdir()
    with pytest.raises(IsADirectoryError):
        export_onnx(encoder, tmp_path / "folder.onnx")


def test_files_that_are_not_ours_are_refused(tmp_path):
    (tmp_path / "no.onnx").write_bytes(b"nothing")
    with pytest.raises(ExportError, match="is not an ONNX file: "):
        OnnxModel(tmp_path / "no.onnx")
    with pytest.raises(ExportError, match="there is no file"):
        OnnxModel(tmp_path / "none.onnx")


def test_metadata_are_plain_json(tmp_path):
    import onnx

    model = tiny("LinformerForSequenceClassification", id2label={0: "no", 1: "yes"})
    export_onnx(model, tmp_path / "model.onnx")
    told = {entry.key: entry.value for entry in onnx.load(tmp_path / "model.onnx").metadata_props}
    facts = json.loads(told["linformer_kit"])
    assert facts["id2label"] == {"0": "no", "1": "yes"}
    running = OnnxModel(tmp_path / "model.onnx")
    with pytest.raises(
        ExportError, match="this model takes input_ids, attention_mask, token_type_ids: got x"
    ):
        running(x=np.zeros((1, 3)))
    with pytest.raises(ExportError, match="cannot run this input"):
        running(input_ids=np.full((1, 3), 50))  # not in the vocabulary
    with pytest.raises(ExportError, match=r"at most 40 positions: got 41. Shorten the input, or"):
        running(input_ids=np.zeros((1, 41), "int64"))
