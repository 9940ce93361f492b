"""What the ranks run: a model on a whole sequence, and the same model on parts of it."""

from __future__ import annotations

import copy
from functools import cache
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from linformer_kit import LinformerDecoder, LinformerEncoder
from linformer_kit.parallel import average_gradients, bounds, parallelize

if TYPE_CHECKING:
    from collections.abc import Callable

CLOSE: dict[str, float] = {"atol": 1e-9, "rtol": 1e-9}
SMALL: dict[str, Any] = {"dim": 16, "depth": 2, "num_heads": 4, "ff_dim": 24}


@cache
def mesh_of(sequence: int) -> DeviceMesh:
    shape = (dist.get_world_size() // sequence, sequence)
    return init_device_mesh("cpu", shape, mesh_dim_names=("data", "sequence"))


def own_part(mesh: DeviceMesh, length: int, cuts: list[int] | None = None) -> slice:
    """The positions of this rank: by `bounds`, or as many as `cuts` says."""
    rank, size = mesh["sequence"].get_local_rank(), mesh["sequence"].size()
    if cuts is None:
        return slice(*bounds(length, size)[rank])
    assert sum(cuts) == length
    assert len(cuts) == size
    return slice(sum(cuts[:rank]), sum(cuts[: rank + 1]))


def padding(kind: str | None, batch: int, length: int) -> Tensor | None:
    """Masks (B, N) whose padding ends in different places; True = real."""
    if kind is None:
        return None
    if kind == "right":
        ends = torch.linspace(1, length, batch).long()
        return torch.arange(length) < ends[:, None]
    mask = torch.rand(batch, length, generator=torch.Generator().manual_seed(1)) > 0.4
    mask[0], mask[1, : length // 2] = True, False
    if kind == "with empty":
        mask[2] = False
    return mask


def randomized(build: Callable[..., nn.Module], *args: Any, **options: Any) -> nn.Module:
    """A model in float64 with every parameter random, so that none has no effect."""
    torch.manual_seed(0)
    model = build(*args, **options).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def assert_same_gradients(model: nn.Module, whole: nn.Module, mesh: DeviceMesh, times: int) -> None:
    """The mean over the ranks, `times` as large, is the gradient of the whole."""
    average_gradients(model, mesh)
    expected = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        grad = expected[name].grad
        grad = torch.zeros_like(parameter) if grad is None else grad
        torch.testing.assert_close(
            parameter.grad * times, grad, **CLOSE, msg=lambda text, name=name: f"{name}: {text}"
        )


def check_encoder(
    options: dict[str, Any],
    length: int,
    *,
    sequence: int,
    cuts: list[int] | None = None,
    mask: str | None = None,
    training: bool = True,
) -> None:
    """Outputs and gradients of the parts are those of the whole."""
    mesh = mesh_of(sequence)
    whole = randomized(LinformerEncoder, **{**SMALL, **options}).train(training)
    model = parallelize(copy.deepcopy(whole), mesh)
    torch.manual_seed(1)
    x = torch.randn(3, length, 16, dtype=torch.float64)
    weight = torch.randn(3, length, 16, dtype=torch.float64)
    keep = padding(mask, 3, length)
    here = own_part(mesh, length, cuts)
    x_whole = x.clone().requires_grad_()
    y_whole = whole(x_whole, mask=keep)
    (y_whole * weight).sum().backward()
    x_part = x[:, here].clone().requires_grad_()
    y = model(x_part, mask=None if keep is None else keep[:, here])
    torch.testing.assert_close(y, y_whole[:, here], **CLOSE)
    (y * weight[:, here]).sum().backward()
    torch.testing.assert_close(x_part.grad, x_whole.grad[:, here], **CLOSE)
    assert_same_gradients(model, whole, mesh, sequence)
    with torch.no_grad():
        model.eval()
        y = model(x[:, here], mask=None if keep is None else keep[:, here])
        expected = whole.eval()(x, mask=keep)[:, here]
        torch.testing.assert_close(y, expected, **CLOSE)


def check_decoder(
    options: dict[str, Any],
    length: int,
    *,
    sequence: int,
    cuts: list[int] | None = None,
    mask: str | None = None,
    context: int = 0,
) -> None:
    mesh = mesh_of(sequence)
    if context:
        options = {**options, "cross_attention": True}
    whole = randomized(LinformerDecoder, **{**SMALL, **options})
    model = parallelize(copy.deepcopy(whole), mesh)
    torch.manual_seed(1)
    x = torch.randn(3, length, 16, dtype=torch.float64)
    weight = torch.randn(3, length, 16, dtype=torch.float64)
    keep = padding(mask, 3, length)
    here = own_part(mesh, length, cuts)
    seen = torch.randn(3, context, 16, dtype=torch.float64) if context else None
    seen_mask = padding("right", 3, context) if context else None
    there = own_part(mesh, context) if context else slice(0)
    whole_given: dict[str, Any] = {"mask": keep}
    part_given: dict[str, Any] = {"mask": None if keep is None else keep[:, here]}
    if seen is not None:
        whole_given |= {"context": seen, "context_mask": seen_mask}
        part_given |= {"context": seen[:, there], "context_mask": seen_mask[:, there]}
    x_whole, x_part = x.clone().requires_grad_(), x[:, here].clone().requires_grad_()
    y_whole = whole(x_whole, **whole_given)
    (y_whole * weight).sum().backward()
    y = model(x_part, **part_given)
    torch.testing.assert_close(y, y_whole[:, here], **CLOSE)
    (y * weight[:, here]).sum().backward()
    torch.testing.assert_close(x_part.grad, x_whole.grad[:, here], **CLOSE)
    assert_same_gradients(model, whole, mesh, sequence)
