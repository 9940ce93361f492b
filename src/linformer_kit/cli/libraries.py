"""The libraries that commands need: what to install if one is missing, and no progress bars."""

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
    """Switch off the progress bars of transformers and datasets; importing them takes seconds."""
    from datasets import disable_progress_bars
    from transformers.utils import logging

    logging.disable_progress_bar()
    disable_progress_bars()


def hide_progress_bars() -> None:
    """Switch off those of transformers, for commands that do without datasets."""
    with suppress(ModuleNotFoundError):  # told by load_encoder
        from transformers.utils import logging

        logging.disable_progress_bar()
