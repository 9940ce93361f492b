"""Evidence of every kind, made up but of the right form, for tests of the page."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import yaml

from linformer_kit.measure.records import RecordFile

if TYPE_CHECKING:
    from pathlib import Path

MACHINE = {
    "cpu": "a <CPU>",
    "cores": 2,
    "threads": 2,
    "python": "3.11",
    "torch": "2.13",
    "seed": 0,
    "commit": "0123456789abcdef",
}


def times(best: float) -> dict:
    return {"seconds": [best], "best": best, "median": best, "spread": 0.0, "note": None}


def flat(bench: str, sizes: dict, results: list[dict]) -> list[dict]:
    return [{"bench": bench, **sizes, **result, "machine": MACHINE} for result in results]


def grid_records() -> list[dict]:
    records = []
    for length in (512, 4096):
        forms = [("sdpa", None, 4.0), ("materialised", None, 8.0), ("linformer", 128, 1.0)]
        sizes = {"length": length, "batch": 1, "dim": 8, "num_heads": 1}
        timed = [{"what": "time", "model": f, "k": k, **times(t * length)} for f, k, t in forms]
        peaks = [
            {"what": "memory", "model": f, "k": k, "work": int(size * length * 1000), "note": None}
            for f, k, size in forms
        ]
        records += flat("grid", sizes, timed + peaks)
    return records


def budget_records(k: int | None) -> list[dict]:
    sizes = {"shape": "encoder", "k": k, "tokens": 512, "dim": 8, "num_heads": 1, "depth": 1}
    return flat("budget", sizes, [{"length": n, **times(1.0)} for n in (256, 512, None)])


def peers_records() -> list[dict]:
    sizes = {"dim": 8, "num_heads": 1, "k": 4, "length": 512, "batch": 1, "depth": 1}
    results = [
        {"what": "time", "model": "linformer-kit", **times(1.0), "times_faster": 1.0},
        {"what": "time", "model": "FNet", **times(0.5), "times_faster": 0.5},
        {"what": "memory", "model": "linformer-kit", "work": 1000, "note": None},
        {"what": "memory", "model": "FNet", "work": 3000, "note": None},
    ]
    return flat("peers", {**sizes, "mode": "training"}, results)


def decode_records() -> list[dict]:
    sizes = {"dim": 8, "num_heads": 1, "depth": 1, "k": 4, "window": 8, "batch": 1, "steps": 2}
    results = [
        {"what": "time", "context": context, "model": model, **times(0.1), "state": 100}
        for context in (1024, 4096)
        for model in ("linformer", "vanilla")
    ]
    return flat("decode", sizes, results)


def roofline_records() -> list[dict]:
    names = {"GEMM": (1000, 0), "copy": (0, 100), "whole layer": (500, 0), "E X": (100, 10)}
    sizes = {"dim": 8, "num_heads": 1, "k": 4, "length": 512, "batch": 1}
    results = [
        {"operation": name, "flops": flops, "bytes": size, "times": 1, **times(1.0)}
        for name, (flops, size) in names.items()
    ]
    return flat("roofline", sizes, results)


def spectrum_record() -> dict:
    layer = {
        "curve": [0.5, 0.8, 0.95, 1.0],
        "smallest": {"0.9": 3, "0.95": 3, "0.99": 4},
        "heads": {"kept": [0.8, 0.7], "smallest": {"0.9": [3, 4], "0.95": [3, 4], "0.99": [4, 4]}},
    }
    about = {"model": "some/</script><b>bert", "model_type": "bert", "texts": ["t"], "pieces": 1}
    sizes = {"length": 4, "columns": [4, 4], "rank": 2, "method": "exact"}
    return {"kind": "spectrum", **about, **sizes, "layers": [layer, layer], "machine": MACHINE}


def heads_record() -> dict:
    image = {"rows": 2, "columns": 2, "pooled": False, "values": [[0.1, -0.9], [0.5, 0.5]]}
    token = {"text": "<b>", "position": 0, "share": 0.5, "sign": -1}
    row = {"used": 0.5, "middle": 0.5, "width": 0.5, "positions_in_use": 1.5, "tokens": [token]}
    about = {"model": "run", "texts": ["t"], "length": 2, "layer": 1, "head": 1}
    return {
        "kind": "heads",
        **about,
        "projection": "linear",
        "sharing": "kv",
        "attention": image,
        "matrices": [{"name": "E = F", **image}],
        "rows": [row, row],
        "machine": MACHINE,
    }


def needle_record() -> dict:
    cell = {"accuracy": [1.0, 0.5], "tokens_read": 90, "tokens_total": 100, "pieces": 1}
    parts = [
        {"haystack": name, "lengths": [{"length": n, **cell} for n in (256, 512)]}
        for name in ("passkey", "needle")
    ]
    about = {"model": "run", "longest": 256, "policy": "truncate", "candidates": 4}
    return {"kind": "needle", **about, "depths": [0.0, 1.0], "parts": parts, "machine": MACHINE}


def growth_records() -> list[dict]:
    sizes = {"dim": 8, "num_heads": 1, "k": 4, "batch": 1, "depth": 1}
    return [
        {
            "bench": "growth",
            "model": who,
            **sizes,
            "length": length,
            **times(time * length),
            "memory_work": 1000 * length,
            "memory_total": 2000 * length,
            "machine": MACHINE,
        }
        for length in (512, 1024)
        for who, time in (("full", 2.0), ("linformer-kit", 1.0))
    ]


def all_records() -> list[dict]:
    return [
        *grid_records(),
        *growth_records(),
        *budget_records(None),
        *budget_records(32),
        *peers_records(),
        *decode_records(),
        *roofline_records(),
        spectrum_record(),
        heads_record(),
        needle_record(),
    ]


def write_records(path: Path, records: list[dict]) -> Path:
    with RecordFile(path) as file:
        for record in records:
            file.append(record)
    return path


def write_run(
    folder: Path,
    *,
    projection: str,
    perplexity: float,
    seconds: float = 1.0,
    seed: int = 0,
    data: str | None = "digest",
    **changes: object,
) -> Path:
    """A run folder as `linformer train` leaves it; `changes` are dotted keys of its config."""
    (folder / "best").mkdir(parents=True)
    model = {"projection": projection, "k": 8, "max_position_embeddings": 32}
    (folder / "best" / "config.json").write_text(json.dumps(model))
    config: dict[str, Any] = {
        "task": "mlm",
        "run": str(folder),
        "seed": seed,
        "data": {"train": "text.txt", "max_length": 32, "cache": "somewhere"},
        "model": {"hidden_size": 16, "projection": projection},
        "train": {"steps": 3, "lr": 0.01, "threads": 1},
    }
    if projection != "full":
        config["model"]["k"] = 8
    for key, value in changes.items():
        section, _, name = key.partition("__")
        if name:
            config[section][name] = value
        else:
            config[section] = value
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    (folder / "run.json").write_text(json.dumps({"kind": "linformer-kit run", "data": data}))
    (folder / "environment.json").write_text(json.dumps(MACHINE))
    lines: list[dict] = [
        {"step": s, "loss": 5.0 - s / 10, "seconds": s * seconds, "seconds_per_step": seconds}
        for s in (1, 2, 3)
    ]
    lines.append({"step": 3, "seconds": 3.0, "validation": {"perplexity": perplexity}})
    write_lines(folder / "metrics.jsonl", lines)
    evaluation = {"part": "test", "metrics": {"perplexity": perplexity, "accuracy": 0.5}}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    return folder


def write_comparison(home: Path, runs: list[Path], *, left: bool = True, **more: object) -> Path:
    """The records of `linformer compare` on these runs."""
    records = [
        {
            "variant": run.name,
            "run": f"elsewhere/{home.name}/{run.name}",
            "baseline": {"metrics": {"perplexity": 40.0}, "left": left},
            **more,
        }
        for run in runs
    ]
    return write_lines(home / "records.jsonl", records)


def write_lines(path: Path, lines: list[dict]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
