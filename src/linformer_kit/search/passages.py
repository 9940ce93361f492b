"""The text of a passage that was found, from the document as it is now."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from ..artifact import digest
from ..data import files
from ..errors import UserError, reason_of
from .index import BUILD_AGAIN

if TYPE_CHECKING:
    from .index import Hit, Index


WORD = 30  # characters that are looked through for the rest of a word


def passage_text(
    index: Index, hit: Hit, *, longest: int | None = None
) -> tuple[str | None, str | None]:
    """The passage; or None and why: the document has changed since the index was built, or gone.

    With `longest`, its beginning in one line of whole words, of about so many characters.
    """
    known = next(d["digest"] for d in index.about["documents"] if d["path"] == hit.path)
    path = Path(index.about["source"]) / hit.path
    try:
        text = files.whole(path, files.Limits())
    except UserError as error:
        return None, f"{hit.path} cannot be read any more: {reason_of(error)}"
    if digest(text) != known:
        return None, f"{hit.path} has changed since the index was built. Run linformer index again."
    if hit.end > len(text):
        raise UserError(
            f"a passage of {hit.path} must end within its {len(text):,} characters: got "
            f"{hit.end:,}. {BUILD_AGAIN}"
        )
    passage = text[hit.start : hit.end]
    if longest is None:
        return passage, None
    before = re.findall(r"\S*$", text[max(0, hit.start - WORD) : hit.start])[0]
    after = re.findall(r"^\S*", text[hit.end : hit.end + WORD])[0]
    line = " ".join(f"{before}{passage}{after}".split())
    if len(line) > longest:
        space = line.rfind(" ", longest // 2, longest + 1)
        line = f"{line[: space if space > 0 else longest]} ..."
    return line, None
