"""Projections: the paper's counts, the right variance, resizing."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from linformer_kit import LinformerEncoder, resize_max_length
from linformer_kit.core.projection import (
    LinearProjection,
    MatrixCompression,
    Projection,
)
from linformer_kit.core.projection_kinds import PROJECTIONS, FixedProjection, count_matrices


def encoder_of(projection="linear", sharing="kv", **options) -> LinformerEncoder:
    sizes = {"dim": 24, "depth": 12, "num_heads": 12, "max_length": 16, "k": 4, "ff_dim": 8}
    return LinformerEncoder(projection=projection, sharing=sharing, **sizes | options)


@pytest.mark.parametrize(
    ("sharing", "count"), [("none", 288), ("headwise", 24), ("kv", 12), ("layerwise", 1)]
)
@pytest.mark.parametrize("projection", ["linear", "fixed", "conv", "dynamic"])
def test_sharing_gives_the_paper_s_number_of_matrices(projection, sharing, count):
    encoder = encoder_of(projection, sharing)
    owned = [m for m in encoder.modules() if isinstance(m, Projection)]
    assert sum(m.weight.shape[0] * m.weight.shape[1] for m in owned) == count
    assert count_matrices(sharing, depth=12, num_kv_heads=12) == count


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
@pytest.mark.parametrize("projection", ["mean", "max", "full"])
def test_kinds_without_parameters_take_any_sharing(projection, sharing):
    encoder = encoder_of(projection, sharing, depth=2)
    names = [name for name, _ in encoder.named_parameters() if "projection" in name]
    assert names == []
    assert encoder(torch.randn(1, 9, 24)).shape == (1, 9, 24)


def test_layerwise_sharing_is_one_tensor_in_the_state_dict():
    keys = [key for key in encoder_of(sharing="layerwise").state_dict() if "projection" in key]
    assert keys == ["projection.weight"]


def test_fixed_is_a_saved_buffer_with_the_variance_of_the_lemma():
    torch.manual_seed(0)
    projection = FixedProjection(k=64, max_length=4096, sides=1, heads=1)
    assert list(projection.parameters()) == []
    assert "weight" in projection.state_dict()
    assert projection.weight.var().item() == pytest.approx(1 / 64, rel=0.02)
    v = torch.randn(4096)
    norms = torch.stack(
        [
            (FixedProjection(k=64, max_length=4096, sides=1, heads=1).weight[0, 0] @ v)
            .square()
            .sum()
            for _ in range(50)
        ]
    )
    assert norms.mean().item() == pytest.approx(v.square().sum().item(), rel=0.1)


def test_fewer_rows_of_a_fixed_matrix_keep_the_variance_of_the_lemma():
    projection = FixedProjection(k=64, max_length=512, sides=1, heads=1)
    x = torch.eye(512)[None]
    rows = projection(x, None, rows=16).compress_input(x)
    assert rows.shape == (1, 1, 1, 16, 512)
    assert rows.var().item() == pytest.approx(1 / 16, rel=0.1)


def test_linear_rows_have_the_variance_of_the_input():
    torch.manual_seed(0)
    projection = LinearProjection(k=128, max_length=2048, sides=1, heads=1)
    x = torch.randn(1, 2048, 64)
    assert projection(x, None).compress_input(x).std().item() == pytest.approx(1.0, rel=0.05)


@pytest.mark.parametrize("projection", ["linear", "fixed", "dynamic", "mean", "max", "pool"])
def test_smaller_k_in_higher_layers_shares_the_first_rows(projection):
    encoder = encoder_of(projection, "layerwise", depth=3, k=(8, 6, 4)).eval()
    x = torch.randn(2, 16, 24)
    assert [weights.shape[-1] for weights in encoder.trace(x).attentions] == [8, 6, 4]
    if projection != "linear":
        return
    alone = encoder_of("linear", "kv", depth=3, k=(8, 6, 4)).eval()
    state = {key: value for key, value in encoder.state_dict().items() if key in alone.state_dict()}
    for index, k in enumerate((8, 6, 4)):
        state[f"layers.{index}.attention.projection.weight"] = encoder.projection.weight[:, :, :k]
    alone.load_state_dict(state)
    assert_close(alone(x), encoder(x))


def test_conv_with_different_k_cannot_share_one_filter():
    with pytest.raises(ValueError, match=r"one width.*got \[8, 4\].*sharing='kv'"):
        encoder_of("conv", "layerwise", depth=2, k=(8, 4))


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_resizing_takes_the_new_length_and_keeps_the_scale(projection):
    torch.manual_seed(0)
    encoder = encoder_of(
        projection, "layerwise", depth=2, max_length=32, positions="learned"
    ).eval()
    before = {name: p.detach().clone() for name, p in encoder.named_parameters()}
    assert resize_max_length(encoder, 48) is encoder
    assert encoder(torch.randn(1, 48, 24)).shape == (1, 48, 24)
    for name, parameter in encoder.named_parameters():
        if name.startswith("projection"):
            assert_close(parameter.norm(dim=-1), before[name].norm(dim=-1))
        elif name == "positions.weight":
            assert_close(parameter[[0, -1]], before[name][[0, -1]])
        else:
            assert torch.equal(parameter, before[name])


def test_resizing_a_smooth_row_interpolates_it():
    projection = LinearProjection(k=1, max_length=8, sides=1, heads=1)
    with torch.no_grad():
        projection.weight.copy_(torch.linspace(-1, 1, 8).view(1, 1, 1, 8))
    projection.resize(22)
    row = projection.weight[0, 0, 0]
    assert_close(row / row.abs().max(), torch.linspace(-1, 1, 22))


@pytest.mark.parametrize(
    ("projection", "length", "message"),
    [
        ("linear", 3, r"at least k=4: got 3"),
        ("full", 8, r"nothing in LinformerEncoder depends"),
        ("dynamic", 8, r"nothing in LinformerEncoder depends"),
    ],
)
def test_resizing_to_what_cannot_be_is_refused(projection, length, message):
    with pytest.raises(ValueError, match=message):
        resize_max_length(encoder_of(projection), length)


@pytest.mark.parametrize("scaled", [False, True])
def test_sharing_the_gradient_of_the_input_gives_the_same_gradients(scaled):
    matrix, x = (
        torch.randn(s, dtype=torch.float64, requires_grad=True) for s in [(6, 5), (3, 5, 2)]
    )
    scale = torch.rand(3, 2, 1, 3, dtype=torch.float64) if scaled else None

    def compression_of(matrix):
        made = MatrixCompression(matrix, sides=2, heads=1, mask=None)
        made.scale = scale
        return made

    def of_both(x, matrix):
        compression = compression_of(matrix)
        same, rows = compression.input_sums_for(x, reader=())
        return same.sin(), compression.scaled_input(rows), compression.row_sums()

    def apart(x, matrix):
        compression = compression_of(matrix)
        return x.sin(), compression.compress_input(x), compression.row_sums()

    upstream = [torch.randn_like(each) for each in apart(x, matrix)]
    for outputs in (slice(None), slice(1), slice(1, 2), slice(2, 3)):  # all, and each alone
        mine, theirs = (
            torch.autograd.grad(
                of(x, matrix)[outputs], (x, matrix), upstream[outputs], allow_unused=True
            )
            for of in (of_both, apart)
        )
        assert_close(mine, theirs)
    assert torch.autograd.gradgradcheck(of_both, (x, matrix))
    assert torch.autograd.gradgradcheck(lambda x: of_both(x, matrix.detach()), (x,))
    assert torch.autograd.gradgradcheck(lambda m: of_both(x.detach(), m), (matrix,))
