"""`letters`: business letters with the spans of people, dates, amounts of money and e-mail.

Every letter is made of sentences with slots, so its spans are right by construction. Surnames and
domains are made of syllables: most of those in the test part are not in the training part. Numbers
that are no amounts, years that are no dates, months that are names (May, April) and words that are
names (Rose, Will) are distractors. Some letters have CRLF line ends, emoji, accents as combining
marks, and white space around them.
"""

from __future__ import annotations

import random
import re
import unicodedata
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from ..spans import Span, Spans
from . import options as option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 1
DEFAULTS = {"documents": 3000, "min_sentences": 4, "max_sentences": 12}
MOST = {"documents": 10_000_000, "min_sentences": 100_000, "max_sentences": 100_000}

FIRST = (
    "Ada", "Alma", "Amir", "April", "Ben", "Chloé", "Clara", "David", "Elif", "Emre", "Esi",
    "Farah", "Finn", "Grace", "Hana", "Ivo", "Jack", "Jana", "José", "Kofi", "Lars", "Lena",
    "Li", "Mara", "Mark", "May", "Mei", "Mina", "Nadia", "Noah", "Olga", "Omar", "Paul",
    "Priya", "Rosa", "Rose", "Ruth", "Sami", "Sara", "Sofía", "Tariq", "Theo", "Tom", "Uma",
    "Vera", "Will", "Yusuf", "Zoë", "Åsa",
)  # fmt: skip
SYLLABLES = (
    "ba", "bel", "bor", "cal", "car", "da", "den", "dor", "el", "fen", "fer", "gan", "gil",
    "hal", "har", "in", "jo", "ka", "kel", "kor", "lan", "len", "lin", "mar", "mel", "min",
    "mon", "na", "nor", "ol", "or", "pa", "per", "qui", "ra", "ren", "ros", "sa", "sen", "sta",
    "tal", "tor", "ul", "va", "vel", "vin", "wen", "wil", "yar", "zan", "zel",
)  # fmt: skip
ENDINGS = ("", "", "", "son", "sen", "man", "ova", "ez", "ski", "ford", "berg", "ini")
TITLES = ("", "", "", "", "Mr. ", "Ms. ", "Dr. ", "Professor ")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip
NOUNS = (
    "lease", "delivery", "application", "audit", "roof", "catalogue", "claim", "garden",
    "translation", "course", "meter", "server", "conference", "tour", "licence", "report",
    "letter", "parcel", "budget", "form", "office", "table", "window", "door", "river",
    "street", "train", "ticket", "printer", "plan", "question", "answer", "list", "key", "box",
    "book", "page", "photo", "map", "bridge", "machine", "battery", "cable", "engine",
    "kitchen", "recipe", "soup", "bread", "coffee", "cheese", "apple", "field", "farm",
    "forest", "storm", "harbour", "ship", "island", "museum", "painting", "song", "concert",
    "school", "teacher", "student", "doctor", "nurse", "clinic", "market", "shop", "price",
    "offer", "order", "member", "team", "project", "meeting", "deadline", "holiday", "weather",
    "morning", "evening",
)  # fmt: skip
ADJECTIVES = (
    "old", "new", "large", "small", "open", "closed", "annual", "second", "final", "early",
    "late", "broken", "missing", "blue", "green", "red", "heavy", "light", "quiet", "loud",
    "warm", "cold", "empty", "full", "second-hand", "wooden", "public", "private", "local",
    "foreign", "monthly", "important", "simple", "strange", "careful",
)  # fmt: skip
VERBS = (
    "send", "transfer", "return", "check", "open", "close", "sign", "read", "forget", "repair",
    "replace", "confirm", "move", "bring", "keep", "find", "lose", "paint", "clean", "test",
    "count", "copy", "describe", "explain", "order", "cancel", "mark", "plan", "discuss",
    "visit", "build", "carry",
)  # fmt: skip
ADVERBS = (
    "soon", "today", "again", "carefully", "quickly", "slowly", "later", "together", "twice",
    "as usual", "in time", "at once", "without delay", "on the way",
)  # fmt: skip
SENTENCES = (  # with what is to be found
    "{person} confirmed {topic} on {date}.",
    "Please {verb} {topic} and {verb} {amount} by {date} at the latest.",
    "please send {amount} to {email} {adverb}",
    "For questions about {topic}, write to {email}.",
    "The invoice of {date} over {amount} has not been paid yet.",
    "{person} and {person} will meet on {date} to {verb} {topic}.",
    "We received {amount} from {person}, but {topic} costs {amount}.",
    "You can reach {person} at {email} or under extension {number}.",
    "Between {date} and {date}, {person} cannot {verb} {topic}.",
    "As of {date}, {topic} costs {amount} a month.",
    "{person} ({email}) did {verb} page {number} {adverb}.",
    "A copy went to {email}, to {person} and to the {noun}.",
    "It is now {person}'s turn to {verb} {topic}.",
    "I asked {person}: did you {verb} {topic} {adverb}?",
    "{amount}, {date}, {person}: {noun}, {noun}.",
    "On {date} the {noun} of {person} was {adjective}.",
    "{topic} was sold for {amount} {adverb}.",
    "Contact: {email} / {person}",
)
FILLERS = (  # without
    "Section {number} of the agreement covers {topic}, and nothing else.",
    "There are {number} boxes in room {number}; two of them are {adjective}.",
    "We may {verb} {topic} late, and we will mark every {adjective} {noun}.",
    "In {year} we moved to a larger building, where a rose grows at the gate.",
    "The {noun} begins at {time} and ends before {time}.",
    "Version {number}.{number} of {topic} replaces all earlier ones.",
    "Nothing in {topic} has changed since the march of prices began.",
    "Order {code} is still open 🙂, order {code} is {adjective} ✅.",
    "About {number} % of the {number} visitors came back {adverb}.",
    "Thank you 👩‍💻 for {topic} and for the quick {noun}!",
    "The {adjective} {noun} is {adjective}, the {noun} is not.",
    "You must {verb} {topic} {adverb}, or {verb} it {adverb}.",
    "we can {verb} the {noun}, {verb} {number} of them and {verb} the rest {adverb}",
    "Why did nobody {verb} {topic}? It was {adjective} in {year}.",
    "{noun} {number}: {adjective}, {adjective}; {noun} {number}: {adjective}.",
    "If it is {adjective}, {verb} it; if not, {verb} {topic} {adverb}.",
)
OPENINGS = (
    "Dear {person},", "Hello {person}!", "To whom it may concern,", "From: {email}", "{date}",
)  # fmt: skip
CLOSINGS = (
    "Kind regards,{line}{person}", "Yours sincerely,{line}{person}{line}{email}",
    "Best wishes 🌷",
)  # fmt: skip
_SLOT = re.compile(r"\{(\w+)\}")


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """Letters, each with its spans."""
    chosen = option.take("letters", options, DEFAULTS, MOST)
    if not 1 <= chosen["min_sentences"] <= chosen["max_sentences"]:
        raise UserError(
            "letters needs min_sentences of at least 1 and at most max_sentences: got "
            f"{chosen['min_sentences']} and {chosen['max_sentences']}."
        )
    draw = random.Random(f"letters {seed}")
    for _ in range(chosen["documents"]):
        yield _letter(draw, chosen["min_sentences"], chosen["max_sentences"])


