"""Every command, with every policy, on shorter, equal and longer texts: what was read is right, and
nothing is lost without a line.

The tiny runs read 32 tokens, of characters.
"""

from __future__ import annotations

import json
from typing import get_args

import numpy as np
import pytest
import torch

from linformer_kit.config.load import load
from linformer_kit.config.on_overflow import POLICIES, why_refused
from linformer_kit.config.schema import Task
from linformer_kit.core.resize import resize_max_length
from linformer_kit.data.overflow import overlapping
from linformer_kit.data.prepare import prepare
from linformer_kit.evaluate.evaluation import evaluate_run
from linformer_kit.models.load import load_pretrained, load_tokenizer
from linformer_kit.predict.answers import Options, predict_texts
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train
from linformer_kit.training.build import MODELS

from ..cli.test_main import run as command
from ..train import tiny

N = 32
TASKS = get_args(Task)
FRAME = {"mlm": 2, "classify": 2, "tag": 2, "embed": 2, "translate": 1, "clm": 1}


def text_of(tokens: int, task: str) -> str:
    """A text of so many tokens with its frame; for mlm with a mask in the middle."""
    letters = ("The old dog runs over a hill. " * 20)[: tokens - FRAME[task]]
    if task != "mlm":
        return letters
    half = len(letters) // 2
    # A mask takes the space before it too, so it must not follow one.
    return letters[:half].rstrip().ljust(half, "a") + "<mask>" + letters[half + 1 :]


@pytest.mark.parametrize("tokens", [20, N, N + 1, 150])
@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("task", TASKS)
def test_predict(capsys, runs, task, policy, tokens):
    folder, text = runs(task), text_of(tokens, task)
    capsys.readouterr()  # of the training
    options = ["--max-new-tokens", "2"] if task in ("clm", "translate") else []
    code, out, err = command(
        capsys, "predict", str(folder.path), text, "--on-overflow", policy, *options
    )
    if reason := why_refused("predict", policy, task):
        assert (code, out) == (2, "")
        assert reason in err
        return
    found = json.loads(out)
    # A decoder without learned positions has no limit.
    longer = tokens > N and task != "clm"
    if policy == "error" and longer:
        assert code == 2
        assert f"at most data.max_length = {N} tokens: got {tokens}" in found["error"]
        assert found["error"] in err
        return
    if task == "mlm" and policy == "truncate" and tokens == 150:
        assert code == 2  # its only mask is in the part that is not read
        assert "every <mask> is after the first 30 of 148 tokens" in found["error"]
        return
    assert code == 0
    read = tokens
    if policy == "truncate" and longer:
        read = N
    if task == "mlm" and policy == "chunk" and longer:
        read = N  # the piece around the mask
    assert (found["tokens_read"], found["tokens_total"]) == (read, tokens)
    assert ("were not read" in err) == (read < tokens)


@torch.no_grad()
def test_the_probabilities_of_pieces_are_averaged(runs):
    folder, text = runs("classify"), text_of(150, "classify")
    (answer,) = predict_texts(folder, [text], options=Options(top=9), on_overflow="chunk")
    path = folder.model_folder("best")
    model, tokenizer = load_pretrained(MODELS["classify"], path).eval(), load_tokenizer(path)
    expected = []
    for piece in overlapping(148, 30, 3):
        ids = tokenizer(text[piece.start : piece.stop], return_tensors="pt")["input_ids"]
        expected.append(model(ids).logits[0].softmax(-1).numpy())
    for each in answer.answers:
        label = model.config.label2id[each["text"]]
        assert each["score"] == pytest.approx(np.mean(expected, 0)[label], rel=1e-5)


@torch.no_grad()
def test_a_long_text_is_answered_by_the_extended_model_and_a_short_one_by_its_own(runs):
    folder = runs("classify")
    path = folder.model_folder("best")
    model, tokenizer = load_pretrained(MODELS["classify"], path).eval(), load_tokenizer(path)
    texts = [text_of(100, "classify"), text_of(20, "classify")]
    found = list(predict_texts(folder, texts, options=Options(top=9), on_overflow="extend"))
    for length, answer, text in ((N, found[1], texts[1]), (128, found[0], texts[0])):
        resize_max_length(model, length)
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        likely = model(ids).logits[0].softmax(-1)
        for each in answer.answers:
            assert each["score"] == pytest.approx(
                likely[model.config.label2id[each["text"]]].item(), rel=1e-5
            )


@torch.no_grad()
def test_each_mask_is_filled_in_the_piece_around_it(runs):
    folder = runs("mlm")
    path = folder.model_folder("best")
    model, tokenizer = load_pretrained(MODELS["mlm"], path).eval(), load_tokenizer(path)
    text = "<mask>" + "x" * 98 + "<mask>"
    (answer,) = predict_texts(folder, [text], options=Options(top=2), on_overflow="chunk")
    assert answer.reading.tokens_read == 2 * 30 + 2
    expected = []
    for piece, place in (("<mask>" + "x" * 29, 1), ("x" * 29 + "<mask>", 30)):
        ids = tokenizer(piece, return_tensors="pt")["input_ids"]
        expected += model(ids).logits[0, place].softmax(-1).topk(2).values.tolist()
    assert [each["score"] for each in answer.answers] == pytest.approx(expected, rel=1e-4)


