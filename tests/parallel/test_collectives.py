"""Collectives: gradients, and what is sent."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.parallel import count_traffic, parallelize
from linformer_kit.parallel.collectives import exchange, exclusive_scan

from .cases import CLOSE, mesh_of, own_part

if TYPE_CHECKING:
    from .ranks import Ranks

WIDE: dict[str, Any] = {"dim": 32, "depth": 1, "num_heads": 4, "ff_dim": 32}


def _exchange() -> None:
    """Any positions from any rank; a position that several ranks need has the sum of their
    gradients.
    """
    group = mesh_of(4)["sequence"].get_group()
    held = [(0, 3), (3, 4), (4, 8), (8, 10)]
    needed = [(0, 10), (2, 5), (4, 8), (1, 10)]
    whole = torch.randn(2, 10, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    first, last = held[group.rank()]
    own = whole[:, first:last].clone().requires_grad_()
    got = exchange(own, held, needed, group)
    lower, upper = needed[group.rank()]
    assert got.equal(whole[:, lower:upper])
    got.sum().backward()
    times = torch.zeros(10, dtype=torch.float64)
    for a, b in needed:
        times[a:b] += 1
    torch.testing.assert_close(own.grad, times[None, first:last, None].expand_as(own))


def test_exchange_sends_any_positions(ranks: Ranks) -> None:
    ranks.run(_exchange)


def _scan() -> None:
    group = mesh_of(4)["sequence"].get_group()
    x = torch.full((2,), float(group.rank() + 1), dtype=torch.float64, requires_grad=True)
    before = exclusive_scan(x, group)
    assert before.tolist() == [[0.0, 1.0, 3.0, 6.0][group.rank()]] * 2
    (before * 10.0 ** group.rank()).sum().backward()
    torch.testing.assert_close(
        x.grad[0].item(), [1110.0, 1100.0, 1000.0, 0.0][group.rank()], **CLOSE
    )


def test_scan_sums_the_ranks_before(ranks: Ranks) -> None:
    ranks.run(_scan)


def _traffic(kind: str, length: int) -> tuple[dict[str, int], dict[str, int]]:
    """Calls and bytes of one layer, forward and backward."""
    mesh = mesh_of(4)
    torch.manual_seed(0)
    if kind == "decoder":
        model: torch.nn.Module = LinformerDecoder(**WIDE, k=8, window=16)
    else:
        window = {"window": 16, "global_tokens": 1} if kind == "window" else {}
        projection = "linear" if kind == "window" else kind
        model = LinformerEncoder(**WIDE, k=8, max_length=length, projection=projection, **window)
    parallelize(model, mesh)
    x = torch.randn(1, length, 32)[:, own_part(mesh, length)]
    with torch.no_grad():
        model(x)  # the first call compares the models of the ranks
    with count_traffic() as traffic:
        model(x.requires_grad_()).sum().backward()
    return dict(traffic.calls), dict(traffic.bytes)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "mean", "window", "decoder"])
def test_what_is_sent_does_not_grow_with_the_length(ranks: Ranks, kind: str) -> None:
    """The second of four ranks, which has neighbours on both sides."""
    short, long = (ranks.run(_traffic, kind, length)[1] for length in (1024, 8192))
    assert short == long


def test_a_layer_is_one_all_reduce_of_k_rows_in_each_direction(ranks: Ranks) -> None:
    calls, sent = ranks.run(_traffic, "linear", 1024)[0]
    assert calls == {"all_gather": 1, "all_reduce": 2}
    rows = 8 * (32 + 1) * 4  # k x (dim, and E 1 for the biases of W_k and W_v), float32
    assert sent["all_reduce"] == 2 * rows
