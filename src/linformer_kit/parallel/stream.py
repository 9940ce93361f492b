"""Inference over an input that does not fit into memory: block by block, from and to files.

The sequence is cut into spans that one process treats one after the other. A layer needs the sums
of all spans before it can compute the first row of its output, so each layer is a pass over its
input, which lies in a temporary file. While a pass writes the output of a layer, it adds up the
compressed rows of the next: depth + 1 passes. In memory are one block, its halo and k rows for each
layer, whatever N is.

Legend: N positions, S positions of a span, M model size, R compressed rows.
"""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from ..core import checks
from ..core.compressed_kv import CompressedKV, fold
from ..core.cpu.predicate import is_unmodified_linear
from ..core.encoder import EncoderLayer, LinformerEncoder
from ..core.plain_sdpa import zero_padding
from ..core.plan import Plan, plan_for
from ..core.projection import Span
from ..core.window import Around, Whole, key_and_value
from ..core.window_rows import count_members, has_rows, segment_of
from .compress import plan_of_span
from .row_file import RowFile, check_space
from .swap import check
from .window import (
    GlobalSums,
    attend_in_span,
    global_rows,
    reach_of,
    window_of,
    with_globals,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..core.moving_average import MovingAverage
    from ..core.projection import Projection
    from .collectives import Range


@torch.no_grad()
def stream(
    model: nn.Module,
    inputs: Any,
    *,
    mask: Any = None,
    block: int = 16384,
    scratch: str | Path | None = None,
) -> Iterator[tuple[int, Tensor]]:
    """The output of an encoder for one long input, as (first position, rows (S, M)) of each block.

    model: a LinformerEncoder with inputs (N, dim), or a LinformerModel with tokens (N) or, if it
        reads features, (N, feature_size). In eval mode.
    inputs: anything that can be sliced: a tensor, an array, a numpy.memmap.
    mask: (N), True = a real position, likewise; None if all are.
    block: positions in memory at a time, at least the window and the global tokens.
    scratch: where the temporary files are, by default the system's; N x M values each, one for a
        model without a window, else two. They are removed at the end.
    """
    encoder, embed = _encoder_of(model)
    check(encoder)
    checks.positive("block", block)
    if model.training:
        raise ValueError("streaming is for inference: got a model in training. Call model.eval().")
    layers = cast("list[EncoderLayer]", list(encoder.layers))
    windows = [layer.attention.window for layer in layers]
    smallest = max(*windows, *(layer.attention.global_tokens for layer in layers), 1)
    if block < smallest:
        raise ValueError(
            f"a block must hold the window and the global tokens, {smallest} positions: got "
            f"block={block}."
        )
    length = len(inputs)
    if length < 1:
        raise ValueError("there must be at least one position: got none.")
    cut = _Cut(length, block, mask)
    weight = next(encoder.parameters())
    with ExitStack() as files:
        folder = Path(files.enter_context(tempfile.TemporaryDirectory(dir=scratch)))
        count = 2 if any(windows) else 1
        check_space(folder, count * length * encoder.dim * weight.element_size())
        stores = [
            files.enter_context(RowFile(folder / f"rows-{i}", length, encoder.dim, weight))
            for i in range(count)
        ]
        sums = _Sums(layers[0], encoder.projection)
        for span, x in _first_rows(encoder, embed, inputs, cut):
            stores[0].write(span.start, x)
            sums.add(span, x)
        for number, layer in enumerate(layers):
            source, target = stores[0], stores[-1]
            whole, last = sums.finish(), number + 1 == len(layers)
            if not last:
                sums = _Sums(layers[number + 1], encoder.projection)
            for span in cut:
                x = _layer_output(layer, source, span, cut, whole, encoder.projection)
                if last:
                    yield span.start, encoder._finish(x, span.mask)[0]
                else:
                    target.write(span.start, x)
                    sums.add(span, x)
            stores.reverse()


@torch.no_grad()
def stream_pooled(
    model: nn.Module, inputs: Any, *, pooling: str = "mean", **options: Any
) -> Tensor:
    """One row (M) for a long input: the mean of its real rows, the first one, or their maximum.

    `options`: those of `stream`.
    """
    checks.one_of("pooling", pooling, ("mean", "cls", "max"))
    mask, length = options.get("mask"), len(inputs)
    total: Tensor | None = None
    count = 0
    for start, rows in stream(model, inputs, **options):
        if mask is not None:
            rows = rows[_as_tensor(mask[start : min(start + len(rows), length)]).bool()]
        if not len(rows):
            continue
        count += len(rows)
        if pooling == "cls":
            total = rows[0] if total is None else total
        elif pooling == "max":
            highest = rows.amax(0)
            total = highest if total is None else torch.maximum(total, highest)
        else:
            added = rows.sum(0, dtype=torch.float64)
            total = added if total is None else total + added
    weight = next(model.parameters())
    if total is None:
        return weight.new_zeros(_encoder_of(model)[0].dim)
    return (total / count).to(weight.dtype) if pooling == "mean" else total


class _Highest:
    """The maximum of scores over the spans so far; sums relative to the one before times `factor`
    are relative to it.
    """

    def __init__(self) -> None:
        self.value: Tensor | None = None
        self.factor: Tensor | None = None

    def update(self, own: Tensor) -> Tensor:
        old = self.value
        self.value = own if old is None else torch.maximum(old, own)
        self.factor = None if old is None else (old - self.value).exp()
        return self.value


class _Sums:
    """The compressed rows of a layer's input, added up over spans."""

    def __init__(self, layer: EncoderLayer, projection: Projection | None) -> None:
        self.layer, self.projection = layer, projection
        self.total: list[Tensor] = []
        self.counts: Tensor | None = None
        self.globals: list[Tensor] = []
        self.of_global: GlobalSums | None = None
        self.finish_rows: Callable[..., CompressedKV] | None = None
        self._highest, self._highest_global = _Highest(), _Highest()

    def add(self, span: Span, x: Tensor) -> None:
        """x (1, S, M): the input of the layer."""
        attention = self.layer.attention
        x = zero_padding(self.layer.attention_input(x), span.mask)
        if has_rows(attention):
            self._add_rows(span, x)
        if attention.global_tokens:
            if not self.globals:  # the first block has all of them
                self.globals = global_rows(attention, x, span)
            self._add_globals(span, x)

    def _add_rows(self, span: Span, x: Tensor) -> None:
        attention = self.layer.attention
        plan = plan_of_span(attention, x, span)
        projection = attention.projection if self.projection is None else self.projection
        if projection is not None and projection.by_content:
            if not all(map(is_unmodified_linear, (attention.k_proj, attention.v_proj))):
                raise ValueError(
                    f"streaming with projection={attention.kind!r} needs plain linear layers for "
                    "keys and values: got modified ones (hooks, adapters). Merge the adapters "
                    "first."
                )
            plan = Plan("input", plan.attend)  # the sums of E X can be rescaled
        own, _ = attention.span_sums(
            x, replace(span, highest=self._highest.update), self.projection, plan
        )
        factor = self._highest.factor
        if factor is not None:
            self.total = [
                each * factor.view(each.shape[:4] + (1,) * (each.dim() - 4)) for each in self.total
            ]
        tensors = [each.double() for each in own.tensors]
        self.total = tensors if not self.total else list(map(torch.add, self.total, tensors))
        self.dtypes = [each.dtype for each in own.tensors]
        self.finish_rows = own.finish
        if attention.has_exact_keys:
            counts = count_members(
                span,
                own.tensors[0].shape[-2],
                segment=segment_of(attention, self.projection),
                seen=attention.global_tokens,
                without_global=False,
                device=x.device,
            )
            self.counts = counts if self.counts is None else self.counts + counts

    def _add_globals(self, span: Span, x: Tensor) -> None:
        attention, highest = self.layer.attention, self._highest_global
        own = GlobalSums.of(
            attention,
            self.globals[0],
            *key_and_value(attention, x),
            span.mask,
            highest=highest.update,
        )
        if self.of_global is None:
            self.of_global = own
        else:
            assert highest.factor is not None
            self.of_global = GlobalSums(
                *(a * highest.factor + b for a, b in zip(self.of_global, own, strict=True))
            )

    def finish(self) -> Whole:
        rows = None
        if self.finish_rows is not None:
            cast_back = zip(self.total, self.dtypes, strict=True)
            rows = self.finish_rows([total.to(dtype) for total, dtype in cast_back])
        whole = Whole(rows, self.counts)
        if self.of_global is None:
            return whole
        return with_globals(whole, self.layer.attention, self.globals, self.of_global)


def _layer_output(
    layer: EncoderLayer,
    source: RowFile,
    span: Span,
    cut: _Cut,
    whole: Whole,
    projection: Projection | None,
) -> Tensor:
    """The output of a layer at one span: (1, S, M)."""
    attention = layer.attention
    window = window_of(attention, span)
    reach: Range = (span.start, span.end)
    if window:
        first, last = reach_of(window)(span.start, span.end)
        reach = max(0, first), min(span.length, last)
    rows = source.read(*reach)
    inside = slice(span.start - reach[0], span.end - reach[0])
    x = rows[:, inside]
    if not attention.has_exact_keys:
        normed = zero_padding(layer.attention_input(x), span.mask)
        assert whole.rows is not None
        kv: Any = whole.rows
        if plan_for(attention, normed, normed.shape[1]).attend == "absorbed":
            kv = fold(kv, attention.q_proj, attention.out_proj, num_heads=attention.num_heads)
        return layer.after_attention(x, attention.attend(normed, kv))
    real = cut.real(*reach)
    normed = zero_padding(layer.attention_input(rows), real)
    if real is None:
        real = torch.ones(1, rows.shape[1], dtype=torch.bool, device=rows.device)
    around = Around(*key_and_value(attention, normed), real, reach[0])
    attended = attend_in_span(attention, normed[:, inside], span, around, whole, projection)
    return layer.after_attention(x, attended)


class _Cut:
    """A sequence in blocks; masks are read when they are needed."""

    def __init__(self, length: int, block: int, mask: Any) -> None:
        self.held = [(start, min(start + block, length)) for start in range(0, length, block)]
        self.length, self.mask = length, mask

    def __iter__(self) -> Iterator[Span]:
        for first, last in self.held:
            yield Span(first, last, self.length, self.real(first, last))

    def real(self, first: int, last: int) -> Tensor | None:
        """Which of some positions are real: (1, L), or None for all."""
        return None if self.mask is None else _as_tensor(self.mask[first:last]).bool()[None]


def _first_rows(
    encoder: LinformerEncoder, embed: Any, inputs: Any, cut: _Cut
) -> Iterator[tuple[Span, Tensor]]:
    """The input of the first layer at each span: (1, S, M)."""
    average = encoder.moving_average
    if average is None:
        for span in cut:
            yield span, _embedded(encoder, embed, inputs, span, cut)
        return
    after = _sums_after(average, encoder, embed, inputs, cut)
    before = torch.zeros_like(after[0])
    for span, following in zip(cut, after, strict=True):
        x = _embedded(encoder, embed, inputs, span, cut)
        around = torch.where(average.looks_back(), before, following)
        sums = average.sums(average.inputs(x, span.mask)) + average.carried(around, x.shape[1])
        before = average.ends(sums)
        yield span, average.added(x, sums, span.mask)


def _sums_after(
    average: MovingAverage, encoder: LinformerEncoder, embed: Any, inputs: Any, cut: _Cut
) -> list[Tensor]:
    """For each span the sums (1, M) at the position after it, of channels that look ahead."""
    weight = next(encoder.parameters())
    found = [weight.new_zeros(1, encoder.dim)]
    for span in reversed(list(cut)[1:]):
        x = _embedded(encoder, embed, inputs, span, cut)
        sums = average.sums(average.inputs(x, span.mask)) + average.carried(found[-1], x.shape[1])
        found.append(average.ends(sums))
    return found[::-1]


def _embedded(encoder: LinformerEncoder, embed: Any, inputs: Any, span: Span, cut: _Cut) -> Tensor:
    """The embedded input at one span, before a moving average: (1, S, M)."""
    conv = encoder.neighbours
    side = 0 if conv is None else conv.weight.shape[1] // 2
    first, last = max(0, span.start - side), min(span.length, span.end + side)
    x = embed(inputs, first, last)
    checks.sequence("inputs", x, encoder.dim)
    if encoder.positions is not None:
        x = encoder.positions(x, torch.arange(first, last, device=x.device)[None])
    x = zero_padding(x, cut.real(first, last))
    if conv is not None:
        x = conv(x)
    return x[:, span.start - first : span.end - first]


def _encoder_of(model: nn.Module) -> tuple[LinformerEncoder, Any]:
    """The encoder of a model, and how its rows are made of inputs."""
    if isinstance(model, LinformerEncoder):
        weight = next(model.parameters())
        return model, lambda inputs, first, last: _as_tensor(inputs[first:last])[None].to(weight)
    embeddings, encoder = getattr(model, "embeddings", None), getattr(model, "encoder", None)
    if embeddings is None or not isinstance(encoder, LinformerEncoder):
        raise ValueError(
            "only a LinformerEncoder or a LinformerModel can be streamed: got "
            f"{type(model).__name__}. Pass model.linformer of a model with a head."
        )
    weight = next(model.parameters())

    def embed(inputs: Any, first: int, last: int) -> Tensor:
        rows = _as_tensor(inputs[first:last])[None].to(weight.device)
        place = None
        if embeddings.positions is not None:
            place = torch.arange(first, last, device=weight.device)[None]
        if rows.dim() == 2:
            return embeddings(rows.long(), None, position_ids=place)
        return embeddings(None, rows.to(weight.dtype), position_ids=place)

    return encoder, embed


def _as_tensor(values: Any) -> Tensor:
    """A copy of values that may lie in a file."""
    return values if isinstance(values, Tensor) else torch.tensor(values)
