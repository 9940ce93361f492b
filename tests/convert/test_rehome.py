"""A converted model has the pretrained weights, and its outputs where attention is exact."""

from __future__ import annotations

import warnings

import pytest
import torch
import transformers

from linformer_kit import models
from linformer_kit.convert import convert
from linformer_kit.convert.families import FAMILIES as TABLES
from linformer_kit.convert.family import expand
from linformer_kit.convert.positions import extend_positions
from linformer_kit.convert.rehome import to_pretrained

from .pretrained import FAMILIES, HEADS, batch, pretrained

CASES = [
    (family, head)
    for family in FAMILIES
    for head in HEADS
    if (family, head) != ("Electra", "ForMultipleChoice")  # another kind of head than all others
    and (family, head) != ("Albert", "ForMultipleChoice")
]


@pytest.mark.parametrize(("family", "head"), CASES)
def test_a_window_over_the_whole_input_gives_the_original_outputs(family, head):
    teacher = pretrained(family, head)
    student = convert(teacher, k=4, window=20)
    inputs = batch(pad=teacher.config.pad_token_id, choices=head == "ForMultipleChoice")
    with torch.no_grad():
        theirs, ours = teacher(**inputs), student(**inputs)
    real = inputs["attention_mask"].bool()
    for name, expected in theirs.items():
        found = ours[name]
        if expected.dim() > 1 and expected.shape[1] == real.shape[-1]:  # of each position
            expected, found = expected[real], found[real]
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("activation", ["relu", "gelu_new"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_words_are_predicted_with_the_activation_of_the_family(family, activation, tmp_path):
    name = "activation" if family == "DistilBert" else "hidden_act"
    teacher = pretrained(family, "ForMaskedLM", **{name: activation})
    convert(teacher, k=4, window=20).save_pretrained(tmp_path)
    student = models.LinformerForMaskedLM.from_pretrained(tmp_path)
    ids = batch()["input_ids"]
    with torch.no_grad():
        torch.testing.assert_close(student(ids).logits, teacher(ids).logits, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "Electra", "Albert"])
def test_the_dropout_of_a_classifier_comes_along(family):
    name = "classifier_dropout_prob" if family == "Albert" else "classifier_dropout"
    teacher = pretrained(family, "ForSequenceClassification", **{name: 0.3})
    assert convert(teacher, k=4, window=4).config.classifier_dropout == 0.3


@pytest.mark.parametrize(("family", "head"), CASES)
def test_the_tables_lead_back_to_every_tensor(family, head):
    teacher = pretrained(family, head)
    back = to_pretrained(convert(teacher, k=4, window=4, max_length=50), teacher)
    for name, tensor in teacher.state_dict().items():
        torch.testing.assert_close(back[name], tensor, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize("family", list(TABLES.values()), ids=lambda family: family.prefix)
def test_a_table_names_every_tensor_once(family):
    ours = expand(family.tensors, 2)
    assert all("{i}" not in name and "*" not in name for pair in ours.items() for name in pair)
    if family.prefix != "albert.":  # whose layers share their weights
        assert len(set(ours.values())) == len(ours)


def test_a_filter_starts_as_segment_means():
    teacher = pretrained("Bert")
    inputs = {"input_ids": batch(20)["input_ids"]}
    with torch.no_grad():
        means = convert(teacher, k=5, window=4)(**inputs).last_hidden_state
        found = convert(teacher, k=5, window=4, projection="conv")(**inputs).last_hidden_state
    torch.testing.assert_close(found, means, atol=1e-4, rtol=1e-4)


def test_a_learned_matrix_starts_as_segment_means():
    student = convert(pretrained("Bert"), k=5, window=4, projection="linear")
    attention = student.encoder.layers[0].attention
    expected = torch.eye(5).repeat_interleave(4, dim=1) / 4
    torch.testing.assert_close(attention.projection.weight[0, 0], expected)
    torch.testing.assert_close(attention.row_bias.exp(), torch.full((4, 5), 4.0))


@pytest.mark.parametrize("how", ["copy", "interpolate", "spread"])
def test_positions_are_extended(how):
    table = torch.arange(8.0)[:, None].repeat(1, 3)
    longer = extend_positions(table, 20, how)
    assert longer.shape == (20, 3)
    if how == "copy":
        torch.testing.assert_close(longer, table[torch.arange(20) % 8])
    else:
        assert (longer[1:] >= longer[:-1]).all()
        torch.testing.assert_close(longer[[0, -1]], table[[0, -1]])
    torch.testing.assert_close(extend_positions(table, 5, how), table[:5])


def test_short_inputs_behave_as_before_in_a_longer_model():
    teacher = pretrained("Bert")
    student = convert(teacher, max_length=200, k=10, window=20)
    inputs = batch()
    real = inputs["attention_mask"].bool()
    with torch.no_grad():
        theirs = teacher(**inputs).last_hidden_state
        ours = student(**inputs).last_hidden_state
        long = student(torch.randint(5, 60, (1, 200))).last_hidden_state
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)
    assert long.isfinite().all()


def test_layers_can_keep_full_attention():
    teacher = pretrained("Bert")
    student = convert(teacher, k=4, window=2, full_layers=(0, 2))
    kinds = [layer.attention.kind for layer in student.encoder.layers]
    assert kinds == ["full", "mean", "full"]


def test_a_converted_folder_loads_as_an_ordinary_model(tmp_path):
    student = convert(pretrained("Electra", "ForMaskedLM"), max_length=40, k=8, window=4)
    student.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path)
    assert isinstance(loaded, models.LinformerForMaskedLM)
    inputs = batch()
    with torch.no_grad():
        torch.testing.assert_close(loaded(**inputs).logits, student(**inputs).logits)


