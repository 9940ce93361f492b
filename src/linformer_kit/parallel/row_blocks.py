"""Training on long inputs in one process: each layer recomputed block by block.

As in `stream.py` the positions are cut into spans that are treated one after the other: first the
compressed rows are added up over all spans, then each span attends to them. Of a layer only its
input is kept for the backward pass, which computes the layer again, one block at a time, and so
never holds the wide hidden layer, queries or norms of more than one block:

    backward, for each block b:   y_b = rows(x_b, kv)       gives d x_b, d kv and d weights
              once:               kv = finish(sums)         gives d sums
              for each block b:   sums_b = E_b X_b          adds to d x_b and d weights

Gradient checkpointing of whole layers recomputes as much and holds a whole layer.

Legend: B batch, N positions, S positions of a block, M model size.
"""

from __future__ import annotations

import os
import tempfile
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from ..core.compressed_kv import CompressedKV, fold
from ..core.dropout import drop_rows
from ..core.encoder import EncoderLayer, LinformerEncoder
from ..core.plain_sdpa import zero_padding
from ..core.plan import plan_for
from ..core.projection import Span
from .compress import plan_of_span
from .row_file import RowFile, check_space
from .swap import check, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from ..core.attention import SpanSums
    from ..core.projection import Projection

Model = TypeVar("Model", bound=nn.Module)


def recompute_in_blocks(model: Model, rows: int, *, scratch: str | Path | None = None) -> Model:
    """Train the encoder of a model with little memory, in place: `rows` positions at a time.

    With `scratch`, a folder, the inputs of layers wait for the backward pass in temporary files
    there, B x N x M values for each layer, and not in memory.

    Outputs, gradients, parameters and the state_dict stay as they are, to rounding. For encoders
    without a window whose projection is a sum over positions; not beside `gradient_checkpointing`,
    FSDP or `parallelize`. Inference does not change.
    """
    if rows < 1:
        raise ValueError(f"a block must have at least one row: got {rows}.")
    encoders = [module for module in model.modules() if isinstance(module, LinformerEncoder)]
    if not encoders:
        raise ValueError(
            "only a LinformerEncoder, or a model with one, can be recomputed in blocks of rows: "
            f"got {type(model).__name__}."
        )
    for encoder in encoders:
        check(encoder)
        layers = cast("list[EncoderLayer]", list(encoder.layers))
        if any(layer.attention.has_exact_keys for layer in layers):
            raise ValueError(
                "layers with a window or global tokens cannot be recomputed in blocks of rows: got "
                "both. Leave one out, or use gradient checkpointing."
            )
        if not isinstance(encoder, BlockedEncoder):
            kind: Any = type(encoder)
            encoder.__class__ = cast("Any", joined(BlockedEncoder, kind))
        encoder.block_rows = rows  # type: ignore[assignment]
        encoder.scratch = None if scratch is None else Path(scratch)  # type: ignore[assignment]
    return model


class BlockedEncoder(LinformerEncoder):
    """An encoder whose layers are recomputed in blocks in the backward pass."""

    block_rows: int
    scratch: Path | None

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """x (B, N, dim) -> (B, N, dim); mask (B, N) bool, True = a real position."""
        if not torch.is_grad_enabled():
            return super().forward(x, mask=mask)
        x = self._embed(x, mask)
        for layer in self.layers:
            steps = _LayerSteps(layer, self.projection, mask, x.shape[1], self.block_rows)
            x = _Layer.apply(steps, x, self.scratch, *steps.parameters)
        return self._finish(x, mask)


