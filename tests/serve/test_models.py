"""Which folders can be served, by which backend, and what their answers are."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import transformers
from sentence_transformers import SentenceTransformer
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from linformer_kit.convert import linformerize, save_linformerized
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerConfig, LinformerForEmbedding, LinformerModel
from linformer_kit.models.load import load_tokenizer
from linformer_kit.models.sentence_files import write_sentence_files
from linformer_kit.predict.answers import Options
from linformer_kit.serve.cost import EncoderCost
from linformer_kit.serve.exact_batches import keeps_bits
from linformer_kit.serve.models import ServedModel, load_models

from .servers import local

TEXT = "The old dog runs over"


def silent(line):
    pass


def vector(model, text=TEXT):
    task = model.task_with(Options(), None)
    question = model.question(task, text)
    outputs = model.forward(task, question.pieces, None, [(None, 0)] * len(question.pieces))
    return np.array(task.merge(question, outputs)[0]["vector"])


def test_a_run_and_its_model_folder_answer_alike(models, runs):
    folder = ServedModel("folder", runs("embed").model_folder("best"))
    assert folder.task == "embed"
    assert folder.longest == models["embed"].longest == 32
    np.testing.assert_array_equal(vector(folder), vector(models["embed"]))


def test_a_folder_of_sentence_transformers_answers_as_it_does_there(runs, tmp_path):
    config = LinformerConfig(
        vocab_size=100, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=32, k=8, pooling="mean", type_vocab_size=0,
    )  # fmt: skip
    torch.manual_seed(0)
    LinformerModel(config).save_pretrained(tmp_path)  # as a conversion writes it
    load_tokenizer(runs("embed").model_folder("best")).save_pretrained(tmp_path)
    write_sentence_files(tmp_path, config)
    model = ServedModel("theirs", tmp_path)
    assert model.task == "embed"
    assert "extend" not in model.describe()["on_overflow"]["allowed"]
    wanted = SentenceTransformer(str(tmp_path), device="cpu").encode(TEXT)
    np.testing.assert_allclose(vector(model), wanted, atol=3e-7)


@pytest.mark.slow
def test_onnxruntime_answers_as_torch_does(models, runs):
    by_name = load_models(
        [f"{task}={runs(task).path}" for task in ("embed", "clm")], backend="onnxruntime",
        say=silent,
    )  # fmt: skip
    assert by_name["embed"].backend == "onnxruntime"
    np.testing.assert_allclose(vector(by_name["embed"]), vector(models["embed"]), atol=1e-5)
    body = {"model": "clm", "input": "The old ", "max_new_tokens": 8}
    with local(by_name) as one, one.client() as client, local(models) as two, two.client() as other:
        answers = [each.post("/predict", json=body).json() for each in (client, other)]
        body = {"model": "embed", "input": "a", "on_overflow": "extend"}
        refused = client.post("/predict", json=body)
    assert answers[0]["results"] == answers[1]["results"]
    assert refused.status_code == 400


def test_int8_is_near_and_an_exported_file_is_served(models, runs, tmp_path):
    from linformer_kit.export.exporter import export_onnx
    from linformer_kit.export.load import load_model

    folder = runs("embed").model_folder("best")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    export_onnx(load_model(folder), tmp_path / "model.onnx", int8=True)
    whole = ServedModel("whole", tmp_path / "model.onnx")
    rounded = ServedModel("rounded", tmp_path / "model.int8.onnx")
    assert (whole.backend, rounded.backend) == ("onnxruntime", "onnxruntime int8")
    np.testing.assert_allclose(vector(whole), vector(models["embed"]), atol=1e-5)
    assert vector(rounded) @ vector(models["embed"]) > 0.99


def swapped_folder(runs, folder, kind, **more):
    """A tiny BERT of transformers with swapped attention, and a tokenizer beside it."""
    tokenizer = load_tokenizer(runs("mlm").model_folder("best"))
    config = transformers.BertConfig(
        vocab_size=len(tokenizer), hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=64, pad_token_id=tokenizer.pad_token_id,
        **more,
    )  # fmt: skip
    torch.manual_seed(0)
    model = linformerize(getattr(transformers, kind)(config).eval(), max_length=48, k=4, window=2)
    save_linformerized(model, folder)
    tokenizer.save_pretrained(folder)
    return model, tokenizer


def test_a_model_with_swapped_attention_is_served(runs, tmp_path):
    text = "The old dog runs over the <mask>ill"
    fill, tokenizer = swapped_folder(runs, tmp_path / "fill", "BertForMaskedLM")
    names = {0: "no", 1: "yes", 2: "perhaps"}
    kind = "BertForSequenceClassification"
    classify, _ = swapped_folder(runs, tmp_path / "classify", kind, id2label=names)
    iob = {0: "O", 1: "B-animal", 2: "I-animal"}
    swapped_folder(runs, tmp_path / "tag", "BertForTokenClassification", id2label=iob)
    folders = [str(tmp_path / name) for name in ("fill", "classify", "tag")]
    served = load_models(folders, say=silent)
    assert [each.longest for each in served.values()] == [48, 48, 48]
    batch = tokenizer(text, return_tensors="pt")
    ids = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    with torch.no_grad():
        place = int((ids["input_ids"][0] == tokenizer.mask_token_id).nonzero())
        likely = fill(**ids).logits[0, place].softmax(-1)
        labels = classify(**ids).logits[0].softmax(-1)
    with local(served) as started, started.client() as client:

        def ask(model, **more):
            body = {"model": model, "input": text, **more}
            return client.post("/predict", json=body).json()

        got = ask("fill", top=3)
        scores = [each["score"] for each in got["results"][0]["answers"]]
        np.testing.assert_allclose(scores, likely.topk(3).values, atol=1e-6)
        assert got["full_attention"] is None
        found = {each["text"]: each["score"] for each in ask("classify")["results"][0]["answers"]}
        wanted = {names[number]: float(score) for number, score in enumerate(labels)}
        assert found == pytest.approx(wanted, abs=1e-6)
        long = {"model": "tag", "input": text * 5}
        assert client.post("/predict", json=long).json()["tokens_read"] > 100
        refused = client.post("/heads", json={"model": "fill", "input": text})
    assert refused.status_code == 400
    assert "is no Linformer" in refused.json()["error"]["message"]


def test_models_with_swapped_attention_that_cannot_be_served_say_why(runs, tmp_path):
    swapped_folder(runs, tmp_path / "plain", "BertModel")
    with pytest.raises(UserError, match=r"holds BertModel with swapped attention: .*ForMaskedLM"):
        load_models([str(tmp_path / "plain")], say=silent)
    swapped_folder(runs, tmp_path / "fill", "BertForMaskedLM")
    with pytest.raises(UserError, match="not exported"):
        load_models([str(tmp_path / "fill")], backend="onnxruntime", say=silent)
    (tmp_path / "fill" / "tokenizer.json").unlink()
    with pytest.raises(UserError, match=r"no tokenizer\.json.*save_pretrained"):
        load_models([str(tmp_path / "fill")], say=silent)
    names = {0: "B-animal", 1: "O", 2: "I-animal"}
    swapped_folder(runs, tmp_path / "tag", "BertForTokenClassification", id2label=names)
    with pytest.raises(UserError, match="must have the labels O, then B-TYPE"):
        load_models([str(tmp_path / "tag")], say=silent)


def test_folders_that_cannot_be_served_are_refused(runs, tmp_path):
    with pytest.raises(UserError, match="there is no folder"):
        load_models([str(tmp_path / "none")], say=silent)
    with pytest.raises(UserError, match="is not a model"):
        load_models([str(tmp_path)], say=silent)
    path = runs("embed").path
    with pytest.raises(UserError, match="two models have the name 'run'"):
        load_models([str(path), f"run={path}"], say=silent)
    with pytest.raises(UserError, match="letters, digits"):
        load_models([f"a b={path}"], say=silent)


def test_batches_are_used_where_they_keep_the_bits(models):
    for name in ("mlm", "classify", "tag", "embed"):
        assert models[name].batches
    assert not models["translate"].batches


def test_a_model_whose_bits_depend_on_the_batch_is_found(models, monkeypatch):
    task = models["embed"].task_with(Options(), None)
    forward = type(task).forward

    def other(self, pieces, model, places):
        return [row + len(pieces) * 1e-7 for row in forward(self, pieces, model, places)]

    monkeypatch.setattr(type(task), "forward", other)
    assert not keeps_bits(task, 32)


@pytest.mark.parametrize(
    "options", [{"k": 8}, {"k": 8, "projection": "mean", "window": 16}, {"projection": "full"}]
)
def test_the_cost_is_what_torch_counts(options):
    config = LinformerConfig(
        vocab_size=50, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=64, max_position_embeddings=64, type_vocab_size=0, **options,
    )  # fmt: skip
    cost = EncoderCost.of(LinformerForEmbedding, config)
    full = LinformerForEmbedding(LinformerConfig(**{**config.to_dict(), "projection": "full"}))
    plain = sdpa_kernel(SDPBackend.MATH)  # the fused one is not counted
    with torch.no_grad(), plain, FlopCounterMode(display=False) as counter:
        full.eval()(torch.ones(1, 64, dtype=torch.int64))
    ours, whole = cost.flops([64], 64)
    assert whole == counter.get_total_flops()
    if "projection" in options and options["projection"] == "full":
        assert ours == whole
