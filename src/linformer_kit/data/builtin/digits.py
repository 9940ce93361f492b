"""`digits`: scikit-learn's 1,797 handwritten digits, each a sequence of 64 pixels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import options as option

if TYPE_CHECKING:
    from collections.abc import Iterator

WHITE = 16.0  # the largest value of a pixel


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, Any]]:
    """One pixel a position, row by row, from 0 to 1."""
    from sklearn.datasets import load_digits

    option.take("digits", options, {}, {})
    loaded = load_digits()
    for pixels, label in zip(loaded.data, loaded.target, strict=True):
        yield {"features": [[float(pixel) / WHITE] for pixel in pixels], "label": str(label)}
