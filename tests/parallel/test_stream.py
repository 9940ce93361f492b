"""Streamed inference equals a call with the whole input."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from linformer_kit import LinformerEncoder
from linformer_kit.models import LinformerConfig, LinformerModel
from linformer_kit.models.pooling import pooled
from linformer_kit.parallel import stream, stream_pooled

from .cases import CLOSE, SMALL, padding, randomized
from .model_cases import TINY

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 37


def _streamed(model: Any, inputs: Any, **options: Any) -> torch.Tensor:
    blocks = list(stream(model, inputs, **options))
    assert [start for start, _ in blocks] == list(range(0, len(inputs), options["block"]))
    return torch.cat([rows for _, rows in blocks])


@pytest.mark.parametrize("kind", ["linear", "fixed", "dynamic", "conv", "mean"])
@pytest.mark.parametrize("sharing", [pytest.param("none", marks=pytest.mark.slow), "layerwise"])
@pytest.mark.parametrize(
    "options",
    [
        {"neighbours": 5, "positions": "learned", "moving_average": True},
        {"window": 4, "global_tokens": 3},
        {"global_tokens": 2, "norm": "post"},
    ],
)
@pytest.mark.parametrize("padded", [False, True])
def test_streamed_equals_whole(
    kind: str, sharing: str, options: dict[str, Any], padded: bool
) -> None:
    given = {**SMALL, "projection": kind, "sharing": sharing, "k": 5, "max_length": 40, **options}
    model = randomized(LinformerEncoder, **given).eval()
    x = torch.randn(LENGTH, 16, dtype=torch.float64)
    mask = padding("any", 3, LENGTH) if padded else None
    own = None if mask is None else mask[1]
    with torch.no_grad():
        expected = model(x[None], mask=None if own is None else own[None])[0]
    for block in (7, 16, 64):
        torch.testing.assert_close(_streamed(model, x, mask=own, block=block), expected, **CLOSE)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_tokens_of_a_memory_map_and_pooling(tmp_path: Path, pooling: str) -> None:
    model = randomized(LinformerModel, LinformerConfig(**TINY)).eval()
    tokens = np.lib.format.open_memmap(tmp_path / "ids.npy", "w+", np.int32, (LENGTH,))
    tokens[:] = np.random.default_rng(0).integers(0, 30, LENGTH)
    mask = np.arange(LENGTH) > 4
    ids = torch.tensor(tokens).long()[None]
    with torch.no_grad():
        rows = model(ids, attention_mask=torch.tensor(mask)[None].long()).last_hidden_state
    expected = pooled(rows, torch.tensor(mask)[None], pooling)[0]
    found = stream_pooled(model, tokens, mask=mask, pooling=pooling, block=8, scratch=tmp_path)
    torch.testing.assert_close(found, expected, **CLOSE)
    assert [each.name for each in tmp_path.iterdir()] == ["ids.npy"]  # temporary files are removed


def test_files_are_removed_when_reading_stops_early(tmp_path: Path) -> None:
    model = randomized(LinformerEncoder, **SMALL, k=5, max_length=40).eval()
    blocks = stream(model, torch.randn(LENGTH, 16), block=8, scratch=tmp_path)
    next(blocks)
    assert list(tmp_path.iterdir())
    blocks.close()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "call", "message"),
    [
        ({"projection": "max"}, {}, "got 'max'"),
        ({"window": 8}, {"block": 4}, "8 positions: got block=4"),
        ({}, {"training": True}, "Call model.eval()"),
        ({}, {"length": 41}, "at most max_length=40 positions: got 41"),
        ({}, {"length": 0}, "at least one position"),
        ({}, {"width": 15}, "must have shape"),
    ],
)
def test_what_cannot_be_streamed_is_refused(
    options: dict[str, Any], call: dict[str, Any], message: str
) -> None:
    model = LinformerEncoder(**{**SMALL, "k": 5, "max_length": 40, **options})
    model.train(call.get("training", False))
    x = torch.randn(call.get("length", LENGTH), call.get("width", 16))
    with pytest.raises(ValueError, match=message.replace("(", r"\(").replace(")", r"\)")):
        list(stream(model, x, block=call.get("block", 16)))


def test_a_model_with_a_head_is_refused() -> None:
    with pytest.raises(ValueError, match="got Linear"):
        list(stream(torch.nn.Linear(2, 2).eval(), torch.randn(3, 2)))
