"""The notebooks: cells that parse, real imports, a picture at the end."""

from __future__ import annotations

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.py"))


def test_there_are_notebooks():
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_a_jupytext_file_that_ends_in_a_picture(path):
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ---\n# jupyter:\n#   jupytext:\n")
    assert "# %% [markdown]\n# # " in text
    pictures = re.findall(r'savefig\("pictures/([\w-]+\.png)"', text)
    assert len(pictures) == 1
    assert text.rindex("savefig") > text.rindex("# %%")
    assert (FOLDER / "pictures" / pictures[0]).is_file()


def test_the_readme_lists_every_notebook_with_its_title_and_picture():
    rows = re.findall(
        r"^\| \[(.+)\]\((.+\.py)\) \| \[.+\]\(pictures/(.+\.png)\) \|$",
        (FOLDER / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    found = []
    for path in NOTEBOOKS:
        text = path.read_text(encoding="utf-8")
        title = re.search(r"^# # (.+)$", text, re.MULTILINE)
        picture = re.search(r'savefig\("pictures/([\w-]+\.png)"', text)
        assert title
        assert picture
        found.append((title[1], path.name, picture[1]))
    assert rows == found


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_what_a_notebook_imports_from_the_package_is_there(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("linformer_kit"):
            module = importlib.import_module(node.module or "")
            for name in node.names:
                assert hasattr(module, name.name), f"{path.name}: {node.module}.{name.name}"


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path, tmp_path):
    environment = {**os.environ, "MPLBACKEND": "Agg", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(path)], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(list((tmp_path / "pictures").glob("*.png"))) == 1
