"""linformer convert: a folder that loads everywhere, and one line for each mistake."""

from __future__ import annotations

import json
import pickle

import pytest
import torch
from transformers import AutoModel, AutoTokenizer, GPT2Config, GPT2Model

from linformer_kit.cli.app import run
from linformer_kit.models import LinformerForMaskedLM, LinformerModel

from ..convert.pretrained import WORDS, pretrained, write_model


@pytest.fixture
def source(tmp_path):
    """A folder of a masked language model with a tokenizer of words."""
    return write_model(tmp_path / "bert")


def test_a_folder_that_reads_longer_and_says_how_near_it_is(source, tmp_path, capsys):
    text, out = tmp_path / "book.txt", tmp_path / "longer"
    text.write_text(" ".join(WORDS * 20))
    sizes = ["--max-length", "80", "--k", "8", "--window", "20"]
    assert run(["convert", str(source), "--out", str(out), *sizes, "--text", str(text)]) == 0
    shown = capsys.readouterr().out
    assert "embeddings 1.0000, tokens 1.0000" in shown  # the window covers what both can read
    assert "LinformerForMaskedLM, reads 80 tokens" in shown
    model = LinformerForMaskedLM.from_pretrained(out)
    assert model(torch.randint(4, 20, (1, 80))).logits.shape == (1, 80, 60)
    assert isinstance(AutoModel.from_pretrained(out), LinformerModel)
    assert AutoTokenizer.from_pretrained(out).model_max_length == 80
    assert json.loads((out / "conversion.json").read_text())["options"]["window"] == 20


def test_what_is_there_is_left_alone(source, tmp_path, capsys):
    out = tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    assert run(["convert", str(source), "--out", str(out), "--k", "4"]) == 2
    assert "is not a conversion's folder: it is left alone" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["notes.txt"]