def _letter(draw: random.Random, least: int, most: int) -> dict[str, Any]:
    line = "\r\n" if draw.random() < 0.25 else "\n"
    decomposed = draw.random() < 0.25  # é as e and a combining accent
    body = [
        draw.choice(SENTENCES if draw.random() < 0.6 else FILLERS)
        for _ in range(draw.randint(least, most))
    ]
    template = draw.choice(OPENINGS) + "{line}{line}"
    for sentence in body:
        template += sentence + ("{line}" if draw.random() < 0.2 else " ")
    template += "{line}{line}" + draw.choice(CLOSINGS)
    text, spans = "  " * (draw.random() < 0.1), Spans()
    at = 0
    for slot in _SLOT.finditer(template):
        text += template[at : slot.start()]
        value = line if slot[1] == "line" else _SLOTS[slot[1]](draw)
        value = unicodedata.normalize("NFD", value) if decomposed else value
        if slot[1] in TYPES:
            spans.append(Span(len(text), len(text) + len(value), slot[1]))
        text += value
        at = slot.end()
    return {"text": text + template[at:] + " \n" * (draw.random() < 0.1), "spans": spans}


def _topic(draw: random.Random) -> str:
    adjective = f"{draw.choice(ADJECTIVES)} " if draw.random() < 0.5 else ""
    return f"{draw.choice(('the', 'our', 'your'))} {adjective}{draw.choice(NOUNS)}"


