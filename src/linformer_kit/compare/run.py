"""Train the variants one after the other, time their steps in turns, and write the report."""

from __future__ import annotations

import json
import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ..config import load as configs
from ..config import yaml_text
from ..data.prepare import prepare
from ..data.rows import Rows
from ..errors import UserError
from ..evaluate.metrics import numbers
from ..train.build import build_model
from ..train.run import collator, train, training_order
from ..train.run_folder import RunFolder, write_whole
from .report import report
from .variants import Variant, variants

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..config.schema import RunConfig

ROUNDS = 5  # of timed steps; the median counts


def compare(
    path: Path,
    overrides: Sequence[str],
    vary: Sequence[str],
    *,
    out: Path | None = None,
    overwrite: bool = False,
) -> str | None:
    """The report, also kept as README.md beside its plots and records. None if stopped."""
    chosen = variants(vary)
    base = _read(path, overrides)
    home = out or Path(f"{base['run']}-compare")
    settings = {variant: _config(path, overrides, variant, home) for variant in chosen}
    records = []
    for variant, config in settings.items():
        folder = train(config, overwrite=overwrite)
        if folder is None:
            return None
        records.append(_record(variant, config, folder))
    for record, seconds in zip(records, step_times(list(settings.values())), strict=True):
        record["step_seconds"] = seconds
    write_whole(home / "records.jsonl", "".join(json.dumps(r) + "\n" for r in records))
    return report(records, home)


def step_times(settings: list[RunConfig]) -> list[float]:
    """Seconds of forward, backward and update on one batch, the variants taking turns."""
    steps = []
    for config in settings:
        prepared = prepare(config)
        tokenizer = prepared.tokenizer()
        part = prepared.part("train")
        assert part is not None
        rows = Rows(part)
        model = build_model(config, prepared, tokenizer).train()
        batch = collator(config, tokenizer)(
            rows.__getitems__(training_order(config, rows, 1).step(0))
        )
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-8, fused=True)

        def step(model: Any = model, batch: Any = batch, optimizer: Any = optimizer) -> None:
            model(**batch).loss.backward()
            optimizer.step()
            optimizer.zero_grad()

        steps.append(step)
    taken: list[list[float]] = [[] for _ in steps]
    for turn in range(1 + ROUNDS):
        for place, step in enumerate(steps):
            started = time.perf_counter()
            step()
            if turn:  # the first warms up
                taken[place].append(time.perf_counter() - started)
    return [statistics.median(times) for times in taken]


def _read(path: Path, overrides: Sequence[str]) -> dict[str, Any]:
    return configs.resolved(configs.load(path, overrides))


def _config(path: Path, overrides: Sequence[str], variant: Variant, home: Path) -> RunConfig:
    """The configuration of a variant; what has no effect in it is left out."""
    values = yaml_text.parse(path.read_text(encoding="utf-8"))
    for override in (*overrides, *variant.overrides):
        configs.set_key(values, override)
    if variant.full and isinstance(values.get("model"), dict):
        for key in ("k", "sharing", "keep_scale", "num_slots", "window"):
            values["model"].pop(key, None)
    values["run"] = str(home / variant.folder)
    try:
        return configs.check(values, where=str(path))
    except UserError as error:
        raise UserError(f"{variant.name}: {error}") from error


def _record(variant: Variant, config: RunConfig, folder: RunFolder) -> dict[str, Any]:
    """All that the table and the plots need: they never run a model."""
    evaluation = folder.evaluation() or {"metrics": {}, "part": None}
    lines = list(folder.metrics())
    curve = [
        {"step": line["step"], "seconds": line["seconds"], **line["validation"]}
        for line in lines
        if "validation" in line
    ]
    return {
        "variant": variant.name,
        "full": variant.full or config.model.options.get("projection") == "full",
        "set": dict(override.split("=", 1) for override in variant.overrides),
        "task": config.task,
        "n": config.data.max_length,
        "part": evaluation["part"],
        "metrics": numbers(evaluation["metrics"]),
        "curve": curve,
        "run": str(folder.path),
    }
