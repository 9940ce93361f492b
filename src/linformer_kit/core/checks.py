"""Checks of what a user gave: each error says the rule, what was received and the remedy."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Refuse a mode that does not exist, naming the nearest one that does."""
    if value in allowed:
        return
    near = difflib.get_close_matches(str(value), allowed, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(map(repr, allowed))}: got {value!r}.{hint}")


def whole(name: str, value: object, *, least: int = 0) -> None:
    """Refuse anything but a whole number of at least `least`."""
    if not isinstance(value, int | torch.SymInt) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number: got {value!r} ({type(value).__name__}).")
    if value < least:
        raise ValueError(f"{name} must be at least {least}: got {value}.")


def positive(name: str, value: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    whole(name, value, least=1)


def probability(name: str, value: float) -> None:
    """Refuse a dropout rate outside [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1: got {value}.")


def sequence(name: str, value: Tensor, channels: int) -> None:
    """Refuse anything but (batch, length >= 1, channels)."""
    if value.dim() != 3 or value.shape[2] != channels:
        raise ValueError(
            f"{name} must have shape (batch, length, {channels}): got {tuple(value.shape)}."
        )
    if value.shape[1] < 1:
        raise ValueError(
            f"{name} must have at least one position: got {tuple(value.shape)}. "
            "Drop empty inputs, or pad them and pass a mask."
        )


def padding_mask(name: str, mask: Tensor, of: Tensor) -> None:
    """Refuse a mask that is not boolean and (batch, length)."""
    if mask.dtype != torch.bool:
        raise TypeError(
            f"{name} must be boolean, True = a real position: got {mask.dtype}. "
            f"Pass {name}.bool(), or ~{name}.bool() if yours marks the padding."
        )
    if mask.shape != of.shape[:2]:
        raise ValueError(
            f"{name} must have shape (batch, length) = {tuple(of.shape[:2])}: "
            f"got {tuple(mask.shape)}."
        )
