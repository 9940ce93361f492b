"""The options of a built-in corpus: checked as strictly as the rest of the configuration."""

from __future__ import annotations

from typing import Any

from ...core import checks
from ...errors import UserError


def take(
    corpus: str, options: dict[str, Any], defaults: dict[str, int], most: dict[str, int]
) -> dict[str, int]:
    """`defaults` with what was given: known names, whole numbers from 1 to `most`."""
    if options and not defaults:
        raise UserError(f"{corpus} has no options: got data.options {', '.join(options)}.")
    for name, value in options.items():
        try:
            checks.one_of(f"an option of {corpus}", name, list(defaults))
            checks.positive(f"data.options.{name}", value)
            if value > most[name]:
                raise ValueError(
                    f"data.options.{name} must be at most {most[name]:,}: got {value}."
                )
        except (ValueError, TypeError) as error:
            raise UserError(str(error)) from error
    return {**defaults, **options}
