"""The distance between a model with swapped attention and its teacher, whatever their class is.

Both have the same modules under the same names, so the outputs of the attention modules that were
swapped are compared, seen by hooks, and the output of the model.

Legend: B batch, N positions, M model size.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from .batches import call
from .distillation import agreement, relative_error
from .swapped import CHILD, SwappedAttention

if TYPE_CHECKING:
    from collections.abc import Iterator

Call = tuple[tuple[Any, ...], dict[str, Any], Tensor]  # arguments and output of a module


def is_swapped(model: nn.Module) -> bool:
    return any(isinstance(module, SwappedAttention) for module in model.modules())


def in_place_loss(
    student: nn.Module, teacher: nn.Module, batch: Any, *, by_layer: bool
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch, and the agreement if the whole student was run.

    By layer: the error of each swapped attention on the teacher's input of it. Else of those of the
    whole student, and of its output.
    """
    names = [name for name, module in student.named_modules() if hasattr(module, CHILD)]
    with torch.no_grad(), _calls(teacher, names) as theirs:
        wanted = output_of(call(teacher, batch))
    mask = batch.get("attention_mask") if isinstance(batch, Mapping) else None
    if by_layer:
        errors = []
        for name in names:
            for args, options, output in theirs[name]:
                ours = output_of(student.get_submodule(name)(*args, **options))
                errors.append(_error(ours, output, mask))
        return torch.stack(errors).mean(), {}
    with _calls(student, names) as ours_by_name:
        found = output_of(call(student, batch))
    errors = [
        _error(ours[2], output[2], mask)
        for name in names
        for ours, output in zip(ours_by_name[name], theirs[name], strict=True)
    ]
    loss = torch.stack(errors).mean() + _error(found, wanted, mask)
    if found.dim() == 2:  # one row for each sample, such as logits
        found, wanted, mask = found[:, None], wanted[:, None], None
    real = _shown(found, mask)
    return loss, agreement(found.detach(), wanted, real)


def output_of(output: Any) -> Tensor:
    """The main tensor of a model's or a module's output."""
    if isinstance(output, Tensor):
        return output
    for name in ("last_hidden_state", "logits"):
        if isinstance(tensor := getattr(output, name, None), Tensor):
            return tensor
    first: Tensor = next(iter(output.values())) if isinstance(output, Mapping) else output[0]
    return first


@contextmanager
def _calls(model: nn.Module, names: list[str]) -> Iterator[dict[str, list[Call]]]:
    """The calls of the modules with these names, while the context lasts."""
    seen: dict[str, list[Call]] = {name: [] for name in names}
    hooks = []
    for name in names:

        def keep(
            module: nn.Module,
            args: tuple[Any, ...],
            options: dict[str, Any],
            output: Any,
            name: str = name,
        ) -> None:
            seen[name].append((args, options, output_of(output)))

        hooks.append(model.get_submodule(name).register_forward_hook(keep, with_kwargs=True))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def _shown(rows: Tensor, mask: Tensor | None) -> Tensor:
    """The real positions of rows (B, N, ...); all, if the mask is of another shape."""
    if mask is not None and mask.shape == rows.shape[:2]:
        return mask
    return torch.ones(rows.shape[:2], dtype=torch.bool, device=rows.device)


def _error(ours: Tensor, theirs: Tensor, mask: Tensor | None) -> Tensor:
    if ours.dim() < 3:
        ours, theirs = ours[:, None], theirs[:, None]
    return relative_error(ours, theirs, _shown(ours, mask))
