"""Distillation: train a converted model to give what its teacher gives, on unlabelled inputs."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import torch

from ..core import checks
from ..core.learning_rates import group_by_rate
from .batches import BATCH as BATCH
from .batches import batches_of
from .calibration import CALIBRATION, calibrate, needs_calibration
from .distillation import (
    LAYERS_FIRST,
    agreement,
    as_batch,
    hidden_loss,
    hidden_states,
    layer_loss,
)
from .in_place_loss import in_place_loss, is_swapped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from torch import Tensor, nn

WARMUP = 0.05
LR, BETAS, WEIGHT_DECAY, CLIP = 5e-5, (0.9, 0.98), 0.01, 1.0


def distill(
    student: nn.Module,
    teacher: nn.Module,
    data: Sequence[str] | Iterable[Any],
    *,
    tokenizer: Any = None,
    minutes: float | None = None,
    steps: int | None = None,
    batch_size: int = BATCH,
    length: int | None = None,
    lr: float = LR,
    layers_first: float = LAYERS_FIRST,
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Train `student` in place to follow `teacher`; the agreement on the last batches is returned.

    Args:
        student: a converted model, or one with swapped attention.
        teacher: the model it was made from; it is not changed.
        data: texts (with `tokenizer`), which are cut into rows of `length` tokens, or batches to
            repeat: a tensor, the models' first argument, or a mapping of arguments.
        tokenizer: of the teacher.
        minutes: how long to train; or give
        steps: how many updates to train.
        batch_size: rows of a batch, for texts.
        length: tokens of a row, for texts; by default as many as both models read.
        lr: the highest learning rate of AdamW; it rises over the first steps and falls to zero.
        layers_first: the share of the training in which layers are trained one by one.
        seed: of the order of rows.
        say: is given a progress line from time to time.

    A student with `pool` projections that have no weights yet is calibrated first, see
    `calibrate`. The first part of the time trains every layer (of a model with swapped attention:
    every swapped attention) on the teacher's own inputs of that layer, the rest the whole model.

    """
    if (minutes is None) == (steps is None):
        raise ValueError(f"give one of minutes and steps: got minutes={minutes}, steps={steps}.")
    if steps is not None:
        checks.positive("steps", steps)
    elif not minutes or minutes <= 0:
        raise ValueError(f"minutes must be above 0: got {minutes}.")
    batches = batches_of(data, tokenizer, (student, teacher), batch_size, length, seed)
    if needs_calibration(student):
        calibrate(student, list(itertools.islice(batches, CALIBRATION)))
    groups = group_by_rate((p for p in student.parameters() if p.requires_grad), student)
    optimizer = torch.optim.AdamW(
        [{"params": params, "lr": lr * rate, "rate": rate} for rate, params in groups.items()],
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
    )
    in_place = is_swapped(student)
    loss_of = in_place_loss if in_place else distillation_loss
    trained, taught = student.training, teacher.training
    student.eval()  # dropout would add noise to what is compared
    teacher.eval()
    started = time.monotonic()
    recent: list[dict[str, float]] = []
    try:
        for step in itertools.count():
            elapsed = (time.monotonic() - started) / 60
            progress = step / steps if steps is not None else elapsed / (minutes or 1.0)
            if progress >= 1.0:
                break
            batch = next(batches) if in_place else as_batch(next(batches))
            for group in optimizer.param_groups:
                group["lr"] = lr * group["rate"] * schedule(progress)
            with torch.enable_grad():
                loss, found = loss_of(student, teacher, batch, by_layer=progress < layers_first)
                optimizer.zero_grad(set_to_none=True)
                loss.backward()
            torch.nn.utils.clip_grad_norm_(student.parameters(), CLIP)
            optimizer.step()
            if found:
                recent = [*recent[-7:], found]
            if step % 20 == 0:
                near = "  ".join(f"{name} {value:.4f}" for name, value in mean_of(recent).items())
                say(f"step {step}  {elapsed:.1f} min  loss {loss.item():.4f}  {near}".rstrip())
    finally:
        student.train(trained)
        teacher.train(taught)
    return mean_of(recent)


def distillation_loss(
    student: nn.Module, teacher: nn.Module, batch: dict[str, Tensor], *, by_layer: bool
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch, and the agreement if the whole student was run."""
    mask = batch["attention_mask"]
    with torch.no_grad():
        theirs = hidden_states(teacher, batch)
    encoder = _encoder(student)
    if by_layer and hasattr(encoder, "layers"):
        return layer_loss(encoder, theirs, mask), {}
    ours = hidden_states(student, batch)
    return hidden_loss(ours, theirs, mask), agreement(ours[-1].detach(), theirs[-1], mask)


def schedule(progress: float) -> float:
    """From 0 to 1 over the first steps, then a cosine to 0."""
    return min(1.0, progress / WARMUP + 0.02) * 0.5 * (1.0 + math.cos(math.pi * progress))


def mean_of(found: list[dict[str, float]]) -> dict[str, float]:
    """The mean of each score; empty without any."""
    return {name: sum(f[name] for f in found) / len(found) for name in found[0]} if found else {}


def _encoder(model: nn.Module) -> Any:
    """The core's encoder inside a model of ours, if there is one."""
    inner = getattr(model, "linformer", model)
    return getattr(inner, "encoder", None)