class _LayerSteps:
    """What a layer computes for one span of its input."""

    def __init__(
        self,
        layer: Any,
        projection: Projection | None,
        mask: Tensor | None,
        length: int,
        block: int,
    ) -> None:
        self.layer: EncoderLayer = layer
        self.projection, self.mask = projection, mask
        self.held = [(start, min(start + block, length)) for start in range(0, length, block)]
        modules: list[nn.Module] = [self.layer] if projection is None else [self.layer, projection]
        self.parameters = [
            each for module in modules for each in module.parameters() if each.requires_grad
        ]
        self.length = length
        self.highest: Callable[[Tensor], Tensor] = _own  # of scores, over all spans

    def spans(self) -> Iterator[Span]:
        for start, end in self.held:
            mask = None if self.mask is None else self.mask[:, start:end]
            yield Span(start, end, self.length, mask, self.highest)

    def source(self, x: Tensor, span: Span) -> Tensor:
        return zero_padding(self.layer.attention_input(x), span.mask)

    def sums(self, x: Tensor, span: Span) -> SpanSums:
        """What rows x (B, S, M) add to the compressed rows."""
        attention, source = self.layer.attention, self.source(x, span)
        plan = plan_of_span(attention, source, span)
        return attention.span_sums(source, span, self.projection, plan)[0]

    def find_highest(self, x: Tensor) -> None:
        """The maximum of the scores over all spans, a pass of its own, where E is made of some."""
        projection = self.layer.attention.projection or self.projection
        if projection is None or not projection.by_content:
            return
        found: list[Tensor] = []

        def own_highest(own: Tensor) -> Tensor:
            found.append(own)
            return own

        self.highest = own_highest
        for span in self.spans():
            self.sums(x[:, span.start : span.end], span)
        total = torch.stack(found).amax(0)
        self.highest = lambda _: total

    def drop(self, kv: CompressedKV) -> CompressedKV:
        attention = self.layer.attention
        if attention.dropout_kind != "rows":
            return kv
        return kv._replace(value=drop_rows(kv.value, attention.dropout, attention.training))

    def rows(self, x: Tensor, span: Span, kv: CompressedKV) -> Tensor:
        """The output of the layer for rows x (B, S, M)."""
        attention, source = self.layer.attention, self.source(x, span)
        seen: Any = kv
        if plan_for(attention, source, span.length).attend == "absorbed":
            seen = fold(kv, attention.q_proj, attention.out_proj, num_heads=attention.num_heads)
        return self.layer.after_attention(x, attention.attend(source, seen))


class _Layer(torch.autograd.Function):
    """A layer of which the backward pass keeps the input and the sums over its positions."""

    @staticmethod
    def forward(
        ctx: Any, steps: _LayerSteps, x: Tensor, scratch: Path | None, *parameters: Tensor
    ) -> Tensor:
        ctx.steps, ctx.autocast = steps, torch.is_autocast_enabled(x.device.type)
        ctx.autocast_dtype = torch.get_autocast_dtype(x.device.type)
        ctx.random = _random_state(x)
        x = x.detach()  # hooks of modules look for a graph, which is not recorded here
        steps.find_highest(x)
        total: list[Tensor] = []
        for span in steps.spans():
            own = steps.sums(x[:, span.start : span.end], span)
            total = _added(total, own.tensors)
        kv = steps.drop(own.finish(total))
        y: Tensor | None = None
        for span in steps.spans():
            some = steps.rows(x[:, span.start : span.end], span, kv)
            if y is None:
                y = some.new_empty(*x.shape[:2], some.shape[2])
            y[:, span.start : span.end] = some
        ctx.file = None if scratch is None else _written(x, scratch)
        ctx.shape = x.shape
        ctx.save_for_backward(*([x] if scratch is None else []), *total)
        assert y is not None
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        steps, file, total = ctx.steps, ctx.file, list(ctx.saved_tensors)
        whole = total.pop(0) if file is None else None
        weights = _Gradients(steps.parameters)
        grad_x = torch.empty(ctx.shape, dtype=grads[0].dtype, device=grads[0].device)

        def block(span: Span) -> Tensor:
            """The input of the layer at one span, as a leaf."""
            if whole is not None:
                return _leaf(whole[:, span.start : span.end])
            batch, length = ctx.shape[:2]
            first = [sample * length for sample in range(batch)]
            parts = [file.read(begin + span.start, begin + span.end) for begin in first]
            return _leaf(torch.cat(parts))

        x = grads[0]
        devices = [] if x.device.type == "cpu" else [x.device]
        autocast = torch.autocast(x.device.type, dtype=ctx.autocast_dtype, enabled=ctx.autocast)
        with torch.enable_grad(), torch.random.fork_rng(devices), autocast:
            _set_random_state(x, ctx.random)
            sums = [each.detach().requires_grad_(each.is_floating_point()) for each in total]
            first = next(steps.spans())
            finish = steps.sums(block(first).detach(), first).finish
            kv = steps.drop(finish(sums))
            seen = kv._replace(key=_leaf(kv.key), value=_leaf(kv.value))
            of_kv = _Gradients([seen.key, seen.value])
            for span in steps.spans():
                some = block(span)
                y = steps.rows(some, span, seen)
                upstream = grads[0][:, span.start : span.end]
                found = _gradients([y], [some, *of_kv.of, *weights.of], [upstream])
                assert found[0] is not None
                grad_x[:, span.start : span.end] = found[0]
                of_kv.add(found[1:3])
                weights.add(found[3:])
            found = _gradients([kv.key, kv.value], [*sums, *weights.of], of_kv.total)
            of_sums = found[: len(sums)]
            weights.add(found[len(sums) :])
            for span in steps.spans():
                some = block(span)
                own = steps.sums(some, span)
                found = _gradients(own.tensors, [some, *weights.of], of_sums)
                if found[0] is not None:
                    grad_x[:, span.start : span.end] += found[0]
                weights.add(found[1:])
        return None, grad_x, None, *weights.total


