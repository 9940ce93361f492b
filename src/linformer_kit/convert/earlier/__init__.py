"""Checkpoints of the earlier implementations of Linformer, with equal outputs, and back.

`from_linformer`, `from_linformer_pytorch` and `from_fairseq` take a module of theirs or its state
dict; `to_linformer`, `to_linformer_pytorch` and `to_fairseq` give theirs back. `convert_file` reads
a checkpoint file of any of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...errors import UserError
from . import fairseq, linformer, linformer_pytorch
from .checkpoint import read_checkpoint
from .fairseq import from_fairseq, to_fairseq
from .linformer import from_linformer, to_linformer
from .linformer_pytorch import from_linformer_pytorch, to_linformer_pytorch

if TYPE_CHECKING:
    from pathlib import Path

    from ...models import LinformerPreTrainedModel

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
SOURCES = {each.PACKAGE: each.converted for each in (linformer, linformer_pytorch, fairseq)}


def convert_file(path: str | Path, *, source: str, **options: Any) -> LinformerPreTrainedModel:
    """A checkpoint file as a model that `save_pretrained` can save.

    source: linformer, linformer-pytorch or fairseq. options: of its `from_` function. Pickles are
    read with weights_only=True. A checkpoint of an encoder without embeddings becomes a
    LinformerModel that reads vectors (`inputs_embeds`).
    """
    if source not in SOURCES:
        raise UserError(f"source must be one of {', '.join(SOURCES)}: got {source!r}.")
    found = SOURCES[source](read_checkpoint(path), **options)
    if found.kind == "attention":
        raise UserError(
            f"{path} holds one attention layer, which is no model: convert it with "
            f"linformer_kit.convert.earlier.from_{source.replace('-', '_')}."
        )
    return found.model()
