"""The loss in chunks equals the plain loss, in value and gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.testing import assert_close

from linformer_kit.models import loss as loss_module
from linformer_kit.models.loss import IGNORED, language_model_loss, logits_loss

VOCABULARY, SIZE = 13, 6


class TwoLayers(nn.Module):
    """A head that is more than a matrix."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        self.first = nn.Linear(SIZE, SIZE)
        self.second = nn.Linear(SIZE, VOCABULARY, bias=bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(x).tanh())


def example(labelled: float = 0.6) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 11, SIZE, generator=generator, dtype=torch.float64)
    labels = torch.randint(VOCABULARY, (3, 11), generator=generator)
    return hidden, labels.masked_fill(torch.rand(3, 11, generator=generator) > labelled, IGNORED)


def value_and_gradients(loss_of, hidden, head):
    hidden = hidden.clone().requires_grad_()
    loss = loss_of(hidden, head)
    parameters = list(head.parameters())
    return loss.detach(), *torch.autograd.grad(3.0 * loss, [hidden, *parameters])


def plain(labels, smoothing=0.0):
    def loss_of(hidden, head):
        logits = head(hidden).flatten(0, 1)
        return F.cross_entropy(
            logits, labels.flatten(), ignore_index=IGNORED, label_smoothing=smoothing
        )

    return loss_of


def heads(bias: bool) -> dict[str, nn.Module]:
    torch.manual_seed(0)
    return {
        "matrix": nn.Linear(SIZE, VOCABULARY, bias=bias).double(),
        "more": TwoLayers(bias).double(),
    }


@pytest.mark.parametrize("kind", ["matrix", "more"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("chunk", [0, 1, 4, 1000])
def test_chunks_change_neither_value_nor_gradients(chunk, smoothing, bias, kind):
    hidden, labels = example()
    head = heads(bias)[kind]

    def in_chunks(rows, head):
        return language_model_loss(rows, head, labels, chunk=chunk, smoothing=smoothing)

    assert_close(
        value_and_gradients(in_chunks, hidden, head),
        value_and_gradients(plain(labels, smoothing), hidden, head),
    )


def test_logits_that_are_there_give_the_same():
    hidden, labels = example()
    head = heads(bias=True)["matrix"]
    assert_close(logits_loss(head(hidden), labels), plain(labels)(hidden, head))


@pytest.mark.parametrize("chunk", [0, 4])
def test_a_number_of_items_takes_the_place_of_the_mean(chunk):
    hidden, labels = example()
    head = heads(bias=True)["matrix"]
    mean = language_model_loss(hidden, head, labels, chunk=chunk)
    count = (labels != IGNORED).sum()
    over = language_model_loss(hidden, head, labels, chunk=chunk, num_items=torch.tensor(100))
    assert_close(over, mean * count / 100)


@pytest.mark.parametrize("chunk", [0, 4])
def test_without_labels_the_loss_and_its_gradients_are_zero(chunk):
    hidden, labels = example()
    head = heads(bias=True)["matrix"]

    def loss_of(rows, head):
        return language_model_loss(rows, head, torch.full_like(labels, IGNORED), chunk=chunk)

    for tensor in value_and_gradients(loss_of, hidden, head):
        assert tensor.count_nonzero() == 0


def test_frozen_parts_get_no_gradient():
    hidden, labels = example()
    head = heads(bias=True)["matrix"]
    head.weight.requires_grad_(False)
    hidden.requires_grad_()
    language_model_loss(hidden, head, labels, chunk=4).backward()
    assert head.weight.grad is None
    assert hidden.grad is not None
    assert head.bias.grad is not None


@pytest.mark.parametrize("kind", ["matrix", "more"])
@pytest.mark.parametrize("how", ["bfloat16 weights", "autocast"])
def test_half_precision_is_as_near_as_the_plain_form(how, kind):
    hidden, labels = example(labelled=1.0)
    head = heads(bias=True)[kind].float()
    exact = value_and_gradients(plain(labels), hidden.float(), head)
    rows = hidden.float()
    if how == "bfloat16 weights":
        head, rows = head.bfloat16(), rows.bfloat16()

    def in_chunks(rows, head):
        with torch.autocast("cpu", torch.bfloat16, enabled=how == "autocast"):
            return language_model_loss(rows, head, labels, chunk=4)

    found = value_and_gradients(in_chunks, rows, head)
    assert found[0].dtype == torch.float32
    assert [f.dtype for f in found[1:]] == [rows.dtype] * (len(found) - 1)
    for ours, theirs in zip(found, exact, strict=True):
        assert_close(ours.float(), theirs, rtol=0.05, atol=0.02)


def test_no_more_logits_are_made_than_a_chunk_has(monkeypatch):
    seen = []
    linear = F.linear

    def spy(x, weight, bias=None):
        seen.append(x.shape[0])
        return linear(x, weight, bias)

    monkeypatch.setattr(loss_module.F, "linear", spy)
    hidden, labels = example()
    count = int((labels != IGNORED).sum())
    head = heads(bias=False)["matrix"]
    language_model_loss(hidden.requires_grad_(), head, labels, chunk=5).backward()
    assert max(seen) == 5
    assert sum(seen) == count  # labelled rows only, and each of them once


@pytest.mark.parametrize("kind", ["matrix", "more"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_second_derivatives_are_those_of_the_plain_form(smoothing, kind):
    hidden, labels = example()
    head = heads(bias=True)[kind]

    def second(loss_of):
        rows = hidden.clone().requires_grad_()
        inputs = [rows, *head.parameters()]
        first = torch.autograd.grad(loss_of(rows, head), inputs, create_graph=True)
        return torch.autograd.grad(sum((g * g.cos()).sum() for g in first), inputs)

    def in_chunks(rows, head):
        return language_model_loss(rows, head, labels, chunk=4, smoothing=smoothing)

    assert_close(second(in_chunks), second(plain(labels, smoothing)))


def test_transforms_of_torch_func_give_the_plain_gradients():
    hidden, labels = example()
    head = heads(bias=True)["matrix"]
    parameters = dict(head.named_parameters())

    def loss(parameters, rows):
        def call(x):
            return torch.func.functional_call(head, parameters, (x,))

        return language_model_loss(rows, Called(call), labels, chunk=4)

    found = torch.func.grad(loss, argnums=(0, 1))(parameters, hidden)
    _, rows, weight, bias = value_and_gradients(plain(labels), hidden, head)
    expected = {"weight": weight / 3, "bias": bias / 3}, rows / 3
    assert_close(found, expected)


class Called(nn.Module):
    """A function as a head."""

    def __init__(self, function) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)
