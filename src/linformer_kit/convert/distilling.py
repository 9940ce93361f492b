"""Distillation: train a converted model to give what its teacher gives, on unlabelled inputs."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import torch

from ..core import checks
from ..core.learning_rates import group_by_rate
from .distillation import agreement, as_batch, hidden_loss, hidden_states, layer_loss
from .families import longest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from torch import Tensor, nn

LAYERS_FIRST = 0.2  # the share of the time in which layers are trained one by one
WARMUP = 0.05
BATCH, LR, BETAS, WEIGHT_DECAY, CLIP = 4, 2e-4, (0.9, 0.98), 0.01, 1.0


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
    seed: int = 0,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, float]:
    """Train `student` in place to follow `teacher`; the agreement on the last batches is returned.

    Args:
        student: a converted model.
        teacher: the model it was converted from; it is not changed.
        data: texts (with `tokenizer`), which are cut into rows of `length` tokens, or batches: a
            tensor of input_ids or a mapping of the models' inputs, which are used repeatedly.
        tokenizer: of the teacher.
        minutes: how long to train; or give
        steps: how many updates to train.
        batch_size: rows of a batch, for texts.
        length: tokens of a row, for texts; by default as many as both models read.
        lr: the highest learning rate of AdamW; it rises over the first steps and falls to zero.
        seed: of the order of rows.
        say: is given a progress line from time to time.

    The first fifth of the time trains every layer on the hidden states of the teacher, the rest the
    whole model.

    """
    if (minutes is None) == (steps is None):
        raise ValueError(f"give one of minutes and steps: got minutes={minutes}, steps={steps}.")
    if steps is not None:
        checks.positive("steps", steps)
    elif not minutes or minutes <= 0:
        raise ValueError(f"minutes must be above 0: got {minutes}.")
    batches = _batches(data, tokenizer, student, teacher, batch_size, length, seed)
    groups = group_by_rate((p for p in student.parameters() if p.requires_grad), student)
    optimizer = torch.optim.AdamW(
        [{"params": params, "lr": lr * rate, "rate": rate} for rate, params in groups.items()],
        betas=BETAS,
        weight_decay=WEIGHT_DECAY,
    )
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
            batch = as_batch(next(batches))
            for group in optimizer.param_groups:
                group["lr"] = lr * group["rate"] * schedule(progress)
            with torch.enable_grad():
                loss, found = distillation_loss(student, teacher, batch, progress=progress)
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
    student: nn.Module, teacher: nn.Module, batch: dict[str, Tensor], *, progress: float
) -> tuple[Tensor, dict[str, float]]:
    """The loss of a batch after this share of the training, and the agreement if all was run."""
    mask = batch["attention_mask"]
    with torch.no_grad():
        theirs = hidden_states(teacher, batch)
    encoder = _encoder(student)
    if progress < LAYERS_FIRST and hasattr(encoder, "layers"):
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


def _batches(
    data: Any,
    tokenizer: Any,
    student: nn.Module,
    teacher: nn.Module,
    batch_size: int,
    length: int | None,
    seed: int,
) -> Iterator[Any]:
    """Batches without end: of texts in a new order each time, or those given."""
    given = list(data)
    if not given:
        raise ValueError("distillation needs data: got none.")
    if not isinstance(given[0], str):
        return itertools.cycle(given)
    if tokenizer is None:
        raise ValueError("texts need a tokenizer: got tokenizer=None. Pass that of the teacher.")
    checks.positive("batch_size", batch_size)
    if length is None:
        length = min(longest(student), longest(teacher))
    return _row_batches(rows_of(given, tokenizer, length), tokenizer, batch_size, seed)


def rows_of(texts: list[str], tokenizer: Any, length: int) -> list[list[int]]:
    """Pieces of at most `length` tokens, special tokens included."""
    rows: list[list[int]] = []
    for text in texts:
        pieces = tokenizer(
            text, truncation=True, max_length=length, return_overflowing_tokens=True, verbose=False
        )["input_ids"]
        rows += pieces if pieces and isinstance(pieces[0], list) else [pieces]
    return rows


def _row_batches(
    rows: list[list[int]], tokenizer: Any, batch_size: int, seed: int
) -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    while True:
        order = torch.randperm(len(rows), generator=generator).tolist()
        for i in range(0, max(1, len(order) - batch_size + 1), batch_size):
            chosen = [{"input_ids": rows[place]} for place in order[i : i + batch_size]]
            padded = tokenizer.pad(chosen, return_tensors="pt")
            yield {name: padded[name] for name in ("input_ids", "attention_mask")}