def _surname(draw: random.Random) -> str:
    name = "".join(draw.choices(SYLLABLES, k=draw.randint(1, 3))) + draw.choice(ENDINGS)
    return name.capitalize()


def _person(draw: random.Random) -> str:
    form = draw.random()
    if form < 0.15:
        return draw.choice(FIRST)
    if form < 0.3:
        return f"{draw.choice(('Mr.', 'Ms.', 'Dr.'))} {_surname(draw)}"
    middle = f"{draw.choice('ABCDEFGHJKLMNPRSTVW')}. " if draw.random() < 0.1 else ""
    last = _surname(draw) + (f"-{_surname(draw)}" if draw.random() < 0.1 else "")
    return f"{draw.choice(TITLES)}{draw.choice(FIRST)} {middle}{last}"


def _date(draw: random.Random) -> str:
    day, month, year = draw.randint(1, 28), draw.randint(1, 12), draw.randint(1990, 2035)
    name = MONTHS[month - 1]
    return draw.choice(
        (
            f"{day} {name} {year}",
            f"{name} {day}, {year}",
            f"{year}-{month:02}-{day:02}",
            f"{day:02}.{month:02}.{year}",
            f"{name} {day}",
            f"{day}. {name}",
        )
    )


def _amount(draw: random.Random) -> str:
    value = draw.randint(1, 10 ** draw.randint(2, 6))
    whole, cents = f"{value:,}", draw.randint(0, 99)
    return draw.choice(
        (
            f"€{whole}",
            f"${whole}.{cents:02}",
            f"{whole} euros",
            f"{whole}.{cents:02} EUR",
            f"£{whole}",
            f"{value} dollars",
            f"CHF {whole}",
        )
    )


def _email(draw: random.Random) -> str:
    name = unicodedata.normalize("NFD", draw.choice(FIRST)).encode("ascii", "ignore").decode()
    joint = draw.choice(("", ".", "_", "-"))
    domain = "".join(draw.choices(SYLLABLES, k=draw.randint(2, 3)))
    ending = draw.choice(("com", "org", "net", "example", "co.uk", "de"))
    user = draw.choice((f"{name}{joint}{_surname(draw)}", f"{_surname(draw)}{draw.randint(1, 99)}"))
    return f"{user.lower()}@{domain}.{ending}"


_SLOTS: dict[str, Callable[[random.Random], str]] = {
    "person": _person,
    "date": _date,
    "amount": _amount,
    "email": _email,
    "noun": lambda draw: draw.choice(NOUNS),
    "adjective": lambda draw: draw.choice(ADJECTIVES),
    "verb": lambda draw: draw.choice(VERBS),
    "adverb": lambda draw: draw.choice(ADVERBS),
    "topic": _topic,
    "number": lambda draw: str(draw.randint(2, 999)),
    "year": lambda draw: str(draw.randint(1950, 2025)),
    "time": lambda draw: f"{draw.randint(7, 20)}:{draw.choice(('00', '15', '30', '45'))}",
    "code": lambda draw: f"{draw.choice('ABCKLX')}-{draw.randint(1000, 99999)}",
}
TYPES = ("person", "date", "amount", "email")
