"""The configurations in the package are found by name, listed and copied, never over a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from linformer_kit.config import shipped
from linformer_kit.config.load import load
from linformer_kit.errors import UserError


@pytest.mark.parametrize("name", ["quick-mlm", "quick-mlm.yaml"])
def test_a_shipped_configuration_is_found_by_name(name):
    assert load(Path(name)).run == "runs/quick-mlm"


def test_a_file_of_the_user_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    copied = shipped.copy("quick-mlm", tmp_path)
    copied.write_text(copied.read_text().replace("runs/quick-mlm", "runs/mine"))
    assert load(Path("quick-mlm.yaml")).run == "runs/mine"


@pytest.mark.parametrize("path", ["nowhere/quick-mlm.yaml", "quick-mlms", "../quick-mlm", ""])
def test_anything_else_is_a_path(path):
    assert shipped.resolve(Path(path)) == Path(path)


def test_a_copy_never_replaces_a_file(tmp_path):
    (tmp_path / "mine.yaml").write_text("mine")
    with pytest.raises(UserError, match="exists and is left alone"):
        shipped.copy("quick-mlm", tmp_path / "mine.yaml")
    assert (tmp_path / "mine.yaml").read_text() == "mine"
    with pytest.raises(UserError, match="no shipped configuration 'x'"):
        shipped.copy("x", tmp_path)
    with pytest.raises(UserError, match="cannot write"):
        shipped.copy("quick-mlm", tmp_path / "nowhere/a.yaml")


def test_each_has_a_summary():
    assert all(len(shipped.summary(name)) > 10 for name in shipped.names())
