"""An answer to one input that does not fit into memory: read from a file, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from ..errors import UserError, user_input
from ..models import LinformerForSequenceClassification
from ..models.load import load_pretrained
from ..parallel.stream import stream_pooled
from .answers import Answer
from .tasks import check_finite

if TYPE_CHECKING:
    from pathlib import Path

    from ..runs.folder import RunFolder

BLOCK = 65_536  # positions in memory at a time


@torch.no_grad()
def predict_streamed(
    folder: RunFolder, file: Path, *, which: str = "best", top: int = 5, block: int = BLOCK
) -> Answer:
    """The likeliest labels of the tokens (N), or features (N, size), in a .npy file.

    The file is mapped, not read as a whole; rows between two layers are in temporary files. Memory
    does not depend on N. The tokens are what the run's tokenizer makes of a text.
    """
    task = folder.config().task
    if task != "classify":
        raise UserError(
            f"--tokens is for runs of the task 'classify', which has one answer for a whole input: "
            f"got a run of the task {task!r}."
        )
    with user_input(f"cannot read {file}", remedy="Write it with numpy.save."):
        inputs = np.load(file, mmap_mode="r", allow_pickle=False)
    model = load_pretrained(LinformerForSequenceClassification, folder.model_folder(which)).eval()
    _check(file, inputs, model.config)
    with user_input(f"cannot answer for {file}"):
        row = stream_pooled(
            model.linformer, inputs, pooling=model.config.pooling, block=block
        )  # (M)
        likely = model.classifier(row[None]).float().softmax(-1)[0].double().numpy()
    check_finite(likely)
    best = np.argsort(-likely, kind="stable")[:top]
    names: Any = model.config.id2label
    found = [{"text": names[int(label)], "score": float(likely[label])} for label in best]
    return Answer(str(file), found)


def _check(file: Path, inputs: Any, config: Any) -> None:
    """Refuse an array of another shape or kind than the model reads, or a longer one."""
    size = config.feature_size
    shape = "(N)" if size is None else f"(N, {size})"
    wanted = "whole numbers" if size is None else "numbers"
    right = inputs.ndim == 1 if size is None else inputs.ndim == 2 and inputs.shape[1] == size
    kinds = "iu" if size is None else "iuf"
    if not right or inputs.dtype.kind not in kinds or not len(inputs):
        raise UserError(
            f"{file} must hold {wanted} of shape {shape}: got {inputs.shape} of {inputs.dtype}."
        )
    if len(inputs) > config.max_position_embeddings:
        raise UserError(
            f"this model reads up to data.max_length = {config.max_position_embeddings:,} "
            f"positions: {file} has {len(inputs):,}. Train it with a larger data.max_length."
        )
