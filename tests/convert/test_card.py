"""The model card of a conversion: metadata of the Hub, scores, and code that loads the folder."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest

from linformer_kit.cli.app import run
from linformer_kit.config import yaml_text
from linformer_kit.convert.card import _base_model

from .pretrained import pretrained, word_tokenizer, write_model, write_text
from .test_source import esm

SOURCE_CARD = """---
license: apache-2.0
language: [en, de]
pipeline_tag: sentence-similarity
tags:
- chemistry
widget: [{text: no}]
---
# The original
"""


def front(card: str) -> dict:
    return yaml_text.parse(card.split("---\n")[1])


def run_code(card: str, folder) -> None:
    """The code of the card, in a new process, as a reader would run it beside the folder."""
    code = re.search(r"```python\n(.*?)```", card, re.DOTALL)[1]
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True, capture_output=True)


@pytest.mark.parametrize("training", [[], ["--steps", "2"]])
def test_a_card_has_metadata_scores_and_code_that_loads(tmp_path, capsys, training):
    write_model(tmp_path / "bert")
    (tmp_path / "bert/README.md").write_text(SOURCE_CARD)
    text = str(write_text(tmp_path / "text.txt"))
    out = tmp_path / "bert-long"
    given = ["--k", "4", "--window", "4", "--text", text, "--out", str(out), *training]
    assert run(["convert", str(tmp_path / "bert"), *given]) == 0
    said = capsys.readouterr().out
    load = (
        "Load it in Python: import linformer_kit.models; from transformers import AutoModelForMask"
    )
    assert load in said
    card = (out / "README.md").read_text()
    assert front(card) == {
        "library_name": "transformers",
        "pipeline_tag": "sentence-similarity",
        "license": "apache-2.0",
        "language": ["en", "de"],
        "tags": ["linformer", "linear-attention", "chemistry"],
    }
    assert "# base_model: " in card
    assert ("| distilled |" in card) == bool(training)
    assert "| cosine to the original, of single tokens |" in card
    assert "wang2020linformer" in card
    run_code(card, tmp_path)


def test_the_card_of_a_sentence_model_and_of_one_in_place(tmp_path):
    pytest.importorskip("sentence_transformers")
    from linformer_kit.models.sentence_files import write_sentence_files

    pretrained("Bert").save_pretrained(tmp_path / "bert")
    word_tokenizer().save_pretrained(tmp_path / "bert")
    from linformer_kit.models import LinformerConfig

    write_sentence_files(
        tmp_path / "bert",
        LinformerConfig(hidden_size=16, num_attention_heads=4, k=4, vocab_size=60, pooling="mean"),
    )
    esm().save_pretrained(tmp_path / "esm")
    for name, expected in (
        ("bert", "SentenceTransformer('out-bert')"),
        ("esm", "load_linformerized"),
    ):
        out = tmp_path / f"out-{name}"
        assert run(["convert", str(tmp_path / name), "--k", "4", "--out", str(out)]) == 0
        card = (out / "README.md").read_text()
        assert expected in card
        run_code(card, tmp_path)


def test_a_card_that_the_user_wrote_meanwhile_stays(tmp_path):
    write_model(tmp_path / "bert")
    text, out = str(write_text(tmp_path / "text.txt")), tmp_path / "out"
    given = ["convert", str(tmp_path / "bert"), "--k", "4", "--window", "4", "--text", text]
    command = [*given, "--steps", "2", "--out", str(out)]
    from linformer_kit.convert.conversion_folder import ConversionFolder

    open_folder = ConversionFolder.open

    def opened(self, *args):
        open_folder(self, *args)
        (out / "README.md").write_text("mine")

    ConversionFolder.open = opened
    try:
        assert run(command) == 0
    finally:
        ConversionFolder.open = open_folder
    assert (out / "README.md").read_text() == "mine"
    assert (out / "model.safetensors").is_file()
    assert (out / "conversion.json").is_file()


@pytest.mark.parametrize(
    "content",
    [
        b"", b"---\n", b"---\n- a\n---\n", b"---\nlicense: {a: b}\ntags: [1, {}]\n---\n",
        b"---\na: &a [*a]\n---\n", b"---\nlicense: !!python/object/apply:os.mkdir [owned]\n---\n",
        b"\xff\xfe\x00", b"---\nlicense: " + b"x" * 100_000 + b"\n---\n",
        b"---\ntags: word\nlicense: 'mit\n  more: 1'\n---\n",
    ],
)  # fmt: skip
def test_a_damaged_card_of_the_source_says_nothing(tmp_path, monkeypatch, content):
    monkeypatch.chdir(tmp_path)
    write_model(tmp_path / "bert")
    (tmp_path / "bert/README.md").write_bytes(content)
    assert run(["convert", "bert", "--k", "4", "--out", "out"]) == 0
    found = front((tmp_path / "out/README.md").read_text())
    assert set(found) <= {"library_name", "pipeline_tag", "tags", "license"}
    assert not (tmp_path / "owned").exists()


def test_the_base_model_is_a_name_of_the_hub(tmp_path, monkeypatch):
    snapshot = tmp_path / "models--some--bert-base/snapshots/abc"
    snapshot.mkdir(parents=True)
    assert _base_model("some/bert-base") == "some/bert-base"
    assert _base_model(str(snapshot)) == "some/bert-base"
    assert _base_model(str(tmp_path)) is None


def test_unknown_modules_of_sentence_transformers_are_said(tmp_path, capsys):
    write_model(tmp_path / "bert")
    types = [{"type": f"sentence_transformers.models.{kind}"} for kind in ("Transformer", "Dense")]
    (tmp_path / "bert/modules.json").write_text(json.dumps(types))
    assert run(["convert", str(tmp_path / "bert"), "--k", "4", "--out", str(tmp_path / "out")]) == 0
    assert "not converted: Dense. The result is its encoder alone" in capsys.readouterr().out
    assert not (tmp_path / "out/modules.json").exists()
