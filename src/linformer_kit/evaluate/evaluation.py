"""The evaluation of a run: its best model on the test part (on validation, if there is none)."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from accelerate.state import AcceleratorState
from accelerate.utils import gather_object

from ..artifact import not_writable, write_atomic
from ..config.on_overflow import POLICIES, policy_for, why_refused
from ..config.schema import LABELLED
from ..core.window_rows import switch_off
from ..data.prepare import Prepared, fingerprint, prepare
from ..data.rows import Rows
from ..errors import UserError, user_input
from ..metrics.tasks import numbers
from ..models.extend import extended, extended_length
from ..models.load import load_pretrained
from ..training.build import MODELS
from ..training.progress import Report, tell_unread
from ..training.setup import make_trainer, metrics_of
from ..training.trainer import scores_of
from .translations import bleu_and_chrf, translate_rows

if TYPE_CHECKING:
    from ..config.on_overflow import OnOverflow
    from ..config.schema import RunConfig
    from ..data.corpus import Part
    from ..runs.folder import RunFolder
    from ..training.trainer import RunTrainer


def evaluate_run(
    folder: RunFolder,
    *,
    part: Part | None = None,
    which: str = "best",
    without: Literal["rows", "window"] | None = None,
    on_overflow: str | None = None,
    trainer: RunTrainer | None = None,
    prepared: Prepared | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Score a model of a run and, at the end of a training, write evaluation.json.

    `without` switches off the compressed rows or the window of an encoder that has both.
    `on_overflow` treats long texts in another way than the run does.
    """
    report = report or Report()
    with ExitStack() as held:
        changed, config = False, folder.config()
        policy = policy_for("evaluate", config, on_overflow)
        if prepared is None:
            path = folder.model_folder(which)
            prepared, changed = _data_of(folder, config, path, held, report)
            if policy == "error":
                _check_lengths(config, prepared, part)
            elif policy != policy_for("evaluate", config):
                config = _with_policy(config, policy, prepared)
                prepared, _ = _data_of(folder, config, path, held, report)
        scored = _Scored(folder, part, which, without, policy, changed)
        return _evaluate_on(prepared, config, scored, trainer, report)


@dataclass(frozen=True)
class _Scored:
    """What is scored, and how."""

    folder: RunFolder
    part: Part | None
    which: str
    without: Literal["rows", "window"] | None
    policy: OnOverflow
    changed: bool  # the data, since the run was trained

    @property
    def usual_policy(self) -> bool:
        return self.policy == policy_for("evaluate", self.folder.config())


def _evaluate_on(
    prepared: Prepared,
    config: RunConfig,
    scored: _Scored,
    trainer: RunTrainer | None,
    report: Report,
) -> dict[str, Any]:
    folder, part, without, changed = scored.folder, scored.part, scored.without, scored.changed
    finishing, asked = trainer is not None, scored.which
    path = folder.model_folder(scored.which)
    which = path.name
    chosen = part or _usual_part(prepared)
    rows_file = prepared.part(chosen)
    if rows_file is None:
        if trainer is None:
            raise UserError(f"the run has no {chosen} part. See data.{chosen}.")
        evaluation: dict[str, Any] = {"part": None, "model": which, "metrics": {}}
        if trainer.args.should_save:
            _keep(folder, evaluation)
        return evaluation
    rows = Rows(rows_file, config.evaluate.limit(chosen))
    tokenizer = prepared.tokenizer()
    model = load_pretrained(MODELS[config.task], path)
    if without is not None:
        with user_input(f"cannot evaluate {folder.path} without its {without}"):
            switch_off(model, without)
    # A trainer of its own, since the weights are another model's than those that were trained, and
    # one that shards nothing: FSDP is for training.
    if config.train.fsdp:
        AcceleratorState._reset_state(reset_partial_state=True)
        whole = config.train.model_copy(update={"fsdp": False})
        config = config.model_copy(update={"train": whole})
    scores: list[np.ndarray] = []
    translations: dict[int, str] = {}

    def collect(prediction: Any) -> dict[str, Any]:
        scores.append(scores_of(prediction))
        return {}

    for reach, numbers_of_rows in _by_reach(rows, folder.config().data.max_length):
        some = rows if reach is None else Rows(rows_file, only=numbers_of_rows)
        with user_input(f"cannot extend the model {path}"):
            reading = model if reach is None else extended(model, reach)
        scorer = make_trainer(config, prepared, reading, tokenizer, output=folder.checkpoints)
        scorer.compute_metrics = collect
        scorer.evaluate(some, metric_key_prefix="part")
        if config.task == "translate":
            assert tokenizer is not None
            share = (scorer.args.process_index, scorer.args.world_size)
            translated = translate_rows(reading, tokenizer, some, config.evaluate, share=share)
            pairs = gather_object(list(translated.items()))
            translations |= {int(numbers_of_rows[row]): text for row, text in pairs}
    metrics = metrics_of(config, prepared, chosen, rows)(np.concatenate(scores))
    if config.task == "translate":
        metrics |= bleu_and_chrf(
            [translations[row] for row in range(len(rows))], rows.strings("reference")
        )
    counts = prepared.meta["parts"][chosen]
    evaluation = {
        "part": chosen,
        "model": which,
        "rows": len(rows),
        "rows_of_part": counts["rows"],
        "unread": {name: counts[name] for name in ("cut_rows", "cut_tokens", "tokens")},
        "metrics": metrics,
    }
    if config.task in LABELLED:
        evaluation["labels"] = prepared.meta["labels"]
    if changed:
        evaluation["data_changed"] = True
    if without is not None:
        evaluation["without"] = without
    if not scored.usual_policy:
        evaluation["on_overflow"] = scored.policy
    # evaluation.json holds the scores of the best model on the data of the run, nothing else.
    final = part is None and folder.finished and asked == "best" and not (changed or without)
    final = final and scored.usual_policy
    read_only = not finishing and not_writable(folder.path) is not None
    try:
        if scorer.args.should_save and (finishing or final) and not read_only:
            _keep(folder, evaluation)
    finally:  # scores are told even where they cannot be kept
        shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers(metrics).items())
        branch = "" if without is None else f" without its {without}"
        branch += "" if scored.usual_policy else f", on_overflow: {scored.policy},"
        report.line(f"{which} model{branch} on {chosen}: {shown}", event="evaluation", **evaluation)
        tell_unread(report, chosen, counts, config.data.max_length)
        if len(rows) < counts["rows"]:
            text = f"{len(rows):,} of {counts['rows']:,} rows were scored"
            key = config.evaluate.limit_key(chosen)
            limit = f"evaluate.{key} = {config.evaluate.limit(chosen)}"
            report.notice("not scored", f"{text} ({limit}).", scored=len(rows))
        if changed:
            report.notice(
                "data changed",
                f"The data of {folder.path} has changed since it was trained: these are scores on "
                "the changed data, and evaluation.json is not replaced.",
            )
        if final and read_only and evaluation != folder.evaluation():
            report.notice(
                "not kept",
                f"{folder.path} is not writable for this user, so evaluation.json, which holds "
                "other scores, is not replaced.",
            )
        for name, signature in metrics.get("signatures", {}).items():
            if report.terminal:
                report.line(f"{name}: {signature}")
    return evaluation


