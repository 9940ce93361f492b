"""`needle`: questions, and long documents that answer each in one sentence at any depth.

Two kinds, after the protocol of LongEmbed (Zhu et al. 2024): of `passkey` the rest of a document is
five short sentences over and over, of `needle` it is English from the documentation of Python.

The needle test (`linformer evaluate --needle`) asks about people, short sentences and pages that
are held out: this corpus never has them.
"""

from __future__ import annotations

import math
import random
import re
import zlib
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from ...errors import UserError
from . import options as option
from . import python_docs
from .letters import ADJECTIVES, ENDINGS, FIRST, NOUNS, SYLLABLES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Kind = Literal["passkey", "needle"]
KINDS: tuple[Kind, ...] = get_args(Kind)

VERSION = 1
DEFAULTS = {"documents": 4000, "min_words": 40, "max_words": 3000}
MOST = {"documents": 10_000_000, "min_words": 1_000_000, "max_words": 1_000_000}
REPEATED = 5  # sentences that a haystack of `passkey` repeats

PLACES = (
    "attic", "barn", "cellar", "chapel", "cabin", "garage", "greenhouse", "kitchen", "library",
    "lighthouse", "mill", "office", "pantry", "shed", "stable", "studio", "tower", "workshop",
)  # fmt: skip
PASSKEY = (
    "What is the pass key of {name}?",
    "The pass key of {name} is {key}. Remember it: {key} is the pass key of {name}.",
)
FACTS = (
    (
        "Where does {name} keep the {adjective} {noun}?",
        "{name} keeps the {adjective} {noun} in the {place}.",
    ),
    ("What did {name} paint last summer?", "Last summer {name} painted the {adjective} {noun}."),
    (
        "Which code opens the {place} of {name}?",
        "The {place} of {name} opens with the code {key}.",
    ),
    (
        "What does {name} want to buy next year?",
        "Next year {name} wants to buy a {adjective} {noun}.",
    ),
    (
        "Who took the {noun} out of the {place}?",
        "It was {name} who took the {noun} out of the {place}.",
    ),
    (
        "How much did {name} pay for the {adjective} {noun}?",
        "{name} paid {key} dollars for the {adjective} {noun}.",
    ),
    ("What is {name} afraid of?", "{name} is afraid of every {adjective} {noun}."),
    ("Where was {name} born?", "{name} was born in a {adjective} {place} beside a {noun}."),
)
SHORT = (
    "The water is clear.", "Snow falls in the night.", "A cat sits on the wall.",
    "We walk along the road.", "The door is open.", "Bread is on the table.",
    "The moon is white.", "Birds sing in the morning.", "It is warm today.",
    "A boat lies at the pier.", "The path goes up the hill.", "Leaves are on the ground.",
    "Children play outside.", "The lamp is lit.", "A clock ticks.", "The tea is hot.",
    "Wind moves the trees.", "The sand is soft.", "Rain is on the roof.", "The house is old.",
)  # fmt: skip
HELD_OUT_SHORT = (
    "The field is wide.", "Clouds cross the valley.", "The fire is low.",
    "We turn at the bridge.", "Home is not far now.",
)  # fmt: skip
_NOT_PROSE = re.compile(r"[^\w\s.,;:!?'\"()-]|__")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")


class Needle(NamedTuple):
    """A question and the sentence that answers it."""

    question: str
    answer: str


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, str]]:
    """Questions as `text`, each with the document that answers it as `positive`.

    The lengths of documents, in words, are drawn log-uniformly, depths uniformly.
    """
    chosen = option.take("needle", options, DEFAULTS, MOST)
    least, most = chosen["min_words"], chosen["max_words"]
    if least > most:
        raise UserError(f"needle needs min_words of at most max_words: got {least} and {most}.")
    draw = random.Random(f"needle {seed}")
    seen: set[str] = set()
    while len(seen) < chosen["documents"]:
        kind = draw.choice(KINDS)
        (needle,) = needles(kind, 1, draw, held_out=False)
        if needle.question in seen:
            continue
        seen.add(needle.question)
        words = round(math.exp(draw.uniform(math.log(least), math.log(most))))
        hay = []
        for sentence in haystack(kind, draw, held_out=False):
            hay.append(sentence)
            words -= len(sentence.split())
            if words <= 0:
                break
        place = draw.randint(0, len(hay))
        document = " ".join([*hay[:place], needle.answer, *hay[place:]])
        yield {"text": needle.question, "positive": document}


def needles(kind: Kind, count: int, draw: random.Random, *, held_out: bool) -> list[Needle]:
    """Different questions, about as many people."""
    found: list[Needle] = []
    people: set[str] = set()
    questions: set[str] = set()
    while len(found) < count:
        surname = "".join(draw.choices(SYLLABLES, k=draw.randint(2, 3))) + draw.choice(ENDINGS)
        name = f"{draw.choice(FIRST)} {surname.capitalize()}"
        if (zlib.crc32(surname.encode()) % 4 == 0) != held_out or name in people:
            continue
        people.add(name)
        slots = {
            "name": name,
            "key": str(draw.randint(10_000, 99_999)),
            "adjective": draw.choice(ADJECTIVES),
            "noun": draw.choice(NOUNS),
            "place": draw.choice(PLACES),
        }
        question, answer = PASSKEY if kind == "passkey" else draw.choice(FACTS)
        needle = Needle(question.format(**slots), answer.format(**slots))
        if needle.question not in questions:
            questions.add(needle.question)
            found.append(needle)
    return found


def haystack(kind: Kind, draw: random.Random, *, held_out: bool) -> Iterator[str]:
    """Sentences without end."""
    if kind == "passkey":
        repeated = HELD_OUT_SHORT if held_out else draw.sample(SHORT, REPEATED)
        while True:
            yield from repeated
    sentences = _sentences(held_out)
    at = draw.randrange(len(sentences))
    while True:
        yield sentences[at % len(sentences)]
        at += 1


@cache
def _sentences(held_out: bool) -> Sequence[str]:
    """Sentences of prose: of every fourth page if held out, else of the others."""
    return _pages()[held_out]


@cache
def _pages() -> tuple[Sequence[str], Sequence[str]]:
    """The sentences of `python-docs`, not held out and held out.

    Lines of code and tables have no end of a sentence, or characters that prose has not.
    """
    found: tuple[list[str], list[str]] = ([], [])
    for number, page in enumerate(python_docs.records({}, 0)):
        for sentence in _SENTENCE.split(" ".join(page["text"].split())):
            if 5 <= len(sentence.split()) <= 40 and not _NOT_PROSE.search(sentence):
                found[number % 4 == 0].append(sentence)
    return found
