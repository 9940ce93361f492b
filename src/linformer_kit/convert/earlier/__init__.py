"""Checkpoints of the earlier implementations of Linformer, with equal outputs, and back."""

from .giving_back import to_fairseq, to_linformer, to_linformer_pytorch
from .loading import SOURCES, convert_file, from_fairseq, from_linformer, from_linformer_pytorch

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