def test_masks_that_are_not_read_are_counted(runs):
    text = "a<mask>" + "x" * 60 + "<mask>"
    (answer,) = predict_texts(runs("mlm"), [text], options=Options(top=1), on_overflow="truncate")
    assert len(answer.answers) == 1
    assert answer.notes[-1] == "1 of 2 <mask> were not read and are not filled."


def test_a_long_translation_is_made_of_the_translations_of_its_sentences(runs):
    sentences = ["The old dog runs.", "A small cat looks.", "The bird jumps."]
    whole = " ".join(sentences)
    options = Options(max_new_tokens=4)
    (found,) = predict_texts(runs("translate"), [whole], options=options, on_overflow="chunk")
    alone = predict_texts(
        runs("translate"), [s + " " for s in sentences[:-1]] + sentences[-1:], options=options
    )
    expected = " ".join(answer.answers[0]["text"] for answer in alone)
    assert found.answers[0]["text"] == expected
    assert found.reading.unread == 0


def test_a_prompt_longer_than_learned_positions_keeps_its_end(tmp_path):
    path = tiny.write(tmp_path, "clm", steps=1, eval_every=1)
    train(load(path, ["model.position_embedding_type=learned"]))
    folder, text = RunFolder(tmp_path / "run"), "The old cat looks. " * 3 + "dog "
    options = Options(max_new_tokens=5)
    (cut,) = predict_texts(folder, [text], options=options)
    assert (cut.reading.tokens_read, cut.reading.tokens_total) == (27, 62)
    (alone,) = predict_texts(folder, [text[-26:]], options=options)
    assert cut.answers == alone.answers
    (whole,) = predict_texts(folder, [text], options=options, on_overflow="extend")
    assert whole.reading.unread == 0
    assert whole.answers[0]["text"].startswith(text)


def corpus(folder, task):
    """The files of a tiny run, with texts of exactly 20, 32 and 150 tokens in the test part."""
    path = tiny.write(folder, task, steps=1, eval_every=1)
    frame = 1 if task == "translate" else 2
    texts = [("The old dog runs over a hill. " * 20)[: size - frame] for size in (20, N, 150)]
    (folder / "test.txt").write_text("\n".join(texts) + "\n")
    (folder / "upper-test.txt").write_text("\n".join(texts).upper() + "\n")
    rows = [f'"{text}",{label}' for text, label in zip(texts, ("yes", "no", "yes"), strict=True)]
    (folder / "test.csv").write_text("text,label\n" + "\n".join(rows) + "\n")
    tagged = [json.dumps({"text": text, "spans": [[8, 11, "animal"]]}) for text in texts]
    (folder / "test.jsonl").write_text("\n".join(tagged) + "\n")
    test = {
        "classify": str(folder / "test.csv"),
        "tag": str(folder / "test.jsonl"),
        "translate": {
            "source": str(folder / "test.txt"),
            "target": str(folder / "upper-test.txt"),
        },
    }.get(task, str(folder / "test.txt"))
    sides = 2 if task == "translate" else 1
    return path, [f"data.test={json.dumps(test)}"], sides


def expected_counts(task, policy, sides):
    """Rows, rows that were cut and tokens that are in none, of texts of 20, 32 and 150 tokens."""
    if policy == "truncate":
        return 3 if task in ("classify", "tag", "translate") else None, 1, sides * (150 - N)
    if policy == "chunk" and task in ("classify", "tag"):
        return 2 + len(overlapping(148, 30, 3)), 0, 0
    return None, 0, 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("task", TASKS)
def test_prepare(capsys, tmp_path, task, policy):
    path, overrides, sides = corpus(tmp_path, task)
    overrides += [f"data.on_overflow={policy}", "data.train=" + overrides[0].partition("=")[2]]
    code, out, err = command(capsys, "prepare", str(path), *overrides, "data.validation_share=0.0")
    if reason := why_refused("train", policy, task):
        assert code == 2
        assert reason in err
        return
    if policy == "error":
        assert code == 2
        got = 76 if task == "embed" else 150  # half of a text
        assert f"at most data.max_length = {N} tokens: got {got}" in err
        assert "line " in err
        return
    assert code == 0
    counts = json.loads(out)["parts"]["test"]
    rows, cut_rows, cut_tokens = expected_counts(task, policy, sides)
    if task == "embed":  # two parts of each text, each in a frame
        assert counts["rows"] == (3 if policy == "truncate" else 5)
        return
    assert counts["tokens"] == sides * (20 + N + 150)
    assert (counts["longer"], counts["longest"]) == (1, 150)
    assert (counts["cut_rows"], counts["cut_tokens"]) == (cut_rows, cut_tokens)
    assert rows is None or counts["rows"] == rows
    assert (f"({cut_tokens:,} of" in err) == (cut_tokens > 0)
    in_pieces = task in ("classify", "tag") and policy == "chunk"
    assert ("read in overlapping pieces" in err) == in_pieces


