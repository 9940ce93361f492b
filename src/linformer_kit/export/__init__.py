"""Models for other runtimes: ONNX files, checked against the model they were made of."""

from __future__ import annotations

from ..errors import UserError

NEEDED = ("onnx", "onnxscript", "onnxruntime")


class ExportError(UserError):
    """A model cannot be exported, or a file cannot be run; the message says why."""


def require(*packages: str) -> None:
    """Refuse to begin without what is needed."""
    for package in packages:
        try:
            __import__(package)
        except ModuleNotFoundError as error:
            raise ExportError(f"ONNX needs {package}: pip install 'linformer-kit[onnx]'") from error
