"""`import linformer_kit` is lazy: it needs none of what its parts need, torch included."""

from __future__ import annotations

import ast
import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import linformer_kit

BLOCKED = ["transformers", "datasets", "keras", "onnx", "matplotlib", "typer", "rich"]


def python(code: str) -> str:
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


def test_the_package_imports_without_anything_optional():
    said = python(
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"  # importing these raises
        "import linformer_kit; print(linformer_kit.LinformerEncoder.__name__)"
    )
    assert said == "LinformerEncoder\n"


def test_importing_the_package_imports_neither_torch_nor_numpy():
    said = python(
        "import sys, linformer_kit; print(linformer_kit.__version__ != '', *(name for name in "
        "('torch', 'numpy', 'transformers') if name in sys.modules))"
    )
    assert said == "True\n"


def test_every_public_name_is_there_listed_and_importable():
    said = python(
        "import linformer_kit; print(set(linformer_kit.__all__) <= set(dir(linformer_kit)))\n"
        "from linformer_kit import *; print(LinformerAttention.__module__)"
    )
    assert said == "True\nlinformer_kit.core.attention\n"
    for name in linformer_kit.__all__:
        assert getattr(linformer_kit, name) is getattr(linformer_kit, name)


def test_the_lazy_names_are_those_that_type_checkers_see():
    """Read the imports under TYPE_CHECKING and compare them with what is imported at run time."""
    tree = ast.parse(Path(linformer_kit.__file__).read_text())
    seen = {
        alias.name: f"linformer_kit.{imported.module}"
        for block in tree.body
        if isinstance(block, ast.If)
        for imported in block.body
        if isinstance(imported, ast.ImportFrom)
        for alias in imported.names
    }
    assert {*seen, "__version__"} == set(linformer_kit.__all__)
    for name, module in seen.items():
        assert getattr(linformer_kit, name) is getattr(importlib.import_module(module), name)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="module 'linformer_kit' has no attribute 'Nothing'"):
        _ = linformer_kit.Nothing
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from linformer_kit import Nothing")


def test_submodules_are_imported_as_usual():
    said = python("import linformer_kit.core.attention; print(linformer_kit.core.__name__)")
    assert said == "linformer_kit.core\n"


def test_classes_taken_from_the_top_can_be_pickled():
    plan = linformer_kit.Plan(shorten="input", attend="fused")
    assert pickle.loads(pickle.dumps(plan)) == plan