def test_tensors_without_a_place_are_told():
    teacher = transformers.BertForPreTraining(transformers.BertConfig(**FAMILIES["Bert"]))
    with pytest.raises(ValueError, match=r"ending in Model, ForMaskedLM.*BertForPreTraining"):
        convert(teacher, k=4, window=4)
    electra = pretrained("Electra")
    electra.register_buffer("extra", torch.zeros(2))
    with pytest.warns(UserWarning, match="1 tensors of ElectraModel have no place.*extra"):
        convert(electra, k=4, window=4)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (lambda: pretrained("Bert", is_decoder=True), "is_decoder=False can be converted: got"),
        (lambda: pretrained("Bert", hidden_act="silu"), "activation must be one of gelu.*'silu'"),
        (lambda: torch.nn.Linear(2, 2), "convert knows bert, roberta.*got Linear"),
    ],
)
def test_what_cannot_be_converted_is_named(model, message):
    with pytest.raises(ValueError, match=message):
        convert(model(), k=4, window=4)


def with_adapter():
    model = pretrained("Bert")
    attention = model.encoder.layer[0].attention.self
    attention.query = torch.nn.Sequential(attention.query)  # as LoRA wraps a layer
    return model


def with_a_layer_less():
    model = pretrained("Bert")
    model.encoder.layer = model.encoder.layer[:2]
    return model


def quantized():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is deprecated
        return torch.ao.quantization.quantize_dynamic(pretrained("Bert"), {torch.nn.Linear})


@pytest.mark.parametrize(
    "model",
    [
        with_adapter,
        with_a_layer_less,
        quantized,
        lambda: transformers.BertLMHeadModel(transformers.BertConfig(**FAMILIES["Bert"])),
    ],
)
def test_a_model_with_other_tensors_than_its_class_is_refused(model):
    model = model()
    with pytest.raises(ValueError, match=rf"{type(model).__name__} lacks .*weight.*merge adapters"):
        convert(model, k=4, window=4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 30, "window": 4}, "k must be at most max_position_embeddings"),
        ({"k": 4, "window": -1}, "window must be at least 0: got -1"),
        ({"max_length": 0}, "max_position_embeddings must be at least 1: got 0"),
        ({"full_layers": (7,), "k": 4}, "full_layers must be different numbers from 0 to 2: got"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        convert(pretrained("Bert"), **options)
