from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from .ranks import Ranks

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Four processes, for all tests of this folder."""
    started = Ranks(4)
    yield started
    started.close()
