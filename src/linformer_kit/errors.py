"""The error of every part that meets the world."""

from __future__ import annotations


class UserError(ValueError):
    """Something the user can put right; the message says what. Shown as one line, exit code 2."""
