"""One step of a model, and what it costs: time, memory and FLOPs.

`TrainingStep` is that of any model with a loss: forward and backward of each batch, then an update.
`layer_step` is that of a layer, which has none: forward alone, or forward and backward.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import (
    FlopCounterMode,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from ..core.cpu.flash import FLASH_BACKWARD, FLASH_FORWARD, HAS_FLASH
from .memory import Work, measure, process_peak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Batch = dict[str, Tensor]

HALF = {"bfloat16": torch.bfloat16, "float16": torch.float16}


class TrainingStep:
    """Forward and backward of each batch, in a precision, then an update of the weights.

    The loss is that of the model's output, or `loss_of(batch)`. The learning rate of an optimizer
    that is made here is negligible. Without gradients enabled there is no backward pass.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        loss_of: Callable[[Batch], Tensor] | None = None,
        optimizer: torch.optim.Optimizer | None = None,
        precision: str = "float32",
    ) -> None:
        self.device = next(model.parameters()).device
        self.loss_of = loss_of or (lambda batch: model(**batch).loss)
        self.optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-8, fused=True)
        self.kind = HALF.get(precision)

    def __call__(self, batches: Iterable[Batch]) -> None:
        for batch in batches:
            inputs = {name: value.to(self.device) for name, value in batch.items()}
            with torch.autocast(self.device.type, dtype=self.kind, enabled=self.kind is not None):
                loss = self.loss_of(inputs)
            if torch.is_grad_enabled():
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def layer_step(model: nn.Module, x: Tensor, mode: str) -> Callable[[], object]:
    """Inference is a forward pass. Training is forward and backward, to the input too."""
    if mode == "inference":
        model.eval()
        return torch.inference_mode()(lambda: model(x))
    model.train()
    x = x.clone().requires_grad_()  # as the layers above the first have it
    # Not ones: a norm removes a constant, and the gradients would be rounding errors.
    upstream = torch.randn(x.shape, generator=torch.Generator().manual_seed(0))

    def train() -> None:
        model.zero_grad(set_to_none=True)
        x.grad = None
        model(x).backward(upstream)

    return train


class StepPeak(NamedTuple):
    """Bytes at the peak of a step: beyond what was there before it, and of the whole process."""

    work: int
    process: int


def step_peak(
    device: torch.device, step: Callable[[], object], *, warm: bool = True
) -> StepPeak | None:
    """What a step takes on a device, of the second of two calls if `warm`; None if not known."""
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        step()
        peak = int(torch.cuda.max_memory_allocated())
        return StepPeak(peak - before, peak)
    result = measure(Work(warm_up=step if warm else lambda: None, prepare=lambda: step))
    process = process_peak(device)
    if result.work is None or process is None:
        return None
    return StepPeak(result.work, process)


def count_flops() -> FlopCounterMode:
    """A context that counts the FLOPs of the matrix products in it: `get_total_flops()`.

    PyTorch's counter knows the fused attention of GPUs; that of CPUs, and products that are added
    in place, it counts as nothing.
    """
    mapping: dict[Any, Any] = {
        torch.ops.aten.addmm_: _sum,
        torch.ops.aten.baddbmm_: _sum,
    }
    if HAS_FLASH:
        mapping[FLASH_FORWARD.overloadpacket] = _forward
        mapping[FLASH_BACKWARD.overloadpacket] = _backward
    return FlopCounterMode(display=False, custom_mapping=mapping)


def _sum(_: Any, one: Any, other: Any, *__: Any, **___: Any) -> int:
    """Of a product (..., R, S) times (..., S, C)."""
    return 2 * math.prod(one) * int(other[-1])


def _forward(query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_flop_count(query, key, value))


def _backward(grad: Any, query: Any, key: Any, value: Any, *_: Any, **__: Any) -> int:
    return int(sdpa_backward_flop_count(grad, query, key, value))
