"""The spans that a model finds in a text, with their characters in the text as it was given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..data.encode import UNBOUNDED, Bounds
from ..data.iob import types_of
from ..data.spans import Span, redacted
from ..data.tagging import spans_of_tokens, token_ranges, word_starts
from .tasks import Question, TaskPredictor

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np


@dataclass(frozen=True)
class _Tokens:
    """A text, the characters of its tokens, which of them begin a word, and the pieces."""

    text: str
    ranges: np.ndarray
    starts: np.ndarray
    pieces: list[range]


class Tag(TaskPredictor):
    """Spans in order, each with its text, label, offsets in characters and score.

    Spans of overlapping pieces are joined. With `redact` there is one answer: the text with
    `[label]` in the place of each span, and the spans beside it.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.options.redact:
            self.columns = ("prediction", "predictions")

    def encode(self, text: str, bounds: Bounds = UNBOUNDED) -> Question:
        encoding = self.tokens(text, bounds)
        pieces = self.overflow.pieces(len(encoding.ids))
        ranges = token_ranges(encoding.offsets, text)
        facts = _Tokens(text, ranges, word_starts(ranges, text), pieces)
        return self.question(encoding.ids, pieces, facts=facts)

    def forward(
        self, pieces: Sequence[np.ndarray], model: Any, places: Sequence[tuple[Any, int]]
    ) -> list[Any]:
        likely = model(**self.batch(pieces)).logits.float().softmax(-1).cpu().numpy()
        first, after = len(self.frame.before), len(self.frame.after)
        return [
            rows[first : len(piece) - after] for rows, piece in zip(likely, pieces, strict=True)
        ]

    def merge(self, question: Question, outputs: list[Any]) -> list[dict[str, Any]]:
        config, known = self.model.config, question.facts
        types = types_of([config.id2label[number] for number in range(config.num_labels)])
        spans = [
            {
                "text": known.text[found.start : found.end],
                "label": types[found.type],
                "start": found.start,
                "end": found.end,
                "score": found.score,
            }
            for found in spans_of_tokens(known.ranges, known.starts, known.pieces, outputs)
        ]
        if not self.options.redact:
            return spans
        hidden = [Span(one["start"], one["end"], one["label"]) for one in spans]
        return [{"text": redacted(known.text, hidden), "spans": spans}]
