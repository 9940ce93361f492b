"""LinformerEncoder: padding, length, options; compiled, exported, checkpointed, distributed."""

from __future__ import annotations

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from linformer_kit import LinformerEncoder, Plan
from linformer_kit.core.cpu import blocks
from linformer_kit.core.projection_kinds import PROJECTIONS, SEGMENT_KINDS, SHARINGS

from .oracle import answer
from .processes import gradients_of_two, loss_of


def encoder_of(**options) -> LinformerEncoder:
    torch.manual_seed(0)
    sizes = {"dim": 16, "depth": 2, "num_heads": 2, "max_length": 12, "k": 4, "ff_dim": 24}
    encoder = LinformerEncoder(**sizes | options)
    for name, parameter in encoder.named_parameters():
        if name.endswith("bias"):  # or their part would go untested
            nn.init.normal_(parameter, std=0.1)
    return encoder


def padded_batch() -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(3, 12, 16, generator=torch.Generator().manual_seed(1))
    return x, torch.arange(12)[None] < torch.tensor([12, 7, 1])[:, None]


@pytest.mark.parametrize("norm", ["pre", "post"])
def test_a_layer_is_its_equation(norm):
    encoder = encoder_of(depth=1, norm=norm, activation="relu").double()
    layer = encoder.layers[0]
    x = torch.randn(2, 12, 16, dtype=torch.float64)

    def feed(rows):
        return layer.feed_forward.w_2(layer.feed_forward.w_1(rows).relu())

    def attend(rows):
        return answer(layer.attention, rows, projection=encoder.projection)[0]

    if norm == "pre":
        y = x + attend(layer.attention_norm(x))
        expected = encoder.final_norm(y + feed(layer.feed_forward_norm(y)))
    else:
        y = layer.attention_norm(x + attend(x))
        expected = layer.feed_forward_norm(y + feed(y))
    assert_close(encoder(x), expected)


