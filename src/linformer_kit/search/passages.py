"""The text of a passage that was found, from the document as it is now."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from ..data import files
from ..errors import UserError, reason_of

if TYPE_CHECKING:
    from .index import Hit, Index


def passage_text(index: Index, hit: Hit) -> tuple[str | None, str | None]:
    """The passage; or None and why: the document has changed since the index was built, or gone."""
    digest = next(d["digest"] for d in index.about["documents"] if d["path"] == hit.path)
    path = Path(index.about["source"]) / hit.path
    try:
        text = files.whole(path, files.Limits())
    except UserError as error:
        return None, f"{hit.path} cannot be read any more: {reason_of(error)}"
    if hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest() != digest:
        return None, f"{hit.path} has changed since the index was built. Run linformer index again."
    return text[hit.start : hit.end], None
