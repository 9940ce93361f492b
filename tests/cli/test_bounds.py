"""The largest numbers that options take: refused by an estimate, or harmless within little memory.

The commands run in a process that may use 3 GB beyond what its libraries take, on a machine that
seems to have one.
"""

from __future__ import annotations

import contextlib
import io
import json
import multiprocessing
import os
import resource
from pathlib import Path

import pytest
import torch

from linformer_kit import machine_memory
from linformer_kit.cli.app import run
from linformer_kit.config import limits
from linformer_kit.config.load import load
from linformer_kit.train.run import train

from ..train import tiny

STATM = Path("/proc/self/statm")
SEEMS = 10**9
MAY_USE = 3 * 10**9
MANY = ",".join(map(str, range(1, 40)))
MEMORY = "of memory, and this machine has 1.0 GB"
CASES = {
    "evaluate embed/run --needle --depths 1000 --documents 1000": MEMORY,
    f"evaluate embed/run --needle --lengths {limits.LENGTH} --documents 1000": MEMORY,
    f"predict mlm/run --file mlm/text.txt --out p.csv --tokens-per-batch {limits.LENGTH}": MEMORY,
    f"predict mlm/run a<mask> --top {limits.VOCABULARY}": None,
    f"predict embed/run a --size {limits.WIDTH}": "size must be at most 16",
    f"predict translate/run a --max-new-tokens {limits.LENGTH}": MEMORY,
    f"spectrum mlm/run --text few.txt --pieces {limits.COUNT} --length 16": None,
    f"spectrum mlm/run --text few.txt --length {limits.LENGTH}": "takes at most 32 tokens",
    f"spectrum mlm/run --text few.txt --length 16 --rank {limits.LENGTH}": "at most --length",
    f"heads mlm/run --text few.txt --head {limits.WIDTH}": "--head must be at most 2",
    f"heads mlm/run --text few.txt --layer {limits.LAYERS}": "--layer must be at most 1",
    "bench attention --quick --gemm-size 32768": MEMORY,
    f"bench decode --quick --steps {limits.LENGTH}": MEMORY,
    f"bench decode --quick --k {limits.LENGTH}": MEMORY,
    f"bench grid --quick --tokens {limits.COUNT}": MEMORY,
    f"compare mlm/tiny.yaml --vary train.steps={MANY} --vary train.log_every={MANY}": "1,521",
    f"index mlm --model embed/run --out new --passage {limits.LENGTH}": "at most 32",
    f"serve mlm/run --max-body-mb {limits.MEGABYTES}": MEMORY,
    f"train mlm/tiny.yaml run=new train.batch_size={limits.BATCH}": "at least 4.3 GB",
    f"train mlm/tiny.yaml run=new data.max_length={limits.LENGTH}": "at least 4.3 GB",
    f"train mlm/tiny.yaml run=new model.hidden_size={limits.WIDTH}": "GB",
    f"train mlm/tiny.yaml run=new tokenizer.kind=bpe tokenizer.vocab_size={limits.VOCABULARY}": (
        MEMORY
    ),
    f"train mlm/tiny.yaml run=new train.sequence_parallel={limits.COUNT}": "divide",
    f"train translate/tiny.yaml run=new evaluate.max_new_tokens={limits.LENGTH}": MEMORY,
    f"train mlm/tiny.yaml run=new2 --dry-run train.steps={limits.COUNT}": None,
    f"train mlm/tiny.yaml run=new2 --dry-run evaluate.batch_size={limits.BATCH}": None,
}


def run_all(home: str, results: str) -> None:
    os.chdir(home)
    machine_memory._physical_memory = lambda: SEEMS
    torch.zeros(1).add(1)
    used = int(STATM.read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MAY_USE,) * 2)
    for line in CASES:
        said = io.StringIO()
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
            code = run(line.split())
        with Path(results).open("a") as file:
            file.write(json.dumps([line, code, said.getvalue()]) + "\n")


@pytest.mark.skipif(not STATM.exists(), reason="needs /proc")
def test_the_largest_values_are_refused_or_harmless(tmp_path):
    with torch.enable_grad():
        for task in ("mlm", "embed", "translate"):
            train(load(tiny.write(tmp_path / task, task, steps=2, eval_every=2)))
    (tmp_path / "few.txt").write_text("\n".join(tiny.SENTENCES[:9]))
    results = tmp_path / "results.jsonl"
    child = multiprocessing.get_context("spawn").Process(
        target=run_all, args=(str(tmp_path), str(results))
    )
    child.start()
    child.join(300)
    child.kill()
    found = {line: rest for line, *rest in map(json.loads, results.read_text().splitlines())}
    for line, message in CASES.items():
        assert line in found, f"the process ended ({child.exitcode})"
        code, said = found[line]
        assert code == (0 if message is None else 2), (line, said)
        assert message is None or message in said, (line, said)
        assert "not enough memory" not in said, line
