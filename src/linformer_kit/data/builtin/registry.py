"""The built-in corpora by name."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from . import digits, letters, listops, needle, phrases, python_docs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(frozen=True)
class BuiltinCorpus:
    """How to make a corpus, the tasks it serves, and what its content depends on."""

    name: str
    tasks: tuple[str, ...]
    records: Callable[[dict[str, Any], int], Iterator[dict[str, Any]]]
    version: Callable[[], str]
    features: bool = False
    pairs: bool = False  # a text and its positive, as with `data.anchor`


BUILTIN = {
    corpus.name: corpus
    for corpus in (
        BuiltinCorpus(
            "python-docs",
            ("mlm", "clm", "embed"),
            python_docs.records,
            lambda: f"{python_docs.VERSION}, Python {platform.python_version()}",
        ),
        BuiltinCorpus(
            "phrases-en-de",
            ("translate",),
            phrases.records,
            lambda: (
                f"{phrases.VERSION}, babel {version('babel')}, num2words {version('num2words')}"
            ),
        ),
        BuiltinCorpus(
            "needle",
            ("embed",),
            needle.records,
            lambda: f"{needle.VERSION}, Python {platform.python_version()}",
            pairs=True,
        ),
        BuiltinCorpus("letters", ("tag",), letters.records, lambda: str(letters.VERSION)),
        BuiltinCorpus("listops", ("classify",), listops.records, lambda: str(listops.VERSION)),
        BuiltinCorpus(
            "digits",
            ("classify",),
            digits.records,
            lambda: f"scikit-learn {version('scikit-learn')}",
            features=True,
        ),
    )
}


def find(source: object) -> BuiltinCorpus | None:
    """The built-in corpus of this name, if `source` is one."""
    return BUILTIN.get(source) if isinstance(source, str) else None
