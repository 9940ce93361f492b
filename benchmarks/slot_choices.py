"""What should the slots of causal attention hold? One byte language model for each choice.

    python -m benchmarks.slot_choices --train books/*.txt --validate other/*.txt --steps 600

    exclude  all that is older than the window shows: what the library does
    include  also the chunk before, which the window shows as well
    decay    as exclude, and each slot forgets at a rate of its own, which is learned
    gate     as exclude, and each token says how much each slot forgets (as Gated Slot Attention)

Options and records are those of causal_language_model.py, which it trains with.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.causal_language_model import LanguageModel, options, read_bytes, train
from linformer_kit.core.causal import CausalLinformerAttention

if TYPE_CHECKING:
    import argparse

CHOICES = ("exclude", "include", "decay", "gate")
TEMPERATURE = 8.0  # a gate's logarithm is divided by it, so that slots begin by forgetting slowly


class ChosenSlots(CausalLinformerAttention):
    """The library's attention, with the sums of its slots made in one of the ways."""

    def __init__(self, choice: str, *, dim: int, num_heads: int, k: int, window: int) -> None:
        super().__init__(dim=dim, num_heads=num_heads, k=k, window=window)
        self.choice = choice
        if choice == "decay":  # softplus of it is what a chunk takes off the logarithm
            self.rate = nn.Parameter(torch.linspace(-6.0, 0.0, k))
        if choice == "gate":
            self.gate = nn.Linear(dim, k)
            nn.init.constant_(self.gate.bias, 5.0)

    def forward(self, x: Tensor) -> Tensor:
        """x (B, N, M), N a multiple of the window -> (B, N, M)"""
        window, chunks = self.window, x.shape[1] // self.window
        position = torch.arange(x.shape[1])[None]
        query, key, plain_key, value, weight = (
            rows.unflatten(1, (chunks, window))
            for rows in (*self.rotated_heads(x, position), self._slot_weights(x))
        )
        kept = None  # (1 or B, C, K, 1): what a chunk leaves of the sums before it
        if self.choice == "decay":
            kept = torch.exp(-F.softplus(self.rate)).expand(1, chunks, -1)[..., None]
        if self.choice == "gate":
            gates = F.logsigmoid(self.gate(x)).unflatten(1, (chunks, window)) / TEMPERATURE
            until = gates.cumsum(2)  # (B, C, W, K)
            weight = weight * torch.exp(until[:, :, -1:] - until)
            kept = torch.exp(until[:, :, -1])[..., None]
        sums = self._chunk_sums(weight, plain_key, value)  # (B, C, K, F)
        prefix = sums.cumsum(1) if kept is None else _fading(sums, kept)
        late = 1 if self.choice == "include" else 2
        slot_key, slot_value = self._slots(_shift_chunks(prefix, late), dtype=x.dtype)
        chunk = torch.arange(chunks)[:, None, None]
        mask = self._visible_columns().repeat(chunks, 1, 1)  # (C, W, K + 2W)
        mask[..., : self.k] &= chunk >= late
        mask[..., self.k : self.k + window] &= chunk >= 1
        mixed = self.attend(
            query.flatten(0, 1),
            torch.cat((slot_key, _shift_chunks(key, 1), key), dim=2).flatten(0, 1),
            torch.cat((slot_value, _shift_chunks(value, 1), value), dim=2).flatten(0, 1),
            mask=mask.repeat(x.shape[0], 1, 1)[:, None],
        )
        return self.out_proj(mixed.unflatten(0, query.shape[:2]).flatten(1, 2).flatten(2))

    def _visible_columns(self) -> Tensor:
        """(W, K + 2W): the slots, the previous chunk, and the own chunk up to each token."""
        row = torch.arange(self.window)
        earlier = torch.ones(self.window, self.k + self.window, dtype=torch.bool)
        return torch.cat((earlier, row[:, None] >= row), dim=1)


def _shift_chunks(rows: Tensor, chunks: int) -> Tensor:
    """rows (B, C, ...) moved to later chunks, with zeros in the first ones."""
    return torch.cat((torch.zeros_like(rows[:, :chunks]), rows), dim=1)[:, : rows.shape[1]]


def _fading(sums: Tensor, kept: Tensor) -> Tensor:
    """Prefix sums over the chunks, of which each leaves a part of those before it."""
    prefix = [sums[:, 0]]
    for chunk in range(1, sums.shape[1]):
        prefix.append(prefix[-1] * kept[:, chunk] + sums[:, chunk])
    return torch.stack(prefix, dim=1)


def language_model(arguments: argparse.Namespace, choice: str) -> LanguageModel:
    """The same weights for every choice, as far as they have the same."""
    torch.manual_seed(arguments.seed)
    model = LanguageModel(arguments, "slots")
    for layer in model.decoder.layers:
        chosen = ChosenSlots(
            choice,
            dim=arguments.dim,
            num_heads=arguments.heads,
            k=arguments.k,
            window=arguments.window,
        )
        chosen.load_state_dict(layer.attention.state_dict(), strict=False)
        layer.attention = chosen
    return model


def main() -> None:
    arguments = options(__doc__.splitlines()[0], CHOICES).parse_args()
    if arguments.context % arguments.window:
        raise SystemExit("--context must be a multiple of --window")
    torch.set_num_threads(arguments.threads)
    texts = read_bytes(arguments.train), read_bytes(arguments.validate)
    for choice in arguments.attention:
        train(arguments, choice, language_model(arguments, choice), texts)


if __name__ == "__main__":
    main()
