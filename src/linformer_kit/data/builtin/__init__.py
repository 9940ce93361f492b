"""Corpora that need no download."""

from __future__ import annotations

from .registry import BUILTIN, BuiltinCorpus, find

__all__ = ["BUILTIN", "BuiltinCorpus", "find"]
