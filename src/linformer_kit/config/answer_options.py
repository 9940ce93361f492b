"""The options of answers, and the tasks in which each has an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..errors import UserError

if TYPE_CHECKING:
    from .schema import Task

TASKS: dict[str, tuple[Task, ...]] = {
    "top": ("mlm", "classify"),
    "max_new_tokens": ("clm", "translate"),
    "temperature": ("clm",),
    "seed": ("clm",),
    "redact": ("tag",),
    "size": ("embed",),
}
TEMPERATURES = (1e-6, 100.0)  # above 0; logits divided by less than that are not finite


def check_temperature(value: float) -> float:
    """A temperature that can be used: 0 takes the likeliest token."""
    low, high = TEMPERATURES
    if value == 0 or low <= value <= high:
        return value
    raise UserError(
        f"temperature must be 0, which takes the likeliest token, or {low:g} to {high:g}: got "
        f"{value}."
    )
