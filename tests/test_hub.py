"""A misspelled folder is told at once, with or without a network."""

from __future__ import annotations

import pytest

from linformer_kit.errors import UserError
from linformer_kit.hub import require_hub


def test_a_path_is_no_name_of_the_hub(tmp_path):
    require_hub(str(tmp_path), "config.json")


@pytest.mark.parametrize("name", ["a b", "a/b/c", "../nowhere", "x" * 500, "-x"])
def test_what_cannot_be_a_name_is_refused_without_a_network(name, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(UserError, match=r"is not a file or folder here|cannot look for"):
        require_hub(name, "config.json")


def test_an_unreachable_hub_is_told(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")  # closed
    with pytest.raises(UserError, match=r"nowhere is not a file .* hub cannot be reached"):
        require_hub("nowhere", "config.json")
