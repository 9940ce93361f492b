"""Checkpoints of the earlier implementations of Linformer, with equal outputs, and back.

`from_linformer`, `from_linformer_pytorch` and `from_fairseq` take a module of theirs or its state
dict; `to_linformer`, `to_linformer_pytorch` and `to_fairseq` give theirs back. `convert_file` reads
a checkpoint file of any of them.
"""

from __future__ import annotations

from inspect import signature
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from .checkpoint import read_checkpoint
from .fairseq import from_fairseq, to_fairseq
from .linformer import from_linformer, to_linformer
from .linformer_pytorch import from_linformer_pytorch, to_linformer_pytorch

if TYPE_CHECKING:
    from pathlib import Path

    from ...models.base import LinformerPreTrainedModel

__all__ = [
    "SOURCES",
    "convert_file",
    "from_fairseq",
    "from_linformer",
    "from_linformer_pytorch",
    "to_fairseq",
    "to_linformer",
    "to_linformer_pytorch",
]
SOURCES = {
    "linformer": from_linformer,
    "linformer-pytorch": from_linformer_pytorch,
    "fairseq": from_fairseq,
}


def convert_file(path: str | Path, *, source: str, **options: Any) -> LinformerPreTrainedModel:
    """A checkpoint file as a model that `save_pretrained` can save.

    source: linformer, linformer-pytorch or fairseq. options: of its `from_` function. Pickles are
    read with weights_only=True. An encoder without embeddings becomes a LinformerModel that reads
    vectors (`inputs_embeds`).
    """
    if source not in SOURCES:
        raise UserError(f"source must be one of {', '.join(SOURCES)}: got {source!r}.")
    convert: Any = SOURCES[source]
    known = [name for name in signature(convert).parameters if name not in ("source", "as_model")]
    unknown = [name for name in options if name not in known]
    if unknown:
        raise UserError(
            f"a checkpoint of {source} takes the options {', '.join(known)}: got "
            f"{', '.join(unknown)}."
        )
    if source != "fairseq":  # whose models can all be saved
        options["as_model"] = True
    model: LinformerPreTrainedModel = convert(read_checkpoint(path), **options)
    return model
