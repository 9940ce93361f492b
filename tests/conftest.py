"""For all tests: signals, and what each test needs.

Every test is marked with what it needs besides Python: `backend` (a backend of Keras), `browser`
(Chromium), `process` (it starts programs of its own) or `unit` (nothing).
"""

from __future__ import annotations

import inspect
import signal
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

TESTS = Path(__file__).parent
STARTS_PROCESSES = {"subprocess", "multiprocessing", "torch.multiprocessing"}

PROCESS_FIXTURES = {"ranks"}


def pytest_configure() -> None:
    """Let Ctrl-C reach the programs that tests start, even where it is ignored here.

    A shell has what it runs in the background ignore it, and children inherit that.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    needs: dict[ModuleType, str] = {}
    for item in items:
        module = item.module  # type: ignore[attr-defined]
        if module not in needs:
            needs[module] = _need(module)
        started = PROCESS_FIXTURES.intersection(getattr(item, "fixturenames", ()))
        item.add_marker("process" if started else needs[module])


def _need(module: ModuleType) -> str:
    path = Path(str(module.__file__))
    if path.parent == TESTS / "keras":
        return "backend"
    if "playwright" in path.read_text(encoding="utf-8"):
        return "browser"
    return "process" if _starts_processes(module) else "unit"


def _starts_processes(module: ModuleType) -> bool:
    """Whether a module of tests, or a helper beside them that it uses, imports such a module."""
    homes = {inspect.getmodule(value) for value in vars(module).values()}  # a module is its own
    helpers = [home for home in homes if home and home.__name__.startswith("tests.")]
    return any(
        isinstance(value, ModuleType) and value.__name__ in STARTS_PROCESSES
        for each in (module, *helpers)
        for value in vars(each).values()
    )
