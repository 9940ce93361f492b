"""Compare the speed of two source trees in one session, by alternating runs.

    git worktree add /tmp/before 3eb8e97
    python benchmarks/compare_commits.py --old /tmp/before/src --new src

One worker process per tree imports `linformer_kit` from it. For every case the workers are asked in
turn, for several rounds, to run it a few times; each reports its best time. Slow drifts of the
machine therefore affect both trees alike. The ratio is old time / new time of the best rounds:
above 1 the new tree is faster. Results are printed as a table and appended to a file of JSON lines.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
LENGTHS, KS = (512, 4096, 16384), (32, 256)


def cases_of(lengths: list[int], ks: list[int], only: str, *, window: int) -> list[dict[str, Any]]:
    """Attention and encoder layers, inference and training, then generation."""
    near = {"window": window} if window else {}
    cases: list[dict[str, Any]] = [
        {"kind": kind, "mode": mode, "n": n, "k": min(k, n), **near}
        for kind in ("attention", "encoder")
        for mode in ("inference", "training")
        for n in lengths
        for k in ks
    ]
    cases += [{"kind": "decoder", "mode": "steps", "n": 128, "k": 64}]
    cases += [{"kind": "beam", "mode": "generate", "n": 48, "k": 16}]
    return [case for case in cases if only in " ".join(map(str, case.values()))]


def work_of(case: dict[str, Any], dim: int) -> Any:
    """A function that runs the case once. Imports from the tree of the worker."""
    import torch

    from linformer_kit import LinformerAttention, LinformerDecoder, LinformerEncoder

    torch.manual_seed(0)
    n, k, heads = case["n"], case["k"], max(1, dim // 64)
    sizes = {"dim": dim, "num_heads": heads}
    if case["kind"] == "beam":
        return _beam_search(dim, heads, n, k)
    if case["kind"] == "decoder":
        decoder = LinformerDecoder(**sizes, depth=2, k=k, window=32).eval()
        tokens = torch.randn(4, 1, dim)

        def steps() -> None:
            with torch.no_grad():
                state = decoder.init_state(4)
                for _ in range(n):
                    _, state = decoder.step(tokens, state)

        return steps
    sizes |= {"max_length": n, "k": k, **{name: case[name] for name in case if name == "window"}}
    encoder = case["kind"] == "encoder"
    model = LinformerEncoder(**sizes, depth=1) if encoder else LinformerAttention(**sizes)
    x = torch.randn(max(1, 4096 // n), n, dim)
    if case["mode"] == "inference":
        model.eval()

        def infer() -> None:
            with torch.no_grad():
                model(x)

        return infer
    x.requires_grad_()
    upstream = torch.randn_like(x)

    def train() -> None:
        model.zero_grad()
        x.grad = None
        model(x).backward(upstream)

    return train


def _beam_search(dim: int, heads: int, n: int, k: int) -> Any:
    import torch

    from linformer_kit.models import LinformerConfig, LinformerForCausalLM

    config = LinformerConfig(
        vocab_size=1000,
        hidden_size=dim,
        num_hidden_layers=2,
        num_attention_heads=heads,
        intermediate_size=4 * dim,
        max_position_embeddings=4 * n,
        k=k,
        is_decoder=True,
    )
    model = LinformerForCausalLM(config).eval()
    prompt = torch.randint(5, 1000, (2, 8))

    def generate() -> None:
        model.generate(
            prompt, num_beams=4, min_new_tokens=n, max_new_tokens=n, do_sample=False, pad_token_id=0
        )

    return generate


def work(threads: int, clock: Callable[[], float]) -> None:
    """The loop of a worker: a case and a number of runs in, the best time in seconds out."""
    import torch

    torch.set_num_threads(threads)
    works: dict[str, Any] = {}
    import linformer_kit

    print(json.dumps({"file": linformer_kit.__file__, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        key = json.dumps(asked["case"])
        if key not in works:
            works.clear()  # one case at a time in memory
            works[key] = work_of(asked["case"], asked["dim"])
            works[key]()
        best = float("inf")
        for _ in range(asked["runs"]):
            start = clock()
            works[key]()
            best = min(best, clock() - start)
        print(json.dumps({"seconds": best}), flush=True)


class Worker:
    """A process that measures one source tree."""

    def __init__(self, tree: Path, threads: int, clock: str) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree.resolve())}
        environment |= {"OMP_NUM_THREADS": str(threads), "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", "--threads", str(threads), "--clock", clock],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self.about = self._answer()
        if not Path(self.about["file"]).is_relative_to(tree.resolve()):
            raise SystemExit(
                f"{tree} must be a folder with the package linformer_kit (the src of a checkout): "
                f"python imported {self.about['file']}."
            )

    def measure(self, case: dict[str, Any], dim: int, runs: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"case": case, "dim": dim, "runs": runs}) + "\n")
        self.process.stdin.flush()
        return float(self._answer()["seconds"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended with exit code {self.process.wait()}.")
        return dict(json.loads(line))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def commit_of(tree: Path) -> str:
    said = subprocess.run(
        ["git", "-C", str(tree), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    )
    return said.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--old", type=Path, help="the src folder of the old tree")
    parser.add_argument("--new", type=Path, help="the src folder of the new tree")
    parser.add_argument("--lengths", type=int, nargs="+", default=list(LENGTHS))
    parser.add_argument("--ks", type=int, nargs="+", default=list(KS))
    parser.add_argument("--window", type=int, default=0, help="of attention and encoder layers")
    parser.add_argument("--dim", type=int, default=512, help="the model size")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each worker per case")
    parser.add_argument("--runs", type=int, default=3, help="runs per turn; the best counts")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time, less noisy where other programs run; for one thread",
    )
    parser.add_argument("--only", default="", help="cases whose name contains this text")
    parser.add_argument("--lowest", type=float, default=0.97, help="ratios below it are marked")
    parser.add_argument("--output", type=Path, default=Path("results/compare_commits.jsonl"))
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.threads, CLOCKS[options.clock])
        return
    if options.old is None or options.new is None:
        parser.error("--old and --new are needed: the src folders of two checkouts.")
    trees = {"old": options.old, "new": options.new}
    workers = {name: Worker(tree, options.threads, options.clock) for name, tree in trees.items()}
    about = {
        "commits": {name: commit_of(tree) for name, tree in trees.items()},
        "torch": workers["new"].about["torch"],
        "machine": platform.processor() or platform.machine(),
        "threads": options.threads,
        "clock": options.clock,
        "dim": options.dim,
        "rounds": options.rounds,
        "runs": options.runs,
    }
    print(f"{json.dumps(about)}\n\n| case | n | k | old ms | new ms | ratio |")
    print("|---|---:|---:|---:|---:|---:|")
    options.output.parent.mkdir(parents=True, exist_ok=True)
    below = 0
    with options.output.open("a") as file:
        for case in cases_of(options.lengths, options.ks, options.only, window=options.window):
            best = dict.fromkeys(workers, float("inf"))
            for turn in range(options.rounds):
                for name in sorted(workers, reverse=bool(turn % 2)):
                    seconds = workers[name].measure(case, options.dim, options.runs)
                    best[name] = min(best[name], seconds)
            ratio = best["old"] / best["new"]
            below += ratio < options.lowest
            print(
                f"| {case['kind']} {case['mode']} | {case['n']} | {case['k']} "
                f"| {best['old'] * 1e3:.2f} | {best['new'] * 1e3:.2f} | {ratio:.3f}"
                f"{' (low)' if ratio < options.lowest else ''} |",
                flush=True,
            )
            file.write(json.dumps({**about, **case, **best, "ratio": ratio}) + "\n")
    for worker in workers.values():
        worker.close()
    print(f"\n{below} ratios below {options.lowest}")


if __name__ == "__main__":
    main()
