"""The evaluation of a run: its best model on the test part (on validation, if there is none)."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from accelerate.state import AcceleratorState
from accelerate.utils import gather_object

from ..data.prepare import Prepared, prepare
from ..data.rows import Rows
from ..errors import UserError
from ..train import build
from ..train.progress import Report
from ..train.run_folder import RunFolder, write_whole
from .metrics import numbers
from .translations import bleu_and_chrf, translate_rows

if TYPE_CHECKING:
    from ..data.corpus import Part
    from ..train.trainer import RunTrainer


def evaluate_run(
    folder: RunFolder,
    *,
    part: Part | None = None,
    which: str = "best",
    trainer: RunTrainer | None = None,
    prepared: Prepared | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Score a model of a run and, at the end of a training, write evaluation.json."""
    from ..train.run import make_trainer, metrics_of
    from ..train.trainer import scores_of

    config = folder.config()
    report = report or Report()
    prepared = prepared or prepare(config)
    finishing = trainer is not None
    path = folder.path / which
    if not path.is_dir() and which == "best" and folder.last.is_dir():
        which, path = "last", folder.last  # without a validation part there is no best
    if not path.is_dir():
        raise UserError(f"{folder.path} has no {which} model yet. Train it first.")
    chosen = part or ("test" if prepared.part("test") is not None else "validation")
    rows_file = prepared.part(chosen)
    if rows_file is None:
        if not finishing:
            raise UserError(f"the run has no {chosen} part. See data.{chosen}.")
        evaluation: dict[str, Any] = {"part": None, "model": which, "metrics": {}}
        write_whole(folder.evaluation_file, json.dumps(evaluation, indent=1) + "\n")
        return evaluation
    rows = Rows(rows_file, None if chosen == "test" else config.evaluate.max_examples)
    tokenizer = prepared.tokenizer()
    model = build.MODELS[config.task].from_pretrained(path)
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
    evaluation = {"part": chosen, "model": which, "rows": len(rows), "metrics": metrics}
    if config.task == "classify":
        evaluation["labels"] = prepared.meta["labels"]
    try:
        if scorer.args.should_save and (finishing or (part is None and folder.finished)):
            write_whole(folder.evaluation_file, json.dumps(evaluation, indent=1) + "\n")
    finally:  # scores are told even where they cannot be kept
        shown = "  ".join(f"{name} {value:.4g}" for name, value in numbers(metrics).items())
        report.line(f"{which} model on {chosen}: {shown}", event="evaluation", **evaluation)
        for name, signature in metrics.get("signatures", {}).items():
            if report.terminal:
                report.line(f"{name}: {signature}")
    return evaluation
