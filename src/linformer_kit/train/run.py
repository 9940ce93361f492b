"""Train: prepare, build, train or resume, keep the best and the last model, evaluate."""

from __future__ import annotations

import errno
import json
import os
import shlex
import sys
import threading
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import TrainingArguments
from transformers.integrations.integration_utils import TensorBoardCallback

from ..core.allocator import keep_memory
from ..core.decoder_layer import DecoderLayer
from ..core.encoder import EncoderLayer
from ..data.collate import Collate
from ..data.masking import Masking
from ..data.order import TrainingOrder
from ..data.prepare import Prepared, prepare
from ..data.rows import Rows
from ..errors import UserError, user_input
from ..evaluate.metrics import Metrics
from ..runs.lock import lock_run
from ..runs.models import step_of
from .build import build_model, check_memory
from .environment import describe
from .progress import Logging, Report, StopPolitely, tell_unread
from .run_folder import RESUME_HINT, RunFolder, write_whole
from .trainer import RunTrainer, scores_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..config.schema import RunConfig
    from ..data.corpus import Part

SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-sqrt": "inverse_sqrt",
}
CANNOT_WRITE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO}


def world() -> tuple[int, int]:
    """Which process is this, of how many, by torchrun."""
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def train(
    config: RunConfig,
    *,
    overwrite: bool = False,
    wandb: bool = False,
    tell: Callable[[str, int, int], None] = lambda what, done, total: None,
    label: str | None = None,
) -> RunFolder | None:
    """Train to the end, from wherever an earlier start of the same run got to. None if stopped."""
    rank, processes = world()
    report = Report(main=rank == 0, label=label)
    check_machine(config, processes)
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
    model = build_model(config, prepared, tokenizer)
    with ExitStack() as held:
        if rank == 0:  # nothing is written before everything is known to be right
            folder.create()
            digest = prepared.meta["digest"]
            held.enter_context(lock_run(folder.path))
            for path in folder.open_for(config, digest, overwrite=overwrite):
                report.line(
                    f"{path} was not written by a run and stays.", event="kept", path=str(path)
                )
        trainer = make_trainer(
            config, prepared, model, tokenizer, output=folder.checkpoints, wandb=wandb
        )
        with _lost_processes_told():
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
        write_whole(folder.path / "environment.json", json.dumps(environment, indent=1) + "\n")
    logging = Logging(trainer, folder, report)
    trainer.add_callback(logging)
    trainer.logging = logging
    if trainer.args.should_save:
        trainer.add_callback(TensorBoardCallback(_events(folder.path / "tensorboard")))
    if start is not None:
        report.line(f"resuming from step {step_of(start)}", step=step_of(start), event="resumed")
        trainer.args.eval_on_start = validation_due(trainer, folder, step_of(start))
    with StopPolitely() as stop, _event_errors_told_once():
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
        report.line(f"Stopped: {where}. {_how_to_resume()}")
        return None
    trainer.save_model_folder(folder.last)
    from ..evaluate.run import evaluate_run

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


def check_machine(config: RunConfig, processes: int) -> None:
    """Refuse what this machine cannot do before anything is written."""
    train = config.train
    check_memory(config)
    if train.batch_size % (processes * train.accumulate):
        raise UserError(
            f"train.batch_size must be a multiple of processes x train.accumulate = {processes} x "
            f"{train.accumulate}: got {train.batch_size}."
        )
    if train.precision == "float16" and not torch.cuda.is_available():
        raise UserError("train.precision float16 needs a GPU: got none. Use bfloat16 or float32.")
    if train.fsdp and processes == 1:
        raise UserError(
            "train.fsdp needs more than one process: start it with torchrun --nproc_per_node 2."
        )


def set_machine(config: RunConfig) -> None:
    """Compute as the configuration says: with how many threads, and with memory that is kept."""
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    if config.train.keep_memory and not torch.cuda.is_available():
        keep_memory()


def collator(config: RunConfig, tokenizer: PreTrainedTokenizerFast | None) -> Collate:
    """Makes the batches of a task."""
    if tokenizer is None:
        return Collate(config.task)
    masking = None
    if config.task == "mlm":
        masking = Masking(
            mask_id=tokenizer.mask_token_id,
            vocab_size=len(tokenizer),
            special_ids=tuple(tokenizer.all_special_ids),
            share=config.train.mask_share,
            whole_words=config.train.whole_words,
            seed=config.seed,
        )
    return Collate(config.task, pad_id=tokenizer.pad_token_id, masking=masking)


def training_order(config: RunConfig, rows: Rows, processes: int) -> TrainingOrder:
    return TrainingOrder(
        rows=len(rows),
        steps=config.train.steps,
        batch_size=config.train.batch_size,
        micro=config.train.batch_size // (processes * config.train.accumulate),
        seed=config.seed,
        lengths=rows.column("length") if config.train.bucket else None,
    )