class Harmful:
    def __reduce__(self):
        return (open, ("/nonexistent/harm", "w"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "30"], "k must be at most max_position_embeddings"),
        (["--keep-full", "a"], "--keep-full must be numbers of layers with commas"),
        (["--k", "many"], "--k must be a whole number from 0 to 16,777,216, or auto: got 'many'"),
        (["--k", "auto"], "--k auto needs text"),
        (["--keep-full", "auto"], "--keep-full auto needs text"),
        (["--steps", "3"], "--steps needs text"),
        (["--steps", "3", "--minutes", "1"], "give one of --steps and --minutes"),
        (["--minutes", "0"], "--minutes must be above 0"),
        (["--batch-size", "2"], "--batch-size has no effect without --steps or --minutes"),
        (["--lr", "0.1"], "--lr has no effect without --steps or --minutes"),
        (["--save-every", "9"], "--save-every has no effect without --steps or --minutes"),
        (["--k", "4", "--positions", "spread"], "--positions spread has no effect"),
        (["--k", "4", "--keep-full", "9"], "full_layers must be different numbers from 0 to 2"),
        (
            ["--k", "4", "--max-length", "40", "--positions", "guess"],
            "must be one of 'copy', 'interpolate', 'spread'",
        ),
        (["--k", "4", "--text", "nowhere.txt"], "--text nowhere.txt is no file"),
        (["--k", "0", "--window", "0"], "Only with a window may it be 0"),
    ],
)
def test_a_mistake_is_one_line(source, tmp_path, capsys, options, message):
    assert run(["convert", str(source), "--out", str(tmp_path / "out"), *options]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_what_cannot_fit_into_memory_is_refused_before_the_work(
    source, tmp_path, capsys, monkeypatch, more
):
    monkeypatch.setattr("linformer_kit.machine_memory.total_memory", lambda: 10**9)
    text = tmp_path / "book.txt"
    text.write_text(" ".join(WORDS * 20))
    given = ["convert", str(source), "--out", str(tmp_path / "out"), "--k", "4", *more]
    for options, what in (
        (["--batch-size", "100000"], "a step of --batch-size 100000 rows of 20 tokens"),
        (["--max-length", "1000000"], "a step of --batch-size 4 rows of 20 tokens"),
    ):
        assert run([*given, "--text", str(text), "--steps", "1", *options]) == 2
        error = capsys.readouterr().err
        assert f"{what} needs at least" in error
        assert "Use a smaller --batch-size, or a smaller --max-length" in error
    assert run([*given, "--max-length", "16777216"]) == 2
    assert "the converted model needs at least 1.1 GB" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_text_that_is_too_short_is_told(source, tmp_path, capsys):
    text = tmp_path / "short.txt"
    text.write_text("the cat")
    given = ["--out", str(tmp_path / "out"), "--k", "4", "--text", str(text)]
    assert run(["convert", str(source), *given]) == 2
    assert "the text has 2 tokens and no file with a row of 20" in capsys.readouterr().err


def test_another_architecture_is_named(tmp_path, capsys):
    config = GPT2Config(vocab_size=20, n_positions=16, n_embd=8, n_layer=1, n_head=2)
    GPT2Model(config).save_pretrained(tmp_path / "gpt")
    assert run(["convert", str(tmp_path / "gpt"), "--out", str(tmp_path / "out")]) == 2
    assert "no attention of GPT2Model can be swapped" in capsys.readouterr().err


def test_a_pickle_that_runs_code_is_refused(source, tmp_path, capsys):
    (source / "model.safetensors").unlink()
    (source / "pytorch_model.bin").write_bytes(pickle.dumps({"bert": Harmful()}))
    assert run(["convert", str(source), "--out", str(tmp_path / "out"), "--k", "4"]) == 2
    error = capsys.readouterr().err
    assert "Get them as model.safetensors" in error
    assert "Traceback" not in error


def test_a_state_dict_of_tensors_in_a_pickle_is_read(source, tmp_path, capsys):
    model = pretrained("Bert", "ForMaskedLM")
    (source / "model.safetensors").unlink()
    torch.save(model.state_dict(), source / "pytorch_model.bin")
    assert run(["convert", str(source), "--out", str(tmp_path / "out"), "--k", "4"]) == 0


def test_a_checkpoint_of_an_earlier_package(tmp_path, capsys):
    package = pytest.importorskip("linformer.linformer")
    torch.manual_seed(0)
    theirs = package.LinformerLM(num_tokens=30, dim=16, seq_len=24, depth=2, k=4, heads=2).eval()
    torch.save(theirs.state_dict(), tmp_path / "old.pt")
    given = [str(tmp_path / "old.pt"), "--from", "linformer", "--option", "heads=2"]
    assert run(["convert", *given, "--out", str(tmp_path / "new")]) == 0
    assert "with the outputs of" in capsys.readouterr().out
    ids = torch.randint(0, 30, (2, 24))
    ours = LinformerForMaskedLM.from_pretrained(tmp_path / "new").eval()
    with torch.no_grad():
        torch.testing.assert_close(ours(ids).logits, theirs(ids), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--from", "linformers"], "source must be one of linformer, linformer-pytorch, fairseq"),
        (["--option", "heads=2"], "--option belongs to --from"),
        (["--from", "linformer", "--option", "heads"], "--option must be KEY=VALUE"),
        (["--from", "linformer", "--option", "legs=2"], "takes the options"),
        (["--from", "linformer"], "cannot read the checkpoint"),
        (["--from", "linformer", "--k", "64"], "--k has no effect with --from"),
        (["--from", "linformer", "--max-length", "9"], "--max-length has no effect with --from"),
    ],
)
def test_a_mistake_about_an_earlier_package_is_one_line(tmp_path, capsys, given, message):
    missing = str(tmp_path / "missing.pt")
    assert run(["convert", missing, "--out", str(tmp_path / "out"), *given]) == 2
    assert message in capsys.readouterr().err


def test_the_first_line_comes_at_once_and_every_stage_is_said(source, tmp_path, capfd):
    text = tmp_path / "book.txt"
    text.write_text(" ".join(WORDS * 20))
    given = ["--k", "4", "--text", str(text), "--report", str(tmp_path / "page.html")]
    assert run(["convert", str(source), "--out", str(tmp_path / "out"), *given]) == 0
    said, errors = capfd.readouterr()
    lines = said.splitlines()
    assert lines[:3] == [
        "importing torch and transformers",
        f"loading {source}",
        f"reading the text: {text}",
    ]
    assert lines[3].startswith("comparing with the original on ")
    assert "measuring time and memory for the page; --no-timing leaves this out" in lines
    assert errors  # off a terminal too


def test_the_time_that_is_left_for_the_page_is_said(source, tmp_path):
    from linformer_kit.convert.cost import measure_cost

    out, said = tmp_path / "out", []
    assert run(["convert", str(source), "--k", "4", "--max-length", "80", "--out", str(out)]) == 0
    measure_cost(str(source), str(out), short=20, longest=80, rounds=1, say=said.append)
    assert said[0] == "time at 20 of 80 tokens"
    assert all("left)" in line for line in said if "at 40" in line or "at 80" in line)


@pytest.mark.parametrize(("given", "unit"), [({"steps": 9}, "steps"), ({"minutes": 4}, "seconds")])
def test_the_bar_of_a_training_has_a_unit(given, unit):
    from types import SimpleNamespace

    from linformer_kit.convert.distill_trainer import Clock, DistillLogging

    clock = Clock(**{"steps": None, "minutes": None} | given)
    assert DistillLogging(SimpleNamespace(clock=clock), None, None).unit == unit
