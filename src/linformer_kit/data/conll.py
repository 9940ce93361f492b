"""CoNLL columns: a word a line with its label in the last column, a blank line between sentences.

    EU        NNP  B-ORG
    rejects   VBZ  O

Columns are separated by spaces or tabs; the first is the word. `-DOCSTART-` begins a document.
Comments of CoNLL-U (`# key = value`) are left out.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ..errors import UserError, cut
from . import files
from .spans import from_words, joined

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ..config.schema import Documents
    from .files import Limits
    from .spans import Spans
    from .tables import Placed

DOCUMENT = "-DOCSTART-"
_COLUMN = re.compile(r"[^ \t\r\n]+")  # other white space, such as U+00A0, is part of a word
_COMMENT = re.compile(r"#\s*[\w.:-]+\s*=|#\s*(newdoc|newpar)\b")


def read(path: Path, documents: Documents, limits: Limits) -> Iterator[Placed]:
    """Records of text and spans: a sentence each, or with `documents: file` a document each."""
    if documents == "line":
        raise UserError(
            f"{path} has a word a line: data.documents must be blank-line (a record is a sentence) "
            "or file (a record is a document): got line."
        )
    gathered: list[tuple[str, Spans]] = []
    start = 1
    for number, sentence in _sentences(path, limits):
        if sentence is None:  # the end of a document
            if gathered:
                yield _record(path, start, gathered)
                gathered = []
            continue
        start = start if gathered else number
        gathered.append(sentence)
        if documents == "blank-line":
            yield _record(path, start, gathered)
            gathered = []
    if gathered:
        yield _record(path, start, gathered)


def _record(path: Path, line: int, sentences: list[tuple[str, Spans]]) -> Placed:
    text, spans = joined(sentences)
    return f"line {line} of {path}", {"text": text, "spans": spans}


def _sentences(path: Path, limits: Limits) -> Iterator[tuple[int, tuple[str, Spans] | None]]:
    """Sentences with the line they begin at; None where a document begins."""
    words: list[str] = []
    labels: list[str] = []
    start = 1
    for number, line in enumerate(files.lines(path, limits), start=1):
        columns = _COLUMN.findall(line)
        if columns and not words and _COMMENT.match(line):
            continue
        document = bool(columns) and columns[0] == DOCUMENT
        if words and (not columns or document):
            yield start, from_words(words, labels, f"line {start} of {path}")
            words, labels = [], []
        if document:
            yield number, None
        elif columns:
            if len(columns) < 2:
                raise UserError(
                    f"line {number} of {path} must have a word and a label, separated by spaces or "
                    f"tabs: got {cut(line.strip())!r}."
                )
            start = start if words else number
            words.append(columns[0])
            labels.append(columns[-1])
    if words:
        yield start, from_words(words, labels, f"line {start} of {path}")
