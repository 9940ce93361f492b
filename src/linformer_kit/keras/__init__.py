"""Linformer for Keras 3, on the torch, JAX and TensorFlow backends.

Keras takes its backend from the variable KERAS_BACKEND or from ~/.keras/keras.json, when it is
imported first. Nothing is set here.
"""

from __future__ import annotations

try:
    import keras  # noqa: F401
except ModuleNotFoundError as error:
    missing = (error.name or "").partition(".")[0]
    if missing == "keras":
        raise ModuleNotFoundError(
            "linformer_kit.keras needs Keras 3: pip install 'linformer-kit[keras]'", name="keras"
        ) from error
    raise ModuleNotFoundError(
        f"Keras needs its backend, {missing}, which is not installed. Install it, or choose "
        "another before Keras is imported: KERAS_BACKEND=torch",
        name=missing,
    ) from error

from .attention import LinearMultiHeadAttention
from .encoder import LinformerEncoder

__all__ = ["LinearMultiHeadAttention", "LinformerEncoder"]
