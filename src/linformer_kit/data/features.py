"""Features: sequences of numbers in place of text, checked before they reach a model."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable


def features_of(value: Any) -> np.ndarray:
    """(positions, size) in float32, of a list of numbers or a list of lists of numbers.

    Anything that has no place in float32 is a ValueError: NaN, infinity, what is beyond its range,
    null, text, booleans, lists of unequal size and empty ones.
    """
    if not isinstance(value, list):
        raise ValueError(f"must be a list of numbers: got {_kind(type(value))}")
    nested = bool(value) and isinstance(value[0], list)
    rows = value if nested else [[number] for number in value]
    _check_types(rows, {list})
    _check_types(chain.from_iterable(rows), {int, float})
    sizes = sorted(set(map(len, rows)))
    if len(sizes) != 1 or sizes == [0]:
        raise ValueError(f"must have one size at all positions, at least 1: got {sizes or 'none'}")
    try:
        exact = np.asarray(rows, dtype=np.float64)
    except OverflowError:
        exact = np.asarray([[_float(number) for number in row] for row in rows])
    with np.errstate(over="ignore"):
        values = exact.astype(np.float32)
    wrong = np.argwhere(~np.isfinite(values))
    if len(wrong):
        position, channel = wrong[0]
        got = exact[position, channel]
        reason = "which float32 cannot hold" if np.isfinite(got) else "which is not finite"
        raise ValueError(f"must be finite numbers: got {got:g}, {reason}, at position {position}")
    return values


def _check_types(values: Iterable[Any], allowed: set[type]) -> None:
    if strange := set(map(type, values)) - allowed:
        got = " and ".join(sorted(map(_kind, strange)))
        raise ValueError(f"must be a list of numbers or a list of lists of numbers: got {got}")


def _float(number: float) -> float:
    try:
        return float(number)
    except OverflowError:
        return float("inf") if number > 0 else float("-inf")


def _kind(kind: type) -> str:
    names = {type(None): "null", str: "text", bool: "true or false", dict: "an object"}
    return names.get(kind, "a list" if kind is list else f"a value of type {kind.__name__}")
