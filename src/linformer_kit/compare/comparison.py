"""Train the variants one after the other, measure what each costs, and write the report."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from ..artifact import digest
from ..config import load as configs
from ..data.prepare import prepare
from ..errors import UserError, user_input
from ..evidence.report.verdict import is_vanilla, without_effect
from ..metrics.tasks import numbers
from ..train.run import train
from ..training.layout import world
from . import measure
from .baseline import Baseline, baseline
from .folder import README, RECORDS, ComparisonFolder
from .plots import plot_names
from .report import WRITTEN_BY, report, summaries
from .variants import Variant, variants

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import AbstractContextManager

    from ..config.schema import RunConfig
    from ..data.corpus import Part
    from ..measure.records import Record
    from ..runs.folder import RunFolder


Tell = Callable[[str, int, int], None]  # what is done, how many bytes of how many


class Run(NamedTuple):
    """One variant with one seed."""

    variant: Variant
    config: RunConfig
    label: str  # in a log


def compare(
    path: Path,
    overrides: Sequence[str],
    vary: Sequence[str],
    *,
    seeds: int = 1,
    out: Path | None = None,
    overwrite: bool = False,
    reading: Callable[[], AbstractContextManager[Tell]] = lambda: nullcontext(
        lambda what, done, total: None
    ),
    say: Callable[[str], None] = lambda line: None,
) -> str | None:
    """The report, also kept as README.md beside its plots and records. None if stopped.

    `seeds` trains every variant that often, with the seed of the configuration, the next, and so
    on. `reading` shows a progress bar while data are read, `say` a line.
    """
    if world()[1] > 1:
        raise UserError("compare trains in one process: start it without torchrun.")
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1: got {seeds}.")
    if seeds > 1 and any(one.partition("=")[0].strip() == "seed" for one in vary):
        raise UserError("seed is varied by --seeds: leave out --vary seed, or --seeds.")
    chosen, notes = variants(vary)
    base = configs.load(path, [*overrides, *chosen[0].overrides])
    home = ComparisonFolder(out or Path(f"{base.run}-compare"))
    runs = planned_runs(path, overrides, chosen, seeds, home.path, notes)
    keys = [setting.key for variant in chosen for setting in variant.settings]
    home.check([README, RECORDS, *plot_names(list(dict.fromkeys(keys)))])
    for line in notes:
        say(line)
    first: dict[str, RunConfig] = {}  # of each variant by its name: the first seed
    for run in runs:
        first.setdefault(run.variant.name, run.config)
    with reading() as tell:
        for run in runs:  # report an invalid variant before any is trained
            prepare(run.config, tell=tell)
    sizes = {name: measure.parameters(config) for name, config in first.items()}
    home.open()
    records: list[Record] = []
    baselines: dict[str, Baseline | None] = {}
    for run in runs:
        folder = train(run.config, overwrite=overwrite, label=run.label)
        if folder is None:
            return None
        records.append(_record(run, folder, baselines))
    say("measuring the memory and the time of a step")
    memory = _memory(first, home.records())
    times = dict(zip(first, measure.step_times(list(first.values())), strict=True))
    for record in records:
        name = record["variant"]
        record |= {
            "step_seconds": times[name],
            "parameters": sizes[name].total,
            "projection_parameters": sizes[name].projections,
            "memory": memory[name],
            "measured": _digest(first[name]),
        }
    text, pictures = report(records, notes)
    lines = [json.dumps(record) + "\n" for record in (*records, *summaries(records))]
    readme = f"{WRITTEN_BY}\n{text}"
    home.write({README: readme.encode(), RECORDS: "".join(lines).encode(), **pictures})
    return f"{text}\nkept in {home.path}"


def planned_runs(
    path: Path,
    overrides: Sequence[str],
    chosen: Sequence[Variant],
    seeds: int,
    home: Path,
    notes: list[str],
) -> list[Run]:
    """Every distinct run once, ordered by variant, then by seed."""
    with user_input(f"cannot read the configuration {path}"):
        values = configs.read(path)
    runs: list[Run] = []
    known: dict[str, Variant] = {}
    for variant in chosen:
        config = _config(values, path, overrides, variant, home / variant.folder)
        digest = _digest(config)
        if digest in known:
            notes.append(f"{variant.name} is the same run as {known[digest].name}: trained once.")
            continue
        known[digest] = variant
        for seed in range(config.seed, config.seed + seeds):
            if seed == config.seed:
                runs.append(Run(variant, config, variant.name))
                continue
            folder = home / f"{variant.folder}-seed-{seed}"
            again = _config(values, path, (*overrides, f"seed={seed}"), variant, folder)
            runs.append(Run(variant, again, f"{variant.name}, seed {seed}"))
    folders = [run.config.run.casefold() for run in runs]
    for run in runs:
        if folders.count(run.config.run.casefold()) > 1:
            raise UserError(f"two variants would have the folder {run.config.run}. Rename values.")
    return runs


def _config(
    values: dict[str, Any], path: Path, overrides: Sequence[str], variant: Variant, folder: Path
) -> RunConfig:
    """The configuration of a variant; keys of the model that have no effect in it are left out."""
    values = copy.deepcopy(values)
    try:
        for override in (*overrides, *variant.overrides):
            configs.set_key(values, override)
        if isinstance(model := values.get("model"), dict):
            known = {f"model.{key}": value for key, value in model.items()}
            if model.get("projection") == "full":  # so is causal attention, if it is not set
                known["model.causal_attention"] = model.get("causal_attention") or "full"
            for key in without_effect(known):
                model.pop(key.removeprefix("model."), None)
        values["run"] = str(folder)
        return configs.check(values, where=str(path))
    except UserError as error:
        raise UserError(f"{variant.name}: {error}") from error


def _record(run: Run, folder: RunFolder, baselines: dict[str, Baseline | None]) -> Record:
    """Everything that the table and the plots need."""
    config = run.config
    evaluation = folder.evaluation() or {"metrics": {}, "part": None}
    metrics = numbers(evaluation["metrics"])
    curve = [
        {"step": line["step"], "seconds": line["seconds"], **line["validation"]}
        for line in folder.metrics()
        if "validation" in line
    ]
    part = evaluation["part"]
    found = None if part is None else _baseline(config, part, baselines)
    return {
        "variant": run.variant.name,
        "seed": config.seed,
        "full": is_vanilla(config.task, config.model.options),
        "set": {setting.key: setting.text for setting in run.variant.settings},
        "task": config.task,
        "n": config.data.max_length,
        "part": part,
        "metrics": metrics,
        "baseline": found and {"metrics": found.metrics, "left": found.is_left_by(metrics)},
        "curve": curve,
        "run": str(folder.path),
    }


def _baseline(config: RunConfig, part: Part, known: dict[str, Baseline | None]) -> Baseline | None:
    """Computed once for all runs on the same data with the same masks."""
    prepared = prepare(config)
    masks = (config.train.mask_share, config.train.whole_words, config.seed)
    same = json.dumps([str(prepared.folder), part, config.evaluate.limit(part), *masks])
    if same not in known:
        known[same] = baseline(config, prepared, part)
    return known[same]


def _memory(first: dict[str, RunConfig], earlier: list[Record]) -> dict[str, int | None]:
    """Peak memory of each variant, reused from earlier records where present."""
    known = {
        record.get("measured"): record["memory"]
        for record in earlier
        if isinstance(record.get("memory"), int)
    }
    return {
        name: known.get(_digest(config)) or measure.training_memory(config)
        for name, config in first.items()
    }


def _digest(config: RunConfig) -> str:
    """A digest of everything in a configuration but the run's folder."""
    values = configs.resolved(config)
    values.pop("run")
    text = json.dumps(values, sort_keys=True, default=str)
    return digest(text)
