"""`phrases-en-de`: English phrases with their German, made of CLDR's data (Babel) and num2words.

Dates, times, spans, numbers in words, amounts of money, measures, countries, languages and lists of
them. Every pair follows from the same value formatted in both languages, so it is right by
construction.
"""

from __future__ import annotations

import random
from datetime import date, datetime, time, timedelta
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from . import options as option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 1
DEFAULTS = {"pairs": 30_000}
MOST = {"pairs": 10_000_000}
UNITS = [
    "length-kilometer",
    "length-meter",
    "length-centimeter",
    "length-mile",
    "mass-kilogram",
    "mass-gram",
    "mass-ton",
    "volume-liter",
    "volume-milliliter",
    "duration-hour",
    "duration-minute",
    "duration-second",
    "duration-day",
    "duration-week",
    "duration-month",
    "duration-year",
    "speed-kilometer-per-hour",
    "temperature-celsius",
    "area-square-meter",
    "area-hectare",
    "energy-kilowatt-hour",
    "power-watt",
    "digital-megabyte",
    "digital-gigabyte",
    "angle-degree",
]
CURRENCIES = [
    "EUR",
    "USD",
    "GBP",
    "CHF",
    "JPY",
    "SEK",
    "NOK",
    "DKK",
    "PLN",
    "CZK",
    "CAD",
    "AUD",
    "INR",
    "BRL",
    "TRY",
]


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, str]]:
    """Different English phrases with one German phrase each."""
    wanted = option.take("phrases-en-de", options, DEFAULTS, MOST)["pairs"]
    draw = random.Random(f"phrases {seed}")
    makers = _makers()
    seen: set[str] = set()
    misses = 0
    while len(seen) < wanted:
        source, target = draw.choice(makers)(draw)
        if source in seen:
            misses += 1
            if misses > 100_000:
                raise UserError(
                    f"phrases-en-de has {len(seen)} pairs at most: got data.options.pairs {wanted}."
                )
            continue
        misses = 0
        seen.add(source)
        yield {"source": source, "target": target}


def _makers() -> list[Callable[[random.Random], tuple[str, str]]]:
    """Each draws a value and says it in both languages."""
    from babel import Locale, dates, lists, numbers, units
    from num2words import num2words

    en, de = Locale("en"), Locale("de")
    territories = _codes(en.territories, de.territories)
    tongues = _codes(en.languages, de.languages)

    def both(say: Callable[[Any], str]) -> tuple[str, str]:
        return _plain(say(en)), _plain(say(de))

    def a_date(draw: random.Random) -> date:
        return date(1900, 1, 1) + timedelta(days=draw.randrange(55_000))

    def day(draw: random.Random) -> tuple[str, str]:
        value, style = a_date(draw), draw.choice(["full", "long", "medium"])
        return both(lambda at: dates.format_date(value, style, locale=at))

    def moment(draw: random.Random) -> tuple[str, str]:
        at_day = a_date(draw)
        value = datetime.combine(at_day, time(draw.randrange(24), draw.randrange(60)))
        return both(lambda at: dates.format_datetime(value, "EEEE, d. MMMM y, HH:mm", locale=at))

    def month(draw: random.Random) -> tuple[str, str]:
        value = a_date(draw)
        return both(lambda at: dates.format_skeleton("yMMMM", value, locale=at))

    def span(draw: random.Random) -> tuple[str, str]:
        value = timedelta(seconds=draw.choice([1, 60, 3600, 86_400]) * draw.randrange(1, 60))
        away = draw.random() < 0.5
        return both(
            lambda at: dates.format_timedelta(
                value, granularity="second", threshold=2, add_direction=away, locale=at
            )
        )

    def number(draw: random.Random) -> tuple[str, str]:
        value = draw.randrange(10 ** draw.randrange(1, 7))
        return num2words(value, lang="en"), num2words(value, lang="de")

    def ordinal(draw: random.Random) -> tuple[str, str]:
        value = draw.randrange(1, 1000)
        return num2words(value, lang="en", to="ordinal"), num2words(value, lang="de", to="ordinal")

    def figure(draw: random.Random) -> tuple[str, str]:
        value = draw.randrange(10**8) / draw.choice([1, 10, 100])
        return both(lambda at: numbers.format_decimal(value, locale=at))

    def money(draw: random.Random) -> tuple[str, str]:
        value, code = draw.randrange(1, 10**6) / draw.choice([1, 100]), draw.choice(CURRENCIES)
        style: Any = draw.choice(["name", "standard"])
        return both(lambda at: numbers.format_currency(value, code, locale=at, format_type=style))

    def measure(draw: random.Random) -> tuple[str, str]:
        value, unit = draw.randrange(1, 5000) / draw.choice([1, 1, 10]), draw.choice(UNITS)
        return both(lambda at: units.format_unit(value, unit, "long", locale=at))

    def places(draw: random.Random) -> tuple[str, str]:
        codes = draw.sample(territories, draw.randrange(1, 5))
        style: Any = draw.choice(["standard", "or"])
        return both(
            lambda at: lists.format_list([at.territories[c] for c in codes], style, locale=at)
        )

    def languages(draw: random.Random) -> tuple[str, str]:
        codes = draw.sample(tongues, draw.randrange(1, 5))
        return both(
            lambda at: lists.format_list([at.languages[c] for c in codes], "standard", locale=at)
        )

    def place_and_amount(draw: random.Random) -> tuple[str, str]:
        code = draw.choice(territories)
        left, right = draw.choice([money, measure, day, number])(draw)
        return f"{en.territories[code]}: {left}", f"{de.territories[code]}: {right}"

    return [
        day, moment, month, span, number, ordinal, figure, money, measure, places, languages,
        place_and_amount,
    ]  # fmt: skip


def _codes(*names: Any) -> list[str]:
    """Codes of two letters that all have a name for."""
    shared = set(names[0]).intersection(*names[1:])
    return sorted(code for code in shared if len(code) == 2)


def _plain(text: str) -> str:
    """CLDR's narrow and unbreakable spaces as spaces."""
    return " ".join(text.split())
