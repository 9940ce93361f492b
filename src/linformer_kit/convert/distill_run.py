"""The training of a conversion: start or resume it in its folder, save, and measure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..runs.models import step_of
from ..training.progress import Report, StopPolitely, how_to_resume
from .conversion import Conversion, Prepared, begin, build_student, finish, say_scores
from .distill_trainer import Clock, DistillLogging, DistillTrainer, Pace, spent_before
from .quality import scores
from .source import Settings
from .step_batches import StepBatches

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from torch import nn

    from .conversion_folder import ConversionFolder

    Say = Callable[[str], None]


def make_trainer(
    job: Conversion, prepared: Prepared, student: nn.Module, clock: Clock, output: Path
) -> DistillTrainer:
    """The trainer of a conversion; it has written nothing yet."""
    text, source = prepared.text, prepared.source
    assert text is not None
    batches = StepBatches(
        text,
        longest=prepared.settings.max_length,
        batch_size=job.batch_size,
        pad_id=source.tokenizer.pad_token_id or 0,
        seed=job.seed,
        progress=clock.progress,
        masking=prepared.masking,
    )
    return DistillTrainer(
        student,
        source.teacher,
        batches,
        clock=clock,
        frame=text.frame,
        lr=job.lr,
        seed=job.seed,
        output=output,
    )


def distill_in_folder(
    job: Conversion,
    prepared: Prepared,
    folder: ConversionFolder,
    *,
    say: Say,
    save_every: int | None = None,
) -> dict[str, Any] | None:
    """Train to the end, from wherever an earlier start got to; None if it was stopped."""
    assert prepared.text is not None
    folder.create()
    with folder.lock():
        digest = {"model": prepared.source.digest(), **prepared.text.digest}
        folder.open(job.as_json(), digest)
        start = folder.start()
        if start is None:
            start, student = begin(job, prepared, say)
            folder.write_start(start)
        else:
            student, _ = build_student(prepared, Settings(**start["settings"]))
        trained = _train(job, prepared, folder, student, say, save_every)
        if trained is None:
            return None
        teacher, rows = prepared.source.teacher, prepared.measured_on
        trained["trained"] = scores(student.eval(), teacher, rows, masking=prepared.masking)
        say_scores(trained["trained"], f"after {trained['training']['steps']:,} steps", say)
        record = finish(job, prepared, folder, student.cpu(), start, trained)
        folder.remove_checkpoints()
        return record


def _train(
    job: Conversion,
    prepared: Prepared,
    folder: ConversionFolder,
    student: nn.Module,
    say: Say,
    save_every: int | None,
) -> dict[str, Any] | None:
    """Train the student in place; how long it took, None if it was stopped."""
    run = folder.run
    clock = Clock(steps=job.steps, minutes=job.minutes)
    checkpoint = _checkpoint_to_resume(folder, say)
    step = 0 if checkpoint is None else step_of(checkpoint)
    run.forget_after(step)
    before = spent_before(run)
    clock.start(before)
    trainer = make_trainer(job, prepared, student, clock, run.checkpoints)
    report = Report()
    trainer.add_callback(DistillLogging(trainer, run, report))
    if checkpoint is not None:
        say(f"resuming from step {step:,}")
    if checkpoint is not None and clock.progress(step) >= 1.0:  # only the saving was interrupted
        trainer._load_from_checkpoint(str(checkpoint))
    else:
        with StopPolitely() as stop:
            trainer.add_callback(stop)
            trainer.add_callback(Pace(clock, save_every))  # after `stop`: it logs what is saved
            try:
                trainer.train(resume_from_checkpoint=None if not checkpoint else str(checkpoint))
                stopped = stop.agree(trainer.args)
            except KeyboardInterrupt:
                stopped = True
            finally:
                report.stop_bar()
        if stopped:
            saved = run.last_checkpoint()
            where = "nothing is saved yet" if not saved else f"saved at step {step_of(saved):,}"
            say(f"Stopped: {where}. {how_to_resume()}")
            return None
        step = trainer.state.global_step
    rows = {str(n): len(rows) for n, rows in trainer.train_dataset.rows.items()}  # type: ignore[union-attr]
    return {"training": {"steps": step, "minutes": clock.spent / 60, "rows": rows}}


def _checkpoint_to_resume(folder: ConversionFolder, say: Say) -> Path | None:
    """The newest intact checkpoint; damaged ones are reported and left alone."""
    start, problems = folder.run.intact_checkpoint()
    for problem in problems:
        resumed = "Training starts again" if start is None else f"Step {step_of(start)} is used"
        say(f"{problem}. {resumed} instead.")
    return start
