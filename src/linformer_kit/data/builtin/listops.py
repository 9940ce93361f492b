"""`listops`: nested lists of operations on digits, the task of Long Range Arena (Tay et al. 2020).

    [MAX 2 9 [MIN 4 7 ] 0 ]   ->   9

A node is an operator with probability 1/4, else a digit; an operator takes 2 to 10 arguments; trees
are at most 10 deep and only those with a length strictly between 500 and 2000 tokens are kept.
MED is the whole part of the median, SM the sum modulo 10.
"""

from __future__ import annotations

import random
import statistics
from typing import TYPE_CHECKING, Any

from ...errors import UserError
from . import options as option

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

VERSION = 1
OPERATOR_SHARE = 0.25
DEFAULTS = {
    "examples": 100_000,
    "min_length": 500,
    "max_length": 2000,
    "max_depth": 10,
    "max_args": 10,
}
MOST = {
    "examples": 10_000_000,
    "min_length": 1_000_000,
    "max_length": 1_000_000,
    "max_depth": 100,  # trees are grown by recursion
    "max_args": 1000,
}
OPERATORS: dict[str, Callable[[list[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, str]]:
    """Different expressions, each with its value."""
    chosen = option.take("listops", options, DEFAULTS, MOST)
    if chosen["max_args"] < 2 or chosen["max_length"] - chosen["min_length"] < 2:
        raise UserError(
            "listops needs max_args of at least 2 and a length between min_length and max_length: "
            f"got {chosen}."
        )
    draw = random.Random(f"listops {seed}")
    seen: set[int] = set()
    misses = 0
    while len(seen) < chosen["examples"]:
        tokens: list[str] = []
        value = _grow(draw, tokens, 1, chosen)
        text = " ".join(tokens)
        fits = chosen["min_length"] < len(tokens) < chosen["max_length"]
        if not fits or hash(text) in seen:
            misses += 1
            if misses > 1_000_000:
                raise UserError(f"listops finds no further expression with {chosen}.")
            continue
        misses = 0
        seen.add(hash(text))
        yield {"text": text, "label": str(value)}


def evaluate(text: str) -> int:
    """The value of an expression."""
    stack: list[tuple[str, list[int]]] = [("", [])]
    for token in text.split():
        if token in OPERATORS:
            stack.append((token, []))
        elif token == "]":
            name, values = stack.pop()
            stack[-1][1].append(OPERATORS[name](values))
        else:
            stack[-1][1].append(int(token))
    return stack[0][1][0]


def _grow(draw: random.Random, tokens: list[str], depth: int, chosen: dict[str, int]) -> int:
    """Add a node and all below it to `tokens`; its value."""
    if depth >= chosen["max_depth"] or draw.random() > OPERATOR_SHARE:
        digit = draw.randrange(10)
        tokens.append(str(digit))
        return digit
    if len(tokens) > chosen["max_length"]:
        return 0  # too long already: it will be thrown away
    name = draw.choice(list(OPERATORS))
    tokens.append(name)
    count = draw.randint(2, chosen["max_args"])
    values = [_grow(draw, tokens, depth + 1, chosen) for _ in range(count)]
    tokens.append("]")
    return OPERATORS[name](values)
