"""Time and memory of a converted encoder beside the original at the same length.

    python -m benchmarks.convert_time MODEL --lengths 64,256,512,4096 --threads 2

MODEL is the folder of a BERT-like encoder. It is converted once, for --max-length tokens, nothing
is trained, and each converted model reads the same random tokens as the original, whose position
table is repeated; they take turns in one process. Memory is that of one call in a fresh process,
beyond the weights. Records are appended to --out.
"""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from linformer_kit.convert import convert
from linformer_kit.convert.extended_teacher import extended_encoder
from linformer_kit.convert.teacher import load_teacher
from linformer_kit.measure.machine import describe
from linformer_kit.measure.memory import Work, peak_memory
from linformer_kit.measure.records import RecordFile
from linformer_kit.measure.timing import alternate

if TYPE_CHECKING:
    from collections.abc import Callable

ORIGINAL = "original"


def build(name: str, folder: str, length: int, sizes: dict[str, int]) -> Any:
    """The original that reads `length` tokens, or the model converted with one projection."""
    teacher, _ = load_teacher(folder)
    if name == ORIGINAL:
        return extended_encoder(teacher, length)
    return convert(teacher, projection=name, **sizes).eval()


def tokens(model: Any, length: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(model.config.vocab_size, (1, length), generator=generator)


def one_call(name: str, folder: str, length: int, sizes: dict[str, int]) -> Work:
    """One text read in a fresh process, after a short one."""
    torch.set_num_threads(1)
    model = build(name, folder, length, sizes)

    def read(count: int) -> None:
        with torch.inference_mode():
            model(tokens(model, count))

    return Work(warm_up=lambda: read(16), prepare=lambda: partial(read, length))


def compared(
    folder: str, names: list[str], length: int, sizes: dict[str, int], rounds: int
) -> list[dict[str, Any]]:
    """Seconds and bytes of each model at one length, the original's first."""
    models = {name: build(name, folder, length, sizes) for name in names}
    ids = tokens(models[ORIGINAL], length)
    runs: dict[str, Callable[[], object]] = {
        name: partial(model, ids) for name, model in models.items()
    }
    with torch.inference_mode():
        times = alternate(runs, rounds=rounds)
    lines = []
    for name in names:
        given = {"name": name, "folder": folder, "length": length, "sizes": sizes}
        used = peak_memory("benchmarks.convert_time:one_call", given)
        lines.append(
            {
                "model": name,
                "length": length,
                **sizes,
                "seconds": times[name].best,
                "times_faster": times[ORIGINAL].best / times[name].best,
                "bytes": used.work,
            }
        )
    return lines


def parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the folder of the original")
    parser.add_argument("--projections", default="mean,pool")
    parser.add_argument("--lengths", default="64,128,256,512,4096,8192")
    parser.add_argument("--max-length", type=int, default=8192, help="of the converted models")
    parser.add_argument("--k", type=int, default=128)
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("convert-time.jsonl"))
    return parser


def main() -> None:
    given = parser().parse_args()
    torch.set_num_threads(given.threads)
    sizes = {"max_length": given.max_length, "k": given.k, "window": given.window}
    names = [ORIGINAL, *given.projections.split(",")]
    machine = describe(seed=0, threads=given.threads)
    with RecordFile(given.out) as file:
        for length in map(int, given.lengths.split(",")):
            for line in compared(given.model, names, length, sizes, given.rounds):
                file.append({"bench": "convert-time", **line, "machine": machine})
                print(line, flush=True)


if __name__ == "__main__":
    main()
