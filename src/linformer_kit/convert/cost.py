"""Time and memory of a converted model beside the original with extended positions.

Both read the same tokens in turn, in one process; peak memory is measured in fresh processes.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..measure.cells import time_left
from ..measure.memory import Work, peak_memory
from ..measure.timing import alternate, times_faster
from .extended_teacher import extended_encoder
from .linformerized_folder import SETTINGS_FILE, load_linformerized
from .source import Rehomed, load_source
from .step_batches import lengths_up_to

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

KINDS = ("original", "converted")
ROUNDS = 3
LIMIT = 60.0  # seconds of one input, beyond which a model is left out
HERE = "linformer_kit.convert.cost:memory_work"


def load_encoder(kind: str, name: str, length: int) -> Any:
    """The encoder to measure: of the original, for this length, or of a converted folder."""
    import transformers

    from .. import models  # noqa: F401 - registers the classes

    if kind == "original":
        source = load_source(name)
        if isinstance(source, Rehomed):
            return extended_encoder(source.teacher, length)
        return source.teacher.base_model.eval()
    if (Path(name) / SETTINGS_FILE).is_file():
        found: Any = load_linformerized(name)
        return found.base_model.eval()
    return transformers.AutoModel.from_pretrained(
        name, use_safetensors=True, trust_remote_code=False, local_files_only=True
    ).eval()


def tokens(length: int, vocabulary: int) -> dict[str, Tensor]:
    ids = torch.arange(length)[None] % max(1, vocabulary - 10) + min(9, vocabulary - 1)
    return {"input_ids": ids % vocabulary, "attention_mask": torch.ones_like(ids)}


def memory_work(kind: str, name: str, length: int) -> Work:
    """Reading one input, for `peak_memory`."""
    encoder = load_encoder(kind, name, length)

    def run(size: int) -> Callable[[], object]:
        batch = tokens(size, encoder.config.vocab_size)

        def read() -> None:
            with torch.inference_mode():
                encoder(**batch)

        return read

    return Work(warm_up=run(min(length, 64)), prepare=lambda: run(length))


def measure_cost(
    source: str,
    folder: str,
    *,
    short: int,
    longest: int,
    rounds: int = ROUNDS,
    say: Callable[[str], None] = lambda _: None,
) -> list[dict[str, Any]]:
    """Seconds and bytes of both models at each length from `short` to `longest`."""
    found = []
    lengths = lengths_up_to(short, longest)
    started = time.monotonic()
    converted = load_encoder("converted", folder, longest)
    for place, length in enumerate(lengths):
        left = time_left(time.monotonic() - started, lengths, place)
        original = load_encoder("original", source, length)
        batch = tokens(length, converted.config.vocab_size)

        def read(encoder: Any, batch: dict[str, Tensor] = batch) -> Callable[[], object]:
            def run() -> None:
                with torch.inference_mode():
                    encoder(**batch)

            return run

        at = f"at {length:,} of {longest:,} tokens{left}"
        say(f"time {at}")
        runs = {"original": read(original), "converted": read(converted)}
        times = alternate(runs, rounds=rounds, limit=LIMIT)
        record: dict[str, Any] = {
            "length": length,
            "times_faster": times_faster(times["converted"], times["original"]),
        }
        for kind, name in zip(KINDS, (source, folder), strict=True):
            say(f"memory of the {kind} {at}")
            peak = peak_memory(HERE, {"kind": kind, "name": name, "length": length})
            record[kind] = {
                **times[kind].as_record(),
                "bytes": peak.work,
                "memory_note": peak.problem,
            }
        found.append(record)
    return found
