"""Train: prepare, build, train or resume, keep the best and the last model, evaluate."""

from __future__ import annotations

import errno
import json
import signal
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers.integrations.integration_utils import TensorBoardCallback

from ..artifact import write_atomic
from ..config.start import start_folder
from ..data.prepare import Prepared, prepare
from ..errors import UserError, user_input
from ..evaluate.evaluation import evaluate_run
from ..runs.folder import RESUME_HINT, RunFolder
from ..runs.models import step_of
from ..training.environment import describe
from ..training.layout import check_model, join_again, restarted, world
from ..training.progress import Report, RunLogging, StopPolitely, how_to_resume, tell_unread
from ..training.setup import check_machine, check_wandb, finish_wandb, make_trainer, set_machine
from .start import start_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ..config.schema import RunConfig
    from ..training.trainer import RunTrainer

CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def train(
    config: RunConfig,
    *,
    overwrite: bool = False,
    wandb: bool = False,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
    label: str | None = None,
) -> RunFolder | None:
    """Train to the end, from wherever an earlier start of the same run got to. None if stopped.

    Processes that torchrun has started again resume, also with `overwrite`.
    """
    rank, processes = world()
    overwrite = overwrite and not restarted()
    report = Report(main=rank == 0, label=label)
    check_machine(config, processes)
    if wandb:
        check_wandb()
    if config.model.start is not None:
        start_folder(config.model.start)
    folder = RunFolder(Path(config.run))
    if rank == 0:
        folder.check_for(config, overwrite=overwrite)
    if folder.finished and not overwrite:
        report.line(f"{folder.path} is finished. --overwrite trains it again.")
        return folder
    if rank == 0:
        folder.check_writable()
    prepared = prepare(config, tell=tell)
    tell("prepared", 1, 1)  # the end of a progress bar
    for part, counts in prepared.meta["parts"].items():
        tell_unread(report, part, counts, config.data.max_length)
    set_machine(config)
    tokenizer = prepared.tokenizer()
    start = start_of(config, prepared, tokenizer)
    model = start.model
    check_model(config, model)
    for text in start.notes:
        report.notice("start", text)
    with ExitStack() as held:
        if rank == 0:  # nothing is written before everything is known to be right
            folder.create()
            digest = prepared.meta["digest"] | start.digest
            held.enter_context(folder.lock())
            for path in folder.open_for(config, digest, overwrite=overwrite):
                report.line(
                    f"{path} was not written by a run and stays.", event="kept", path=str(path)
                )
        if wandb:
            held.callback(finish_wandb)
        with _lost_processes_told(), _event_errors_told_once():
            join_again()
            trainer = make_trainer(
                config, prepared, model, tokenizer, output=folder.checkpoints, wandb=wandb
            )
            trainer.accelerator.wait_for_everyone()
            return _train_and_evaluate(trainer, folder, prepared, report)


def _train_and_evaluate(
    trainer: RunTrainer, folder: RunFolder, prepared: Prepared, report: Report
) -> RunFolder | None:
    config = trainer.config
    start = _checkpoint_to_resume(folder, report)
    if trainer.args.should_save:
        folder.forget_after(0 if start is None else step_of(start))
        processes = trainer.args.world_size
        environment = describe(config, world=processes, threads=torch.get_num_threads())
        write_atomic(folder.path / "environment.json", json.dumps(environment, indent=1) + "\n")
    logging = RunLogging(trainer, folder, report)
    trainer.add_callback(logging)
    trainer.logging = logging
    if trainer.args.should_save:
        trainer.add_callback(TensorBoardCallback(_events(folder.path / "tensorboard")))
    if start is not None:
        report.line(f"resuming from step {step_of(start)}", step=step_of(start), event="resumed")
        trainer.args.eval_on_start = validation_due(trainer, folder, step_of(start))
    with StopPolitely() as stop:
        trainer.add_callback(stop)
        try:
            trainer.train(resume_from_checkpoint=None if start is None else str(start))
            stopped = stop.agree(trainer.args)
        except KeyboardInterrupt:
            stopped = True
        except OSError as error:  # what is logged can fill a disk too
            if error.errno not in CANNOT_WRITE:
                raise
            reason = error.strerror or error
            raise UserError(f"cannot write to {folder.path}: {reason}. {RESUME_HINT}") from error
        finally:
            report.stop_bar()
    if stopped:
        saved = folder.last_checkpoint()
        where = "nothing is saved yet" if saved is None else f"saved at step {step_of(saved)}"
        report.line(f"Stopped: {where}. {how_to_resume(world()[1])}")
        return None
    trainer.save_model_folder(folder.last)
    evaluate_run(folder, trainer=trainer, prepared=prepared, report=report)
    return folder


def validation_due(trainer: RunTrainer, folder: RunFolder, step: int) -> bool:
    """Whether the validation of this step is still to be done: a run that is stopped skips it."""
    settings = trainer.config.train
    if trainer.eval_dataset is None or (step % settings.eval_every and step < settings.steps):
        return False
    return not any(line["step"] == step and "validation" in line for line in folder.metrics())


def _checkpoint_to_resume(folder: RunFolder, report: Report) -> Path | None:
    """The newest intact checkpoint; damaged ones are reported and left alone."""
    start, problems = folder.intact_checkpoint()
    if problems and start is None:
        raise UserError(
            f"{problems[0]}, and there is no older checkpoint. Restore it, or train from the start "
            "with --overwrite."
        )
    for problem in problems:
        assert start is not None
        report.notice("damaged", f"{problem}. Resuming from step {step_of(start)} instead.")
    return start


def _events(folder: Path) -> Any:
    from torch.utils.tensorboard import SummaryWriter

    with user_input(f"cannot write to {folder}", remedy=RESUME_HINT):
        return SummaryWriter(log_dir=str(folder))


@contextmanager
def _event_errors_told_once() -> Iterator[None]:
    """TensorBoard's thread hands a full disk on to us, and need not print it as well."""
    usual = threading.excepthook

    def told(seen: threading.ExceptHookArgs) -> None:
        if type(seen.thread).__name__ != "_AsyncWriterThread":
            usual(seen)

    threading.excepthook = told
    try:
        yield
    finally:
        threading.excepthook = usual


@contextmanager
def _lost_processes_told() -> Iterator[None]:
    """One process of several ends: the others are told so by an error of the connection."""
    try:
        yield
    except RuntimeError as error:
        lost = isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
        if world()[1] == 1 or not lost:
            raise
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # torchrun's, which comes now: end first
        raise UserError(
            "another process of this run has ended, so this one ends too. What was saved before "
            f"is intact. {how_to_resume(world()[1])}"
        ) from error
