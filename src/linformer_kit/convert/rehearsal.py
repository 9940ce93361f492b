"""A rehearsal of a conversion: what is exchanged, and what training needs and takes.

A few real steps run on real rows in memory. Nothing is written and nothing is kept.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..measure import quantities
from ..measure.step import TrainingStep, step_peak
from ..measure.timing import seconds_of
from .conversion import build_student, choose, prepare, say_choices
from .conversion_folder import ConversionFolder
from .distillation import LAYERS_FIRST
from .step_batches import LONG_EVERY

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

    from .conversion import Conversion, Prepared
    from .distill_trainer import DistillTrainer
    from .source import Settings

TIMED = 2  # steps of each kind, after one that is not timed


def dry_run(job: Conversion, out: Path, *, say: Callable[[str], None]) -> str:
    """Parameters, layers, text, memory and time, as lines."""
    done = ConversionFolder(out).check_for(job.as_json())
    prepared = prepare(job, say)
    settings, why = choose(job, prepared, lambda _: None)
    say_choices(why, say)
    student, told = build_student(prepared, settings)
    for line in told:
        say(line)
    lines = [
        *([f"{out} holds this conversion already."] if done is not None else []),
        *_about_model(prepared, settings, student),
        *_about_text(job, prepared),
    ]
    if job.trains:
        lines += _about_training(job, prepared, student)
    elif prepared.source.reads_text:
        lines += _about_reading(student, settings.max_length)
    return "\n".join(lines)


def _about_model(prepared: Prepared, settings: Settings, student: nn.Module) -> list[str]:
    source = prepared.source
    full = settings.full_layers
    k = settings.k if isinstance(settings.k, int) else ", ".join(map(str, settings.k))
    exchanged = [n for n in range(source.layers) if n not in full]
    new = _count(student) - _count(source.teacher)
    return [
        f"model           {type(source.teacher).__name__} {source.how} as {type(student).__name__}",
        f"parameters      {_count(student):,}, {new:+,} against the original",
        f"reads           {settings.max_length:,} positions, the original "
        f"{'-' if source.longest is None else f'{source.longest:,}'}",
        f"exchanged       {len(exchanged)} of {source.layers} layers: k {k}, window "
        f"{settings.window}, {settings.global_tokens} global, {settings.projection}",
        f"full attention  {', '.join(f'layer {n}' for n in full) or 'no layer'}",
    ]


def _about_text(job: Conversion, prepared: Prepared) -> list[str]:
    text = prepared.text
    if text is None:
        return []
    train, held_out = (sum(map(len, part)) for part in (text.train, text.held_out))
    line = f"text            {held_out:,} tokens to compare on"
    if job.trains:
        line = f"text            {train:,} tokens to train on, {held_out:,} held out"
    return [f"{line}; rows of {text.length:,} tokens"]


def _about_training(job: Conversion, prepared: Prepared, student: nn.Module) -> list[str]:
    """Seconds of a step of each kind, and what follows for all of them."""
    from .distill_run import make_trainer
    from .distill_trainer import Clock

    clock = Clock(steps=job.steps, minutes=job.minutes)
    with tempfile.TemporaryDirectory() as folder:
        trainer = make_trainer(job, prepared, student, clock, Path(folder))
        batches: Any = trainer.train_dataset
        short, *longer = batches.lengths
        layers = _seconds(_step(trainer, short, 0.0))
        whole = _seconds(_step(trainer, short, LAYERS_FIRST))
        long = [_seconds(_step(trainer, length, LAYERS_FIRST)) for length in longer]
        mean_long = sum(long) / len(long) if long else whole
        every = (1 - 1 / LONG_EVERY) * whole + mean_long / LONG_EVERY
        mean = LAYERS_FIRST * layers + (1 - LAYERS_FIRST) * every
        largest = _step(trainer, batches.lengths[-1], LAYERS_FIRST)
        peak = step_peak(trainer.args.device, largest)
    weights = 16 * _count(student) + 4 * _count(prepared.source.teacher)
    memory = f"memory          {quantities.size(weights)} for both models, gradients and Adam"
    if peak is not None:
        memory += f", {quantities.size(peak.work)} for the activations of a step"
    kinds = [f"{quantities.seconds(layers)} layers", f"{quantities.seconds(whole)} whole model"]
    kinds += [
        f"{quantities.seconds(taken)} rows of {length:,}"
        for taken, length in zip(long, longer, strict=True)
    ]
    if job.steps is not None:
        total = f"{quantities.duration(mean * job.steps)} for {job.steps:,} steps"
    else:
        assert job.minutes is not None
        total = f"{job.minutes:g} minutes, about {int(60 * job.minutes / mean):,} steps"
    return [memory, f"time a step     {', '.join(kinds)}", f"time in all     {total}"]


def _step(trainer: DistillTrainer, length: int, progress: float) -> Callable[[], None]:
    """A real step; the weights are not kept."""
    batches: Any = trainer.train_dataset
    model: Any = trainer.model
    step = TrainingStep(
        model,
        loss_of=lambda batch: trainer.loss_of(model, batch, progress),
        optimizer=trainer.create_optimizer(),
    )
    return lambda: step([batches.batch(length, 0)])


def _seconds(step: Callable[[], None]) -> float:
    step()
    return seconds_of(step, times=TIMED)


@torch.inference_mode()
def _about_reading(student: nn.Module, length: int) -> list[str]:
    """Time and memory of one input of the full length."""
    from .long_rows import last_states

    ids = torch.zeros(1, length, dtype=torch.long)
    batch = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    last_states(student, batch)
    seconds = seconds_of(lambda: last_states(student, batch))
    peak = step_peak(ids.device, lambda: last_states(student, batch))
    memory = f"memory          {quantities.size(4 * _count(student))} for the weights"
    if peak is not None:
        memory += f", {quantities.size(peak.work)} for one input of {length:,} tokens"
    return [
        memory,
        f"time            {quantities.seconds(seconds)} for one input of {length:,} tokens",
    ]


def _count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
