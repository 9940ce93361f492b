"""From a configuration and its data to a trainer."""

from __future__ import annotations

import os
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, cast

import torch
from transformers import TrainingArguments
from transformers.trainer_callback import PrinterCallback

from ..core.cpu.allocator import keep_memory
from ..core.decoder_layer import DecoderLayer
from ..core.encoder import EncoderLayer
from ..data.collate import Collate
from ..data.masking import Masking
from ..data.order import TrainingOrder
from ..data.rows import Rows
from ..errors import UserError
from ..metrics.tasks import Metrics, of_documents
from .build import check_memory
from .layout import Layout, OwnPositions, check_layout, chunk_of, layout_of
from .trainer import RunTrainer, evaluation_order, scores_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from transformers import PreTrainedModel, PreTrainedTokenizerFast

    from ..config.schema import RunConfig
    from ..data.corpus import Part
    from ..data.prepare import Prepared

# transformers renamed the argument in 5.23, and warns about the old name.
CHECKPOINTING = (
    "activation_checkpointing"
    if "activation_checkpointing" in TrainingArguments.__dataclass_fields__
    else "gradient_checkpointing"
)
SCHEDULES = {
    "constant": "constant_with_warmup",
    "linear": "linear",
    "cosine": "cosine",
    "inverse-sqrt": "inverse_sqrt",
}


def check_machine(config: RunConfig, processes: int) -> None:
    """Refuse what this machine cannot do before anything is written."""
    train = config.train
    check_layout(config, processes)
    check_memory(config)
    readers = processes // train.sequence_parallel
    if train.batch_size % (readers * train.accumulate):
        which = "processes"
        if train.sequence_parallel > 1:
            which = "(processes / train.sequence_parallel)"
        raise UserError(
            f"train.batch_size must be a multiple of {which} x train.accumulate = {readers} x "
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


def part_collator(
    config: RunConfig,
    tokenizer: PreTrainedTokenizerFast | None,
    layout: Layout,
    model: PreTrainedModel,
) -> Collate:
    """Makes the batches of one process: whole rows, or its positions of them."""
    collate = collator(config, tokenizer)
    if layout.sequence == 1:
        return collate
    return replace(collate, cut=OwnPositions(layout, chunk_of(model), config.task == "clm"))


def training_order(config: RunConfig, rows: Rows, readers: int) -> TrainingOrder:
    """The rows of each step, dealt to `readers`: processes, or groups that read the same rows."""
    return TrainingOrder(
        rows=len(rows),
        steps=config.train.steps,
        batch_size=config.train.batch_size,
        micro=config.train.batch_size // (readers * config.train.accumulate),
        seed=config.seed,
        lengths=rows.column("length") if config.train.bucket else None,
    )


def metrics_of(
    config: RunConfig, prepared: Prepared, part: Part, rows: Rows | None
) -> Callable[[np.ndarray], dict[str, Any]]:
    """From the scores of these rows, in the order of an evaluation, to the metrics of the part."""
    meta = prepared.meta
    counts = meta["parts"][part]
    metrics = Metrics(
        task=config.task,
        labels=tuple(meta["labels"]),
        tokens=counts["tokens"],
        bytes=counts["bytes"],
        sizes=tuple(config.train.matryoshka),
    )
    if rows is None or not rows.has("document"):
        return metrics
    order = evaluation_order(rows)
    documents, lengths = rows.column("document")[order], rows.column("length")[order]
    return lambda scores: metrics(of_documents(scores, documents, lengths))


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
    layout = layout_of(config)
    processes = layout.processes
    train_part, validation = prepared.part("train"), prepared.part("validation")
    assert train_part is not None
    rows = Rows(train_part)
    checked = None
    if validation is not None:
        checked = Rows(validation, config.evaluate.limit("validation"))
    metrics = metrics_of(config, prepared, "validation", checked)
    train = config.train
    kinds = (EncoderLayer, DecoderLayer)  # what FSDP shards one by one
    layers = sorted({type(m).__name__ for m in model.modules() if isinstance(m, kinds)})
    arguments = TrainingArguments(
        output_dir=str(output),
        # Without it, torchrun's workers form no process group on a CPU.
        use_cpu=not torch.accelerator.is_available(),
        ddp_backend=None if torch.accelerator.is_available() or processes == 1 else "gloo",
        max_steps=train.steps,
        per_device_train_batch_size=train.batch_size // (layout.data * train.accumulate),
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
        **cast("Any", {CHECKPOINTING: train.gradient_checkpointing}),
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
        layout=layout,
        order=training_order(config, rows, layout.data),
        vocab_size=getattr(model.config, "vocab_size", 0),
        model=model,
        args=arguments,
        data_collator=part_collator(config, tokenizer, layout, model),
        train_dataset=rows,
        eval_dataset=checked,
        processing_class=tokenizer,
        compute_metrics=lambda prediction: metrics(scores_of(prediction)),
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def check_wandb() -> None:
    """Refuse --wandb without its package, before the work."""
    if find_spec("wandb") is None:
        raise UserError("--wandb needs the package wandb: pip install wandb")


def finish_wandb() -> None:
    """End the run there: the next one of this process is another."""
    import wandb

    wandb.finish()


def _wandb(folder: Path) -> list[str]:
    """Log to Weights & Biases; offline where there is no key or no network."""
    import socket

    import wandb

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
