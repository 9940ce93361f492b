"""A rehearsal: what a run would compute, need and take, after a few real steps on real batches."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from ..config import load as configs
from ..config import yaml_text
from ..data.counts import notices
from ..data.prepare import prepare
from ..data.rows import Rows
from ..evaluate.translations import translate_rows
from ..machine_memory import total_memory
from ..measure import quantities
from ..measure.step import TrainingStep, count_flops, step_peak
from ..measure.timing import seconds_of
from ..training.layout import check_model, layout_of
from ..training.setup import check_machine, part_collator, set_machine, training_order
from ..training.trainer import read_tokens
from .start import start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..config.schema import RunConfig
    from ..data.prepare import Prepared
    from ..measure.step import Batch

STEPS = 3  # timed, after they were run once to count FLOPs
LOOKED_AT = 64  # steps whose sizes are known without running them: as many as are sorted together
LENGTHS = (32_768, 65_536)  # what longer rows are cut to; twice the larger is measured as it is


class Measured(NamedTuple):
    """The mean step of this process."""

    seconds: float
    tokens: float
    flops: float
    activations: float | None  # bytes, at the peak of the largest step
    process: float | None  # bytes, at the same time: libraries, weights and all

    def extended(self, shorter: Measured, factor: float) -> Measured:
        """A step on rows that are `factor` times as long, all costs being linear in the length.

        `shorter` is a step on rows of half the length of this one.
        """
        return Measured(
            *(
                None if one is None or half is None else one + (one - half) * 2 * (factor - 1)
                for one, half in zip(self, shorter, strict=True)
            )  # type: ignore[arg-type]
        )


class Sizes(NamedTuple):
    """Positions, with padding, that the first steps of a training compute."""

    positions: np.ndarray

    @property
    def largest(self) -> int:
        """The step that needs most memory."""
        return int(self.positions.argmax())

    @property
    def differ(self) -> bool:
        return bool(self.positions.min() < self.positions.max())

    def spread(self, count: int) -> list[int]:
        """Steps at equally spaced quantiles of the size; 1 is the median."""
        places = (np.arange(count) + 0.5) / count * len(self.positions)
        return [int(step) for step in self.positions.argsort(kind="stable")[places.astype(int)]]

    def factor(self, steps: list[int]) -> float:
        """The mean step in units of the mean of these steps."""
        return float(self.positions.mean() / self.positions[steps].mean())


def dry_run(
    config: RunConfig, *, tell: Callable[[str, int, int], None] = lambda what, done, total: None
) -> str:
    """Time, memory and whether it fits; then how these come about, and the resolved configuration.
    Nothing is kept.

    Each process measures what it computes itself, of rows that are cut its own part; what
    processes send to each other is not part of it.
    """
    layout = layout_of(config)
    processes = layout.processes
    check_machine(config, processes)
    prepared = prepare(config, tell=tell)
    tell("prepared", 1, 1)  # the end of a progress bar
    set_machine(config)
    tokenizer = prepared.tokenizer()
    start = start_of(config, prepared, tokenizer)
    model = start.model
    check_model(config, model)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    torch.nn.Module.to(model, device).train()
    part = prepared.part("train")
    assert part is not None
    rows = Rows(part)
    order = training_order(config, rows, layout.data)
    collate = part_collator(config, tokenizer, layout, model)
    step = TrainingStep(model, precision=config.train.precision)
    micro = config.train.batch_size // (layout.data * config.train.accumulate)

    own = micro * config.train.accumulate  # rows of a step that are this process's
    lengths = rows.column("length")

    def sizes(length: int | None) -> Sizes:
        """Of the steps that are looked at, with rows cut to `length`."""
        steps = (order.step(number)[:own] for number in range(min(order.steps, LOOKED_AT)))
        numbers = np.array([[row for row, _ in draws] for draws in steps])
        longest = lengths[numbers].reshape(len(numbers), -1, micro).max(axis=2)
        return Sizes((longest if length is None else longest.clip(max=length)).sum(axis=1) * micro)

    def batches(number: int, length: int | None) -> Iterator[Batch]:
        """What this process reads in a step, of rows cut to `length`."""
        draws = order.step(number)[:own]
        for start in range(0, len(draws), micro):
            batch = collate(rows.__getitems__(draws[start : start + micro]))
            if length is not None:
                batch = {
                    name: value if value.dim() == 1 else value[:, :length]
                    for name, value in batch.items()
                }
            yield batch

    def measured(length: int | None, count: int) -> Measured:
        """The mean step, and the memory of the largest, on rows cut to `length`."""
        known = sizes(length)
        timed = known.spread(count)
        counted = timed if known.differ else timed[:1]
        # torch's counter cannot follow the gradients of blocks: forward, again, and backward.
        blocks = config.train.block_rows > 0
        with count_flops() as counter, torch.set_grad_enabled(not blocks):
            for number in counted:
                step(batches(number, length))
        flops = counter.get_total_flops() * (4 if blocks else 1) / len(counted)
        tokens = sum(read_tokens(batch) for number in timed for batch in batches(number, length))
        numbers = iter(timed)
        seconds = seconds_of(lambda: step(batches(next(numbers), length)), times=count)
        peak = step_peak(device, lambda: step(batches(known.largest, length)), warm=count > 1)
        factor = known.factor(timed)
        return Measured(
            seconds * factor,
            tokens / count * factor,
            flops * factor,
            None if peak is None else peak.work,
            None if peak is None else peak.process,
        )

    longest = int(lengths.max()) // layout.sequence
    if longest > 2 * LENGTHS[1]:
        half, whole = (measured(length, 1) for length in LENGTHS)
        found = whole.extended(half, longest / LENGTHS[1])
    else:
        found = measured(None, STEPS)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    state = 4 * 4 * parameters  # weights, gradients, two moments
    seconds, peak = found.seconds, found.activations
    steps = config.train.steps
    epochs = steps * config.train.batch_size / len(rows)
    rate = found.tokens * processes / seconds
    scoring = _scoring(config, prepared, model, tokenizer, collate, device, processes)
    training = seconds * steps
    in_all = training + sum(one.seconds for one in scoring)
    lines = [
        _answer(in_all, found.process or state + (peak or 0), device),
        "",
        f"time            {quantities.duration(training)} for "
        f"{quantities.count(steps, 'step')} of {quantities.seconds(seconds)}, {rate:,.0f} tokens/s",
        *(f"                {one.line}" for one in scoring),
        f"memory          {quantities.size(state)} for weights, gradients and Adam"
        + ("" if peak is None else f", {quantities.size(int(peak))} for activations")
        + ("" if found.process is None else f"; {quantities.size(int(found.process))} in all"),
        f"parameters      {parameters:,}",
        f"rows            {len(rows):,} to train on; each is read {_times(epochs)}, in batches of "
        f"{config.train.batch_size:,}",
        f"FLOPs a step    {found.flops * processes:.3g}, matrix products alone",
    ]
    if longest > 2 * LENGTHS[1]:
        lines.append(
            f"Memory, time and FLOPs of {longest:,} positions follow from steps on rows cut to "
            f"{LENGTHS[0]:,} and {LENGTHS[1]:,}; time and FLOPs are a little low with mean and "
            "conv, which compress cut rows to fewer than k."
        )
    for part, counts in prepared.meta["parts"].items():
        lines += notices(part, counts, config.data.max_length).values()
    lines += ["", yaml_text.dump(configs.resolved(config)).rstrip()]
    return "\n".join([*start.notes, *lines])


class Scoring(NamedTuple):
    """What evaluations take."""

    seconds: float
    line: str


def _answer(seconds: float, needed: float, device: torch.device) -> str:
    """The first line: how long it takes, and whether the memory is enough for it."""
    where, room = "this machine", total_memory()
    if device.type == "cuda":
        where, room = "this GPU", int(torch.cuda.get_device_properties(device).total_memory)
    fits = (
        f"fits into the {quantities.size(room)} of"
        if needed <= room
        else (f"does NOT fit into the {quantities.size(room)} of")
    )
    return (
        f"takes about {quantities.duration(seconds)} and {quantities.size(int(needed))} of memory: "
        f"{fits} {where}"
    )


def _times(epochs: float) -> str:
    return f"{epochs:.1f} times" if epochs >= 0.95 else f"{epochs:.1g} times"


def _scoring(
    config: RunConfig,
    prepared: Prepared,
    model: Any,
    tokenizer: Any,
    collate: Any,
    device: torch.device,
    processes: int,
) -> list[Scoring]:
    """The evaluations while it trains and the one at the end, from one batch of each part."""
    found = []
    model.eval()
    for part in ("validation", "test"):
        file = prepared.part(part)
        if file is None and part == "test":  # the end is scored on validation
            file = prepared.part("validation")
        if file is None:
            continue
        rows = Rows(file, config.evaluate.limit(part if prepared.part(part) else "validation"))
        size = min(config.evaluate.batch_size, len(rows))
        order = rows.column("length").argsort(kind="stable")
        batch = [int(row) for row in order[len(rows) // 2 - size // 2 :][:size]]  # of median length
        inputs = {
            name: value.to(device) for name, value in collate(rows.__getitems__(batch)).items()
        }
        with torch.no_grad():
            model(**inputs)
            taken = seconds_of(lambda: model(**inputs))  # noqa: B023 - called here
        batches = math.ceil(len(rows) / size / processes)
        of_rows = quantities.count(len(rows), "row")
        if part == "validation":
            times = math.ceil(config.train.steps / config.train.eval_every)
            every = times * batches * taken
            line = f"{quantities.count(times, 'evaluation')} of {of_rows} of the validation part"
            found.append(Scoring(every, f"{quantities.duration(every)} for {line}"))
            continue
        end = batches * taken
        line = f"the {of_rows} that are scored at the end"
        if config.task == "translate":
            some = Rows(file, only=np.array(batch))
            end += batches * seconds_of(
                lambda: translate_rows(model, tokenizer, some, config.evaluate)  # noqa: B023
            )
            line += ", if each translation has evaluate.max_new_tokens tokens"
        found.append(Scoring(end, f"{quantities.duration(end)} for {line}"))
    model.train()
    return found
