"""Turn a pretrained Transformer encoder into a Linformer that keeps what it knows.

`convert` gives a BERT-like model's weights to the matching class of `linformer_kit.models`;
`linformerize` exchanges the attention inside any model; `calibrate` sets the start values of `pool`
from data, and `distill` trains either against the original. Nothing of transformers is imported
before it is needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .calibration import calibrate as calibrate
    from .distilling import distill as distill
    from .in_place import linformerize as linformerize
    from .in_place import linformerized as linformerized
    from .linformerized_folder import load_linformerized as load_linformerized
    from .linformerized_folder import save_linformerized as save_linformerized
    from .rehome import convert as convert

_HOME = {
    "calibrate": "calibration",
    "convert": "rehome",
    "distill": "distilling",
    "linformerize": "in_place",
    "linformerized": "in_place",
    "load_linformerized": "linformerized_folder",
    "save_linformerized": "linformerized_folder",
}
__all__ = [
    "calibrate",
    "convert",
    "distill",
    "linformerize",
    "linformerized",
    "load_linformerized",
    "save_linformerized",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_HOME[name]}", __name__), name)
