"""Layers recomputed in blocks of rows: outputs and gradients of the plain encoder, less memory."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.models import LinformerConfig, LinformerForMaskedLM
from linformer_kit.parallel import recompute_in_blocks

from .cases import CLOSE, SMALL, padding, randomized
from .model_cases import TINY

LENGTH = 37


def _gradients(model: nn.Module, x: Tensor, mask: Tensor | None) -> dict[str, Tensor]:
    """Output, and the gradients of the input and of every parameter."""
    x = x.clone().requires_grad_()
    y = model(x, mask=mask)
    weight = torch.randn(y.shape, generator=torch.Generator().manual_seed(3), dtype=y.dtype)
    (y * weight).sum().backward()
    assert x.grad is not None
    found = {name: each.grad for name, each in model.named_parameters() if each.grad is not None}
    return {"y": y.detach(), "x": x.grad, **found}


@pytest.mark.parametrize("kind", ["linear", "fixed", "dynamic", "conv", "mean"])
@pytest.mark.parametrize("mask", [None, "right", "with empty"])
@pytest.mark.parametrize(
    "options",
    [
        {"neighbours": 5, "positions": "learned", "moving_average": True, "block": 8},
        {"norm": "post", "sharing": "none", "block": 5},
        {"k": [6, 4], "num_kv_heads": 2, "block": 100},
    ],
)
def test_outputs_and_gradients_are_those_of_the_encoder(tmp_path, kind, mask, options):
    options = dict(options)
    block = options.pop("block")
    if kind == "conv" and isinstance(options.get("k"), list):
        options["sharing"] = "kv"
    settings: dict[str, Any] = {**SMALL, "max_length": 40, "k": 6, "projection": kind, **options}
    encoder = randomized(LinformerEncoder, **settings).train()
    scratch = tmp_path if mask == "right" else None
    blocked = recompute_in_blocks(copy.deepcopy(encoder), block, scratch=scratch)
    x = torch.randn(3, LENGTH, SMALL["dim"], dtype=torch.float64)
    real = padding(mask, 3, LENGTH)
    expected, found = (_gradients(model, x, real) for model in (encoder, blocked))
    torch.testing.assert_close(found, expected, **CLOSE)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", ["rows", "weights"])
def test_the_backward_pass_repeats_the_dropout(kind):
    """With dropout the gradient is that of the output: checked by a difference along x."""
    encoder = randomized(
        LinformerEncoder, **SMALL, max_length=40, k=6, dropout=0.3, dropout_kind=kind
    ).train()
    blocked = recompute_in_blocks(encoder, 8)
    x = torch.randn(1, LENGTH, SMALL["dim"], dtype=torch.float64, requires_grad=True)
    towards = torch.randn_like(x)

    def loss(at: Tensor) -> Tensor:
        torch.manual_seed(5)
        return blocked(at).square().sum()

    loss(x).backward()
    torch.rand(1)  # what is drawn in between does not matter
    step = 1e-6
    ahead, behind = (float(loss(x.detach() + s * step * towards).detach()) for s in (1, -1))
    assert x.grad is not None
    slope = float((x.grad * towards).sum())
    assert (ahead - behind) / (2 * step) == pytest.approx(slope, rel=1e-5)


def test_what_autograd_keeps_is_one_row_for_each_layer():
    """Saved tensors of a layer: its input and k rows."""
    encoder = LinformerEncoder(dim=16, depth=3, num_heads=2, max_length=4096, k=8, ff_dim=64)
    kept: list[int] = []
    x = torch.randn(1, 4096, 16, requires_grad=True)

    def note(saved: Tensor) -> Tensor:
        if saved.shape[:2] == (1, 4096):
            kept.append(saved.shape[-1])
        return saved

    blocked = recompute_in_blocks(encoder, 256)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda saved: saved):
        blocked(x)
    assert sum(kept) <= 5 * 16  # the inputs of three layers and of the last norm


def test_a_model_trains_as_without_blocks():
    config = LinformerConfig(**{**TINY, "window": 0, "global_tokens": 0})
    torch.manual_seed(0)
    model = LinformerForMaskedLM(config).double().train()
    blocked = recompute_in_blocks(copy.deepcopy(model), 7)
    assert type(blocked.linformer.encoder).__name__ == "LinformerEncoder"
    ids = torch.randint(2, 12, (2, 30))
    labels = torch.where(torch.rand(2, 30) < 0.3, ids, -100)
    for one in (model, blocked):
        optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
        for _ in range(3):
            loss = one(ids, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    torch.testing.assert_close(blocked.state_dict(), model.state_dict(), **CLOSE)
    model.eval()
    blocked.eval()
    with torch.no_grad():
        torch.testing.assert_close(blocked(ids).logits, model(ids).logits, **CLOSE)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: LinformerEncoder(**SMALL, max_length=8, k=4, window=2), "window or global tokens"),
        (lambda: LinformerEncoder(**SMALL, max_length=8, k=4, projection="max"), "got 'max'"),
        (lambda: LinformerEncoder(**SMALL, projection="full"), "got 'full'"),
        (lambda: LinformerDecoder(**SMALL, k=4, window=4), "got LinformerDecoder"),
        (lambda: nn.Linear(2, 2), "got Linear"),
    ],
)
def test_what_cannot_be_recomputed_in_blocks_is_refused(build, message):
    with pytest.raises(ValueError, match=message):
        recompute_in_blocks(build(), 4)


def test_a_block_has_rows():
    with pytest.raises(ValueError, match="at least one row: got 0"):
        recompute_in_blocks(LinformerEncoder(**SMALL, max_length=8, k=4), 0)
