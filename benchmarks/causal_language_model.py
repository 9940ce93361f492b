"""Is the causal Linformer as good as full attention? A byte language model, same budget for each.

    python -m benchmarks.causal_language_model --train books/*.txt --validate other/*.txt \
        --attention slots full window --context 1024

Reads text files, or JSON lines (.jsonl, .jsonl.xz) with a field `text`. `window` has no slots: full
attention limited to what the window of `slots` shows. Prints a JSON line for each evaluation:
validation loss in nats a byte, and the seconds that training had taken until then.
"""

from __future__ import annotations

import argparse
import json
import lzma
import math
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from linformer_kit import LinformerDecoder

VOCABULARY = 256  # bytes
NOT_RECORDED = ("train", "validate", "attention")  # of the arguments


def read_bytes(paths: list[Path]) -> Tensor:
    """All texts one after the other."""
    texts = []
    for path in paths:
        raw = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
        if ".jsonl" in path.suffixes:
            raw = "\n\n".join(json.loads(line)["text"] for line in raw.splitlines()).encode()
        texts.append(raw)
    return torch.frombuffer(bytearray(b"\n\n".join(texts)), dtype=torch.uint8)


def batch_of(text: Tensor, size: int, context: int, generator: torch.Generator) -> Tensor:
    """Random pieces of the text: (size, context + 1)."""
    starts = torch.randint(len(text) - context - 1, (size,), generator=generator)
    return torch.stack([text[i : i + context + 1] for i in starts.tolist()]).long()


class LanguageModel(nn.Module):
    def __init__(self, arguments: argparse.Namespace, attention: str) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, arguments.dim)
        nn.init.normal_(self.embedding.weight, std=0.02)
        self.decoder = LinformerDecoder(
            dim=arguments.dim,
            depth=arguments.depth,
            num_heads=arguments.heads,
            k=0 if attention == "window" else arguments.k,
            window=arguments.window,
            attention="full" if attention == "full" else "slots",
        )
        self.head = nn.Linear(arguments.dim, VOCABULARY, bias=False)

    def loss(self, pieces: Tensor) -> Tensor:
        """Nats a byte, of pieces (B, N + 1)."""
        logits = self.head(self.decoder(self.embedding(pieces[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())


def train(
    arguments: argparse.Namespace, name: str, model: LanguageModel, texts: tuple[Tensor, Tensor]
) -> None:
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    others = [p for p in model.parameters() if p.dim() < 2]
    optimizer = torch.optim.AdamW(
        [{"params": matrices, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}],
        lr=arguments.lr,
        betas=(0.9, 0.95),
        fused=True,
    )

    def rate(step: int) -> float:
        """Linear warm-up, then a cosine down to a tenth."""
        warm = min(1.0, (step + 1) / 100)
        return warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / arguments.steps)))

    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, rate)
    text, held_out = texts
    generator = torch.Generator().manual_seed(arguments.seed)
    fixed = torch.Generator().manual_seed(10**6)
    pieces = batch_of(held_out, 65_536 // arguments.context, arguments.context, fixed)
    seconds = 0.0
    for step in range(1, arguments.steps + 1):
        batch = batch_of(text, arguments.batch, arguments.context, generator)
        start = time.perf_counter()
        loss = model.loss(batch)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        seconds += time.perf_counter() - start
        if step % arguments.every == 0 or step == arguments.steps:
            with torch.no_grad():
                losses = [model.loss(part) for part in pieces.split(arguments.batch)]
            record = {
                "task": "byte language model",
                "attention": name,
                **{k: v for k, v in vars(arguments).items() if k not in NOT_RECORDED},
                "step": step,
                "parameters": sum(p.numel() for p in model.parameters()),
                "validation_loss": torch.stack(losses).mean().item(),
                "seconds": round(seconds, 1),
                "torch": torch.__version__,
            }
            print(json.dumps(record), flush=True)


def options(about: str, attentions: tuple[str, ...]) -> argparse.ArgumentParser:
    """What can be said on the command line: the kinds of attention, the texts, the sizes."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--attention", nargs="+", choices=attentions, default=attentions)
    parser.add_argument("--train", type=Path, nargs="+", required=True)
    parser.add_argument("--validate", type=Path, nargs="+", required=True)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--window", type=int, default=128)
    parser.add_argument("--k", type=int, default=64)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--every", type=int, default=200)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def main() -> None:
    arguments = options(__doc__.splitlines()[0], ("slots", "full", "window")).parse_args()
    torch.set_num_threads(arguments.threads)
    texts = read_bytes(arguments.train), read_bytes(arguments.validate)
    for attention in arguments.attention:
        torch.manual_seed(arguments.seed)
        train(arguments, attention, LanguageModel(arguments, attention), texts)


if __name__ == "__main__":
    main()
