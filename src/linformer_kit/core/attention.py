"""Linformer attention, batched: softmax(Q (E K)^T / sqrt(D)) F V in O(n k) time and memory.

The same mathematics as `reference.py`. A layer works in two steps: `summarise` shortens the context
to a memory of R rows, once; `attend` lets any rows of queries look at it. Which order the matrices
are multiplied in is decided by `plan.py`; every order gives the same result.

Legend: B batch, N queries, S context positions, R shortened rows, H heads, G key/value heads,
D head size, M model size, P sides (1 when E = F), T heads with a matrix of their own (1 or G).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .attend import attend_folded, attend_memory, join_heads, split_heads
from .blocks import in_row_blocks
from .cost import Attend, AttentionShape, Shorten
from .dropout import drop_rows, dropout
from .fastpath import is_plain, use_cpu_fast_path
from .heads import check_heads, reset_linear
from .memory import FoldedMemory, Memory, each_head, fold
from .names import explain_unknown_names
from .plan import Plan, choose_attend, choose_shorten
from .projection import (
    WINDOW_KINDS,
    Projection,
    ProjectionKind,
    Sharing,
    build_projection,
    check_projection,
)
from .weights import attention_weights, for_each_head

if TYPE_CHECKING:
    from .packing import Packing
    from .shortening import Shortening

DropoutKind = Literal["rows", "weights"]

_LONG = 4096  # what a traced layer without max_length is planned for


class AttentionTrace(NamedTuple):
    """The output of an attention layer and the weights it was computed from."""

    output: Tensor  # (B, N, M)
    weights: Tensor  # (B, H, N, R)


@explain_unknown_names
class LinformerAttention(nn.Module):
    """Multi-head attention whose keys and values are shortened from n to k rows.

    head_h = softmax( Q_h (E K_h)^T / sqrt(D) ) (F V_h)      (the paper's equation 7)

    Args:
        dim: M, the width of the input and the output.
        num_heads: H.
        max_length: the longest context. `linear` and `fixed` refuse longer ones; the window kinds
            cut windows of ceil(max_length / k); `dynamic` and `full` do not need it.
        k: the number of rows keys and values are shortened to; `full` does not need it.
        projection: where E and F come from, see `projection.py`. `full` is ordinary attention.
        sharing: `none` (E and F for each key/value head), `headwise` (one E, one F), `kv` (E = F),
            `layerwise` (as `kv`; an encoder has one for all layers).
        head_dim: D, by default dim // num_heads.
        num_kv_heads: G; fewer than num_heads lets groups of heads share keys and values.
        context_dim: the width of the context for cross-attention, by default dim.
        bias: whether W_q, W_k and W_v have one. K is X W_k + b in every order, so its bias meets E
            as (E 1) b.
        out_bias: whether W_o has one, by default as `bias`.
        dropout: the rate of attention dropout in training.
        dropout_kind: `rows` drops a shortened row of a key/value head for all queries of a sample:
            each weight is dropped as often as usual and the expectation is the same, but the fused
            kernel stays in use. `weights` drops every weight on its own, which materialises them.
        keep_scale: scale what is left of E where positions are missing, by at most 10**4.5, see
            `LinearProjection`; of meaning for linear, fixed and conv.
        plan: an order of multiplication to use always; None chooses the cheapest for each call.
        external_projection: the owner passes the projection to each call (layerwise sharing).

    A padded position (mask False) never reaches an output or a gradient, whatever it holds, NaN
    included; output rows at padded positions are zero.

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
        plan: Plan | None = None,
        external_projection: bool = False,
    ) -> None:
        super().__init__()
        head_dim, num_kv_heads = check_heads(dim, num_heads, head_dim, num_kv_heads)
        checks.probability("dropout", dropout)
        checks.one_of("dropout_kind", dropout_kind, get_args(DropoutKind))
        check_projection(projection, sharing, k, max_length)
        self.dim = dim
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.head_dim = head_dim
        self.context_dim = dim if context_dim is None else context_dim
        self.k = k
        self.max_length = max_length
        self.kind: ProjectionKind = projection
        self.sharing: Sharing = sharing
        self.dropout = dropout
        self.dropout_kind: DropoutKind = dropout_kind
        self.plan = plan  # checked by the setter
        self.q_proj = nn.Linear(dim, num_heads * head_dim, bias=bias)
        self.k_proj = nn.Linear(self.context_dim, num_kv_heads * head_dim, bias=bias)
        self.v_proj = nn.Linear(self.context_dim, num_kv_heads * head_dim, bias=bias)
        out_bias = bias if out_bias is None else out_bias
        self.out_proj = nn.Linear(num_heads * head_dim, dim, bias=out_bias)
        self.projection: Projection | None = None
        if projection != "full" and not external_projection:
            assert k is not None
            self.projection = build_projection(
                projection,
                k=k,
                max_length=max_length,
                sharing=sharing,
                num_kv_heads=num_kv_heads,
                dim=self.context_dim,
                keep_scale=keep_scale,
            )
        self.reset_parameters()

    @property
    def plan(self) -> Plan | None:
        """The order of multiplication to use always, or None for the cheapest of each call.

        `full` shortens nothing, so there `plan.shorten` says nothing.
        """
        return self._plan

    @plan.setter
    def plan(self, plan: Plan | None) -> None:
        if plan is not None and self.kind == "max" and plan.shorten == "keys":
            raise ValueError(
                "max pooling is defined on the input, because it does not commute with W_k: got "
                "plan.shorten='keys'. Use shorten='input', or leave plan=None."
            )
        self._plan = plan

    def reset_parameters(self) -> None:
        reset_linear(self.q_proj, self.k_proj, self.v_proj, self.out_proj)

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

        Without a context x attends to itself. `projection` is for layers built with
        `external_projection`.
        """
        x, context, context_mask = self._checked(x, mask, context, context_mask)
        itself = context is x
        memory, context = self._summarise(
            context, context_mask, projection, queries=x.shape[1], goes_on=itself
        )
        x = context if itself else x
        if not self._drops_weights and use_cpu_fast_path(x, self.q_proj, self.out_proj):
            y = self.attend(x, memory)  # which goes by blocks itself
        else:
            y = in_row_blocks(
                lambda samples, rows: self.attend(rows, memory.samples(samples)),
                x,
                width=self.width,
            )
        return y if mask is None else y.masked_fill(~mask[..., None], 0.0)

    def summarise(
        self,
        context: Tensor,
        *,
        mask: Tensor | None = None,
        projection: Projection | None = None,
        queries: int = 1,
        fold: bool = True,
    ) -> Memory | FoldedMemory:
        """Shorten a context (B, S, M) to a memory that `attend` can use any number of times.

        `queries` is how many rows will attend to it, which decides whether folding pays.
        `fold=False` never folds, for `attend_with_weights`.
        """
        context = self._without_padding("context", context, "mask", mask, self.context_dim)
        return self._summarise(context, mask, projection, queries=queries, may_fold=fold)[0]

    def summarise_itself(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        projection: Projection | None = None,
        fold: bool = True,
    ) -> tuple[Memory | FoldedMemory, Tensor]:
        """The memory of x (B, N, M), and x for its rows to `attend` to it, once.

        Backward adds the memory's part of the gradient of x to that of the returned rows, in place:
        they must have exactly one consumer, `attend` or `attend_with_weights`.
        """
        x = self._without_padding("x", x, "mask", mask, self.dim)
        return self._summarise(x, mask, projection, queries=x.shape[1], goes_on=True, may_fold=fold)

    def attend(self, x: Tensor, memory: Memory | FoldedMemory) -> Tensor:
        """x (B, N, M) -> (B, N, M): each row looks at the memory on its own.

        A memory of one sample serves any number of samples.
        """
        memory = memory.for_batch(x.shape[0])
        heads, bias = self.num_heads, self.out_proj.bias
        if isinstance(memory, FoldedMemory):
            if self._drops_weights:
                y = memory.mix(dropout(memory.weights(x, heads), self.dropout, training=True))
                return y if bias is None else y + bias
            return attend_folded(x, memory.with_bias(bias, heads=heads), heads=heads)
        drop = self.dropout if self._drops_weights else 0.0
        return attend_memory(x, memory, self.q_proj, self.out_proj, heads=heads, drop=drop)

    def attend_with_weights(
        self,
        x: Tensor,
        memory: Memory | FoldedMemory,
        *,
        mask: Tensor | None = None,
        packing: Packing | None = None,
    ) -> AttentionTrace:
        """As `attend`, through materialised weights (B, H, N, R), which are returned too.

        The output is computed from the returned weights, so they have a gradient. They are zero at
        padded queries, marked by `mask` (B, N); where x is packed, they are unpacked by `packing`.
        The memory must not be folded.
        """
        memory = memory.for_batch(x.shape[0])
        if isinstance(memory, FoldedMemory):
            raise ValueError(
                "a folded memory has no keys to compute weights from. Make it with fold=False."
            )
        query = split_heads(self.q_proj(x), self.num_heads)  # (B, H, N, D)
        keep = None if memory.keep is None else memory.keep[:, None, None]
        weights = attention_weights(query, memory.key, keep)
        shown = used = weights
        if packing is not None:
            shown = packing.unpack_weights(weights)
            used = packing.pack_weights(shown)
        elif mask is not None:
            real = mask[:, None, :, None]
            shown = weights.masked_fill(~real, 0.0)
            used = torch.where(real, shown, weights)  # rows at padding as `attend` has them
        if self._drops_weights:
            used = F.dropout(used, self.dropout)
        mixed = used @ for_each_head(memory.value, self.num_heads)
        return AttentionTrace(self.out_proj(join_heads(mixed)), shown)

    def trace(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        projection: Projection | None = None,
    ) -> AttentionTrace:
        """As forward, with the attention weights (B, H, N, R) the output is computed from."""
        x, context, context_mask = self._checked(x, mask, context, context_mask)
        memory, _ = self._summarise(
            context, context_mask, projection, queries=x.shape[1], may_fold=False
        )
        y, weights = self.attend_with_weights(x, memory, mask=mask)
        return AttentionTrace(y if mask is None else y.masked_fill(~mask[..., None], 0.0), weights)

    def weights(
        self,
        x: Tensor,
        *,
        mask: Tensor | None = None,
        context: Tensor | None = None,
        context_mask: Tensor | None = None,
        projection: Projection | None = None,
    ) -> Tensor:
        """The attention weights (B, H, N, R), which the forward pass never materialises.

        `trace` gives them together with the output that is computed from them.
        """
        x, context, context_mask = self._checked(x, mask, context, context_mask)
        (key, _, keep), _ = self._rows(context, context_mask, projection)
        query = split_heads(self.q_proj(x), self.num_heads)
        weights = attention_weights(query, key, None if keep is None else keep[:, None, None])
        return weights if mask is None else weights.masked_fill(~mask[:, None, :, None], 0.0)

    def shape(self, *, batch: int, length: int, context: int | None = None) -> AttentionShape:
        """The sizes of one call, for `cost.py` and `plan.py`."""
        return AttentionShape(
            batch=batch,
            length=length,
            context=context,
            dim=self.dim,
            num_heads=self.num_heads,
            k=self.k,
            max_length=self.max_length,
            head_dim=self.head_dim,
            num_kv_heads=self.num_kv_heads,
            projection=self.kind,
            sharing=self.sharing,
            bias=self.q_proj.bias is not None,
            out_bias=self.out_proj.bias is not None,
            context_dim=self.context_dim,
        )

    @property
    def width(self) -> int:
        """The widest row between input and output."""
        return max(self.dim, self.num_heads * self.head_dim)

    @property
    def _is_plain(self) -> bool:
        """Whether W_q and W_o are nothing but their weights and biases."""
        return is_plain(self.q_proj) and is_plain(self.out_proj)

    @property
    def _drops_weights(self) -> bool:
        """Whether this call drops attention weights one by one, so that they have to be there."""
        return self.training and self.dropout > 0.0 and self.dropout_kind == "weights"

    def _checked(
        self,
        x: Tensor,
        mask: Tensor | None,
        context: Tensor | None,
        context_mask: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """x, what it attends to and the mask of that, without what stands in the padding."""
        x = self._without_padding("x", x, "mask", mask, self.dim)
        if context is not None:
            context = self._without_padding(
                "context", context, "context_mask", context_mask, self.context_dim
            )
            if context.shape[0] != x.shape[0]:
                raise ValueError(
                    f"context must have the batch size of x: got {context.shape[0]} and "
                    f"{x.shape[0]}. Repeat the smaller one."
                )
            return x, context, context_mask
        if context_mask is not None:
            raise ValueError("context_mask needs a context: got None. For x itself pass mask.")
        return x, x, mask

    def _without_padding(
        self, name: str, x: Tensor, mask_name: str, mask: Tensor | None, channels: int
    ) -> Tensor:
        """Check x, and replace what stands in padded positions by zero."""
        checks.sequence(name, x, channels)
        if mask is None:
            return x
        checks.padding_mask(mask_name, mask, x)
        return x.masked_fill(~mask[..., None], 0.0)

    def _summarise(
        self,
        context: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        queries: int,
        goes_on: bool = False,
        may_fold: bool = True,
    ) -> tuple[Memory | FoldedMemory, Tensor]:
        """The memory, and the context to go on with if it is also what attends to the memory."""
        absorbed = may_fold and self._attend_form(context, queries) == "absorbed"
        goes_on = goes_on and torch.is_grad_enabled() and context.requires_grad
        goes_on = goes_on and use_cpu_fast_path(context, self.q_proj, self.out_proj)
        memory, context = self._rows(context, mask, projection, goes_on=goes_on)
        if self.dropout_kind == "rows":
            memory = memory._replace(value=drop_rows(memory.value, self.dropout, self.training))
        if absorbed:
            return fold(memory, self.q_proj, self.out_proj, num_heads=self.num_heads), context
        return memory, context

    def _rows(
        self,
        context: Tensor,
        mask: Tensor | None,
        projection: Projection | None,
        *,
        goes_on: bool = False,
    ) -> tuple[Memory, Tensor]:
        """The shortened keys and values, (B, G, R, D) each, and the context to go on with."""
        if self.kind == "full":
            key = split_heads(self.k_proj(context), self.num_kv_heads)
            value = split_heads(self.v_proj(context), self.num_kv_heads)
            return Memory(key, value, mask), context
        if projection is None:
            projection = self.projection
        if projection is None:
            raise ValueError(
                "this layer was built with external_projection=True: pass projection= to the call."
            )
        if self.k is not None and self.k > projection.k:
            raise ValueError(
                f"the projection passed must have at least the k={self.k} rows of this layer: got "
                f"{projection.k}."
            )
        rows = self.k if self.k != projection.k else None
        shortening = projection(context, mask, rows=rows)
        if not (is_plain(self.k_proj) and is_plain(self.v_proj)):
            return self._rows_through_modules(context, mask, shortening), context
        if self._shorten_order(context) == "input":
            if goes_on:
                context, both = shortening.inputs_beside(context)  # (B, P, T, R, M)
            else:
                both = shortening.inputs(context)
            key = self._through(self.k_proj, both[:, 0], shortening, side=0)
            value = self._through(self.v_proj, both[:, -1], shortening, side=-1)
        else:
            key, value = (
                shortening.keys(
                    F.linear(context, linear.weight).unflatten(2, (self.num_kv_heads, -1)), side
                )
                + self._bias(linear, shortening, side)
                for side, linear in enumerate((self.k_proj, self.v_proj))
            )
        return Memory(key, value, shortening.keep), context

    def _rows_through_modules(
        self, context: Tensor, mask: Tensor | None, shortening: Shortening
    ) -> Memory:
        """As the paper writes it, calling k_proj and v_proj: they may be more than a matrix."""
        rows = []
        for side, linear in enumerate((self.k_proj, self.v_proj)):
            if not shortening.commutes:
                rows.append(
                    split_heads(linear(shortening.inputs(context)[:, 0, 0]), self.num_kv_heads)
                )
                continue
            values = linear(context)
            if mask is not None:
                values = values.masked_fill(~mask[..., None], 0.0)
            rows.append(shortening.keys(values.unflatten(2, (self.num_kv_heads, -1)), side))
        return Memory(rows[0], rows[1], shortening.keep)

    def _through(
        self, linear: nn.Linear, rows: Tensor, shortening: Shortening, side: int
    ) -> Tensor:
        """Shortened inputs (B, T, R, M) through W_k or W_v -> (B, G, R, D)."""
        if rows.shape[1] == 1:
            result = split_heads(F.linear(rows[:, 0], linear.weight), self.num_kv_heads)
        else:
            weight = linear.weight.unflatten(0, (self.num_kv_heads, -1))  # (G, D, M)
            result = each_head(rows, weight.transpose(1, 2))
        return result + self._bias(linear, shortening, side)

    def _bias(self, linear: nn.Linear, shortening: Shortening, side: int) -> Tensor | float:
        """(E 1) b, what a bias of W_k or W_v becomes: broadcasts to (B, G, R, D)."""
        if linear.bias is None:
            return 0.0
        bias = linear.bias.view(1, self.num_kv_heads, 1, -1)
        if not shortening.commutes:
            return bias
        sums = shortening.row_sums()  # (1 or B, P, T, R)
        return sums[:, min(side, sums.shape[1] - 1), ..., None] * bias

    def _shorten_order(self, context: Tensor) -> Shorten:
        if self.plan is not None:
            return self.plan.shorten
        return choose_shorten(self._planned_shape(context, queries=context.shape[1]))

    def _attend_form(self, context: Tensor, queries: int) -> Attend:
        if not self._is_plain:
            return "fused"  # folding reads the weights
        if self.plan is not None:
            return self.plan.attend
        if torch.compiler.is_compiling() and self.kind in WINDOW_KINDS:
            return "fused"  # the number of rows is a symbol there, which folding cannot handle
        return choose_attend(self._planned_shape(context, queries=queries))

    def _planned_shape(self, context: Tensor, queries: int) -> AttentionShape:
        batch, length, _ = context.shape
        if torch.compiler.is_compiling():
            # Sizes may be symbols, and one plan has to do for all: the one for long inputs.
            batch, length = 1, self.max_length or _LONG
            queries = length
        return self.shape(batch=batch, length=queries, context=length)

    def extra_repr(self) -> str:
        return (
            f"dim={self.dim}, num_heads={self.num_heads}, k={self.k}, projection={self.kind!r}, "
            f"sharing={self.sharing!r}"
        )
