"""Uninitialised memory is NaN in these tests, so that reading it cannot go unnoticed."""

from __future__ import annotations

import functools

import pytest
import torch
from torch.utils._device import _device_constructors

# `with torch.device(...)` looks constructors up in a set that is made once: now, before any patch.
_device_constructors()

_NAMES = ("empty", "empty_like", "empty_strided", "empty_permuted")
_METHODS = ("new_empty", "new_empty_strided")


def _poisoned(make):
    @functools.wraps(make)
    def filled(*arguments, **options):
        tensor = make(*arguments, **options)
        plain = not torch.compiler.is_compiling() and type(tensor) is torch.Tensor
        if plain and (tensor.is_floating_point() or tensor.is_complex()):
            with torch.no_grad():
                tensor.fill_(float("nan"))
        return tensor

    return filled


@pytest.fixture(autouse=True)
def nan_in_uninitialised_memory(request, monkeypatch):
    """`torch.empty` and its relatives return NaN. Not for tests of torch.compile and torch.export,
    whose tracers look the functions up by identity.
    """
    if any(word in request.node.name for word in ("compile", "export", "jit")):
        return
    for name in _NAMES:
        monkeypatch.setattr(torch, name, _poisoned(getattr(torch, name)))
    for name in _METHODS:
        monkeypatch.setattr(torch.Tensor, name, _poisoned(getattr(torch.Tensor, name)))
