"""The hub: only its data sets, and none of their code."""

from __future__ import annotations

import inspect
import sys

import datasets
import huggingface_hub.constants
import pytest

from linformer_kit.data import hub_dataset
from linformer_kit.errors import UserError

SCRIPT = """
import datasets, pathlib
pathlib.Path("executed").touch()
class Evil(datasets.GeneratorBasedBuilder):
    pass
"""


def read(source):
    return list(hub_dataset.read(source, ["text"]))


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


def test_a_data_set_that_is_not_there_is_told(offline):
    with pytest.raises(UserError, match="cannot load the data set 'no/such-data-set' from the hub"):
        read("hub:no/such-data-set")


@pytest.mark.parametrize("source", ["hub:", "hub: ", "hub:csv", "hub:pandas", "hub:text@test"])
def test_a_reader_of_the_current_folder_is_no_data_set(source, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.csv").write_text("text\nnot asked for\n")
    with pytest.raises(UserError, match="needs the name of a data set"):
        read(source)


@pytest.mark.parametrize("name", ["owner/evil", "owner/evil/evil.py"])
def test_a_local_script_is_never_executed(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "owner" / "evil"
    folder.mkdir(parents=True)
    (folder / "evil.py").write_text(SCRIPT)
    with pytest.raises(UserError, match="Leave hub: out to read the local one"):
        read(f"hub:{name}")
    assert not (tmp_path / "executed").exists()


def test_the_library_itself_executes_no_script(tmp_path, monkeypatch, offline):
    """What `hub_dataset.read` relies on: there is no `trust_remote_code` to say no to."""
    assert "trust_remote_code" not in inspect.signature(datasets.load_dataset).parameters
    monkeypatch.chdir(tmp_path)
    (tmp_path / "evil").mkdir()
    (tmp_path / "evil" / "evil.py").write_text(SCRIPT)
    with pytest.raises(RuntimeError, match="scripts are no longer supported"):
        datasets.load_dataset("evil", split="train", streaming=True)
    assert not (tmp_path / "executed").exists()
    assert "evil" not in sys.modules
