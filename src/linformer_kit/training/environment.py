"""What a run was computed with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from ..measure import machine

if TYPE_CHECKING:
    from ..config.schema import RunConfig

PACKAGES = ("transformers", "accelerate", "datasets", "tokenizers", "sacrebleu", "numpy")


def describe(config: RunConfig, *, world: int, threads: int) -> dict[str, object]:
    """Versions, commit, machine and seed."""
    found: dict[str, object] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
    about = machine.describe(seed=config.seed, threads=threads)
    return {**about, **found, "processes": world}
