"""The libraries that commands need: what to install if one is missing, and no progress bars."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from ..errors import UserError


@contextmanager
def install_hint(extra: str = "train") -> Iterator[None]:
    """Say which package is missing and how to install it."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "linformer_kit":
            raise
        raise UserError(f"this needs {package}: pip install 'linformer-kit[{extra}]'") from error


def silence_libraries() -> None:
    """Switch off the progress bars of transformers and datasets, without importing datasets."""
    os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")  # read when it is imported
    if (loaded := sys.modules.get("datasets")) is not None:
        loaded.disable_progress_bars()
    with suppress(ModuleNotFoundError):  # told by the command that needs it
        from transformers.utils import logging

        logging.disable_progress_bar()
