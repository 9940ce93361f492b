"""Causal Linformer attention: linear time in training, a state of constant size in generation.

The sequence is cut into chunks of `window` tokens. The query at position t of chunk c attends, in
one softmax, to

    the exact keys and values of its own chunk up to t, and of the previous chunk, and
    `k` slots that summarise everything older, the tokens i of chunks 0 ... c - 2:

        slot_j = sum_i exp(s_ij) (key_i, value_i) / sum_i exp(s_ij),   s_i = bounded(W_s x_i)

Slots are computed from keys and values, which the window needs anyway (2 n k M multiplications;
averaging inputs and multiplying them by W_k and W_v for every chunk would cost M / window times as
many), and only at chunk boundaries, as prefix sums over chunks. Scores are bounded by `BOUND`, so
the sums need no running maximum: at a million tokens they are below 1e9, and float32 loses only
tokens that weigh less than 1e-8 of the rest. Nothing that a query attends to contains a key or
value of a later token, so nothing can leak.

Keys in the window are rotated by their position. A slot has no position: the rotated channels of
its key are zero.

Legend: B batch, N tokens, C chunks, W window, K slots, H heads, G key/value heads, D head size,
M model size, A = D less the rotated channels, F = G*A + G*D + 1: the values summed for a slot
(keys, values, and the weights themselves).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import causal_trace, checks
from .chunks import Keys, attend_chunks, in_chunks
from .cpu.blocks import rows_in_block, use_row_blocks
from .cpu.linear import apply_linear
from .cpu.predicate import eager_on_cpu
from .dropout import drop_rows
from .heads import RotaryHeads
from .numerics import at_least_float32, no_autocast
from .plain_sdpa import hidden_bias

BOUND = 6.0  # exp(6) = 403: a token outweighs at most 160,000 others


class SlotState(NamedTuple):
    """The state of a layer. Its size does not depend on the number of tokens.

    Position p is in row p % 2W of the ring. The sums are those for the next token, at least
    float32; a step inside a chunk changes `current_sums` only.
    """

    key: Tensor  # (B, G, 2W, D), the ring: rotated
    value: Tensor  # (B, G, 2W, D), the ring
    slot_sums: Tensor  # (B, K, F): of all chunks that are in the slots
    previous_sums: Tensor  # (B, K, F): of the previous chunk, which is still in the window
    current_sums: Tensor  # (B, K, F): of the current chunk so far


class _Past(NamedTuple):
    """What a segment of a sequence needs of the segments before it."""

    key: Tensor  # (B, 1, W, G, D): the previous chunk, rotated
    value: Tensor  # (B, 1, W, G, D)
    sums: Tensor  # (B, 2, K, F): of all older chunks, and of the previous chunk


class CausalLinformerAttention(RotaryHeads):
    """Attention to a window of exact tokens and to `k` slots of all older tokens.

    Args:
        dim: M, the width of the input and the output.
        num_heads: H.
        k: the number of slots; 0 for the window alone.
        window: the length of a chunk: every token attends exactly to at least `window` previous
            tokens (if there are so many), and to at most 2 * window - 1.
        head_dim: D, by default dim // num_heads.
        num_kv_heads: G, by default H; with fewer, groups of heads share keys and values.
        bias: whether W_q, W_k, W_v and W_s have one.
        out_bias: whether W_o has one, by default as `bias`.
        rotary: the fraction of the channels of each head that are rotated, 0 for none.
        dropout: the rate at which values are dropped, each for all queries at once.

    """

    def __init__(
        self,
        *,
        dim: int,
        num_heads: int,
        k: int,
        window: int,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        bias: bool = True,
        out_bias: bool | None = None,
        rotary: float = 0.5,
        dropout: float = 0.0,
    ) -> None:
        checks.whole("k", k)
        checks.positive("window", window)
        super().__init__(
            dim=dim,
            num_heads=num_heads,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            bias=bias,
            out_bias=out_bias,
            rotary=rotary,
            dropout=dropout,
        )
        self.k = k
        self.window = window
        self.slot_proj = nn.Linear(dim, k, bias=bias) if k else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        self.reset_slots()

    def reset_slots(self) -> None:
        """Initialise W_s: scores of variance one for rows of variance one."""
        if self.slot_proj is not None:
            nn.init.normal_(self.slot_proj.weight, std=self.dim**-0.5)
            if self.slot_proj.bias is not None:
                nn.init.zeros_(self.slot_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """A whole sequence at once: x (B, N, M) -> (B, N, M)."""
        batch, length, _ = x.shape
        size = self._segment_length(x)
        if length <= size:
            return self._segment(x, None, 0, more=False)[0]
        result = x.new_empty(0)
        past: _Past | None = None
        for start in range(0, length, size):
            end = start + size
            rows, past = self._segment(x[:, start:end], past, start, more=end < length)
            if start == 0:
                result = rows.new_empty(batch, length, rows.shape[2])
            result[:, start:end] = rows
        return result

    def _segment_length(self, x: Tensor) -> int:
        """Few chunks at a time in inference on a CPU, as in `cpu/blocks.py`."""
        if not use_row_blocks(x, training=self.training):
            return x.shape[1]
        rows = rows_in_block(max(self.dim, self.num_heads * self.head_dim))
        rows //= max(1, x.shape[0])
        return max(3, rows // self.window) * self.window

    def _segment(
        self, x: Tensor, past: _Past | None, start: int, *, more: bool
    ) -> tuple[Tensor, _Past | None]:
        """Some chunks: x (B, N, M) from position `start` on, after `past` if there is any.

        Returns the past of the next segment too, if there is `more`.
        """
        length, window = x.shape[1], self.window
        position = torch.arange(start, start + length, device=x.device)[None]
        query, key, plain_key, value = self.rotated_heads(x, position)
        rows = []
        if past is None:  # the first two chunks attend to all previous tokens, and to no slots
            head = min(length, 2 * window)
            first = self.attend(query[:, :head], key[:, :head], value[:, :head], causal=True)
            if length == head:
                if self.training:  # a zero gradient, not None: DDP waits for all
                    first = first + (0.0 * self._slot_weights(x).sum()).to(first.dtype)
                return apply_linear(self.out_proj, first.flatten(2)), None
            rows.append(first)
        chunks = -(-length // window)
        query, key, plain_key, value, weight = (
            in_chunks(each, chunks, window)
            for each in (query, key, plain_key, value, self._slot_weights(x))
        )
        summed = slice(None) if more else slice(max(0, chunks - 2))
        sums = self._chunk_sums(weight[:, summed], plain_key[:, summed], value[:, summed])
        if past is None:
            query, key, value = query[:, 2:], key[:, 1:], value[:, 1:]
        else:
            key = torch.cat((past.key, key), dim=1)
            value = torch.cat((past.value, value), dim=1)
            sums = torch.cat((past.sums, sums), dim=1)
        # From here on the keys of query chunk c are chunk c + 1 of `key`, those of its previous
        # chunk are chunk c, and its slots are made of sums[:, : c + 1].
        count = query.shape[1]
        prefix = sums[:, :count].cumsum(1)
        slot_key, slot_value = self._slots(prefix, dtype=x.dtype)  # (B, C, K, G, D)
        later = self._attend_chunks(
            query, Keys(key, value, self._causal_bias(x)), Keys(slot_key, slot_value, None)
        )
        rows.append(later[:, : length - (chunks - count) * window])
        mixed = torch.cat(rows, dim=1) if past is None else rows[0]
        if more:
            total = prefix[:, -1:] + sums[:, count : count + 1]
            past = _Past(key[:, -1:], value[:, -1:], torch.cat((total, sums[:, -1:]), dim=1))
        return apply_linear(self.out_proj, mixed.flatten(2)), past

    def init_state(self, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> SlotState:
        ring = (batch_size, self.num_kv_heads, 2 * self.window, self.head_dim)
        wide = torch.promote_types(dtype, torch.float32)

        def no_sums() -> Tensor:
            """Zeros for every sample, stored once."""
            zero = torch.zeros(1, self.k, self._summed, device=device, dtype=wide)
            return zero.expand(batch_size, -1, -1)

        return SlotState(
            key=torch.zeros(ring, device=device, dtype=dtype),
            value=torch.zeros(ring, device=device, dtype=dtype),
            slot_sums=no_sums(),
            previous_sums=no_sums(),
            current_sums=no_sums(),
        )

    def step(self, x: Tensor, state: SlotState, position: Tensor) -> tuple[Tensor, SlotState]:
        """One token: x (B, 1, M) at position (B) -> (B, 1, M) and the state after it."""
        window = self.window
        query, key, plain_key, value = self.rotated_heads(x, position[:, None])
        ring_positions = self._ring_positions(position)  # (B, 2W)
        here = (ring_positions == position[:, None])[:, None, :, None]  # (B, 1, 2W, 1)
        ring_key = torch.where(here, key.transpose(1, 2), state.key)
        ring_value = torch.where(here, value.transpose(1, 2), state.value)
        first = (position // window - 1).clamp_min(0) * window
        shown_key, shown_value = ring_key.transpose(1, 2), ring_value.transpose(1, 2)
        visible = ring_positions >= first[:, None]  # (B, 2W)
        filled = position >= 2 * window
        if _may_be_any(filled):
            slot_key, slot_value = self._slots(state.slot_sums, dtype=x.dtype)  # (B, K, G, D)
            shown_key = torch.cat((slot_key, shown_key), dim=1)
            shown_value = torch.cat((slot_value, shown_value), dim=1)
            visible = torch.cat((filled[:, None].expand(-1, self.k), visible), dim=1)
        mixed = self.attend(query, shown_key, shown_value, mask=visible[:, None, None])
        slot_sums, previous_sums = state.slot_sums, state.previous_sums
        added = self._chunk_sums(self._slot_weights(x)[:, None], plain_key[:, None], value[:, None])
        current_sums = state.current_sums + added[:, 0]
        chunk_ends = (position + 1) % window == 0
        if _may_be_any(chunk_ends):  # the previous chunk moves from the window to the slots
            here = chunk_ends[:, None, None]
            slot_sums = torch.where(here, slot_sums + previous_sums, slot_sums)
            previous_sums = torch.where(here, current_sums, previous_sums)
            current_sums = current_sums.masked_fill(here, 0.0)
        after = SlotState(ring_key, ring_value, slot_sums, previous_sums, current_sums)
        return apply_linear(self.out_proj, mixed.flatten(2)), after

    def extend(
        self, x: Tensor, length: Tensor, state: SlotState, position: Tensor
    ) -> tuple[Tensor, SlotState]:
        """Several tokens after a state: x (B, N, M), of which sample b has the first length[b].

        Equal to as many calls of `step`. Positions of samples may differ: each sample has its own
        grid of chunks, which begins with the chunk of its position.
        """
        count, window = x.shape[1], self.window
        chunks = (count + window - 1) // window + 1  # for any position in the first chunk
        offset = position % window  # (B)
        row = torch.arange(chunks * window, device=x.device)
        token = row - offset[:, None]  # (B, C*W): the new token in each row of the grid
        new = (token >= 0) & (token < length[:, None])
        place = position[:, None] + torch.arange(count, device=x.device)
        query, key, plain_key, value = self.rotated_heads(x, place)
        weight = self._slot_weights(x)
        query, key, plain_key, value, weight = (
            _take(rows, token, new) for rows in (query, key, plain_key, value, weight)
        )
        # The ring has the chunk before the grid, and the beginning of the grid's first chunk.
        inside = torch.arange(window, device=x.device)
        current = position[:, None] // window % 2 * window + inside  # (B, W): rows of the ring
        previous = (position[:, None] // window + 1) % 2 * window + inside
        old = (inside < offset[:, None])[..., None, None]

        def on_grid(rows: Tensor, ring: Tensor) -> Tensor:
            """(B, C + 1, W, G, D): the rows of the ring, then the new ones."""
            ring = ring.transpose(1, 2)  # (B, 2W, G, D)
            head = torch.where(old, _take(ring, current), rows[:, :window])
            rows = torch.cat((_take(ring, previous), head, rows[:, window:]), dim=1)
            return rows.unflatten(1, (chunks + 1, window))

        key = on_grid(key, state.key)
        value_of_new = value.unflatten(1, (chunks, window))
        value = on_grid(value, state.value)
        added = self._chunk_sums(
            weight.unflatten(1, (chunks, window)),
            plain_key.unflatten(1, (chunks, window)),
            value_of_new,
        )
        added = torch.cat((state.current_sums[:, None] + added[:, :1], added[:, 1:]), dim=1)
        # parts[:, i] is added to the slots i chunks after the beginning of the grid.
        known = torch.stack((state.slot_sums, state.previous_sums), dim=1)
        parts = torch.cat((known, added, torch.zeros_like(added[:, :1])), dim=1)
        prefix = parts.cumsum(1)
        slot_key, slot_value = self._slots(prefix[:, :chunks], dtype=x.dtype)
        number = position[:, None] // window + torch.arange(chunks, device=x.device)  # (B, C)
        # Chunk 0 of a sequence has no previous chunk, and chunks 0 and 1 have no slots.
        no_previous = (number < 1)[..., None] & (torch.arange(2 * window, device=x.device) < window)
        near_bias = self._causal_bias(x) + hidden_bias(~no_previous, x.dtype)[:, :, None, None]
        slot_bias = hidden_bias(number >= 2, x.dtype)[:, :, None, None].expand(-1, -1, -1, self.k)
        mixed = self._attend_chunks(
            query.unflatten(1, (chunks, window)),
            Keys(key, value, near_bias),
            Keys(slot_key, slot_value, slot_bias),
        )
        mixed = _take(mixed, offset[:, None] + torch.arange(count, device=x.device))
        end = position + length
        begun = (end // window - position // window)[:, None]  # (B, 1): the grid's next chunk
        # (B, 2W): the row of the grid for each row of the ring; negative: not on the grid.
        on_row = self._ring_positions(end - 1) - position[:, None] // window * window

        def in_ring(rows: Tensor, ring: Tensor) -> Tensor:
            latest = _take(rows[:, 1:].flatten(1, 2), on_row).transpose(1, 2)  # (B, G, 2W, D)
            return torch.where((on_row >= 0)[:, None, :, None], latest, ring)

        after = SlotState(
            key=in_ring(key, state.key),
            value=in_ring(value, state.value),
            slot_sums=_take(prefix, begun)[:, 0],
            previous_sums=_take(parts, begun + 1)[:, 0],
            current_sums=_take(parts, begun + 2)[:, 0],
        )
        return apply_linear(self.out_proj, mixed.flatten(2)), after

    @property
    def _summed(self) -> int:
        """F"""
        return self.num_kv_heads * (2 * self.head_dim - self.rotary_dim) + 1

    def _slot_weights(self, x: Tensor) -> Tensor:
        """exp of the bounded scores: (B, N, K), at least float32."""
        scores = at_least_float32(x[..., :0] if self.slot_proj is None else self.slot_proj(x))
        return torch.exp(BOUND * torch.tanh(scores / BOUND))

    def _chunk_sums(self, weight: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """weight (B, C, W, K), key and value (B, C, W, G, D) -> (B, C, K, F)"""
        weight = weight.transpose(2, 3)  # (B, C, K, W)
        key = key[..., self.rotary_dim :].flatten(3).to(weight.dtype)
        value = value.flatten(3).to(weight.dtype)
        with no_autocast(weight.device):  # in float16 sums would overflow
            return torch.cat((weight @ key, weight @ value, weight.sum(3, keepdim=True)), dim=3)

    def _slots(self, sums: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """sums (..., K, F) -> keys and values (..., K, G, D)"""
        known = self.head_dim - self.rotary_dim
        heads = self.num_kv_heads
        key, value, total = sums.split((heads * known, heads * self.head_dim, 1), dim=-1)
        total = torch.where(total > 0, total, 1.0)  # nothing summed yet: zero, and masked
        key = (key / total).to(dtype).unflatten(-1, (heads, known))
        value = (value / total).to(dtype).unflatten(-1, (heads, self.head_dim))
        return F.pad(key, (self.rotary_dim, 0)), value

    def _causal_bias(self, x: Tensor) -> Tensor:
        """Hides the tokens of the own chunk after each token: (1, 1, 1, W, 2W)."""
        row = torch.arange(self.window, device=x.device)
        column = torch.arange(2 * self.window, device=x.device)
        visible = column - self.window <= row[:, None]
        return hidden_bias(visible, x.dtype)[None, None, None]

    def _attend_chunks(self, query: Tensor, near: Keys, slots: Keys) -> Tensor:
        """query (B, C, W, H, D) -> (B, C*W, H, D)."""
        if self.training and self.dropout:
            near = near._replace(value=drop_rows(near.value, self.dropout, True))
            slots = slots._replace(value=drop_rows(slots.value, self.dropout, True))
        return attend_chunks(query, near, slots if self.k else None).flatten(1, 2)

    def _ring_positions(self, last: Tensor) -> Tensor:
        """The position in each row of the ring (B, 2W), if `last` (B) is the last position."""
        size = 2 * self.window
        row = torch.arange(size, device=last.device)
        return last[:, None] - (last[:, None] - row) % size

    weights = causal_trace.weights
    trace = causal_trace.trace

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, k={self.k}, window={self.window}"


def _take(rows: Tensor, index: Tensor, keep: Tensor | None = None) -> Tensor:
    """rows (B, N, ...) at index (B, L) -> (B, L, ...); zero where `keep` is False."""
    shape = (*index.shape, *rows.shape[2:])
    ones = (1,) * (rows.dim() - 2)
    index = index.clamp(0, rows.shape[1] - 1).view(*index.shape, *ones).expand(shape)
    taken = rows.gather(1, index)
    return taken if keep is None else taken.masked_fill(~keep.view(*keep.shape, *ones), 0.0)


def _may_be_any(samples: Tensor) -> bool:
    """Whether any is marked in `samples` (B).

    Always True off the CPU, to avoid a device sync, and when compiling or transforming.
    """
    return not eager_on_cpu(samples) or bool(samples.any())
