"""The benchmarks outside the package: models, cells and commands work at a tiny size."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from benchmarks.peer_equality import COPIES, largest_difference
from benchmarks.peer_models import PEERS, build

from benchmarks import (
    budget,
    causal_speed,
    generation,
    kept_memory,
    keras_time,
    layer_parts,
    loss_memory,
    onnx_time,
    peers,
    predict_file,
    roofline,
    slot_choices,
)
from linformer_kit.cli.bench import main
from linformer_kit.core.causal import CausalLinformerAttention
from linformer_kit.evidence.bench.gemm import step_flops
from linformer_kit.evidence.bench.implementations import build as build_encoder
from linformer_kit.evidence.bench.settings import Point
from linformer_kit.measure.records import read_records

POINT = Point(dim=32, num_heads=4, k=16, length=64, depth=2)
TINY = ["--dim", "32", "--heads", "2", "--rounds", "1", "--threads", "1"]
KERAS = ["--sequence-length", "24,32", "--batch-size", "2", "--embedding-dim", "8", "--num-heads"]
KERAS += ["2", "--projection-dim", "4", "--hidden-dim", "4", "--rounds", "2"]
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _on_torch(monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)


def run(capsys, module, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(module.BENCHMARK, arguments)
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


@pytest.mark.parametrize("name", PEERS)
def test_every_peer_reads_and_trains(name):
    x = torch.randn(1, POINT.length, POINT.dim, requires_grad=True)
    y = build(name, POINT, seed=0)(x)
    assert y.shape == x.shape
    y.square().sum().backward()
    assert x.grad is not None
    assert x.grad.abs().sum() > 0


@pytest.mark.parametrize("name", COPIES)
def test_copied_weights_give_equal_outputs(name):
    assert largest_difference(name, POINT, seed=0) < 1e-5


@pytest.mark.parametrize("name", COPIES)
def test_other_weights_give_other_outputs(name, monkeypatch):
    copy = COPIES[name]

    def disturbed(theirs, point):
        ours, core = copy(theirs, point)
        for weight in ours.parameters():
            weight.add_(0.05 * torch.randn_like(weight))
        return ours, core

    monkeypatch.setitem(COPIES, name, disturbed)
    assert largest_difference(name, POINT, seed=0) > 1e-2


def test_a_peer_that_computes_something_else_is_not_compared():
    assert largest_difference("FNet", POINT, seed=0) is None


def test_the_products_of_the_roofline_are_those_of_the_layer():
    point = Point(dim=64, num_heads=2, k=64, length=256)
    found = roofline.operations(point)
    assert tuple(one.name for one in found) == roofline.OPERATIONS[: len(found)]
    counted = sum(one.flops * one.times for one in found if one.name not in ("norm", "gelu"))
    model = build_encoder("linformer-kit", "encoder", point, dropout=0.0, seed=0)
    assert counted == step_flops(model, point, "inference")


def test_slots_without_the_window_are_those_of_the_library():
    torch.manual_seed(0)
    sizes = {"dim": 32, "num_heads": 4, "k": 4, "window": 8}
    ours = CausalLinformerAttention(**sizes)
    x = torch.randn(2, 48, 32)
    for choice in slot_choices.CHOICES:
        chosen = slot_choices.ChosenSlots(choice, **sizes)
        chosen.load_state_dict(ours.state_dict(), strict=False)
        same = torch.allclose(chosen(x), ours(x), atol=1e-5)
        assert same == (choice == "exclude")


@pytest.mark.parametrize("shape", budget.SHAPES)
@pytest.mark.parametrize("k", [None, 8])
def test_models_of_a_budget_keep_the_shape(shape, k):
    settings = budget.BudgetSettings(dim=16, heads=2, window=8)
    x = torch.randn(2, 32, 16)
    assert budget.build(settings, shape, 32, k)(x).shape == x.shape


@pytest.mark.parametrize(
    ("module", "arguments", "records", "sheets", "figures"),
    [
        (budget, "--lengths 32,64 --k 8 --tokens 64 --window 8", 2 * 2 * 3, 2, 2),
        (roofline, "--lengths 64 --k 8 --gemm-size 32", 12, 1, 1),
        (peers, "--lengths 64 --k 16 --peers linformer-kit,linformer", 1 + 4 + 2, 4, 3),
    ],
    ids=["budget", "roofline", "peers"],
)
def test_a_table_is_printed_and_the_records_make_figures(
    capsys, tmp_path, module, arguments, records, sheets, figures
):
    out = tmp_path / "records.jsonl"
    code, text, err = run(capsys, module, "--quick", *TINY, *arguments.split(), "--out", str(out))
    assert code == 0, err
    assert "━" in text
    assert f"{records} records added to" in text
    found, problems = read_records(out)
    assert problems == []
    results = module.BENCHMARK.results
    assert len(results.sheets(found)) == sheets
    assert len(results.figures(found)) == figures
    _, text, err = run(capsys, module, "--quick", *TINY, *arguments.split(), "--out", str(out))
    assert "0 records added to" in text
    assert ": not measured again" in err


@pytest.mark.parametrize(
    ("module", "arguments", "records"),
    [
        (causal_speed, "--dim 32 --heads 2 --lengths 64 --alone 128 --contexts 32,64", 3 + 3 + 4),
        pytest.param(
            generation, "--at 32,64 --over 8 --read", 2 * (2 + 2 + 2), marks=pytest.mark.slow
        ),
        (kept_memory, "--length 64 --k 8 --depth 1", 2),
        (layer_parts, "--length 64 --k 8 --dim 32", 11 + 1 + 2),
        pytest.param(loss_memory, "--length 256", 2 * 2, marks=pytest.mark.slow),
    ],
    ids=["causal_speed", "generation", "kept_memory", "layer_parts", "loss_memory"],
)
def test_a_script_prints_its_table_and_resumes(capsys, tmp_path, module, arguments, records):
    words = ["--quick", "--threads", "1", *arguments.split(), "--out", str(tmp_path / "r.jsonl")]
    code, text, err = run(capsys, module, *words)
    assert code == 0, err
    assert "━" in text
    assert f"{records} records added to" in text
    assert [r["note"] for r in read_records(tmp_path / "r.jsonl").records if r.get("note")] == []
    code, again, _ = run(capsys, module, *words)
    assert again.replace("\n0 records", f"\n{records} records") == text


def test_keras_predictions_are_timed_in_turn(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    code, text, err = run(capsys, keras_time, *KERAS, "--out", str(out))
    assert code == 0, err
    parameters = 4 * (8 * 8) + 3 * 8 + 8 + 2 * 4 * 24
    assert f"Total params: {parameters}" in text
    assert "times faster" in " ".join(text.split())
    records = read_records(out).records
    assert [(r["length"], r["model"], len(r["seconds"])) for r in records] == [
        (length, model, 2)
        for length in (24, 32)
        for model in ("LinearMultiHeadAttention", "MultiHeadAttention")
    ]
    assert records[0]["parameters"] == parameters
    assert records[0]["machine"]["keras"]
    alone = run(capsys, keras_time, *KERAS, "--no-stock", "--out", str(tmp_path / "alone.jsonl"))
    assert "times faster" not in " ".join(alone[1].split())


def test_torch_and_onnxruntime_are_timed_in_turn(capsys, tmp_path):
    out = tmp_path / "records.jsonl"
    sizes = ["--k", "4", "--depth", "1", "--lengths", "8,32"]
    code, text, err = run(capsys, onnx_time, *TINY, *sizes, "--out", str(out))
    assert code == 0, err
    records = read_records(out).records
    assert [(r["what"], r["length"], r["model"]) for r in records] == [
        (what, length, name)
        for what, length in (("encoder", 8), ("encoder", 32), ("step", 512))
        for name in ("torch", "onnxruntime", "onnxruntime int8")
    ]
    for record in records:
        assert record["best"] == min(record["seconds"]) > 0
        assert record["difference"] <= (0.5 if record["model"].endswith("int8") else 1e-4)
        assert record["machine"]["onnxruntime"]
    rows = [line.split()[:2] for line in text.splitlines()]
    assert [row for row in rows if row[:1] in (["encoder"], ["step"])] == [
        ["encoder", "8"],
        ["encoder", "32"],
        ["step", "512"],
    ]


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        (budget, "--lengths 300", "must divide the tokens of a batch: got 300"),
        (budget, "--shapes round", "shapes must be one of"),
        (budget, "--tokens 1073741824 --dim 1000000 --heads 1 --lengths 1024", "GB of memory"),
        (peers, "--peers nobody", "peers must be one of"),
        (peers, "--peers FNet", "peers must include it: got FNet"),
        (peers, "--lengths 16000000 --batch 1000000", "GB of memory"),
        (roofline, "--dim 0", "--dim"),
        (roofline, "--lengths 16000000 --batch 1000000", "GB of memory"),
        (keras_time, "--sequence-length 16", "projection_dim must be at most the sequence length"),
        (keras_time, "--sequence-length long", "--sequence-length takes whole numbers"),
        (keras_time, "--num-heads 0", "--num-heads"),
        (keras_time, "--backend numpie", "--backend"),
        (keras_time, "--backend jax", "Keras runs on torch in this process already"),
        (keras_time, "--sequence-length 16000000 --batch-size 1000000", "GB of memory"),
        (onnx_time, "--lengths 2", "k must be at most each length, for it shortens: got k=128, 2"),
        (onnx_time, "--lengths 16000000 --batch 1000000", "GB of memory"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    capsys, tmp_path, monkeypatch, module, arguments, message
):
    import keras  # noqa: F401

    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, module, *arguments.split())
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("blocked", "message"),
    [
        ("keras", "linformer_kit.keras needs Keras 3: pip install 'linformer-kit[keras]'"),
        ("jax", "Keras needs its backend, jax, which is not installed"),
    ],
)
def test_what_is_missing_is_named_with_the_remedy(blocked, message):
    code = (
        f"import sys; sys.modules[{blocked!r}] = None; from benchmarks import keras_time as k; "
        "k.main(k.BENCHMARK, ['--backend', 'jax'])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert answer.returncode == 2
    assert message in answer.stderr
    assert answer.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_file_of_documents_is_answered_killed_and_resumed(tmp_path):
    sizes = "--documents 40 --longest 300 --hidden 8 --sample 20 --rounds 1 --tokens-per-batch 64"
    record = predict_file.main(["--folder", str(tmp_path), *sizes.split()])
    assert record["file"]["every_row_once_and_in_order"]
    assert record["file"]["totals"]["tokens_read"] == record["file"]["totals"]["tokens_total"]
    assert record["padding"]["same_labels"]
