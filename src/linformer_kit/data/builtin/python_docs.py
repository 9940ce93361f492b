"""`python-docs`: English that every Python carries: its reference topics and its docstrings.

The text of `pydoc_data` (the language reference) and the docstrings of the standard library's
source files, which are parsed and never imported. One document a topic, one a module.
"""

from __future__ import annotations

import ast
import inspect
import sysconfig
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from . import options as option

if TYPE_CHECKING:
    from collections.abc import Iterator

VERSION = 1
LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test"}
# Where the names of builtins, itertools and math come from in every interpreter.
INTERPRETER = {"builtins", "itertools", "math", "io", "_io", "_sitebuiltins", "_frozen_importlib"}


def records(options: dict[str, Any], seed: int) -> Iterator[dict[str, str]]:
    """Documents in a fixed order."""
    option.take("python-docs", options, {}, {})
    yield from ({"text": text} for text in _topics())
    library = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(library.rglob("*.py")):
        if LEFT_OUT.isdisjoint(path.relative_to(library).parts):
            text = "\n\n".join(_docstrings(path))
            if text:
                yield {"text": text}
    yield from ({"text": text} for text in _of_builtins())


def _home(value: object) -> str:
    """The module that an object, or its class, comes from."""
    return getattr(value, "__module__", None) or type(value).__module__


def _topics() -> Iterator[str]:
    from pydoc_data.topics import topics

    for name in sorted(topics):
        yield topics[name].strip()


def _docstrings(path: Path) -> Iterator[str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old escapes in strings of the library
            tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return  # a file kept broken on purpose, such as those of lib2to3
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            text = ast.get_docstring(node)
            if text:
                yield text


def _of_builtins() -> Iterator[str]:
    """What is written in C has its docstrings in the interpreter."""
    import builtins
    import itertools
    import math

    for module in (builtins, itertools, math):
        texts = []
        for name in sorted(vars(module)):
            value = getattr(module, name)
            if _home(value) not in INTERPRETER:  # IPython adds names of its own
                continue
            members = [value]
            if isinstance(value, type):
                members += [getattr(value, member, None) for member in sorted(vars(value))]
            texts += [text for m in members if callable(m) and (text := inspect.getdoc(m))]
        yield "\n\n".join(dict.fromkeys(texts))
