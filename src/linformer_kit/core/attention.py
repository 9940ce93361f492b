"""Linformer attention, batched: softmax(Q (E K)^T / sqrt(D)) F V in O(n k) time and memory.

The same mathematics as `reference.py`, in two steps: `compress` compresses the keys and values of
the context to R rows, once; `attend` computes the attention of any number of queries to them.
`plan.py` chooses the order of the matrix products; every order gives the same result.

Legend: B batch, N queries, S context positions, R compressed rows, H heads, G key/value heads,
D head size, M model size, P sides (1 when E = F), T heads with their own matrix (1 or G).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

from torch import Tensor, nn

from . import attention_trace, checks, window_rows
from .compressed_kv import CompressedKV, ContextKV, FoldedKV, fold
from .cost import AttentionShape
from .cpu.attention import attend_in_blocks
from .cpu.linear import apply_linear, apply_weight
from .cpu.predicate import is_unmodified_linear, use_cpu_fast_path
from .dropout import drop_rows
from .heads import check_heads, reset_linear
from .names import explain_unknown_names
from .numerics import per_head_matmul
from .plain_sdpa import join_heads, split_heads, zero_padding
from .plan import Plan, check_plan, plan_for
from .projection import Span
from .projection_kinds import build_projection, check_passed_projection, check_projection
from .sdpa import sdpa
from .window import forward as forward_with_window
from .window_rows import build_row_bias, reset_row_bias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .projection import Compression, Projection, Reader
    from .projection_kinds import ProjectionKind, Sharing

DropoutKind = Literal["rows", "weights"]


class SpanSums(NamedTuple):
    """What one span adds to the compressed keys and values, and what the sums over all make."""

    tensors: list[Tensor]
    finish: Callable[[Sequence[Tensor]], CompressedKV]


@explain_unknown_names
class LinformerAttention(nn.Module):
    """Multi-head attention whose keys and values are compressed from n to k rows.

    head_h = softmax( Q_h (E K_h)^T / sqrt(D) ) (F V_h)      (the paper's equation 7)

    Args:
        dim, num_heads: M, the width of the input and the output, and H.
        max_length: the longest context. `linear` and `fixed` refuse longer ones; the segment kinds
            use segments of ceil(max_length / k); `dynamic` and `full` do not need it.
        k: the number of compressed rows; `full` does not need it.
        projection: the kind of E and F, see `projection.py`. `full` is ordinary attention.
        sharing: `none` (E and F for each key/value head), `headwise` (one E, one F), `kv` (E = F),
            `layerwise` (as `kv`; an encoder has one for all layers).
        head_dim: D, by default dim // num_heads.
        num_kv_heads: G, by default H; with fewer, groups of heads share keys and values.
        context_dim: the width of the context for cross-attention, by default dim.
        bias, out_bias: whether W_q, W_k and W_v have a bias, and W_o (by default as `bias`).
        dropout: the rate of attention dropout in training.
        dropout_kind: `rows` drops a compressed row of a key/value head for all queries of a sample,
            which keeps the expectation and the fused kernel. `weights` drops single weights, as
            usual, which materialises them.
        keep_scale: rescale linear, fixed and conv where positions are missing: `LinearProjection`.
        projection_bias: whether the rows of a linear E and F have one: `BiasedProjection`.
        plan: a fixed order of the matrix products; None chooses the cheapest for each call.
        external_projection: the projection is passed to each call (layerwise sharing).
        window: how many positions on each side a query sees exactly, at least; k may then be 0.
        global_tokens: how many first positions see and are seen by all: `window.py`.

    A padded position (mask False) never affects an output or a gradient, even if it is NaN. Output
    rows at padded positions are zero.

    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        max_length: int | None = None,
        k: int | None = None,
        projection: ProjectionKind = "linear",
        sharing: Sharing = "kv",
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        context_dim: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        dropout: float = 0.0,
        dropout_kind: DropoutKind = "rows",
        keep_scale: bool = True,
        projection_bias: bool = False,
        plan: Plan | None = None,
        external_projection: bool = False,
        window: int = 0,
        global_tokens: int = 0,
    ) -> None:
        super().__init__()
        head_dim, num_kv_heads = check_heads(dim, num_heads, head_dim, num_kv_heads)
        checks.probability("dropout", dropout)
        checks.one_of("dropout_kind", dropout_kind, get_args(DropoutKind))
        check_projection(projection, sharing, k, max_length, bias=projection_bias)
        window_rows.check(window, global_tokens, kind=projection, k=k)
        self.window, self.global_tokens = window, global_tokens
        check_plan(plan, projection, exact_keys=self.has_exact_keys)
        self.branch: window_rows.Branch = "both"
        self.dim, self.head_dim = dim, head_dim
        self.num_heads, self.num_kv_heads = num_heads, num_kv_heads
        self.context_dim = dim if context_dim is None else context_dim
        self.k, self.max_length = k, max_length
        self.kind: ProjectionKind = projection
        self.sharing: Sharing = sharing
        self.dropout, self.projection_bias = dropout, projection_bias
        self.dropout_kind: DropoutKind = dropout_kind
        self.plan = plan  # `full` ignores plan.shorten
        self.q_proj = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(self.context_dim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(self.context_dim, num_kv_heads * head_dim, bias=bias)
        self.out_proj = nn.Linear(num_heads * head_dim, dim, bias if out_bias is None else out_bias)
        self.projection: Projection | None = None
        if projection != "full" and k != 0 and not external_projection:
            self.projection = build_projection(
                projection,
                k=k,
                max_length=max_length,
                sharing=sharing,
                num_kv_heads=num_kv_heads,
                dim=self.context_dim,
                keep_scale=keep_scale,
                bias=projection_bias,
            )
        rows = k if self.has_exact_keys else None  # the paper's attention has no bias of rows
        self.row_bias = build_row_bias(projection, rows, num_heads)
        reset_linear(self.q_proj, self.k_proj, self.v_proj, self.out_proj)

    def reset_parameters(self) -> None:
        reset_linear(self.q_proj, self.k_proj, self.v_proj, self.out_proj)
        reset_row_bias(self.row_bias)
        if self.projection is not None:
            self.projection.reset_parameters()

    @property
    def has_exact_keys(self) -> bool:
        """Whether queries see some positions exactly, besides the compressed rows."""
        return self.window > 0 or self.global_tokens > 0

    def forward(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        projection: Projection | None = None,
    ) -> Tensor:
        """x (B, N, M) -> (B, N, M). mask (B, N) and context_mask (B, S): True = a real position.

        Without a context x attends to itself. `projection`: see `external_projection`.
        """
        checks.sequence("x", x, self.dim, mask=mask)
        checks.context(x, context, context_mask, self.context_dim)
        if self.has_exact_keys:
            return forward_with_window(self, x, mask, context, projection)
        if context is None:
            kv, x = self.compress_self(x, mask=mask, projection=projection)
        else:
            length = x.shape[1]
            kv = self.compress(context, mask=context_mask, projection=projection, queries=length)
            x = zero_padding(x, mask)
        return zero_padding(self.attend(x, kv), mask)

    def compress(
        self,
        context: Tensor,
        *,
        mask: Tensor | None = None,
        projection: Projection | None = None,
        queries: int = 1,
        fold: bool = True,
    ) -> ContextKV:
        """The compressed keys and values of a context (B, S, M), for any number of `attend` calls.

        `queries`: how many rows will attend, which decides about folding; fold=False never folds.
        """
        checks.sequence("context", context, self.context_dim, mask=mask)
        context = zero_padding(context, mask)
        return self._compress(context, mask, projection, queries=queries, may_fold=fold)[0]

    def compress_self(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        projection: Projection | None = None,
        fold: bool = True,
    ) -> tuple[ContextKV, Tensor]:
        """As `compress`, and x (B, N, M) for one `attend` alone: see `cpu/shared_gradient.py`."""
        checks.sequence("x", x, self.dim, mask=mask)
        x, queries = zero_padding(x, mask), x.shape[1]
        return self._compress(x, mask, projection, queries=queries, reader=True, may_fold=fold)

    def attend(self, x: Tensor, kv: ContextKV) -> Tensor:
        """x (B, N, M) -> (B, N, M), row by row. `kv` of one sample is used for all of x."""
        kv = kv.expand_batch(x.shape[0])
        drop = self.dropout if self.training and self.dropout_kind == "weights" else 0.0
        if not drop and use_cpu_fast_path(x, self.q_proj, self.out_proj):
            return attend_in_blocks(x, kv, self.q_proj, self.out_proj, heads=self.num_heads)
        if isinstance(kv, FoldedKV):
            return kv.attend(x, self.out_proj.bias, heads=self.num_heads, drop=drop)
        query = split_heads(self.q_proj(x), self.num_heads)  # (B, H, N, D)
        mixed = sdpa(query, kv.key, kv.value, mask=kv.mask, drop=drop)  # (B, H, N, D)
        return self.out_proj(join_heads(mixed))

    def _compress(
        self,
        context: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        queries: int,
        reader: bool = False,
        may_fold: bool = True,
    ) -> tuple[ContextKV, Tensor]:
        """The compressed keys and values, and the context for `attend` if that is its `reader`."""
        if self.has_exact_keys:
            raise window_rows.not_cross_attention(self)
        plan = plan_for(self, context, queries)
        kv, context = self._key_and_value(context, mask, projection, plan, reader=reader)
        if self.dropout_kind == "rows":
            kv = kv._replace(value=drop_rows(kv.value, self.dropout, self.training))
        if may_fold and plan.attend == "absorbed":
            return fold(kv, self.q_proj, self.out_proj, num_heads=self.num_heads), context
        return kv, context

    def _key_and_value(
        self,
        context: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        plan: Plan,
        *,
        heads: tuple[Tensor, Tensor] | None = None,
        reader: bool = False,
    ) -> tuple[CompressedKV, Tensor]:
        """E K and F V, (B, G, R, D) each, and the context: of one span, which is all positions."""
        if self.kind == "full":
            key, value = (
                split_heads(apply_linear(linear, context), self.num_kv_heads)
                for linear in (self.k_proj, self.v_proj)
            )
            return CompressedKV(key, value, mask), context
        readers = (self.q_proj, self.out_proj) if reader else None
        sums, context = self.span_sums(
            context, Span.whole(context, mask), projection, plan, heads=heads, readers=readers
        )
        return sums.finish(sums.tensors), context

    def span_sums(
        self,
        x: Tensor,
        span: Span,
        projection: Projection | None,
        plan: Plan,
        *,
        heads: tuple[Tensor, Tensor] | None = None,
        readers: Reader = None,
    ) -> tuple[SpanSums, Tensor]:
        """What the positions x (B, S, M) of a span add to E K and F V, and x for its `readers`.

        heads: the keys and values of x (B, S, G, D), if they are known.
        """
        projection = check_passed_projection(projection, own=self.projection, k=self.k)
        fewer = None if self.k == projection.k else self.k
        alone = span.highest is None
        if alone:  # a call of the module, with its hooks; it knows the scale already
            own: Compression = projection(x, span.mask, rows=fewer)
        else:
            own = projection.partial(x, span, rows=fewer)
        linears = (self.k_proj, self.v_proj)
        plain = all(map(is_unmodified_linear, linears))  # else adapters, hooks: call the modules
        by_input = not own.commutes or (plain and plan.shorten == "input")
        by_weight = plain and (by_input or heads is None)  # the bias is added at the end
        if by_input:  # (E X) W_k
            x, rows = own.input_sums_for(x, readers)
            tensors = [rows]  # (B, P, T, R, M)
        else:  # E (X W_k)
            if heads is None:
                each = (apply_weight(w, x) if plain else w(x) for w in linears)
                key, value = (rows.unflatten(2, (self.num_kv_heads, -1)) for rows in each)
            else:
                key, value = heads
            if not by_weight and span.mask is not None:  # the bias of W_k is not zero at padding
                hide = ~span.mask[..., None, None]
                key, value = key.masked_fill(hide, 0.0), value.masked_fill(hide, 0.0)
            tensors = [own.key_sums(key, 0), own.key_sums(value, 1)]
        count = len(tensors)
        with_sums = by_weight and own.commutes and any(w.bias is not None for w in linears)
        if with_sums:
            tensors.append(own.position_sums())

        def finish(total: Sequence[Tensor]) -> CompressedKV:
            rows, added = total[:count], total[count:]
            if not alone:
                own.finish(added[1:] if with_sums else added)
            sums = own.scaled_sums(added[0]) if with_sums else None
            if by_input:
                both = own.scaled_input(rows[0])
                key = self._linear(linears[0], both[:, 0])
                value = self._linear(linears[1], both[:, -1])
            else:
                key, value = (own.scaled_keys(each, side) for side, each in enumerate(rows))
            if by_weight:
                key, value = key + self._bias(0, sums), value + self._bias(1, sums)
            keep, bias = own.keep, own.row_bias if self.has_exact_keys else None
            return CompressedKV(*own.add_bias(key, value), keep, bias)

        return SpanSums(tensors if alone else [*tensors, *own.statistics], finish), x

    def _linear(self, linear: nn.Linear, rows: Tensor) -> Tensor:
        """Compressed inputs (B, T, R, M) times W_k or W_v -> (B, G, R, D)."""
        if not is_unmodified_linear(linear):
            return split_heads(linear(rows[:, 0]), self.num_kv_heads)
        if rows.shape[1] == 1:
            return split_heads(apply_weight(linear, rows[:, 0]), self.num_kv_heads)
        weight = linear.weight.unflatten(0, (self.num_kv_heads, -1))  # (G, D, M)
        return per_head_matmul(rows, weight.transpose(1, 2))

    def _bias(self, side: int, sums: Tensor | None) -> Tensor | float:
        """(E 1) b for the bias b of W_k (side 0) or W_v: broadcasts to (B, G, R, D).

        sums: E 1 (1 or B, P, T, R), None for a kind that is no matrix, whose rows have b itself.
        """
        linear = (self.k_proj, self.v_proj)[side]
        if linear.bias is None:
            return 0.0
        bias = linear.bias.view(1, self.num_kv_heads, 1, -1)
        if sums is None:
            return bias
        return sums[:, min(side, sums.shape[1] - 1), ..., None] * bias

    trace = attention_trace.trace
    weights = attention_trace.weights
    attend_with_weights = attention_trace.attend_with_weights

    def shape(self, *, batch: int, length: int, context: int | None = None) -> AttentionShape:
        """The sizes of one call, for `cost.py`."""
        return AttentionShape.of(self, batch=batch, length=length, context=context)

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, k={self.k}, projection={self.kind!r}, "
            f"sharing={self.sharing!r}, window={self.window}, global_tokens={self.global_tokens}"
        )
