"""What a variant costs: parameters, peak memory of training, and the time of a step."""

from __future__ import annotations

import contextlib
import ctypes
import math
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..config.load import check, resolved
from ..core.projection import Projection
from ..data.prepare import prepare
from ..data.rows import Rows
from ..measure.memory import Work, peak_memory
from ..measure.step import TrainingStep
from ..measure.timing import alternate
from ..train.start import start_of
from ..training.setup import collator, training_order

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import nn

    from ..config.schema import RunConfig

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
RETURNED = 65536  # bytes; larger pieces of memory are returned when they are freed
ROUNDS = 5  # of timed steps; the median counts


class Parameters(NamedTuple):
    """Numbers of parameters: in total, and in the projections (E and F)."""

    total: int
    projections: int


def parameters(config: RunConfig) -> Parameters:
    """Counted in the built model; parameters that layers share count once."""
    prepared = prepare(config)
    model = start_of(config, prepared, prepared.tokenizer()).model
    return count_parameters(model)


def count_parameters(model: nn.Module) -> Parameters:
    projected = {
        parameter: None
        for module in model.modules()
        if isinstance(module, Projection)
        for parameter in module.parameters()
    }
    return Parameters(
        sum(parameter.numel() for parameter in model.parameters()),
        sum(parameter.numel() for parameter in projected),
    )


def training_step(config: RunConfig) -> Callable[[], None]:
    """Forward, backward and update on the first batch of a run, in its precision."""
    prepared = prepare(config)
    tokenizer = prepared.tokenizer()
    part = prepared.part("train")
    assert part is not None
    rows = Rows(part)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model = start_of(config, prepared, tokenizer).model
    torch.nn.Module.to(model, device).train()
    if config.train.gradient_checkpointing:
        model.gradient_checkpointing_enable()
    draws = training_order(config, rows, 1).step(0)
    micro = config.train.batch_size // config.train.accumulate
    collate = collator(config, tokenizer)
    batches = [
        {
            name: value.to(device)
            for name, value in collate(rows.__getitems__(draws[start : start + micro])).items()
        }
        for start in range(0, len(draws), micro)
    ]
    step = TrainingStep(model, precision=config.train.precision)
    return lambda: step(batches)


def step_times(settings: Sequence[RunConfig]) -> list[float]:
    """Seconds of a training step; the variants alternate."""
    steps = {str(place): training_step(config) for place, config in enumerate(settings)}
    timings = alternate(steps, rounds=ROUNDS, slow=math.inf, must_run=True)
    return [statistics.median(timing.seconds) for timing in timings.values()]


def training_memory(config: RunConfig) -> int | None:
    """Peak bytes of training: weights, gradients, optimizer and activations.

    On a CPU it is measured in a fresh process, without what the C library keeps of freed memory.
    None where it cannot be measured.
    """
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        _two(training_step(config))
        return int(torch.cuda.max_memory_allocated() - before)
    found = peak_memory(f"{__name__}:training_work", {"values": resolved(config)})
    return found.total


def training_work(values: dict[str, Any]) -> Work:
    """In the fresh process: what `training_memory` measures."""
    _return_freed_memory()
    config = check(values, where="the configuration")
    if config.train.threads:
        torch.set_num_threads(config.train.threads)

    one_row = config.train.model_copy(update={"batch_size": 1, "accumulate": 1})
    small = config.model_copy(update={"train": one_row})

    def prepared() -> Callable[[], None]:
        step = training_step(config)
        return lambda: _two(step)

    return Work(warm_up=lambda: training_step(small)(), prepare=prepared)


def _two(step: Callable[[], None]) -> None:
    """The second step has gradients and the optimizer's state from its beginning."""
    step()
    step()


def _return_freed_memory() -> None:
    """Have the C library return freed memory at once.

    What it keeps depends on the order of allocations and differs from process to process by a
    fifth of a small model's memory.
    """
    with contextlib.suppress(AttributeError, OSError, TypeError):  # another C library than glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, RETURNED)
        mallopt(M_TRIM_THRESHOLD, RETURNED)
