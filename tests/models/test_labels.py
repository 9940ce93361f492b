"""Labels of a wrong shape, type or value are refused by every head."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from .cases import CASES, VOCABULARY, tokens

TOKENS = tokens(2, 20, seed=1)
WRONG_SHAPES = {
    "LinformerForMaskedLM": [TOKENS[:, :19], TOKENS[:1], TOKENS[0], TOKENS.T, TOKENS[..., None]],
    "LinformerForCausalLM": [TOKENS[:, :19], TOKENS[:1], TOKENS[0], TOKENS.T, TOKENS[..., None]],
    "LinformerForTokenClassification": [TOKENS[:, :1] % 3, TOKENS[:, 0] % 3, TOKENS.T % 3],
    "LinformerForSequenceClassification": [TOKENS % 3, TOKENS[:, :3] % 3, TOKENS[0, :3] % 3],
    "LinformerForMultipleChoice": [TOKENS % 3, TOKENS[:, :1] % 3, TOKENS[0, :3] % 3],
    "LinformerForConditionalGeneration": [TOKENS[0], TOKENS[:1], TOKENS[..., None]],
}
LIMITS = {
    "LinformerForMaskedLM": ("vocab_size", VOCABULARY),
    "LinformerForCausalLM": ("vocab_size", VOCABULARY),
    "LinformerForConditionalGeneration": ("vocab_size", VOCABULARY),
    "LinformerForTokenClassification": ("num_labels", 3),
    "LinformerForSequenceClassification": ("num_labels", 3),
    "LinformerForMultipleChoice": ("the number of choices", 3),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", WRONG_SHAPES)
def test_a_wrong_shape_is_refused_with_the_right_one(name, training):
    case = CASES[name]
    model = case.build().train(training)
    for labels in WRONG_SHAPES[name]:
        with pytest.raises(ValueError, match=r"must have (shape|the batch)|batch size") as raised:
            model(**case.inputs(), labels=labels)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("training", [True, False])
def test_a_label_that_does_not_exist_is_refused(name, training):
    case = CASES[name]
    model = case.build().train(training)
    limit, count = LIMITS[name]
    for wrong in (count, -1, -101, 2**40):
        labels = case.labels()["labels"].clone()
        labels.view(-1)[-1] = wrong
        message = rf"at least 0 and below {limit}={count}, or -100 to be left out: got {wrong}"
        with pytest.raises(ValueError, match=message):
            model(**case.inputs(), labels=labels)


@pytest.mark.parametrize("name", LIMITS)
def test_labels_that_are_no_whole_numbers_are_refused(name):
    case = CASES[name]
    labels = case.labels()["labels"]
    for other in (labels.bool(), labels.to(torch.complex64)):
        with pytest.raises(ValueError, match=r"labels must be whole numbers: got torch"):
            case.build()(**case.inputs(), labels=other)
    if name != "LinformerForSequenceClassification":  # there numbers are several labels at once
        with pytest.raises(ValueError, match=r"got torch.float32. Pass labels.long\(\)"):
            case.build()(**case.inputs(), labels=labels.float())
    expected = case.build()(**case.inputs(), labels=labels).loss
    assert_close(case.build()(**case.inputs(), labels=labels.int()).loss, expected)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", ["LinformerForTokenClassification", "LinformerForMaskedLM"])
def test_without_any_label_the_loss_is_zero_and_not_nan(name, training):
    case = CASES[name]
    model = case.build().train(training)
    loss = model(**case.inputs(), labels=torch.full((2, 20), -100)).loss
    assert loss.item() == 0.0


def test_the_loss_of_tokens_is_the_plain_one():
    case = CASES["LinformerForTokenClassification"]
    labels = case.labels()["labels"].clone()
    labels[0, 3:] = -100
    output = case.build()(**case.inputs(), labels=labels)
    assert_close(output.loss, F.cross_entropy(output.logits.flatten(0, 1), labels.flatten()))


@pytest.mark.parametrize("given", ["decoder_input_ids", "decoder_inputs_embeds"])
def test_labels_must_fit_what_the_decoder_reads(given):
    case = CASES["LinformerForConditionalGeneration"]
    model = case.build()
    read = tokens(2, 9) if given == "decoder_input_ids" else torch.randn(2, 9, 16)
    with pytest.raises(ValueError, match=r"\(batch, length\) = \(2, 9\).*got \(2, 20\)"):
        model(**case.inputs(), **{given: read}, labels=TOKENS)


@pytest.mark.parametrize(
    ("options", "labels", "message"),
    [
        ({"num_labels": 1}, torch.zeros(2, 3), r"\(batch, num_labels\) = \(2, 1\) for .*'regr"),
        ({"num_labels": 1}, torch.zeros(3), r"= \(2, 1\) .* got \(3,\)"),
        ({"num_labels": 1}, torch.tensor([0.0, math.nan]), "finite: got NaN"),
        ({"problem_type": "regression"}, torch.zeros(2), r"= \(2, 3\) .*got \(2,\)"),
        ({}, torch.zeros(2), r"= \(2, 3\) for problem_type='multi_label.*got \(2,\)"),
        ({}, torch.zeros(3, 3), r"got \(3, 3\)"),
        ({}, torch.full((2, 3), 1.5), "from 0 to 1 for .*multi_label.*got 1.5"),
        ({}, torch.full((2, 3), -1.0), "from 0 to 1 for .*multi_label.*got -1"),
        ({}, torch.full((2, 3), math.inf), "finite: got NaN or infinity"),
        ({}, torch.zeros(2, 3).long(), r"got \(2, 3\). For several classes at once set problem"),
    ],
)
def test_a_classifier_refuses_labels_that_its_problem_does_not_have(options, labels, message):
    case = CASES["LinformerForSequenceClassification"]
    with pytest.raises(ValueError, match=message):
        case.build(**options)(**case.inputs(), labels=labels)


@pytest.mark.parametrize(
    ("options", "labels"),
    [
        ({"num_labels": 1}, torch.tensor([1.5, -2.0])),
        ({"num_labels": 1}, torch.tensor([[1.5], [-2.0]])),
        ({"num_labels": 1}, torch.tensor([1, -2])),
        ({"problem_type": "regression"}, torch.randn(2, 3)),
        ({}, torch.tensor([2, 0])),
        ({}, torch.tensor([[2], [0]])),
        ({}, torch.tensor([2, 0], dtype=torch.int32)),
        ({}, torch.tensor([-100, 0])),
        ({}, torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.3, 0.0]])),
        ({"problem_type": "multi_label_classification"}, torch.tensor([[1, 0, 1], [0, 0, 0]])),
    ],
)
def test_a_classifier_takes_what_its_problem_has(options, labels):
    case = CASES["LinformerForSequenceClassification"]
    model = case.build(**options).train()
    loss = model(**case.inputs(), labels=labels).loss
    loss.backward()
    assert loss.isfinite()
    assert model.classifier.dense.weight.grad.isfinite().all()


@pytest.mark.parametrize("name", ["start_positions", "end_positions"])
def test_positions_of_a_span_are_checked(name):
    case = CASES["LinformerForQuestionAnswering"]
    right = case.labels()
    for wrong, message in (
        (torch.tensor([1, 2, 3]), r"\(batch\) = \(2,\), one position .*got \(3,\)"),
        (torch.tensor([[1, 2], [3, 4]]), r"got \(2, 2\)"),
        (torch.tensor([1, -1]), f"{name} must be at least 0: got -1. A position past the end"),
        (torch.tensor([1.0, 2.0]), f"{name} must be whole numbers: got torch.float32"),
    ):
        with pytest.raises(ValueError, match=message):
            case.build()(**case.inputs(), **right | {name: wrong})
    loss = case.build()(**case.inputs(), **right).loss
    columns = {key: value[:, None] for key, value in right.items()}
    assert_close(case.build()(**case.inputs(), **columns).loss, loss)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize(("field", "size"), [("input_ids", VOCABULARY), ("token_type_ids", 2)])
def test_a_token_that_does_not_exist_is_refused(name, field, size):
    case = CASES[name]
    inputs = case.inputs()
    for wrong in (size, -1):
        ids = torch.zeros_like(inputs["input_ids"])
        ids.view(-1)[3] = wrong
        with pytest.raises(ValueError, match=rf"{field} must be at least 0 .*={size}: got {wrong}"):
            case.build()(**inputs | {field: ids})


def test_gradients_of_single_samples_still_work():
    """Under torch.func the values of labels cannot be read, and are not."""
    case = CASES["LinformerForSequenceClassification"]
    model = case.build()
    parameters = dict(model.named_parameters())

    def loss(parameters, ids, label):
        call = (ids[None],), {"labels": label[None]}
        return torch.func.functional_call(model, parameters, *call).loss

    ids, labels = tokens(2, 9), torch.tensor([0, 2])
    each = torch.func.vmap(torch.func.grad(loss), (None, 0, 0))(parameters, ids, labels)
    bias = "classifier.out_proj.bias"
    for sample in range(2):
        model.zero_grad()
        model(ids[sample : sample + 1], labels=labels[sample : sample + 1]).loss.backward()
        assert_close(each[bias][sample], model.get_parameter(bias).grad)