class _Gradients:
    """Gradients of tensors, added up over blocks."""

    def __init__(self, of: Sequence[Tensor]) -> None:
        self.of = list(of)
        self.total: list[Tensor | None] = [None] * len(self.of)

    def add(self, more: Sequence[Tensor | None]) -> None:
        for place, grad in enumerate(more):
            known = self.total[place]
            if grad is not None:
                self.total[place] = grad if known is None else known.add_(grad)


def _gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grads: Sequence[Tensor | None]
) -> list[Tensor | None]:
    """Gradients of the inputs, None where there is none; outputs that depend on nothing count 0."""
    both = [
        (output, grad)
        for output, grad in zip(outputs, grads, strict=True)
        if output.requires_grad and grad is not None
    ]
    wanted = [each for each in inputs if each.requires_grad]
    if not both or not wanted:
        return [None] * len(inputs)
    known, upstream = zip(*both, strict=True)
    found = iter(torch.autograd.grad(known, wanted, upstream, allow_unused=True))
    return [next(found) if each.requires_grad else None for each in inputs]


def _written(x: Tensor, scratch: Path) -> RowFile:
    """x (B, N, M) in a file without a name: it is gone when it is closed, or the process ends."""
    batch, length, width = x.shape
    check_space(scratch, x.nbytes)
    handle, name = tempfile.mkstemp(dir=scratch, prefix="linformer-rows-")
    os.close(handle)
    file = RowFile(Path(name), batch * length, width, x.new_empty(0)).__enter__()
    Path(name).unlink()
    weakref.finalize(file, file.file.close)  # type: ignore[union-attr]
    for sample in range(batch):
        file.write(sample * length, x[sample : sample + 1])
    return file


def _own(own: Tensor) -> Tensor:
    return own


def _leaf(x: Tensor) -> Tensor:
    return x.detach().requires_grad_()


def _added(total: list[Tensor], more: list[Tensor]) -> list[Tensor]:
    return [each.clone() for each in more] if not total else list(map(torch.add, total, more))


def _random_state(x: Tensor) -> tuple[Tensor, Tensor | None]:
    cpu = x.device.type == "cpu"
    return torch.get_rng_state(), None if cpu else torch.cuda.get_rng_state(x.device)


def _set_random_state(x: Tensor, state: tuple[Tensor, Tensor | None]) -> None:
    torch.set_rng_state(state[0])
    if state[1] is not None:
        torch.cuda.set_rng_state(state[1], x.device)
