"""Load on `linformer serve`, on loopback.

    python -m benchmarks.serve_load models FOLDER            # untrained models to serve
    python -m benchmarks.serve_load load FOLDER/linformer FOLDER/vanilla --seconds 180
    python -m benchmarks.serve_load stream FOLDER/decoder --tokens 20000

`load`: 32 clients with texts of 100 to 8,000 tokens; then texts of 10 to 30 tokens, one client at a
time against 32; then texts of 4,096 tokens on the first and on the second model. Throughput, p50,
p95, p99, and the resident memory of the server at the start and after each twentieth of the time.
`stream`: the time a token, of the clock and of the server's processor, and the memory along one
stream. Each prints JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx

WORDS = 200
CLIENTS = 32
MOMENTS = 20  # at which the memory is read
LONGEST = 8192
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 512}  # the decoder


def make_models(folder: Path) -> None:
    """A Linformer and a vanilla encoder for vectors, and a decoder: untrained, of a usual size."""
    import tokenizers
    import torch
    from transformers import PreTrainedTokenizerFast

    from linformer_kit.models import LinformerConfig, LinformerForCausalLM, LinformerForEmbedding

    special = {
        "pad_token": "<pad>", "unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>",
    }  # fmt: skip
    names = [*special.values(), *(f"w{n}" for n in range(WORDS))]
    made = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({w: n for n, w in enumerate(names)}, unk_token="<unk>")
    )
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=made, **special)
    sizes: dict[str, Any] = {
        "vocab_size": len(names), "hidden_size": 256, "num_hidden_layers": 4,
        "num_attention_heads": 4, "intermediate_size": 1024, "type_vocab_size": 0,
        "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3,
    }  # fmt: skip
    encoder = {**sizes, "max_position_embeddings": LONGEST, "pooling": "mean"}
    torch.manual_seed(0)
    for name, model in {
        "linformer": LinformerForEmbedding(LinformerConfig(**encoder, k=128)),
        "vanilla": LinformerForEmbedding(LinformerConfig(**encoder, projection="full")),
        "decoder": LinformerForCausalLM(
            LinformerConfig(
                **{**sizes, **SMALL, "eos_token_id": None},  # it never ends a text
                is_decoder=True,
                position_embedding_type="none",
                num_slots=32,
                window=64,
            )
        ),
    }.items():
        model.eval().save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)


class Served:
    """A server in a process of its own."""

    def __init__(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "linformer_kit.cli", "serve", "--port", "0", "--quiet"]
        self.process = subprocess.Popen([*command, *arguments], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            sys.stderr.write(line)
            if found := re.search(r"serving on (\S+)", line):
                self.url = found[1]
                break
        self._rest = threading.Thread(target=self.process.stderr.read, daemon=True)
        self._rest.start()

    def resident(self) -> float:
        """MB"""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024  # type: ignore[index]

    def cpu_seconds(self) -> float:
        """Processor time of all threads so far; other programs on the machine do not count."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(60)


