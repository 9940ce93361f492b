"""The evaluation of a run: its best model on the test part (on validation, if there is none)."""

from __future__ import annotations

import json
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from accelerate.state import AcceleratorState
from accelerate.utils import gather_object

from ..core.window_attention import switch_off
from ..data.prepare import Prepared, fingerprint, prepare
from ..data.rows import Rows
from ..errors import UserError, user_input
from ..metrics.tasks import numbers
from ..models.load import load_pretrained
from ..outputs import write_atomic
from ..runs.folder import RunFolder, not_writable
from ..training.build import MODELS
from ..training.progress import Report, tell_unread
from ..training.setup import make_trainer, metrics_of
from ..training.trainer import scores_of
from .translations import bleu_and_chrf, translate_rows

if TYPE_CHECKING:
    from ..config.schema import RunConfig
    from ..data.corpus import Part
    from ..training.trainer import RunTrainer


def evaluate_run(
    folder: RunFolder,
    *,
    part: Part | None = None,
    which: str = "best",
    without: Literal["rows", "window"] | None = None,
    trainer: RunTrainer | None = None,
    prepared: Prepared | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Score a model of a run and, at the end of a training, write evaluation.json.

    `without` switches off the compressed rows or the window of an encoder that has both.
    """
    report = report or Report()
    with ExitStack() as held:
        changed = False
        if prepared is None:
            path = folder.model_folder(which)
            prepared, changed = _data_of(folder, folder.config(), path, held, report)
        return _evaluate_on(
            prepared, folder, part, which, trainer, report, changed=changed, without=without
        )


def _evaluate_on(
    prepared: Prepared,
    folder: RunFolder,
    part: Part | None,
    which: str,
    trainer: RunTrainer | None,
    report: Report,
    *,
    changed: bool,
    without: Literal["rows", "window"] | None,
) -> dict[str, Any]:
    config = folder.config()
    finishing, asked = trainer is not None, which
    path = folder.model_folder(which)
    which = path.name
    chosen = part or ("test" if prepared.part("test") is not None else "validation")
    rows_file = prepared.part(chosen)
    if rows_file is None:
        if trainer is None:
            raise UserError(f"the run has no {chosen} part. See data.{chosen}.")
        evaluation: dict[str, Any] = {"part": None, "model": which, "metrics": {}}
        if trainer.args.should_save:
            _keep(folder, evaluation)
        return evaluation
    rows = Rows(rows_file, None if chosen == "test" else config.evaluate.max_examples)
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
    scorer = make_trainer(config, prepared, model, tokenizer, output=folder.checkpoints)
    metrics_for = metrics_of(config, prepared, chosen)
    scorer.compute_metrics = lambda prediction: metrics_for(scores_of(prediction))
    raw = scorer.evaluate(rows, metric_key_prefix="part")
    metrics: dict[str, Any] = {
        name.removeprefix("part_"): value
        for name, value in raw.items()
        if not name.endswith(("runtime", "per_second", "preparation_time")) and name != "epoch"
    }
    if config.task == "translate":
        assert tokenizer is not None
        share = (scorer.args.process_index, scorer.args.world_size)
        translated = translate_rows(model, tokenizer, rows, config.evaluate, share=share)
        pairs = gather_object(list(translated.items()))
        by_row = dict(pairs)
        metrics |= bleu_and_chrf(
            [by_row[row] for row in range(len(rows))], rows.strings("reference")
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
    if config.task == "classify":
        evaluation["labels"] = prepared.meta["labels"]
    if changed:
        evaluation["data_changed"] = True
    if without is not None:
        evaluation["without"] = without
    # evaluation.json holds the scores of the best model on the data of the run, nothing else.
    final = part is None and folder.finished and asked == "best" and not (changed or without)
    read_only = not finishing and not_writable(folder.path) is not None
    try:
        if scorer.args.should_save and (finishing or final) and not read_only:
            _keep(folder, evaluation)
    finally:  # scores are told even where they cannot be kept
        shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers(metrics).items())
        branch = "" if without is None else f" without its {without}"
        report.line(f"{which} model{branch} on {chosen}: {shown}", event="evaluation", **evaluation)
        tell_unread(report, chosen, counts, config.data.max_length)
        if len(rows) < counts["rows"]:
            text = f"{len(rows):,} of {counts['rows']:,} rows were scored"
            limit = f"evaluate.max_examples = {config.evaluate.max_examples}"
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
    if config.task == "classify":
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
