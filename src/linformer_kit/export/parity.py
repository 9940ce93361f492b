"""How far an ONNX file is from the model it was made of: at several sizes, with padding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from .graphs import STEPS
from .runtime import PAST, PRESENT, session

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from .graphs import Graph, Tensors

# Batch and length: neither is what was traced, a single token among them.
SIZES = ((1, 61), (3, 7), (2, 1), (4, 200))
SEED = 0


@dataclass(frozen=True)
class Difference:
    """Between two ways to compute the same, over all outputs and sizes."""

    largest: float
    output: float  # the largest output
    lengths: tuple[int, ...]

    def within(self, tolerance: float) -> bool:
        return self.largest <= tolerance * max(1.0, self.output)  # False for NaN


@dataclass(frozen=True)
class Cost:
    """What rounding changes: the result itself, and what is chosen by it."""

    largest: float
    mean: float
    output: float  # the mean size of an output
    same: float | None  # how often the largest logit is the same; None where nothing is chosen


def difference_of(graph: Graph, file: Path) -> Difference:
    """The largest difference at each of `SIZES`, and of several steps from one state."""
    largest = output = 0.0
    lengths = []
    for ours, theirs, length in _pairs(graph, file):
        lengths.append(length)
        for one, other in zip(ours, theirs, strict=True):
            if one.size:
                gap = np.abs(one.astype("float64") - other)
                largest = float(np.maximum(largest, gap.max()))  # keeps NaN
                output = max(output, float(np.abs(one).max()))
    return Difference(largest, output, tuple(dict.fromkeys(lengths)))


def cost_of(graph: Graph, file: Path) -> Cost:
    """Of the first output: logits, or rows."""
    gaps, sizes, same = [], [], []
    chosen = False
    for ours, theirs, _ in _pairs(graph, file):
        gaps.append(np.abs(ours[0] - theirs[0]).ravel())
        sizes.append(np.abs(ours[0]).ravel())
        if chosen := "logits" in next(iter(graph.function(graph.example(1, 1)))):
            same.append((ours[0].argmax(-1) == theirs[0].argmax(-1)).ravel())
    gap = np.concatenate(gaps)
    return Cost(
        largest=float(gap.max()),
        mean=float(gap.mean()),
        output=float(np.concatenate(sizes).mean()),
        same=float(np.concatenate(same).mean()) if chosen else None,
    )


def _pairs(
    graph: Graph, file: Path
) -> list[tuple[list[NDArray[np.float32]], list[NDArray[np.float32]], int]]:
    """Outputs of the model and of the file, and the length they were made of."""
    running = session(file)
    pairs = []
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(SEED)
        for batch, length in SIZES:
            length = min(length, graph.longest or length)
            inputs = graph.example(batch, length)
            fed = {name: tensor.numpy() for name, tensor in inputs.items()}
            for _ in range(STEPS if graph.name == "step" else 1):
                expected = graph.function(inputs)
                outputs = running.run(None, fed)
                got = dict(zip(expected, outputs, strict=True))
                pairs.append(([tensor.numpy() for tensor in expected.values()], outputs, length))
                inputs = _next(inputs, expected)
                fed |= {
                    name.replace(PRESENT, PAST): array
                    for name, array in got.items()
                    if name.startswith(PRESENT)
                }
    return pairs


def _next(inputs: Tensors, outputs: Tensors) -> Tensors:
    """The inputs of the step after: the same token, the state that came out."""
    return inputs | {
        name.replace(PRESENT, PAST): tensor
        for name, tensor in outputs.items()
        if name.startswith(PRESENT)
    }