def metrics_of(config: RunConfig, prepared: Prepared, part: Part) -> Metrics:
    meta = prepared.meta
    counts = meta["parts"][part]
    return Metrics(
        task=config.task,
        labels=tuple(meta["labels"]),
        tokens=counts["tokens"],
        bytes=counts["bytes"],
    )


def make_trainer(
    config: RunConfig,
    prepared: Prepared,
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerFast | None,
    *,
    output: Path,
    wandb: bool = False,
) -> RunTrainer:
    """The trainer of a configuration; it has written nothing yet."""
    _, processes = world()
    train_part, validation = prepared.part("train"), prepared.part("validation")
    assert train_part is not None
    rows = Rows(train_part)
    checked = None
    if validation is not None:
        checked = Rows(validation, config.evaluate.max_examples)
    metrics = metrics_of(config, prepared, "validation")
    train = config.train
    kinds = (EncoderLayer, DecoderLayer)  # what FSDP shards one by one
    layers = sorted({type(m).__name__ for m in model.modules() if isinstance(m, kinds)})
    arguments = TrainingArguments(
        output_dir=str(output),
        use_cpu=not torch.accelerator.is_available(),  # unsaid, torchrun's processes stay strangers
        ddp_backend=None if torch.accelerator.is_available() or processes == 1 else "gloo",
        max_steps=train.steps,
        per_device_train_batch_size=train.batch_size // (processes * train.accumulate),
        per_device_eval_batch_size=config.evaluate.batch_size,
        gradient_accumulation_steps=train.accumulate,
        learning_rate=train.lr,
        lr_scheduler_type=SCHEDULES[train.schedule],
        warmup_steps=train.warmup,
        weight_decay=train.weight_decay,
        adam_beta1=train.beta1,
        adam_beta2=train.beta2,
        max_grad_norm=train.clip,
        optim="adamw_torch_fused",
        bf16=train.precision == "bfloat16",
        fp16=train.precision == "float16",
        torch_compile=train.compile,
        gradient_checkpointing=train.gradient_checkpointing,
        fsdp=cast("Any", train.fsdp or None),  # a bool, whatever its annotation says
        fsdp_config={"transformer_layer_cls_to_wrap": layers} if train.fsdp else None,
        ddp_find_unused_parameters=False if processes > 1 else None,
        logging_steps=train.log_every,
        eval_strategy="no" if checked is None else "steps",
        eval_steps=train.eval_every,
        save_steps=train.save_every,
        save_total_limit=None,
        dataloader_num_workers=train.workers,
        dataloader_pin_memory=torch.cuda.is_available(),
        remove_unused_columns=False,
        label_names=["labels"],
        seed=config.seed,
        disable_tqdm=True,
        report_to=_wandb(output.parent) if wandb else "none",
        run_name=output.parent.name,
        logging_nan_inf_filter=False,
        log_level="error",
    )
    trainer = RunTrainer(
        config=config,
        order=training_order(config, rows, processes),
        vocab_size=getattr(model.config, "vocab_size", 0),
        model=model,
        args=arguments,
        data_collator=collator(config, tokenizer),
        train_dataset=rows,
        eval_dataset=checked,
        processing_class=tokenizer,
        compute_metrics=lambda prediction: metrics(scores_of(prediction)),
    )
    from transformers.trainer_callback import PrinterCallback

    trainer.remove_callback(PrinterCallback)
    return trainer


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
        raise UserError(
            "another process of this run has ended, so this one ends too. What was saved before "
            f"is intact. {_how_to_resume()}"
        ) from error


def _wandb(folder: Path) -> list[str]:
    """Log to Weights & Biases; offline where there is no key or no network."""
    import socket

    try:
        import wandb
    except ModuleNotFoundError:
        raise UserError("--wandb needs the package wandb: pip install wandb") from None
    os.environ.setdefault("WANDB_PROJECT", "linformer-kit")
    os.environ.setdefault("WANDB_DIR", str(folder))
    os.environ.setdefault("WANDB_SILENT", "true")
    if "WANDB_MODE" not in os.environ:
        try:
            socket.create_connection(("api.wandb.ai", 443), timeout=3).close()
            reached = wandb.api.api_key is not None
        except OSError:
            reached = False
        os.environ["WANDB_MODE"] = "online" if reached else "offline"
    return ["wandb"]


def _how_to_resume() -> str:
    """The command that resumes; with --overwrite it would start again."""
    given = [word for word in sys.argv[1:] if word != "--overwrite"]
    without = " without --overwrite" if len(given) < len(sys.argv) - 1 else ""
    if world()[1] > 1:  # started by torchrun, whose own words are not known here
        return f"The same command{without} resumes."
    name = Path(sys.argv[0]).name
    program = ["python", "-m", "linformer_kit.cli"] if name == "__main__.py" else [name]
    return f"The same command{without} resumes: {shlex.join([*program, *given])}"
