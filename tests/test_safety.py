"""Nothing that is loaded can run code: every call that could is listed and says so."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import linformer_kit

ROOT = Path(linformer_kit.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
# A method of this name loads a model, a configuration or a tokenizer by transformers, which runs
# code that comes with them if it is allowed to.
LOADERS = {"from_pretrained"}
REFUSED = {"pickle.load", "pickle.loads", "yaml.unsafe_load", "yaml.full_load", "torch.hub.load"}


def calls(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), node


def keyword(node, name):
    for given in node.keywords:
        if given.arg == name:
            return ast.unparse(given.value)
    return None


def loading_calls():
    for path in FILES:
        for name, node in calls(path):
            if name.rpartition(".")[2] in LOADERS or name.endswith("pipeline"):
                yield pytest.param(node, id=f"{path.relative_to(ROOT)}:{node.lineno}")


@pytest.mark.parametrize("node", loading_calls())
def test_transformers_never_runs_foreign_code(node):
    assert keyword(node, "trust_remote_code") == "False"


def test_there_are_calls_to_check():
    assert len(list(loading_calls())) >= 5


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_unpickled_freely(path):
    for name, node in calls(path):
        assert name not in REFUSED
        if name == "torch.load":
            assert keyword(node, "weights_only") == "True"
        if name == "yaml.load":
            assert keyword(node, "Loader") == "_Loader"  # a SafeLoader
        if name == "np.load":
            assert keyword(node, "allow_pickle") in (None, "False")
