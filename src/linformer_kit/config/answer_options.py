"""The options of answers, and the tasks in which each has an effect."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
