"""The causal attentions: equal to the reference, leak-proof, the same in every way of calling."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit.core import causal, reference_causal
from linformer_kit.core.causal import BOUND, CausalLinformerAttention
from linformer_kit.core.full_causal import CausalFullAttention

from .oracle import weights_of

KINDS = ["slots", "full"]


def layer_of(kind: str, **options) -> CausalLinformerAttention | CausalFullAttention:
    torch.manual_seed(0)
    sizes = {"dim": 12, "num_heads": 2, "head_dim": 8} | options
    if kind == "slots":
        layer = CausalLinformerAttention(**{"k": 3, "window": 4} | sizes)
    else:
        sizes.pop("k", None)
        layer = CausalFullAttention(**sizes)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=0.5)
    return layer.double()


def rows_of(batch: int, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, length, 12, dtype=torch.float64, generator=generator)


def answer(layer, x: torch.Tensor) -> torch.Tensor:
    slots = isinstance(layer, CausalLinformerAttention)
    weight = bias = None
    if slots:
        weight = torch.zeros(0, 12) if layer.slot_proj is None else layer.slot_proj.weight
        bias = None if layer.slot_proj is None else layer.slot_proj.bias
    return torch.stack(
        [
            reference_causal.causal_attention(
                text,
                weights_of(layer),
                num_heads=layer.num_heads,
                num_kv_heads=layer.num_kv_heads,
                rotary_dim=layer.rotary_dim,
                slot_weight=weight,
                slot_bias=bias,
                window=layer.window if slots else 1,
                bound=BOUND,
            )
            for text in x
        ]
    )


@pytest.mark.parametrize("length", [1, 4, 7, 8, 9, 12, 15])
@pytest.mark.parametrize(
    "options",
    [{}, {"k": 0}, {"num_kv_heads": 1, "rotary": 0.0}, {"bias": False, "rotary": 1.0}],
    ids=str,
)
@pytest.mark.parametrize("kind", KINDS)
def test_equals_the_reference_in_outputs_and_gradients(kind, options, length):
    layer = layer_of(kind, **options)
    x = rows_of(2, length).requires_grad_()
    ours, expected = layer(x), answer(layer, x)
    assert_close(ours, expected)
    upstream = torch.randn_like(ours)
    leaves = (x, *layer.parameters())
    for mine, theirs in zip(
        torch.autograd.grad(ours, leaves, upstream, allow_unused=True),
        torch.autograd.grad(expected, leaves, upstream, allow_unused=True),
        strict=True,
    ):
        if theirs is None:  # no slots in so short a text: none, or zero in training (for DDP)
            assert mine is None or mine.eq(0).all()
        else:
            assert_close(mine, theirs)


@pytest.mark.parametrize("k", [0, 3])
def test_inference_by_segments_equals_the_whole(monkeypatch, k):
    monkeypatch.setattr(causal, "rows_in_block", lambda width: 24)
    layer = layer_of("slots", k=k)
    segment = 12 // layer.window * layer.window
    for length in (7, segment, segment + 1, 2 * segment + layer.window, 5 * segment - 1):
        x = rows_of(2, length)
        with torch.no_grad():
            by_segments = layer(x)
        assert_close(by_segments, layer(x))


def test_every_parameter_has_a_gradient_in_training_however_short_the_text():
    layer = layer_of("slots").train()
    layer(rows_of(1, 3)).sum().backward()
    assert all(parameter.grad is not None for parameter in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("low", [torch.float16, torch.bfloat16])
def test_autocast_does_not_overflow_the_sums(kind, low):
    layer = layer_of(kind, window=128) if kind == "slots" else layer_of(kind)
    nn.init.constant_(layer.v_proj.bias, 3.0)
    if kind == "slots":
        nn.init.constant_(layer.slot_proj.bias, 100.0)
    x = rows_of(1, 600)
    expected = layer(x)
    layer = layer.float()
    state = layer.init_state(1, device=x.device, dtype=torch.float32)
    position = torch.zeros(1, dtype=torch.int64)
    with torch.autocast("cpu", low):
        ours = layer(x.float())
        extended, _ = layer.extend(x.float(), position + 600, state, position)
    assert_close(ours.double(), expected, rtol=0.2, atol=0.2)
    assert_close(extended.double(), expected, rtol=0.2, atol=0.2)


def by_steps(layer, x, state=None, position=None):
    batch = x.shape[0]
    if state is None:
        state = layer.init_state(batch, device=x.device, dtype=x.dtype)
        position = torch.zeros(batch, dtype=torch.int64)
    rows = []
    for t in range(x.shape[1]):
        y, state = layer.step(x[:, t : t + 1], state, position)
        position = position + 1
        rows.append(y)
    return torch.cat(rows, dim=1), state


@pytest.mark.parametrize("kind", KINDS)
def test_all_at_once_equals_token_by_token(kind):
    layer = layer_of(kind)
    x = rows_of(2, 27)
    assert_close(by_steps(layer, x)[0], layer(x), rtol=1e-10, atol=1e-10)
    low = layer.float()
    assert_close(by_steps(low, x.float())[0], low(x.float()), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("split", [1, 3, 4, 5, 8, 9, 13, 26])
def test_a_prompt_then_more_of_it_then_steps_equals_the_whole(kind, split):
    layer = layer_of(kind)
    x = rows_of(2, 30)
    whole = layer(x)
    state = layer.init_state(2, device=x.device, dtype=x.dtype)
    position = torch.zeros(2, dtype=torch.int64)
    parts = []
    for piece in (x[:, :split], x[:, split:27]):
        length = torch.full((2,), piece.shape[1])
        y, state = layer.extend(piece, length, state, position)
        position = position + length
        parts.append(y)
    steps, _ = by_steps(layer, x[:, 27:], state, position)
    assert_close(torch.cat((*parts, steps), dim=1), whole, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_samples_may_stand_at_different_positions(kind):
    layer = layer_of(kind)
    x = rows_of(3, 40)
    lengths = torch.tensor([3, 17, 8])
    state = layer.init_state(3, device=x.device, dtype=x.dtype)
    position = torch.zeros(3, dtype=torch.int64)
    _, state = layer.extend(x[:, :17], lengths, state, position)
    more = torch.tensor([11, 2, 9])
    inputs = torch.stack([x[b, lengths[b] : lengths[b] + 11] for b in range(3)])
    y, state = layer.extend(inputs, more, state, lengths)
    at = lengths + more
    tokens = torch.stack([x[b, at[b] : at[b] + 9] for b in range(3)])
    steps, _ = by_steps(layer, tokens, state, at)
    for b in range(3):
        alone = layer(x[b : b + 1, : at[b] + 9])[0]
        assert_close(y[b, : more[b]], alone[lengths[b] : at[b]], rtol=1e-10, atol=1e-10)
        assert_close(steps[b], alone[at[b] :], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_the_future_has_no_gradient_and_the_distant_past_has(kind):
    layer = layer_of(kind)
    x = rows_of(1, 50).requires_grad_()
    y = layer(x)
    for t in (0, 3, 4, 7, 8, 11, 30, 49):
        (gradient,) = torch.autograd.grad(y[0, t].square().sum(), x, retain_graph=True)
        assert gradient[0, t + 1 :].eq(0).all()
        assert gradient[0, 0].ne(0).any()  # 49 is twelve windows away


def test_float32_holds_over_a_long_text():
    layer = layer_of("slots", window=64)
    nn.init.zeros_(layer.slot_proj.weight)
    nn.init.constant_(layer.slot_proj.bias, 100.0)  # every token weighs as much as one can
    x = rows_of(1, 2**17)
    with torch.no_grad():
        exact = layer(x)[:, -100:]
        rounded = layer.float()(x.float())[:, -100:]
    assert_close(rounded.double(), exact, rtol=1e-4, atol=1e-4)


def test_the_state_has_the_same_size_however_long_the_text():
    layer = layer_of("slots").float()
    state = layer.init_state(1, device=torch.device("cpu"), dtype=torch.float32)
    sizes = {sum(tensor.nbytes for tensor in state)}
    position = torch.zeros(1, dtype=torch.int64)
    for count in (1, 100, 1000):
        length = torch.tensor([count])
        _, state = layer.extend(torch.randn(1, count, 12), length, state, position)
        position = position + length
        sizes.add(sum(tensor.nbytes for tensor in state))
    assert len(sizes) == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": -1}, r"k must be at least 0: got -1"),
        ({"window": 0}, r"window must be at least 1: got 0"),
        ({"rotary": 1.5}, r"rotary is a fraction.*got 1.5"),
        ({"num_kv_heads": 3}, r"num_heads=2, num_kv_heads=3"),
    ],
)
def test_wrong_arguments_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        layer_of("slots", **options)


@pytest.mark.parametrize("k", [0, 3])
@pytest.mark.parametrize("length", [3, 8, 9, 13])
def test_a_trace_draws_the_dropout_of_forward(k, length):
    torch.manual_seed(0)
    layer = CausalLinformerAttention(dim=8, num_heads=2, k=k, window=4, dropout=0.4).double()
    x = torch.randn(2, length, 8, dtype=torch.double)
    found = []
    for run in (layer, lambda x: layer.trace(x)[0]):
        torch.manual_seed(3)
        found.append(run(x))
    assert_close(*found)
