"""Whether the CPU fast path may be used, and the plain gradients that replace its backward pass.

The fast path works in row blocks, writes results into buffers and has backward passes of its own.
None of that can be compiled, batched by `torch.func.vmap` or differentiated in forward mode. One
predicate, `use_cpu_fast_path`, decides for every module; where it is False the plain path runs,
which consists of ordinary differentiable operations and gives the same result.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

if TYPE_CHECKING:
    from collections.abc import Callable


def under_transform() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp ...) or forward-mode AD is active.

    This does not depend on a tensor: inputs, parameters and buffers may each be wrapped. False
    when compiling: the compiler handles transforms itself.
    """
    return not torch.compiler.is_compiling() and (
        torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0
    )


def eager_on_cpu(x: Tensor) -> bool:
    """Whether operations on x run one by one on a CPU: neither compiled nor transformed.

    If True, the values of x may be read to decide what is computed, without a device sync.
    """
    return not torch.compiler.is_compiling() and x.device.type == "cpu" and not under_transform()


def use_cpu_fast_path(x: Tensor, *linears: nn.Module) -> bool:
    """Whether the fast path may be used for x and the linear layers whose weights it reads."""
    return (
        eager_on_cpu(x)
        and not torch.is_autocast_enabled("cpu")
        and x.numel() > 0
        and all(
            is_unmodified_linear(linear) and linear.weight.dtype == x.dtype for linear in linears
        )
    )


def is_unmodified_linear(linear: nn.Module) -> bool:
    """Whether a layer is an nn.Linear without subclass, hook, adapter or parametrization.

    Only then may its weight and bias be read instead of calling it.
    """
    hooked = (
        linear._forward_hooks
        or linear._forward_pre_hooks
        or linear._backward_hooks
        or linear._backward_pre_hooks
        or "forward" in linear.__dict__
    )
    return (
        type(linear) is nn.Linear and not hooked and type(linear.weight) in (Tensor, nn.Parameter)
    )


def needs_plain_backward(upstream: Tensor) -> bool:
    """Inside a backward pass: whether it must consist of differentiable operations.

    True if a gradient of the gradient is wanted (create_graph=True), and if the upstream gradient
    is a batch of gradients (is_grads_batched=True) or a dual number.
    """
    return (
        torch.is_grad_enabled()
        or under_transform()
        or torch._C._functorch.is_legacy_batchedtensor(upstream)
    )


def plain_gradients(
    of: Callable[..., Tensor],
    inputs: tuple[Tensor | None, ...],
    upstream: Tensor,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """The gradients of of(*inputs), recomputed by differentiable operations.

    `needed` is `ctx.needs_input_grad`; it may be longer than `inputs`, by arguments that have no
    gradient. Gradients that are not needed are None.
    """
    wants_graph = torch.is_grad_enabled()
    with torch.enable_grad():
        # A view of each input: two of them may be one tensor, as with tied weights.
        views = [None if each is None else each.view_as(each) for each in inputs]
        wanted = [each for each, need in zip(views, needed, strict=False) if need]
        present = [each for each in wanted if each is not None]
        found = iter(torch.autograd.grad(of(*views), present, upstream, create_graph=wants_graph))
    return tuple(next(found) if need else None for need in needed)
