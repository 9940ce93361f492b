"""The options of a built-in corpus: checked as strictly as the rest of the configuration."""

from __future__ import annotations

from typing import Any

from ...core import checks
from ...errors import UserError


def take(corpus: str, options: dict[str, Any], defaults: dict[str, int]) -> dict[str, int]:
    """`defaults` with what was given; an unknown name or anything but a whole number is refused."""
    for name, value in options.items():
        try:
            checks.one_of(f"an option of {corpus}", name, list(defaults) or ["none at all"])
            checks.positive(f"data.options.{name}", value)
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
    return {**defaults, **options}