OPTIONS = [
    {"norm": "post"},
    {"activation": "swiglu"},
    {"positions": "learned"},
    {"positions": "sinusoidal"},
    {"positions": "learned", "neighbours": 5},
    {"moving_average": True, "neighbours": 3},
    {"k": (6, 2)},
    {"num_kv_heads": 1, "head_dim": 5, "bias": False},
    *({"projection": p, "sharing": s} for p, s in itertools.product(PROJECTIONS, SHARINGS)),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_padding_never_reaches_an_output_or_a_gradient(options, training):
    encoder = encoder_of(**options).train(training)
    x, mask = padded_batch()
    results = []
    for garbage in (0.0, float("nan")):
        inputs = torch.where(mask[..., None], x, garbage).requires_grad_()
        y = encoder(inputs, mask=mask)
        y.square().sum().backward()
        gradients = [p.grad.clone() for p in encoder.parameters() if p.grad is not None]
        results.append([y, inputs.grad, *gradients])
        encoder.zero_grad()
    for clean, dirty in zip(*results, strict=True):
        assert torch.isfinite(dirty).all()
        assert_close(clean, dirty, rtol=0, atol=0)
    assert results[1][0][~mask].eq(0).all()
    assert results[1][1][~mask].eq(0).all()


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_sequence_alone_equals_itself_padded_in_a_batch(options):
    encoder = encoder_of(**options).eval()
    x, mask = padded_batch()
    together = encoder(x, mask=mask)
    for b, length in enumerate(mask.sum(1).tolist()):
        assert_close(together[b, :length], encoder(x[b : b + 1, :length])[0], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_inference_by_row_blocks_equals_the_whole(options, monkeypatch):
    monkeypatch.setattr(blocks, "rows_in_block", lambda width: 5)
    encoder = encoder_of(**options).eval()
    x, mask = padded_batch()
    with torch.no_grad():
        by_blocks = encoder(x, mask=mask)
    assert_close(by_blocks, encoder(x, mask=mask), rtol=1e-4, atol=1e-5)


def test_dropout_acts_in_training_and_checkpointing_repeats_it():
    encoder = encoder_of(dropout=0.3, activation_dropout=0.2).train()
    x, mask = padded_batch()
    results = []
    for checkpointing in (False, True):
        encoder.gradient_checkpointing = checkpointing
        torch.manual_seed(5)
        y = encoder(x, mask=mask)
        y.square().sum().backward()
        results.append([y, *(p.grad.clone() for p in encoder.parameters())])
        encoder.zero_grad()
    for plain, checkpointed in zip(*results, strict=True):
        assert_close(plain, checkpointed)
    assert not torch.equal(encoder(x), encoder(x))
    encoder.eval()
    assert torch.equal(encoder(x), encoder(x))


def test_checkpointing_keeps_less():
    def kept(checkpointing: bool) -> int:
        encoder = encoder_of(depth=4, gradient_checkpointing=checkpointing).train()
        seen: dict[int, torch.Tensor] = {}

        def keep(tensor):
            seen[tensor.untyped_storage().data_ptr()] = tensor
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            encoder(torch.randn(2, 12, 16))
        return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())

    assert kept(True) < kept(False) / 3


def test_trace_gives_every_layer():
    encoder = encoder_of(depth=3).eval()
    x, mask = padded_batch()
    trace = encoder.trace(x, mask=mask)
    assert_close(trace.output, encoder(x, mask=mask))
    assert len(trace.hidden_states) == 4
    assert len(trace.attentions) == 3
    sums = trace.attentions[0].sum(-1)  # (B, H, N)
    assert_close(sums, mask[:, None].expand_as(sums).float())


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("masked", [False, True], ids=["unmasked", "masked"])
@pytest.mark.parametrize(
    "options",
    [
        *({"projection": kind} for kind in PROJECTIONS),
        {"plan": Plan("input", "absorbed"), "num_kv_heads": 1},
        {"plan": Plan("keys", "fused"), "sharing": "none", "norm": "post"},
        {"plan": Plan("input", "fused"), "dropout_kind": "weights"},
        {"gradient_checkpointing": True},
    ],
    ids=str,
)
def test_a_trace_is_the_forward_pass_through_the_weights_it_returns(options, masked, training):
    encoder = encoder_of(dropout=0.2, **options).double().train(training)
    x, mask = padded_batch()
    x, mask = x.double().requires_grad_(), mask if masked else None

    def seeded(run):
        torch.manual_seed(3)
        return run(x, mask=mask)

    trace, output = seeded(encoder.trace), seeded(encoder)
    assert_close(trace.output, output)
    torch.manual_seed(3)
    bare = encoder.trace(x, mask=mask, attentions=False)
    assert_close(trace.hidden_states, bare.hidden_states)  # at padding too
    assert bare.attentions == ()
    for layer, rows, weights in zip(
        encoder.layers, trace.hidden_states, trace.attentions, strict=False
    ):
        expected = layer.attention.weights(
            layer.attention_input(rows), mask=mask, projection=encoder.projection
        )
        assert_close(weights, expected)
        weights.retain_grad()
    leaves = [x, *encoder.parameters()]
    by_forward = torch.autograd.grad(output.sin().sum(), leaves, allow_unused=True)
    trace.output.sin().sum().backward()
    for mine, theirs in zip([leaf.grad for leaf in leaves], by_forward, strict=True):
        if theirs is not None:
            assert_close(mine, theirs)
    for weights in trace.attentions:
        assert weights.grad.isfinite().all()
        assert weights.grad.any()
        if masked:
            assert not weights.grad[~mask[:, None].expand(weights.shape[:3])].any()


def test_hooks_of_layers_are_called_in_a_trace():
    encoder = encoder_of()
    called = []
    for layer in encoder.layers:
        layer.register_forward_hook(lambda *_: called.append(1))
    encoder.trace(torch.randn(1, 12, 16))
    assert called == [1, 1]


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("projection", PROJECTIONS)
def test_compiles_whole(projection, masked):
    torch.compiler.reset()
    encoder = encoder_of(projection=projection, depth=1)
    x, mask = padded_batch()
    inputs = {"mask": mask} if masked else {}
    compiled = torch.compile(encoder, fullgraph=True, backend="aot_eager")
    leaves = list(encoder.parameters())
    ours, plain = compiled(x, **inputs), encoder(x, **inputs)
    assert_close(ours, plain)
    assert_close(
        torch.autograd.grad(ours.square().sum(), leaves),
        torch.autograd.grad(plain.square().sum(), leaves),
        rtol=1e-4,
        atol=1e-4,
    )


def test_compiles_to_machine_code_and_trains_with_dropout():
    torch.compiler.reset()
    encoder = encoder_of(depth=1, dropout=0.1)
    compiled = torch.compile(encoder, fullgraph=True)
    x, mask = padded_batch()
    compiled(x, mask=mask).sum().backward()
    encoder.eval()
    with torch.no_grad():
        assert_close(compiled(x, mask=mask), encoder(x, mask=mask), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_exports_with_a_dynamic_batch_and_length(projection):
    encoder = encoder_of(projection=projection, positions="sinusoidal", neighbours=3).eval()
    x, mask = padded_batch()
    # A traced program has more than one window; ours are 3 wide.
    shortest = 4 if projection in SEGMENT_KINDS else 2
    batch = torch.export.Dim("batch", max=64)
    length = torch.export.Dim("length", min=shortest, max=12)
    program = torch.export.export(
        encoder,
        (x[:, :9].contiguous(),),
        {"mask": mask[:, :9].contiguous()},
        dynamic_shapes={"x": {0: batch, 1: length}, "mask": {0: batch, 1: length}},
    )
    for rows, positions in ((3, 12), (2, 5), (1, 4), (5, 8)):
        inputs = torch.randn(rows, positions, 16)
        keep = torch.arange(positions)[None].expand(rows, -1) < max(2, positions - 2)
        assert_close(
            program.module()(inputs, mask=keep),
            encoder(inputs, mask=keep),
            rtol=1e-4,
            atol=1e-5,
        )


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_bfloat16_autocast_and_bfloat16_weights(projection):
    encoder = encoder_of(projection=projection, neighbours=3)
    x, mask = padded_batch()
    expected = encoder(x, mask=mask)
    with torch.autocast("cpu", torch.bfloat16):
        y = encoder(x, mask=mask)
        y.float().square().sum().backward()
    assert_close(y.float(), expected, rtol=0.1, atol=0.1)
    assert all(torch.isfinite(p.grad).all() for p in encoder.parameters())
    low = copy.deepcopy(encoder).bfloat16()
    low_y = low(x.bfloat16(), mask=mask)
    low_y.sum().backward()
    assert low_y.dtype == torch.bfloat16
    assert_close(low_y.float(), expected, rtol=0.2, atol=0.2)


def _shared_encoder() -> tuple[nn.Module, dict[str, torch.Tensor]]:
    x = torch.randn(4, 12, 16, generator=torch.Generator().manual_seed(2))
    return encoder_of(sharing="layerwise", depth=3), {"x": x}


def test_two_processes_with_layerwise_sharing_give_the_gradient_of_the_whole_batch(tmp_path):
    grads = gradients_of_two(_shared_encoder, tmp_path)
    encoder, batch = _shared_encoder()
    loss_of(encoder, batch).backward()
    for name, parameter in encoder.named_parameters():
        assert_close(grads[name], parameter.grad, rtol=1e-4, atol=1e-6)


WRONG_ARGUMENTS = [
    ({"depth": 0}, ValueError, r"depth must be at least 1: got 0"),
    ({"k": (4, 4, 4)}, ValueError, r"one for each of the 2 layers: got 3, \[4, 4, 4\]"),
    ({"k": (4, 13)}, ValueError, r"k must be at most max_length.*got k=13"),
    ({"norm": "layer"}, ValueError, r"norm must be one of 'pre', 'post': got 'layer'"),
    ({"positions": "rotary"}, ValueError, r"positions must be one of .*got 'rotary'"),
    ({"positions": "sinusoidal", "dim": 15, "num_heads": 3}, ValueError, r"even dim: got 15"),
    ({"neighbours": 4}, ValueError, r"neighbours must be an odd number .*got 4. Use 5"),
    ({"neighbours": 1}, ValueError, r"neighbours must be an odd number .*got 1. Use 3"),
    ({"neighbours": -1}, ValueError, r"neighbours must be at least 0: got -1"),
    ({"neighbours": 3.0}, TypeError, r"neighbours must be .*got 3.0"),
    ({"dropout": -0.1}, ValueError, r"dropout must be .*got -0.1"),
    (
        {"positions": "learned", "projection": "dynamic", "max_length": None},
        ValueError,
        r"learned positions need max_length",
    ),
]


@pytest.mark.parametrize(("options", "error", "message"), WRONG_ARGUMENTS)
def test_wrong_arguments_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        encoder_of(**options)


def test_too_long_an_input_names_the_remedy():
    with pytest.raises(ValueError, match=r"max_length=12 positions: got 13.*resize_max_length"):
        encoder_of()(torch.randn(1, 13, 16))
    with pytest.raises(ValueError, match=r"max_length=12: got 13 positions.*sinusoidal"):
        encoder_of(positions="learned", projection="dynamic")(torch.randn(1, 13, 16))


def test_survives_pickle_free_saving_and_copying(tmp_path):
    from safetensors.torch import load_file, save_file

    encoder = encoder_of(sharing="layerwise", projection="fixed").eval()
    save_file(encoder.state_dict(), tmp_path / "model.safetensors")
    other = encoder_of(sharing="layerwise", projection="fixed").eval()
    nn.init.zeros_(other.projection.weight)
    other.load_state_dict(load_file(tmp_path / "model.safetensors"))
    x, mask = padded_batch()
    assert torch.equal(other(x, mask=mask), encoder(x, mask=mask))


@pytest.mark.slow
def test_a_million_tokens_fit():
    encoder = LinformerEncoder(
        dim=64, depth=1, num_heads=4, max_length=1_048_576, k=128, sharing="layerwise"
    ).eval()
    with torch.inference_mode():
        y = encoder(torch.randn(1, 1_048_576, 64))
    assert torch.isfinite(y).all()
