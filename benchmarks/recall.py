"""Do the slots carry information? Associative recall across more than two windows.

A sequence shows `pairs` keys, each with its value, then filler longer than the window can span,
then asks for the keys: the value is right only if it came through the slots. In training the filler
is of 0 to `gap` windows, so that what it takes to bind a value to its key is learned where the two
are near; tested is the longest alone.

    python -m benchmarks.recall --k 16 8 4 2 1

Prints one JSON line for each k: the accuracy on sequences that were not trained on.
"""

from __future__ import annotations

import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linformer_kit import LinformerDecoder

KEYS = 16
VALUES = 16
FILLER = KEYS + VALUES  # the one token that says nothing
VOCABULARY = FILLER + 1


def sequences(
    batch: int, pairs: int, gap: int, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Tokens (B, N) and what comes next (B, N), -100 wherever it cannot be known."""
    keys = torch.rand(batch, KEYS, generator=generator).argsort(1)[:, :pairs]
    values = torch.randint(VALUES, (batch, pairs), generator=generator)
    shown = torch.stack((keys, values + KEYS), dim=2).flatten(1)  # key value key value ...
    order = torch.rand(batch, pairs, generator=generator).argsort(1)
    asked = torch.stack((keys.gather(1, order), values.gather(1, order) + KEYS), dim=2).flatten(1)
    filler = torch.full((batch, gap), FILLER)
    tokens = torch.cat((shown, filler, asked), dim=1)
    answers = torch.full_like(tokens, -100)
    answers[:, 2 * pairs + gap :: 2] = asked[:, 1::2]
    return tokens, answers


class Model(nn.Module):
    def __init__(self, *, k: int, window: int, attention: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, 64)
        self.decoder = LinformerDecoder(
            dim=64, depth=2, num_heads=4, k=k, window=window, ff_dim=128, attention=attention
        )
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        logits: Tensor = self.head(self.decoder(self.embedding(tokens)))
        return logits


def accuracy(model: Model, tokens: Tensor, answers: Tensor) -> float:
    with torch.no_grad():
        guess = model(tokens).argmax(-1)
    asked = answers != -100
    return (guess == answers)[asked].float().mean().item()


def run(arguments: argparse.Namespace, k: int) -> dict[str, object]:
    torch.manual_seed(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    model = Model(k=k, window=arguments.window, attention=arguments.attention)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, betas=(0.9, 0.98), weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, arguments.steps)
    gap = arguments.gap * arguments.window
    held_out = sequences(512, arguments.pairs, gap, torch.Generator().manual_seed(10**6))
    start = time.perf_counter()
    step = 0
    for step in range(1, arguments.steps + 1):
        windows = int(torch.randint(arguments.gap + 1, (), generator=generator))
        tokens, answers = sequences(64, arguments.pairs, windows * arguments.window, generator)
        loss = F.cross_entropy(model(tokens).flatten(0, 1), answers.flatten(), ignore_index=-100)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % 200 == 0:
            reached = accuracy(model, *held_out)
            print(f"k {k}, step {step}: {reached:.3f}", file=sys.stderr, flush=True)
            if reached > 0.999:
                break
    return {
        "task": "associative recall",
        "attention": arguments.attention,
        "k": k,
        "window": arguments.window,
        "pairs": arguments.pairs,
        "gap": gap,
        "steps": step,
        "accuracy": accuracy(model, *held_out),
        "chance": 1 / VALUES,
        "seconds": round(time.perf_counter() - start, 1),
        "seed": arguments.seed,
        "torch": torch.__version__,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--k", type=int, nargs="+", default=[16, 8, 4, 2, 1])
    parser.add_argument("--attention", choices=("slots", "full"), default="slots")
    parser.add_argument("--window", type=int, default=8)
    parser.add_argument("--gap", type=int, default=3, help="filler, in windows")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    for k in arguments.k:
        print(json.dumps(run(arguments, k)), flush=True)


if __name__ == "__main__":
    main()
