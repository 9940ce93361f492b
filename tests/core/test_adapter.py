"""TransformerEncoderAdapter: torch's interface, and torch's outputs where nothing is compressed."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerEncoder, TransformerEncoderAdapter

BATCH, LENGTH, DIM = 3, 7, 16
PADDING = torch.arange(LENGTH) >= torch.tensor([[7], [4], [2]])  # True = padding


def torch_encoder(*, final_norm: bool = False, **options) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(
        DIM, 4, dim_feedforward=24, **{"dropout": 0.0, "batch_first": True} | options
    )
    norm = nn.LayerNorm(DIM) if final_norm else None
    module = nn.TransformerEncoder(layer, 2, norm=norm, enable_nested_tensor=False)
    for parameter in module.parameters():  # clones start equal, norms at one
        nn.init.normal_(parameter, std=0.3)
    return module


def source(batch_first: bool = True) -> torch.Tensor:
    x = torch.randn(BATCH, LENGTH, DIM, generator=torch.Generator().manual_seed(1))
    return x if batch_first else x.transpose(0, 1)


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("norm_first", [True, False])
@pytest.mark.parametrize("final_norm", [True, False])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("bias", [True, False])
def test_without_compression_outputs_and_gradients_are_torch_s(
    batch_first, norm_first, final_norm, activation, bias
):
    module = torch_encoder(
        batch_first=batch_first,
        norm_first=norm_first,
        final_norm=final_norm,
        activation=activation,
        bias=bias,
    )
    ours = TransformerEncoderAdapter.from_transformer_encoder(module, projection="full")
    real = ~PADDING if batch_first else ~PADDING.T
    results = []
    for each in (module, ours):
        x = source(batch_first).requires_grad_()
        y = each(x, src_key_padding_mask=PADDING)[real]  # torch leaves other values in padding
        results.append((y, *torch.autograd.grad(y.square().sum(), [x])))
    assert_close(results[1], results[0], rtol=1e-4, atol=1e-5)


def test_padded_rows_are_zero_and_masks_may_be_left_out():
    module = torch_encoder()
    ours = TransformerEncoderAdapter.from_transformer_encoder(module, projection="full")
    assert ours(source(), src_key_padding_mask=PADDING)[PADDING].count_nonzero() == 0
    assert_close(ours(source()), module(source()), rtol=1e-4, atol=1e-5)
    assert_close(ours(source(), None, None, False), module(source()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("batch_first", [True, False])
def test_one_sample_without_a_batch(batch_first):
    module = torch_encoder(batch_first=batch_first)
    ours = TransformerEncoderAdapter.from_transformer_encoder(module, projection="full")
    x, padding = source()[1], PADDING[1]
    y = ours(x, src_key_padding_mask=padding)
    assert_close(
        y[~padding], module(x, src_key_padding_mask=padding)[~padding], rtol=1e-4, atol=1e-5
    )


def test_the_call_has_torch_s_signature():
    theirs, ours = (
        list(inspect.signature(cls.forward).parameters)
        for cls in (nn.TransformerEncoder, TransformerEncoderAdapter)
    )
    assert ours == theirs


def test_a_linformer_is_called_as_torch_is():
    encoder = LinformerEncoder(dim=DIM, depth=2, num_heads=4, max_length=LENGTH, k=3)
    x = source()
    expected = encoder(x, mask=~PADDING)
    ours = TransformerEncoderAdapter(encoder, batch_first=True)
    assert_close(ours(x, src_key_padding_mask=PADDING), expected)
    ours = TransformerEncoderAdapter(encoder)
    assert_close(ours(x.transpose(0, 1), src_key_padding_mask=PADDING), expected.transpose(0, 1))


def test_weights_are_copies_and_the_projection_can_be_trained():
    module = torch_encoder()
    before = copy.deepcopy(module.state_dict())
    ours = TransformerEncoderAdapter.from_transformer_encoder(module, max_length=LENGTH, k=3)
    optimizer = torch.optim.Adam(ours.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = (ours(source(), src_key_padding_mask=PADDING) - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert ours.encoder.projection.weight.grad is not None
    for name, tensor in module.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_dropout_device_type_and_mode_are_the_module_s():
    module = torch_encoder(dropout=0.25).double().eval()
    module.layers[0].dropout.p = module.layers[1].dropout.p = 0.5
    ours = TransformerEncoderAdapter.from_transformer_encoder(module, projection="full")
    layer = ours.encoder.layers[0]
    assert not ours.training
    assert {p.dtype for p in ours.parameters()} == {torch.float64}
    assert torch.equal(layer.feed_forward.w_1.weight, module.layers[0].linear1.weight)
    assert torch.equal(layer.attention.k_proj.bias, module.layers[0].self_attn.in_proj_bias[16:32])
    assert (ours.encoder.dropout, layer.dropout) == (0.0, 0.25)
    assert (layer.attention.dropout, layer.feed_forward.dropout) == (0.25, 0.5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        (
            {"mask": torch.zeros(LENGTH, LENGTH)},
            ValueError,
            r"cannot be applied: got mask of shape \(7, 7\). Pass None; for padding use src_key",
        ),
        ({"is_causal": True}, ValueError, "got is_causal=True. .*LinformerDecoder"),
        (
            {"src_key_padding_mask": PADDING.float()},
            TypeError,
            "must be boolean, True = padding: got torch.float32. Pass mask == ",
        ),
        ({"src_key_padding_mask": PADDING[:, :5]}, ValueError, r"got \(3, 5\)"),
    ],
    ids=["mask", "is_causal", "float mask", "short mask"],
)
def test_what_cannot_be_applied_is_refused(given, error, message):
    ours = TransformerEncoderAdapter.from_transformer_encoder(torch_encoder(), projection="full")
    with pytest.raises(error, match=message):
        ours(source(), **given)


def test_modules_that_are_not_understood_are_refused():
    class Mine(nn.TransformerEncoderLayer):
        pass

    convert = TransformerEncoderAdapter.from_transformer_encoder
    layer = Mine(DIM, 4, batch_first=True)
    with pytest.raises(TypeError, match=r"must be torch.nn.TransformerEncoderLayer.*Mine"):
        convert(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), projection="full")
    with pytest.raises(ValueError, match="must be relu or gelu: got 'silu'"):
        convert(torch_encoder(activation=nn.functional.silu), projection="full")
    with pytest.raises(TypeError, match="norm must be those of the torch module: got norm='pre'"):
        convert(torch_encoder(), projection="full", norm="pre")
    with pytest.raises(ValueError, match="needs k"):
        convert(torch_encoder(), max_length=7)