def load(
    server: Served, model: str, shortest: int, longest: int, seconds: float, clients: int, seed: int
) -> dict[str, Any]:
    """Texts of random lengths by so many clients at once."""
    begin = time.monotonic()
    done: list[tuple[float, int]] = []
    statuses: Counter[str] = Counter()
    resident = [server.resident()]

    def work(number: int) -> None:
        draw = random.Random(1000 * seed + number)
        with httpx.Client(base_url=server.url, timeout=300, trust_env=False, verify=False) as ours:
            while time.monotonic() - begin < seconds:
                tokens = draw.randint(shortest, longest) - 2
                text = " ".join(f"w{draw.randrange(WORDS)}" for _ in range(tokens))
                start = time.monotonic()
                answer = ours.post("/v1/embeddings", json={"model": model, "input": text})
                statuses[str(answer.status_code)] += 1
                if answer.status_code == 429:
                    time.sleep(int(answer.headers["retry-after"]))
                elif answer.status_code == 200:
                    done.append((time.monotonic() - start, answer.json()["tokens_read"]))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(clients)]
    for thread in threads:
        thread.start()
    step = max(seconds / MOMENTS, 0.5)
    while any(thread.is_alive() for thread in threads):
        time.sleep(max(0.0, begin + len(resident) * step - time.monotonic()))
        resident.append(server.resident())
    for thread in threads:
        thread.join()
    took = time.monotonic() - begin
    times = sorted(waited for waited, _ in done)

    def part(share: float) -> float:
        return round(times[min(int(share * len(times)), len(times) - 1)], 4)

    return {
        "model": model,
        "lengths": [shortest, longest],
        "clients": clients,
        "seconds": round(took, 1),
        "statuses": dict(statuses),
        "requests_per_second": round(len(done) / took, 2),
        "tokens_per_second": round(sum(tokens for _, tokens in done) / took),
        "p50": part(0.5),
        "p95": part(0.95),
        "p99": part(0.99),
        "resident_mb": list(map(round, resident)),
    }


def stream(server: Served, model: str, tokens: int) -> dict[str, Any]:
    """One text of so many tokens: the time a token and the memory of each tenth."""
    body = {
        "model": model, "prompt": "w1 w2 w3", "max_tokens": tokens, "temperature": 1.0, "seed": 1,
        "stream": True,
    }  # fmt: skip
    marks: list[tuple[int, float, float, float]] = []
    written, ends = 0, None
    with (
        httpx.Client(base_url=server.url, timeout=600, trust_env=False, verify=False) as ours,
        ours.stream("POST", "/v1/completions", json=body) as answer,
    ):
        begin, used = time.monotonic(), server.cpu_seconds()
        for line in answer.iter_lines():
            if not line.startswith("data: {"):
                continue
            choice = json.loads(line[6:])["choices"][0]
            written += len(choice["text"].split())
            ends = choice["finish_reason"]
            while written >= (len(marks) + 1) * tokens / 10 or (ends and len(marks) < 10):
                at = time.monotonic() - begin
                marks.append((written, at, server.cpu_seconds() - used, server.resident()))
                sys.stderr.write(f"{marks[-1]}\n")
    before = (0, 0.0, 0.0)
    tenths = []
    for count, at, cpu, memory in marks:
        if count > (last := before[0]):
            tenths.append(
                {
                    "tokens": count,
                    "ms_a_token": round(1000 * (at - before[1]) / (count - last), 3),
                    "cpu_ms_a_token": round(1000 * (cpu - before[2]) / (count - last), 3),
                    "mb": round(memory, 1),
                }
            )
        before = (count, at, cpu)
    return {"model": model, "written": written, "finish_reason": ends, "tenths": tenths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("models", "load", "stream"))
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=0, help="of the server; 0: its default")
    parser.add_argument(
        "--only", choices=("mixed", "short", "long"), nargs="+", help="parts of load"
    )
    given = parser.parse_args()
    if given.what == "models":
        make_models(given.folders[0])
        return
    threads = ["--threads", str(given.threads)] if given.threads else []
    server = Served(*map(str, given.folders), *threads, "--time-limit", "3600")
    try:
        ours = given.folders[0].name
        if given.what == "stream":
            print(json.dumps(stream(server, ours, given.tokens)), flush=True)
            return
        parts = {
            "mixed": [(ours, 100, 8000, given.seconds, CLIENTS)],
            "short": [(ours, 10, 30, given.seconds / 6, clients) for clients in (1, CLIENTS)],
            "long": [(each.name, 4096, 4096, given.seconds / 6, 4) for each in given.folders],
        }
        for part in given.only or parts:
            for job in parts[part]:
                print(json.dumps(load(server, *job, given.seed)), flush=True)
    finally:
        server.stop()


if __name__ == "__main__":
    main()