def _usual_part(prepared: Prepared) -> Part:
    return "test" if prepared.part("test") is not None else "validation"


def _check_lengths(config: RunConfig, prepared: Prepared, part: Part | None) -> None:
    """Refuse a part with longer texts than the model reads."""
    chosen, limit = part or _usual_part(prepared), config.data.max_length
    counts = prepared.meta["parts"][chosen]
    if counts["longer"]:
        others = [
            p for p in POLICIES if p != "error" and not why_refused("evaluate", p, config.task)
        ]
        raise UserError(
            f"a text must have at most data.max_length = {limit} tokens (on_overflow: error): "
            f"{counts['longer']:,} of {counts['documents']:,} of the {chosen} part have more, got "
            f"{counts['longest']:,}. Shorten them, or use --on-overflow {' or '.join(others)}."
        )


def _by_reach(rows: Rows, max_length: int) -> list[tuple[int | None, np.ndarray]]:
    """Rows by the length that a model must be extended to; one group where none is longer."""
    lengths = rows.column("length")
    if lengths.max() <= max_length:
        return [(None, np.arange(len(rows)))]
    reaches = np.asarray([extended_length(int(length), max_length) for length in lengths])
    return [(int(reach), np.flatnonzero(reaches == reach)) for reach in np.unique(reaches)]


def _with_policy(config: RunConfig, policy: OnOverflow, prepared: Prepared) -> RunConfig:
    """The configuration under which the data is prepared for another policy."""
    changes: dict[str, Any] = {"on_overflow": policy}
    if policy == "extend":  # each document is one row, as long as it is
        longest = max(counts["longest"] for counts in prepared.meta["parts"].values())
        reach = extended_length(longest, config.data.max_length)
        changes = {"on_overflow": "truncate", "max_length": reach, "pack": False}
    return config.model_copy(update={"data": config.data.model_copy(update=changes)})


def _keep(folder: RunFolder, evaluation: dict[str, Any]) -> None:
    write_atomic(folder.evaluation_file, json.dumps(evaluation, indent=1) + "\n")


def _data_of(
    folder: RunFolder, config: RunConfig, model: Path, held: ExitStack, report: Report
) -> tuple[Prepared, bool]:
    """The data of a run with its own tokenizer and labels, and whether it has changed since.

    Where it has to be prepared and the cache cannot be written, as that of another user, it is
    prepared in a temporary folder, which goes with `held`.
    """
    if (Path(config.data.cache) / fingerprint(config)).is_dir():
        prepared = prepare(config)
        if folder.same_data(prepared.meta["digest"]):
            return prepared, False
    labels = None
    if config.task in LABELLED:
        with user_input(f"cannot read the labels in {model / 'config.json'}"):
            names = json.loads((model / "config.json").read_bytes())["id2label"]
            labels = [names[str(place)] for place in range(len(names))]
    tokenizer = model if (model / "tokenizer.json").is_file() else None
    cache = Path(config.data.cache)
    known = (cache / fingerprint(config, tokenizer=tokenizer, labels=labels)).is_dir()
    if not known and not_writable(cache) is not None:
        text = f"{cache} is not writable for this user: the data is prepared in a temporary folder."
        report.notice("temporary", text)
        temporary = held.enter_context(tempfile.TemporaryDirectory(prefix="linformer-"))
        data = config.data.model_copy(update={"cache": temporary})
        config = config.model_copy(update={"data": data})
    prepared = prepare(config, tokenizer=tokenizer, labels=labels)
    return prepared, not folder.same_data(prepared.meta["digest"])
