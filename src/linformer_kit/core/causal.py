"""Causal Linformer attention: linear time in training, a state of constant size in generation.

The sequence is cut in chunks of `window` tokens. The query at position t of chunk c attends, in one
softmax, to

    the exact keys and values of its own chunk up to t, and of the chunk before, and
    `k` slots that sum up everything older, the tokens i of chunks 0 ... c - 2:

        slot_j = sum_i exp(s_ij) (key_i, value_i) / sum_i exp(s_ij),   s_i = bounded(W_s x_i)

Slots are made of keys and values, which the window needs anyway (2 n k M multiplications; sending
averaged inputs of every chunk through W_k and W_v again would cost M / window times as many), and
at chunk boundaries alone, as prefix sums over chunks. Scores are bounded by `BOUND`, so the sums
need no running maximum: at a million tokens they are below 1e9, and float32 loses only tokens that
weigh less than 1e-8 of the rest. No key or value of a later token is in anything a query reaches,
so nothing can leak.

Keys in the window are rotated by their position; of a slot only the part that is not rotated is
known, for it stands at no position. The rotated part of its key is zero.

Legend: B batch, N tokens, C chunks, W window, K slots, H heads, G key/value heads, D head size,
M model size, A = D less the rotated part, F = G*A + G*D + 1: what is summed for a slot (keys,
values, and the weights themselves).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checks
from .attend import join_heads
from .blocks import rows_in_block, use_row_blocks
from .dropout import drop_rows
from .fastpath import eager_on_cpu
from .heads import RotaryHeads
from .shortening import at_least_float32
from .weights import attention_weights, for_each_head

if TYPE_CHECKING:
    from .cost import CausalShape
    from .packing import Packing

BOUND = 6.0  # exp(6) = 403: at the most a token outweighs 160,000 others


class SlotState(NamedTuple):
    """What a layer remembers of the past. Its size does not depend on how long that is.

    Position p stands in row p % 2W of the ring. The sums are for the token to come, at least
    float32. They are apart because a step inside a chunk changes the last of them alone.
    """

    key: Tensor  # (B, G, 2W, D), rotated
    value: Tensor  # (B, G, 2W, D)
    older: Tensor  # (B, K, F): what its slots are made of
    before: Tensor  # (B, K, F): the chunk before its own, which the window still shows
    own: Tensor  # (B, K, F): its own chunk so far


class _Past(NamedTuple):
    """What the next segment of a text needs of those before it."""

    key: Tensor  # (B, 1, W, G, D): the chunk before, rotated
    value: Tensor  # (B, 1, W, G, D)
    sums: Tensor  # (B, 2, K, F): of all that is older, and of the chunk before


class CausalLinformerAttention(RotaryHeads):
    """Attention to a window of exact tokens and to `k` slots of all that came before it.

    Args:
        dim: M, the width of the input and the output.
        num_heads: H.
        k: the number of slots; 0 for none, which leaves the window alone.
        window: the length of a chunk: every token sees at least `window` predecessors exactly (if
            there are so many), and at the most 2 * window - 1.
        head_dim: D, by default dim // num_heads.
        num_kv_heads: G; fewer than num_heads lets groups of heads share keys and values.
        bias: whether W_q, W_k, W_v and W_s have one.
        out_bias: whether W_o has one, by default as `bias`.
        rotary: the fraction of each head that is rotated by position, 0 for none.
        dropout: the rate at which keys are left out, for all queries of a chunk at once.

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
        """W_s as in a new layer: scores of variance one for rows of variance one."""
        if self.slot_proj is not None:
            nn.init.normal_(self.slot_proj.weight, std=self.dim**-0.5)
            if self.slot_proj.bias is not None:
                nn.init.zeros_(self.slot_proj.bias)

    def forward(self, x: Tensor) -> Tensor:
        """The whole of a text at once: x (B, N, M) -> (B, N, M)."""
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

    def weights(self, x: Tensor) -> Tensor:
        """The attention weights (B, H, N, K + 2W) of a whole text x (B, N, M).

        Of each token: to the slots, to the chunk before its own, and to its own.
        """
        return self._weights(x)[0]

    def trace(self, x: Tensor, *, packing: Packing | None = None) -> tuple[Tensor, Tensor]:
        """As forward, and the weights (B, H, N, K + 2W) the output is computed from.

        Where x is packed, the weights are unpacked by `packing`.
        """
        weights, value, slot_value = self._weights(x)
        shown = used = weights
        if packing is not None:
            shown = packing.unpack_weights(weights)
            used = packing.pack_weights(shown)
        values = self._dropped_values(value, slot_value).transpose(2, 3)  # (B, C, G, K + 2W, D)
        rows = _in_chunks(used.transpose(1, 2), values.shape[1], self.window)  # (B, C, W, H, L)
        mixed = rows.transpose(2, 3) @ for_each_head(values, self.num_heads)  # (B, C, H, W, D)
        mixed = mixed.transpose(1, 2).flatten(2, 3)[:, :, : x.shape[1]]  # (B, H, N, D)
        return self.out_proj(join_heads(mixed)), shown

    def _weights(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The weights (B, H, N, K + 2W), values (B, N, G, D) and slots' values (B, C, K, G, D)."""
        length = x.shape[1]
        window, chunks = self.window, -(-length // self.window)
        position = torch.arange(length, device=x.device)[None]
        *heads, value = self.rotated_heads(x, position)
        query, key, plain_key, value_chunks, weight = (
            _in_chunks(rows, chunks, window) for rows in (*heads, value, self._slot_weights(x))
        )
        sums = self._chunk_sums(weight, plain_key, value_chunks).cumsum(1)  # (B, C, K, F)
        slot_key, slot_value = self._slots(_later(sums, 2), dtype=x.dtype)
        chunk = torch.arange(chunks, device=x.device)[:, None, None]
        row = torch.arange(window, device=x.device)
        own = (row[:, None] >= row).expand(chunks, -1, -1)
        mask = torch.cat(
            (
                (chunk >= 2).expand(-1, window, self.k),
                (chunk >= 1).expand(-1, window, window),
                own,
            ),
            dim=2,
        )[:, None]  # (C, 1, W, K + 2W)
        keys = torch.cat((slot_key, _later(key, 1), key), dim=2)  # (B, C, K + 2W, G, D)
        weights = attention_weights(query.transpose(2, 3), keys.transpose(2, 3), mask)
        weights = weights.transpose(1, 2).flatten(2, 3)[:, :, :length]
        return weights, value, slot_value

    def _dropped_values(self, value: Tensor, slot_value: Tensor) -> Tensor:
        """What the weights of each chunk refer to, after dropout: (B, C, K + 2W, G, D).

        Dropout is drawn as in `_segment`: for the first two chunks together, then for each other.
        """
        chunks, window = slot_value.shape[1], self.window
        first = drop_rows(value[:, : 2 * window], self.dropout, self.training)
        first = _in_chunks(first, min(chunks, 2), window)
        hidden = torch.zeros_like(slot_value[:, :2])
        first = torch.cat((hidden, _later(first, 1), first), dim=2)
        if chunks <= 2:
            return first
        value = _in_chunks(value, chunks, window)
        others = torch.cat((slot_value, _later(value, 1), value), dim=2)[:, 2:]
        others = drop_rows(others, self.dropout, self.training)
        return torch.cat((first, others), dim=1)

    def _segment_length(self, x: Tensor) -> int:
        """Few chunks at a time where nothing is kept for a backward pass, as in `blocks.py`."""
        if not use_row_blocks(x):
            return x.shape[1]
        rows = rows_in_block(max(self.dim, self.num_heads * self.head_dim)) // x.shape[0]
        return max(3, rows // self.window) * self.window

    def _segment(
        self, x: Tensor, past: _Past | None, start: int, *, more: bool
    ) -> tuple[Tensor, _Past | None]:
        """Some chunks: x (B, N, M) at position `start`, the past before it if there is one.

        Gives the past of the next segment if there will be `more`.
        """
        length, window = x.shape[1], self.window
        position = torch.arange(start, start + length, device=x.device)[None]
        query, key, plain_key, value = self.rotated_heads(x, position)
        rows = []
        if past is None:  # the first two chunks see all there is, and no slots
            head = min(length, 2 * window)
            first = self.attend(query[:, :head], key[:, :head], value[:, :head], causal=True)
            if length == head:
                if self.training:  # a gradient of zero, not none: DDP waits for every parameter's
                    first = first + 0.0 * self._slot_weights(x).sum().to(first.dtype)
                return self.out_proj(first.flatten(2)), None
            rows.append(first)
        chunks = -(-length // window)
        query, key, plain_key, value, weight = (
            _in_chunks(each, chunks, window)
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
        # From here on chunk c of the queries has its own keys in chunk c + 1 of the keys, those
        # before in chunk c, and its slots of sums[:, : c + 1].
        count = query.shape[1]
        prefix = sums[:, :count].cumsum(1)
        slot_key, slot_value = self._slots(prefix, dtype=x.dtype)  # (B, C, K, G, D)
        later = self.attend(
            query.flatten(0, 1),
            torch.cat((slot_key, key[:, :-1], key[:, 1:]), dim=2).flatten(0, 1),
            torch.cat((slot_value, value[:, :-1], value[:, 1:]), dim=2).flatten(0, 1),
            mask=self._visible_in_chunk(x.device),
        )
        later = later.unflatten(0, query.shape[:2]).flatten(1, 2)  # (B, C*W, H, D)
        rows.append(later[:, : length - (chunks - count) * window])
        mixed = torch.cat(rows, dim=1) if past is None else rows[0]
        if more:
            total = prefix[:, -1:] + sums[:, count : count + 1]
            past = _Past(key[:, -1:], value[:, -1:], torch.cat((total, sums[:, -1:]), dim=1))
        return self.out_proj(mixed.flatten(2)), past

    def init_state(self, batch_size: int, *, device: torch.device, dtype: torch.dtype) -> SlotState:
        ring = (batch_size, self.num_kv_heads, 2 * self.window, self.head_dim)
        wide = torch.promote_types(dtype, torch.float32)

        def nothing() -> Tensor:
            """Of every sample, and in memory once: it is there before there are sums."""
            zero = torch.zeros(1, self.k, self._summed, device=device, dtype=wide)
            return zero.expand(batch_size, -1, -1)

        return SlotState(
            key=torch.zeros(ring, device=device, dtype=dtype),
            value=torch.zeros(ring, device=device, dtype=dtype),
            older=nothing(),
            before=nothing(),
            own=nothing(),
        )

    def step(self, x: Tensor, state: SlotState, position: Tensor) -> tuple[Tensor, SlotState]:
        """One token: x (B, 1, M) at position (B) -> (B, 1, M) and the state after it."""
        window = self.window
        query, key, plain_key, value = self.rotated_heads(x, position[:, None])
        row = torch.arange(2 * window, device=x.device)
        here = (position[:, None] % (2 * window) == row)[:, None, :, None]  # (B, 1, 2W, 1)
        ring_key = torch.where(here, key.transpose(1, 2), state.key)
        ring_value = torch.where(here, value.transpose(1, 2), state.value)
        # What stands in a row is the last position that falls on it.
        stands = position[:, None] - (position[:, None] - row) % (2 * window)  # (B, 2W)
        first = (position // window - 1).clamp_min(0) * window
        shown_key, shown_value = ring_key.transpose(1, 2), ring_value.transpose(1, 2)
        visible = stands >= first[:, None]  # (B, 2W)
        filled = position >= 2 * window
        if _some(filled):
            slot_key, slot_value = self._slots(state.older, dtype=x.dtype)  # (B, K, G, D)
            shown_key = torch.cat((slot_key, shown_key), dim=1)
            shown_value = torch.cat((slot_value, shown_value), dim=1)
            visible = torch.cat((filled[:, None].expand(-1, self.k), visible), dim=1)
        mixed = self.attend(query, shown_key, shown_value, mask=visible[:, None, None])
        older, before = state.older, state.before
        added = self._chunk_sums(self._slot_weights(x)[:, None], plain_key[:, None], value[:, None])
        own = state.own + added[:, 0]
        chunk_ends = (position + 1) % window == 0
        if _some(chunk_ends):  # the chunk before leaves the window for the slots
            here = chunk_ends[:, None, None]
            older = torch.where(here, older + before, older)
            before = torch.where(here, own, before)
            own = own.masked_fill(here, 0.0)
        after = SlotState(ring_key, ring_value, older, before, own)
        return self.out_proj(mixed.flatten(2)), after

    def extend(
        self, x: Tensor, length: Tensor, state: SlotState, position: Tensor
    ) -> tuple[Tensor, SlotState]:
        """Many tokens after a state: x (B, N, M), of which sample b has the first length[b].

        Equal to as many calls of `step`. Samples may stand at different positions: each is laid on
        its own grid of chunks, which begins with the chunk its position falls into.
        """
        batch, count, _ = x.shape
        window = self.window
        chunks = (count + window - 1) // window + 1  # whatever the position in the first chunk
        offset = position % window  # (B)
        row = torch.arange(chunks * window, device=x.device)
        token = row - offset[:, None]  # (B, C*W): which of the new tokens stands in a row
        new = (token >= 0) & (token < length[:, None])
        place = position[:, None] + torch.arange(count, device=x.device)
        query, key, plain_key, value = self.rotated_heads(x, place)
        weight = self._slot_weights(x)
        query, key, plain_key, value, weight = (
            _take(rows, token, new) for rows in (query, key, plain_key, value, weight)
        )
        # The ring has the chunk before the grid, and the beginning of the grid's first chunk.
        inside = torch.arange(window, device=x.device)
        own = position[:, None] // window % 2 * window + inside  # (B, W): rows of the ring
        before = (position[:, None] // window + 1) % 2 * window + inside
        old = (inside < offset[:, None])[..., None, None]

        def on_grid(rows: Tensor, ring: Tensor) -> tuple[Tensor, Tensor]:
            """(B, C, W, G, D) with what the ring has, and the same one chunk earlier."""
            ring = ring.transpose(1, 2)  # (B, 2W, G, D)
            head = torch.where(old, _take(ring, own), rows[:, :window])
            rows = torch.cat((head, rows[:, window:]), dim=1)
            earlier = torch.cat((_take(ring, before), rows[:, :-window]), dim=1)
            return rows.unflatten(1, (chunks, window)), earlier.unflatten(1, (chunks, window))

        key, earlier_key = on_grid(key, state.key)
        value_of_new = value.unflatten(1, (chunks, window))
        value, earlier_value = on_grid(value, state.value)
        added = self._chunk_sums(
            weight.unflatten(1, (chunks, window)),
            plain_key.unflatten(1, (chunks, window)),
            value_of_new,
        )
        added = torch.cat((state.own[:, None] + added[:, :1], added[:, 1:]), dim=1)
        # parts[:, i] joins the slots i chunks after the grid begins.
        known = torch.stack((state.older, state.before), dim=1)
        parts = torch.cat((known, added, torch.zeros_like(added[:, :1])), dim=1)
        prefix = parts.cumsum(1)
        slot_key, slot_value = self._slots(prefix[:, :chunks], dtype=x.dtype)
        number = position[:, None] // window + torch.arange(chunks, device=x.device)  # (B, C)
        # The chunk from which on there are slots, and a chunk before.
        since = torch.cat((row.new_full((self.k,), 2), row.new_ones(window), row.new_zeros(window)))
        there = number[..., None, None] >= since  # (B, C, 1, K + 2W)
        mask = self._visible_in_chunk(x.device) & there  # (B, C, W, K + 2W)
        mixed = self.attend(
            query.unflatten(1, (chunks, window)).flatten(0, 1),
            torch.cat((slot_key, earlier_key, key), dim=2).flatten(0, 1),
            torch.cat((slot_value, earlier_value, value), dim=2).flatten(0, 1),
            mask=mask.flatten(0, 1)[:, None],
        )
        mixed = mixed.unflatten(0, (batch, chunks)).flatten(1, 2)  # (B, C*W, H, D)
        mixed = _take(mixed, offset[:, None] + torch.arange(count, device=x.device))
        end = position + length
        begun = (end // window - position // window)[:, None]  # (B, 1): the grid's next chunk
        ring_row = torch.arange(2 * window, device=x.device)
        stands = end[:, None] - 1 - (end[:, None] - 1 - ring_row) % (2 * window)
        on_row = stands - position[:, None] // window * window  # of the grid; older: in the ring

        def in_ring(rows: Tensor, ring: Tensor) -> Tensor:
            latest = _take(rows.flatten(1, 2), on_row).transpose(1, 2)  # (B, G, 2W, D)
            return torch.where((on_row >= 0)[:, None, :, None], latest, ring)

        after = SlotState(
            key=in_ring(key, state.key),
            value=in_ring(value, state.value),
            older=_take(prefix, begun)[:, 0],
            before=_take(parts, begun + 1)[:, 0],
            own=_take(parts, begun + 2)[:, 0],
        )
        return self.out_proj(mixed.flatten(2)), after

    @property
    def _summed(self) -> int:
        """F"""
        return self.num_kv_heads * (2 * self.head_dim - self.rotary_dim) + 1

    def _slot_weights(self, x: Tensor) -> Tensor:
        """Exp of the bounded scores: (B, N, K), at least float32."""
        scores = at_least_float32(x[..., :0] if self.slot_proj is None else self.slot_proj(x))
        return torch.exp(BOUND * torch.tanh(scores / BOUND))

    def _chunk_sums(self, weight: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """weight (B, C, W, K), key and value (B, C, W, G, D) -> (B, C, K, F)"""
        weight = weight.transpose(2, 3)  # (B, C, K, W)
        key = key[..., self.rotary_dim :].flatten(3).to(weight.dtype)
        value = value.flatten(3).to(weight.dtype)
        with torch.autocast(weight.device.type, enabled=False):  # in float16 sums would overflow
            return torch.cat((weight @ key, weight @ value, weight.sum(3, keepdim=True)), dim=3)

    def _slots(self, sums: Tensor, *, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """sums (..., K, F) -> keys and values (..., K, G, D)"""
        known = self.head_dim - self.rotary_dim
        heads = self.num_kv_heads
        key, value, total = sums.split((heads * known, heads * self.head_dim, 1), dim=-1)
        total = torch.where(total > 0, total, 1.0)  # nothing summed up yet: zero, and masked
        key = (key / total).to(dtype).unflatten(-1, (heads, known))
        value = (value / total).to(dtype).unflatten(-1, (heads, self.head_dim))
        return F.pad(key, (self.rotary_dim, 0)), value

    def _visible_in_chunk(self, device: torch.device) -> Tensor:
        """(W, K + 2W): the slots, the chunk before, and of its own chunk what came until then."""
        row = torch.arange(self.window, device=device)
        older = torch.ones(self.window, self.k + self.window, dtype=torch.bool, device=device)
        return torch.cat((older, row[:, None] >= row), dim=1)

    def shape(self, *, batch: int, length: int) -> CausalShape:
        """The sizes of one call, for `cost.py`."""
        return self._shape(batch=batch, length=length, k=self.k, window=self.window)

    def extra_repr(self) -> str:
        return f"dim={self.dim}, num_heads={self.num_heads}, k={self.k}, window={self.window}"


def _in_chunks(rows: Tensor, chunks: int, window: int) -> Tensor:
    """(B, N, ...) -> (B, C, W, ...), filled up with zeros. A view if N fits."""
    missing = chunks * window - rows.shape[1]
    if missing:
        rows = F.pad(rows, (0, 0) * (rows.dim() - 2) + (0, missing))
    return rows.unflatten(1, (chunks, window))


def _later(rows: Tensor, chunks: int) -> Tensor:
    """(B, C, ...) moved by some chunks, zeros before it."""
    return torch.cat((torch.zeros_like(rows[:, :chunks]), rows), dim=1)[:, : rows.shape[1]]


def _take(rows: Tensor, index: Tensor, keep: Tensor | None = None) -> Tensor:
    """rows (B, N, ...) at index (B, L) -> (B, L, ...); zero where `keep` is False."""
    shape = (*index.shape, *rows.shape[2:])
    ones = (1,) * (rows.dim() - 2)
    index = index.clamp(0, rows.shape[1] - 1).view(*index.shape, *ones).expand(shape)
    taken = rows.gather(1, index)
    return taken if keep is None else taken.masked_fill(~keep.view(*keep.shape, *ones), 0.0)


def _some(samples: Tensor) -> bool:
    """Whether any is marked in `samples` (B).

    Always True off the CPU, to avoid a device sync, and when compiling or transforming.
    """
    return not eager_on_cpu(samples) or bool(samples.any())
