"""Each task from raw text to a trained, scored model that loads and predicts."""

from __future__ import annotations

import json

import pytest
import torch
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from linformer_kit.config.load import load
from linformer_kit.data.prepare import prepare
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train

from . import tiny

TASKS = {
    "mlm": (AutoModelForMaskedLM, {"loss", "perplexity", "accuracy"}, "The old <mask>og"),
    "clm": (AutoModelForCausalLM, {"perplexity", "bits_per_byte"}, "The old"),
    "classify": (
        AutoModelForSequenceClassification,
        {"accuracy", "macro_f1", "confusion"},
        "a dog",
    ),
    "embed": (
        AutoModel,
        {"recall@1", "recall@10", "ndcg@10", "mrr"},
        "The old dog runs.",
    ),
    "tag": (
        AutoModelForTokenClassification,
        {"loss", "accuracy", "precision", "recall", "f1", "macro_f1", "types"},
        "The old dog runs.",
    ),
    "translate": (
        AutoModelForSeq2SeqLM,
        {"perplexity", "accuracy", "bleu", "bleu_lowercased", "chrf", "signatures"},
        "The old dog",
    ),
}


def test_every_record_says_the_time_of_training_up_to_its_own_step(tmp_path):
    folder = train(load(tiny.write(tmp_path, steps=10, eval_every=2, log_every=5)))
    assert folder is not None
    lines = [line for line in folder.metrics() if "seconds" in line]
    assert {line["step"] for line in lines if "validation" in line} >= {2, 4, 6, 8}
    seconds = [line["seconds"] for line in sorted(lines, key=lambda line: line["step"])]
    assert seconds[0] > 0
    assert seconds == sorted(seconds)
    steps = {line["step"]: line["seconds"] for line in lines}
    assert len({steps[step] for step in (2, 4, 6, 8)}) == 4


@pytest.mark.parametrize("task", TASKS)
def test_a_task_trains_evaluates_loads_and_predicts(tmp_path, task):
    auto, metrics, text = TASKS[task]
    folder = train(load(tiny.write(tmp_path, task, steps=30, eval_every=10, log_every=10)))
    assert folder is not None
    losses = [line["loss"] for line in folder.metrics() if "loss" in line]
    assert losses[-1] < losses[0]
    evaluation = folder.evaluation()
    assert evaluation["part"] == "test"
    assert metrics <= set(evaluation["metrics"])
    for which in ("best", "last"):
        model = auto.from_pretrained(folder.path / which)
        assert type(model).__name__.startswith("Linformer")
        assert AutoTokenizer.from_pretrained(folder.path / which)(text)["input_ids"]
    (answer,) = predict_texts(folder, [text], options=Options(top=2, max_new_tokens=4))
    assert answer.values()["input"] == text
    assert answer.text()
    there = {path.name for path in folder.path.iterdir()}
    assert there == {
        ".lock", "best", "checkpoints", "config.yaml", "environment.json", "evaluation.json",
        "last", "metrics.jsonl", "run.json", "tensorboard",
    }  # fmt: skip
    assert not list(folder.path.rglob("*.bin"))  # nothing pickled but torch's own optimizer state
    assert json.loads((folder.path / "environment.json").read_text())["seed"] == 0


@pytest.mark.parametrize("limit", [None, 3])
def test_the_validation_and_the_test_part_have_limits_of_their_own(tmp_path, capsys, limit):
    limits = ["evaluate.max_examples=2"]
    limits += [] if limit is None else [f"evaluate.max_test_examples={limit}"]
    config = load(tiny.write(tmp_path, steps=2, eval_every=2), limits)
    folder = train(config)
    assert folder is not None
    prepared = prepare(config)
    assert len(prepared.part("validation")) > 2
    whole = len(prepared.part("test"))
    assert whole > 3
    found = folder.evaluation()
    assert (found["rows"], found["rows_of_part"]) == (limit or whole, whole)
    said = f"{limit} of {whole} rows were scored (evaluate.max_test_examples = {limit})"
    assert (said in capsys.readouterr().out) == (limit is not None)
    assert evaluate_run(folder)["metrics"] == found["metrics"]
    assert evaluate_run(folder, part="validation")["rows"] == 2


def test_accumulated_gradients_give_the_same_run(tmp_path):
    weights = []
    for parts in (1, 4):
        path = tiny.write(tmp_path / str(parts), steps=3, accumulate=parts)
        folder = train(load(path, tiny.NO_DROPOUT))
        assert folder is not None
        model = AutoModelForMaskedLM.from_pretrained(folder.last)
        weights.append(torch.cat([p.flatten() for p in model.parameters()]))
    torch.testing.assert_close(*weights, rtol=1e-4, atol=1e-5)


def test_the_test_part_is_never_trained_on(tmp_path):
    prepared = prepare(load(tiny.write(tmp_path), ["data.pack=false", "data.max_length=64"]))
    texts = {
        part: {tuple(row["input_ids"]) for row in prepared.part(part)}
        for part in ("train", "validation", "test")
    }
    assert not texts["train"] & texts["test"]
    assert not texts["train"] & texts["validation"]


def test_what_was_logged_after_a_checkpoint_is_forgotten(tmp_path):
    folder = RunFolder(tmp_path)
    lines = [json.dumps({"step": step}) for step in (1, 2, 3)]
    folder.metrics_file.write_text("\n".join(lines) + '\n{"step": 4, "los')  # torn by a crash
    folder.forget_after(2)
    assert [line["step"] for line in folder.metrics()] == [1, 2]
