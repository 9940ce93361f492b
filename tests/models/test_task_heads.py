"""Pooling, features, masks and losses of the encoder's heads."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

from linformer_kit.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)
from linformer_kit.models.pooling import pooled

from .cases import CASES, LANGUAGE_MODELS, SMALL, call, tokens


def test_pooling_looks_at_what_is_real():
    hidden = torch.randn(3, 4, 2)
    mask = torch.tensor([[1, 1, 1, 0], [0, 1, 0, 1], [0, 0, 0, 0]]).bool()
    assert_close(pooled(hidden, mask, "cls")[:2], torch.stack((hidden[0, 0], hidden[1, 1])))
    for pooling, function in (("mean", lambda x: x.mean(0)), ("max", lambda x: x.amax(0))):
        result = pooled(hidden, mask, pooling)
        assert_close(result[0], function(hidden[0, :3]))
        assert_close(result[1], function(hidden[1, [1, 3]]))
        assert result[2].count_nonzero() == 0
        assert_close(pooled(hidden, None, pooling)[2], function(hidden[2]))


@pytest.mark.parametrize("pooling", ["cls", "mean", "max"])
def test_a_classifier_pools_as_it_is_told(pooling):
    model = CASES["LinformerForSequenceClassification"].build(pooling=pooling)
    ids = tokens(2, 7)
    hidden = model.linformer(ids).last_hidden_state
    assert_close(model(ids).logits, model.classifier(pooled(hidden, None, pooling)))


def test_features_are_projected_and_no_words_are_kept():
    config = LinformerConfig(**SMALL | {"feature_size": 5})
    model = LinformerForSequenceClassification(config).eval()
    assert not any("embed_tokens" in name for name, _ in model.named_parameters())
    assert model.main_input_name == "inputs_embeds"
    features = torch.randn(2, 9, 5)
    mask = torch.ones(2, 9, dtype=torch.long)
    mask[1, 6:] = 0
    logits = model(inputs_embeds=features, attention_mask=mask).logits
    features[1, 6:] = torch.nan
    again = model(inputs_embeds=features, attention_mask=mask).logits
    assert_close(again, logits, rtol=0, atol=0)
    model.gradient_checkpointing_enable()
    model.train()(inputs_embeds=torch.randn(2, 9, 5), labels=torch.tensor([0, 1])).loss.backward()
    with pytest.raises(ValueError, match="feature_size=5: got input_ids"):
        model(tokens(2, 9))
    with pytest.raises(ValueError, match=r"feature_size=5\): got \(2, 9, 4\)"):
        model(inputs_embeds=features[..., :4])
    with pytest.raises(ValueError, match="reads tokens: got feature_size=5"):
        LinformerForMaskedLM(config)


@pytest.mark.parametrize(
    ("options", "labels", "loss"),
    [
        ({"num_labels": 1}, torch.randn(2), lambda y, t: F.mse_loss(y[:, 0], t)),
        ({}, torch.tensor([0, 2]), F.cross_entropy),
        (
            {"problem_type": "multi_label_classification"},
            torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]]),
            F.binary_cross_entropy_with_logits,
        ),
    ],
    ids=["regression", "one label", "several labels"],
)
def test_the_loss_of_a_classifier_follows_its_labels(options, labels, loss):
    model = CASES["LinformerForSequenceClassification"].build(**options)
    output = model(tokens(2, 7), labels=labels)
    assert_close(output.loss, loss(output.logits, labels))


@pytest.mark.parametrize("name", LANGUAGE_MODELS)
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_loss_in_training_is_that_of_the_whole_logits(name, smoothing):
    case = CASES[name]
    model = case.build(label_smoothing=smoothing).train()
    batch = case.inputs() | case.labels()
    labels = batch["labels"]

    def gradients(loss):
        model.zero_grad()
        loss.backward()
        return {n: p.grad.clone() for n, p in model.named_parameters()}

    ours = model(**batch)
    assert ours.logits is None
    whole = model(**batch, return_logits=True)
    logits = whole.logits
    if name == "LinformerForCausalLM":
        logits, labels = logits[:, :-1], labels[:, 1:]
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    assert_close(ours.loss, plain)
    assert_close(whole.loss, plain)
    expected = gradients(plain)
    assert_close(gradients(ours.loss), expected)
    assert_close(gradients(model(**batch, return_logits=True).loss), expected)
    count = (labels != -100).sum()
    over = model(**batch, num_items_in_batch=torch.tensor(50)).loss
    assert_close(over, plain * count / 50)
    # evaluated, a model gives the logits too, and the loss without smoothing
    model.eval()
    output = model(**batch)
    assert output.logits is not None
    assert_close(output.loss, F.cross_entropy(logits.flatten(0, 1), labels.flatten()))
    assert model(**batch, return_logits=False).logits is None
    model.config.return_logits = False
    assert model(**batch).logits is None


def test_the_masked_head_runs_at_labelled_positions_alone():
    case = CASES["LinformerForMaskedLM"]
    model = case.build().train()
    seen = []
    model.transform.register_forward_hook(lambda _, given, __: seen.append(given[0].shape))
    labels = torch.full((2, 20), -100)
    labels[0, 3] = labels[1, 7] = labels[1, 8] = 5
    model(**case.inputs(), labels=labels).loss.backward()
    assert seen == [(3, 16)]


def test_positions_can_be_given():
    model = CASES["LinformerModel"].build()
    ids = tokens(2, 7)
    usual = model(ids, position_ids=torch.arange(7).expand(2, -1)).last_hidden_state
    assert_close(usual, model(ids).last_hidden_state)
    moved = model(ids, position_ids=torch.arange(3, 10)[None]).last_hidden_state
    assert not torch.allclose(moved, usual, atol=1e-3)
    bare = CASES["LinformerModel"].build(position_embedding_type="none")
    with pytest.raises(ValueError, match=r"adds no positions.*got position_ids"):
        bare(ids, position_ids=torch.arange(7)[None])


def test_types_of_tokens_are_embedded_or_refused():
    ids, types = tokens(2, 7), torch.zeros(2, 7, dtype=torch.long)
    model = CASES["LinformerModel"].build()
    assert_close(model(ids, token_type_ids=types)[0], model(ids)[0])
    assert not torch.allclose(model(ids, token_type_ids=types + 1)[0], model(ids)[0], atol=1e-3)
    bare = CASES["LinformerModel"].build(type_vocab_size=0)
    with pytest.raises(ValueError, match=r"no token types.*model_input_names"):
        bare(ids, token_type_ids=types)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (
            {"attention_mask": torch.ones(2, 1, 20, 20)},
            r"1 = keep: got \(2, 1, 20, 20\)",
        ),
        ({"attention_mask": torch.ones(3, 20)}, r"got \(3, 20\)"),
        ({"attention_mask": torch.ones(2, 19)}, "each of 20 positions: got 19"),
        ({"input_ids": None}, "one of input_ids and inputs_embeds: got neither"),
        ({"inputs_embeds": torch.ones(2, 20, 16)}, "one of input_ids and inputs_embeds: got both"),
        (
            {"input_ids": tokens(2, 3, 20)},
            r"shape \(batch, length\): got \(2, 3, 20\) of torch.int64",
        ),
        ({"input_ids": tokens(20)}, r"shape \(batch, length\): got \(20,\)"),
        ({"input_ids": torch.ones(2, 20)}, r"whole numbers .*got \(2, 20\) of torch.float32"),
        (
            {"input_ids": None, "inputs_embeds": torch.ones(2, 20, 15)},
            r"\(batch, length, hidden_size=16\): got \(2, 20, 15\)",
        ),
    ],
)
def test_inputs_that_make_no_sense_are_refused(wrong, message):
    case = CASES["LinformerModel"]
    with pytest.raises(ValueError, match=message):
        call(case, case.build(), **wrong)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "one of input_ids and inputs_embeds: got neither"),
        ({"input_ids": tokens(2, 20)}, r"\(batch, choices, length\): got \(2, 20\)"),
        (
            {"inputs_embeds": torch.ones(2, 20, 16)},
            r"\(batch, choices, length, size\): got \(2, 20, 16\)",
        ),
    ],
)
def test_choices_have_an_axis_of_their_own(given, message):
    with pytest.raises(ValueError, match=message):
        CASES["LinformerForMultipleChoice"].build()(**given)


def test_too_long_an_input_is_refused():
    with pytest.raises(ValueError, match="got 25"):
        LinformerModel(LinformerConfig(**SMALL))(tokens(1, 25))


def test_a_span_without_an_end_is_refused():
    case = CASES["LinformerForQuestionAnswering"]
    with pytest.raises(ValueError, match="got no end_positions"):
        case.build()(**case.inputs(), start_positions=torch.tensor([1, 2]))