@pytest.fixture(scope="module")
def tested(tmp_path_factory):
    """A run of each task with texts of exactly 20, 32 and 150 tokens in the test part."""
    made = {}

    def run(task):
        if task not in made:
            path, overrides, _ = corpus(tmp_path_factory.mktemp(task), task)
            with torch.enable_grad():
                made[task] = train(load(path, overrides))
        return made[task]

    return run


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("task", TASKS)
def test_evaluate(capsys, tested, task, policy):
    folder = tested(task)
    capsys.readouterr()  # of the training
    before = folder.evaluation_file.read_bytes()
    code, out, err = command(capsys, "evaluate", str(folder.path), "--on-overflow", policy)
    assert folder.evaluation_file.read_bytes() == before
    if reason := why_refused("evaluate", policy, task):
        assert code == 2
        assert reason in err
        return
    if task == "embed":
        assert (code == 2) == (policy == "error")
        return
    if policy == "error":
        assert code == 2
        assert f"at most data.max_length = {N} tokens" in err
        assert "1 of 3 of the test part have more, got 150" in err
        refused = [other for other in POLICIES if why_refused("evaluate", other, task)]
        assert not any(other in err.partition("Shorten them")[2] for other in refused)
        return
    assert code == 0
    found, *notices = [json.loads(line) for line in out.splitlines()]
    _, cut_rows, cut_tokens = expected_counts(task, policy, 2 if task == "translate" else 1)
    assert found["unread"]["cut_tokens"] == cut_tokens
    assert found["unread"]["cut_rows"] == cut_rows
    assert ("unread" in [notice["event"] for notice in notices]) == (cut_tokens > 0)
    if task == "classify":
        assert np.sum(found["metrics"]["confusion"]) == 3  # documents, not pieces
    if policy == "extend" and task != "translate":
        assert found["rows"] == 3


@torch.no_grad()
def test_pieces_are_scored_as_predict_answers(tested):
    folder = tested("classify")
    found = evaluate_run(folder, on_overflow="chunk")
    lines = (folder.path.parent / "test.csv").read_text().splitlines()[1:]
    texts, labels = zip(*(line.strip().rsplit(",", 1) for line in lines), strict=True)
    answers = predict_texts(
        folder, [text.strip('"') for text in texts], options=Options(top=9), on_overflow="chunk"
    )
    scores = [
        next(each["score"] for each in answer.answers if each["text"] == label)
        for answer, label in zip(answers, labels, strict=True)
    ]
    assert found["metrics"]["loss"] == pytest.approx(-np.log(scores).mean(), rel=1e-5)


def test_a_run_in_pieces_trains_and_is_scored_by_documents(tmp_path):
    path, overrides, _ = corpus(tmp_path, "classify")
    folder = train(load(path, [*overrides, "data.on_overflow=chunk", "data.chunk_overlap=0.5"]))
    found = folder.evaluation()
    assert found["rows"] == 2 + len(overlapping(148, 30, 15))
    assert np.sum(found["metrics"]["confusion"]) == 3
    meta = prepare(folder.config()).meta
    assert meta["on_overflow"] == "chunk"
    assert meta["parts"]["test"]["chunked"] == 1


def test_an_exported_graph_is_not_extended(capsys, runs, tmp_path):
    arguments = ["predict", str(runs("classify").path), "x", "--onnx", str(tmp_path / "a.onnx")]
    code, _, err = command(capsys, *arguments, "--on-overflow", "extend")
    assert code == 2
    assert "cannot be extended" in err


@pytest.mark.parametrize(
    "policy",
    ["truncate", "error", "extend", pytest.param("chunk", marks=pytest.mark.slow)],
)
def test_a_document_of_a_million_tokens_is_treated_by_every_policy(monkeypatch, runs, policy):
    monkeypatch.setattr("linformer_kit.machine_memory.total_memory", lambda: 10**8)
    text, total = "The old dog " * 83_400, 1_000_802
    (answer,) = predict_texts(runs("classify"), [text], options=Options(), on_overflow=policy)
    if policy == "error":
        assert "got at least " in answer.problem  # the rest was not tokenized
    elif policy == "extend":
        assert "reading 1,048,576 tokens at once needs at least 0.4 GB" in answer.problem
    else:
        assert answer.reading.tokens_read == (N if policy == "truncate" else total)
        assert answer.reading.tokens_total == total


def test_an_empty_document_is_reported_and_the_next_is_answered(runs):
    given = iter(["", "The old dog"])
    found = list(predict_texts(runs("classify"), given, options=Options()))
    assert "the input is empty" in found[0].problem
    assert found[1].problem is None
