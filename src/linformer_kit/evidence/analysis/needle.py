"""The needle test: is a sentence found again that is hidden in a long document, at every depth?

For every length there are documents x depths candidates. All share one haystack and differ in the
sentence that is hidden in it, and in its depth. A question is answered if, of all candidates of its
length, the nearest by cosine is the one with its answer. The protocol is that of LongEmbed (Zhu et
al. 2024), with texts of our own: see `data/builtin/needle.py`.

Legend: B candidates, M size of a vector.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from ...core import checks
from ...data.builtin.needle import KINDS, Kind, haystack, needles
from ...data.overflow import Overflow, mean_of_pieces
from ...data.tokenizer import encode_whole
from ...errors import UserError, user_input
from ...machine_memory import require_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ...config.on_overflow import OnOverflow
    from ...data.builtin.needle import Needle
    from ...measure.records import Record
    from ...models.text_input import Frame

KIND = "needle"
LENGTHS = (256, 512, 1024, 2048, 4096, 8192, 16_384, 32_768)
POLICIES: tuple[OnOverflow, ...] = ("truncate", "chunk")
OVERLAP = 0.125  # of pieces
ID_BYTES = 40  # of a token id in a list
ENCODING_IDS = 4  # times that, an encoding takes while a document is made
COSINE_BYTES = 24  # of a pair of candidates: their cosine and two copies
TIE = 1e-6  # cosines nearer than this are equal: rounding


class TextVectors(Protocol):
    """A model that turns rows of token ids into vectors (B, M) of norm 1."""

    tokenizer: Any
    frame: Frame
    longest: int

    def vectors(self, rows: Sequence[np.ndarray]) -> np.ndarray: ...


@dataclass(frozen=True, kw_only=True)
class NeedleOptions:
    """What is asked, and how documents are read.

    lengths: tokens of documents, with their frame. depths: how many, evenly from start to end.
    documents: of each depth and length. policy: for those longer than the model reads.
    """

    lengths: tuple[int, ...] = LENGTHS
    depths: int = 5
    documents: int = 5
    kinds: tuple[Kind, ...] = KINDS
    policy: OnOverflow = "truncate"
    seed: int = 0

    def __post_init__(self) -> None:
        checks.positive("depths", self.depths)
        checks.positive("documents", self.documents)
        if self.depths * self.documents < 2:
            raise UserError("the needle test needs at least 2 candidates: depths x documents is 1.")
        candidates, length = self.depths * self.documents, max(self.lengths)
        with user_input("the needle test is too large"):
            require_memory(
                f"{candidates:,} candidates of up to {length:,} tokens",
                ID_BYTES * length * (candidates + ENCODING_IDS) + COSINE_BYTES * candidates**2,
                remedy="Use fewer --depths and --documents, or smaller --lengths.",
            )
        for kind in self.kinds:
            checks.one_of("a kind of the needle test", kind, KINDS)
        if self.policy not in POLICIES:
            raise UserError(
                f"a document of the needle test is read by one of {', '.join(POLICIES)}: got "
                f"{self.policy}."
            )


def needle_test(
    model: TextVectors,
    options: NeedleOptions,
    *,
    name: str,
    machine: Record,
    say: Callable[[str], None] = lambda text: None,
) -> Record:
    """The record: for each kind the accuracy by depth and length, and how much was read."""
    depths = np.linspace(0, 1, options.depths).tolist() if options.depths > 1 else [0.5]
    parts = []
    for kind in options.kinds:
        cells = []
        for length in options.lengths:
            say(f"{kind}, {length:,} tokens")
            cells.append(_cells(model, options, kind, length, depths))
        parts.append({"haystack": kind, "lengths": cells})
    return {
        "kind": KIND,
        "model": name,
        "longest": model.longest,
        "policy": options.policy,
        "candidates": options.depths * options.documents,
        "depths": [round(depth, 4) for depth in depths],
        "parts": parts,
        "machine": machine,
    }


def _cells(
    model: TextVectors, options: NeedleOptions, kind: Kind, length: int, depths: list[float]
) -> Record:
    """One length: accuracy of every depth, and the tokens of all documents."""
    draw = random.Random(f"{kind} {length} {options.seed}")
    asked = needles(kind, options.depths * options.documents, draw, held_out=True)
    hidden = [depth for depth in depths for _ in range(options.documents)]
    ids = documents(model, kind, asked, hidden, length, draw)
    overflow = Overflow(options.policy, model.longest, model.frame.size, OVERLAP)
    pieces = [overflow.pieces(len(one)) for one in ids]
    found = _vectors(model, ids, pieces)
    encoded = [one.ids for one in encode_whole(model.tokenizer, [one.question for one in asked])]
    questions = _vectors(model, encoded, [overflow.pieces(len(one)) for one in encoded])
    right = first_shares(questions, found).reshape(len(depths), options.documents)
    readings = [overflow.reading(len(one), cut) for one, cut in zip(ids, pieces, strict=True)]
    return {
        "length": length,
        "accuracy": [round(float(share), 4) for share in right.mean(1)],
        "tokens_read": sum(reading.tokens_read for reading in readings),
        "tokens_total": sum(reading.tokens_total for reading in readings),
        "pieces": max(map(len, pieces)),
    }


def _vectors(
    model: TextVectors, texts: Sequence[list[int]], pieces: Sequence[list[range]]
) -> np.ndarray:
    """(B, M): the vectors of texts, of which pieces are read and averaged by their tokens."""
    rows = [
        model.frame.row(ids[piece.start : piece.stop])
        for ids, cut in zip(texts, pieces, strict=True)
        for piece in cut
    ]
    of_rows, at, found = model.vectors(rows), 0, []
    for cut in pieces:
        here = of_rows[at : at + len(cut)]
        found.append(mean_of_pieces(here, [len(piece) for piece in cut]))
        at += len(cut)
    return np.stack(found)


def documents(
    model: TextVectors,
    kind: Kind,
    hidden: Sequence[Needle],
    depths: Sequence[float],
    length: int,
    draw: random.Random,
) -> list[list[int]]:
    """Token ids without frame of one document a needle, each at most `length` with its frame.

    A needle lies between two sentences, as near to its depth as that allows.
    """
    room = length - model.frame.size
    counts: list[int] = []
    hay: list[str] = []
    total = 0
    for sentence in haystack(kind, draw, held_out=True):
        hay.append(sentence)
        counts.append(_tokens(model, sentence))
        total += counts[-1]
        if total >= room:
            break
    ends = np.cumsum([0, *counts])
    found = []
    for needle, depth in zip(hidden, depths, strict=True):
        own = _tokens(model, needle.answer)
        used = int(np.searchsorted(ends, room - own, side="right")) - 1  # sentences that fit
        while used >= 0:
            before = int(np.abs(ends[: used + 1] - depth * ends[used]).argmin())
            text = " ".join([*hay[:before], needle.answer, *hay[before:used]])
            (encoded,) = encode_whole(model.tokenizer, [text])
            if len(encoded.ids) <= room:
                break
            used -= 1  # joined sentences may have more tokens than alone
        else:
            raise UserError(
                f"a document of the needle test must have room for its needle: got {length} "
                f"tokens for one of {own + model.frame.size}. Use longer ones."
            )
        found.append(encoded.ids)
    return found


def first_shares(questions: np.ndarray, candidates: np.ndarray) -> np.ndarray:
    """(B): 1 if the candidate of a question is the nearest, 1/t if t are equally near, else 0.

    Documents that were cut before their needles are all equal: guessing is right once in B.
    """
    cosines = _unit(questions) @ _unit(candidates).T  # (B, B)
    nearest = cosines >= cosines.max(1, keepdims=True) - TIE
    own = nearest[np.arange(len(nearest)), np.arange(len(nearest))]
    shares: np.ndarray = own / nearest.sum(1)
    return shares


def _unit(vectors: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float64)
    return wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), 1e-12)


def _tokens(model: TextVectors, text: str) -> int:
    (encoded,) = encode_whole(model.tokenizer, [f" {text}"])
    return len(encoded.ids)
