"""Data sets of the Hugging Face hub, streamed. None of their code is run."""

from __future__ import annotations

import pkgutil
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UserError, user_input
from ..hub import require_hub

if TYPE_CHECKING:
    from collections.abc import Iterator

    from .tables import Placed

PREFIX = "hub:"


def read(source: str, columns: list[str]) -> Iterator[Placed]:
    """The records of `hub:owner/name`, with `:config` or `@split` after it.

    `datasets` 4 and later has no `trust_remote_code`: it refuses data sets with a script of their
    own. It still takes a local folder, or one of its own readers over the current folder (of which
    `pandas` unpickles), for a name that is one. Both are refused here.
    """
    import datasets
    from datasets import packaged_modules

    name, _, split = source.removeprefix(PREFIX).partition("@")
    name, _, config = name.partition(":")
    readers = {module.name for module in pkgutil.iter_modules(packaged_modules.__path__)}
    if not name.strip() or name in readers:
        raise UserError(
            f"{PREFIX} needs the name of a data set, such as {PREFIX}owner/name: got {source!r}."
        )
    with user_input(f"cannot load the data set {name!r} from the hub"):
        if Path(name).exists():
            raise UserError(
                f"{source!r} names a data set of the hub, and {name} is a local file or folder. "
                f"Leave {PREFIX} out to read the local one."
            )
        require_hub(name, "README.md")
        rows = datasets.load_dataset(name, config or None, split=split or "train", streaming=True)
        for number, row in enumerate(rows, start=1):
            for column in columns:
                if column not in row:
                    raise UserError(
                        f"the data set {name} has no column {column!r}: it has {', '.join(row)}."
                    )
            record = {column: row[column] for column in columns}
            yield f"row {number} of the data set {name}", record
