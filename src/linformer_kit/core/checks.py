"""Checks of user input. Each error says the rule, what was received and the remedy."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence


def one_of(name: str, value: object, allowed: Collection[str]) -> None:
    """Refuse an unknown mode and suggest the nearest known one."""
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


def layer_numbers(name: str, values: Sequence[int], depth: int) -> None:
    """Refuse anything but different numbers of layers, from 0 to depth - 1."""
    if len(set(values)) < len(values) or not set(values) <= set(range(depth)):
        raise ValueError(
            f"{name} must be different numbers from 0 to {depth - 1}: got {list(values)}."
        )


def positive(name: str, value: object) -> None:
    """Refuse anything but a whole number of at least 1."""
    whole(name, value, least=1)


def probability(name: str, value: float) -> None:
    """Refuse a dropout rate outside [0, 1)."""
    if not 0.0 <= value < 1.0:
        raise ValueError(f"{name} must be at least 0 and below 1: got {value}.")


def sequence(
    name: str, value: Tensor, channels: int, *, mask: Tensor | None = None, mask_name: str = "mask"
) -> None:
    """Refuse anything but (batch, length >= 1, channels), and a mask that does not fit it."""
    if value.dim() != 3 or value.shape[2] != channels:
        raise ValueError(
            f"{name} must have shape (batch, length, {channels}): got {tuple(value.shape)}."
        )
    if value.shape[1] < 1:
        raise ValueError(
            f"{name} must have at least one position: got {tuple(value.shape)}. "
            "Drop empty inputs, or pad them and pass a mask."
        )
    if mask is not None:
        padding_mask(mask_name, mask, value)


def context(x: Tensor, value: Tensor | None, mask: Tensor | None, channels: int) -> None:
    """Refuse a context for x that is not (batch of x, length >= 1, channels), and its mask."""
    if value is None:
        if mask is not None:
            raise ValueError("context_mask needs a context: got None. For x itself pass mask.")
        return
    sequence("context", value, channels, mask=mask, mask_name="context_mask")
    if value.shape[0] != x.shape[0]:
        raise ValueError(
            f"context must have the batch size of x: got {value.shape[0]} and "
            f"{x.shape[0]}. Repeat the smaller one."
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


def at_most_max_length(name: str, length: int, max_length: int | None) -> None:
    """Refuse an input that is too long for a projection."""
    if max_length is not None and length > max_length:
        raise ValueError(
            f"a {name} takes at most max_length={max_length} positions: got {length}. Truncate the "
            "input, build the model with a larger max_length, give a trained one a new length with "
            f"linformer_kit.resize_max_length(model, {length}), or use projection='dynamic', which "
            "takes any length."
        )
