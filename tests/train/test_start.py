"""`model.from`: what comes along from a folder, what is new, and what is refused by name."""

from __future__ import annotations

import json
import shutil

import pytest
import tokenizers
import torch
import yaml
from safetensors.torch import load_file
from transformers import BertConfig, BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from linformer_kit.config.load import load
from linformer_kit.convert import convert
from linformer_kit.data.prepare import prepare
from linformer_kit.errors import UserError
from linformer_kit.models import LinformerForMaskedLM, LinformerForSequenceClassification
from linformer_kit.runs.folder import RunFolder
from linformer_kit.train.run import train
from linformer_kit.train.start import start_of

from ..cli.test_main import run as command
from . import commands, tiny

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def bert(folder, kind=BertForMaskedLM, **options):
    """A tiny BERT with its tokenizer, saved as transformers saves one."""
    words = sorted({word for line in tiny.SENTENCES for word in line.lower().strip(".").split()})
    vocab = {word: place for place, word in enumerate([*SPECIAL, *words, "."])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocab, unk_token="[UNK]"))
    made.normalizer = tokenizers.normalizers.Lowercase()
    made.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(6)  # as sentence-transformers' folders have
    PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]",
        mask_token="[MASK]",
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = BertConfig(
        vocab_size=len(vocab), **sizes, intermediate_size=32, max_position_embeddings=24, **options
    )
    model = kind(config).eval()
    model.save_pretrained(folder)
    return model


def values(folder, task, start, *overrides):
    """The overrides of a tiny run that starts from a folder and says nothing about the model."""
    path = tiny.write(folder, task, steps=4, eval_every=4, save_every=2)
    whole = yaml.safe_load(path.read_text())
    del whole["tokenizer"]
    path.write_text(yaml.safe_dump(whole | {"model": {"from": str(start)}}))
    return load(path, overrides)


def assert_equal(one, other):
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def started(config):
    prepared = prepare(config)
    return start_of(config, prepared, prepared.tokenizer())


@pytest.mark.parametrize("task", ["mlm", "classify", "tag"])
def test_a_bert_is_converted_on_the_way_and_trained(capsys, tmp_path, task):
    original = bert(tmp_path / "bert")
    config = values(tmp_path, task, tmp_path / "bert", "model.k=8", "model.window=4")
    folder = train(config)
    said = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    notes = [line["message"] for line in said if line.get("event") == "start"]
    assert "a BertForMaskedLM, is converted: k 8, window 4" in notes[0]
    if task != "mlm":
        assert "new: classifier" in notes[-1]
        assert "not used: transform.dense, transform.norm, lm_head" in notes[-1]
    else:
        assert "nothing is new" in notes[-1]
    assert folder.finished
    kept = PreTrainedTokenizerFast.from_pretrained(folder.best)
    assert (
        kept.get_vocab() == PreTrainedTokenizerFast.from_pretrained(tmp_path / "bert").get_vocab()
    )
    # Before training it is the converted model.
    begun = started(config).model
    student = convert(original, max_length=32, k=8, window=4)
    theirs = student.state_dict()
    shared = [name for name in begun.state_dict() if name in theirs]
    assert len(shared) > 20
    for name in shared:
        assert torch.equal(begun.state_dict()[name], theirs[name])


def test_rows_are_framed_as_the_pretrained_model_was_and_nothing_is_truncated(tmp_path):
    bert(tmp_path / "bert")
    prepared = prepare(values(tmp_path, "classify", tmp_path / "bert"))
    row = prepared.part("train")[0]["input_ids"]
    assert (row[0], row[-1]) == (2, 3)
    assert len(row) == 12  # [CLS], 9 words and a full stop, [SEP]


def test_predict_answers_with_what_was_fine_tuned(capsys, tmp_path):
    bert(tmp_path / "bert", BertModel)
    folder = train(values(tmp_path, "classify", tmp_path / "bert"))
    capsys.readouterr()
    code, out, _ = command(capsys, "predict", str(folder.path), "the old dog runs .")
    assert code == 0
    assert (json.loads(out)["tokens_read"], json.loads(out)["tokens_total"]) == (7, 7)


def run_of(folder, task="mlm", *overrides):
    return train(load(tiny.write(folder, task, steps=2, eval_every=2), overrides))


def test_a_classifier_starts_from_a_language_model_of_ours(tmp_path):
    first = run_of(tmp_path / "first")
    config = values(tmp_path, "classify", first.path)
    begun = started(config)
    language_model = LinformerForMaskedLM.from_pretrained(first.best)
    for name, tensor in language_model.linformer.state_dict().items():
        assert torch.equal(begun.model.linformer.state_dict()[name], tensor)
    assert "new: classifier" in begun.notes[-1]
    again = started(config).model.state_dict()  # what is new follows from the seed
    assert_equal(begun.model.state_dict(), again)


def test_a_classifier_of_the_same_labels_keeps_its_head(tmp_path):
    first = run_of(tmp_path / "first", "classify")
    config = values(tmp_path, "classify", first.best, "model.hidden_dropout_prob=0.5")
    begun = started(config)
    assert "nothing is new" in begun.notes[-1]
    assert begun.model.config.hidden_dropout_prob == 0.5
    before = LinformerForSequenceClassification.from_pretrained(first.best).state_dict()
    assert_equal(begun.model.state_dict(), before)


def test_other_labels_have_a_new_head(tmp_path):
    first = run_of(tmp_path / "first", "classify")
    config = values(tmp_path / "second", "classify", first.path)
    table = tmp_path / "second/labels.csv"
    table.write_text(table.read_text().replace(",yes", ",maybe"))
    begun = started(config)
    assert begun.model.config.id2label == {0: "maybe", 1: "no"}
    assert "new: classifier" in begun.notes[-1]


@pytest.mark.parametrize("task", ["classify", "tag"])
def test_a_new_classifier_can_learn_faster_than_the_encoder(tmp_path, task):
    """Adam's first step is the learning rate itself, wherever a gradient is."""
    bert(tmp_path / "bert", BertModel)
    rates = ["train.lr=1.0e-4", "train.head_lr=0.01", "train.schedule=constant", "train.warmup=0"]
    one_step = ["train.steps=1", "train.weight_decay=0.0", "train.clip=0.0"]
    config = values(tmp_path, task, tmp_path / "bert", "model.k=4", *rates, *one_step)
    before = started(config).model.state_dict()
    after = load_file(train(config).last / "model.safetensors")
    moved = {name: float((after[name] - before[name]).abs().max()) for name in after}
    head = [moved.pop(name) for name in after if not name.startswith("linformer.")]
    assert head == pytest.approx([0.01] * len(head), rel=0.02)
    assert max(moved.values()) == pytest.approx(1e-4, rel=0.02)


def test_a_longer_length_is_interpolated_and_a_shorter_one_changes_nothing(tmp_path):
    first = run_of(tmp_path / "first")
    begun = started(values(tmp_path, "mlm", first.path, "data.max_length=64"))
    assert begun.model.config.max_position_embeddings == 64
    assert "interpolated to data.max_length = 64" in begun.notes[0]
    expected = LinformerForMaskedLM.from_pretrained(first.best)
    expected.resize_position_embeddings(64)
    ids = torch.randint(5, 20, (1, 60))
    with torch.no_grad():
        torch.testing.assert_close(begun.model.eval()(ids).logits, expected.eval()(ids).logits)
    shorter = started(values(tmp_path, "mlm", first.path, "data.max_length=16")).model
    assert shorter.config.max_position_embeddings == 32


@pytest.mark.parametrize("task", ["clm", "translate"])
def test_decoders_start_from_decoders(tmp_path, task):
    first = run_of(tmp_path / "first", task)
    begun = started(values(tmp_path, task, first.path))
    assert "nothing is new" in begun.notes[-1]
    with pytest.raises(UserError, match="the task 'mlm' needs an encoder: got"):
        started(values(tmp_path / "b", "mlm", first.path))


def test_k_may_change_where_no_weight_depends_on_it(tmp_path):
    bert(tmp_path / "bert")
    first = train(values(tmp_path / "a", "mlm", tmp_path / "bert", "model.k=8"))
    begun = started(values(tmp_path / "b", "mlm", first.path, "model.k=4", "model.window=2"))
    assert (begun.model.config.k, begun.model.config.window) == (4, 2)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["model.hidden_size=32"], "model.hidden_size is 32 here and 16 in model.from"),
        (["model.k=4"], "model.k is 4 here and 8 in model.from"),
        (["model.projection=conv"], "model.projection is 'conv' here and 'linear' in model.from"),
        (["tokenizer.kind=bpe", "tokenizer.vocab_size=999"], "tokenizer.vocab_size has no effect"),
        (["tokenizer.path=x"], "tokenizer.path has no effect with model.from"),
        (["model.from=nowhere"], "model.from must name a folder: got nowhere"),
        (["model.from=."], "is no model: it has no config.json"),
        (["model.from=3"], "model.from: input should be a valid string"),
    ],
)
def test_what_contradicts_the_folder_is_refused_by_name(
    tmp_path, first_run, monkeypatch, overrides, message
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=message):
        train(values(tmp_path, "mlm", first_run.path, *overrides))
    assert not (tmp_path / "run").exists()


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    return run_of(tmp_path_factory.mktemp("first"))


def test_equal_keys_are_no_contradiction(tmp_path, first_run):
    started(values(tmp_path, "mlm", first_run.path, "model.hidden_size=16", "model.k=8"))


def test_a_resumed_run_ends_with_the_same_bits_and_refuses_another_source(tmp_path, first_run):
    source = tmp_path / "source"
    shutil.copytree(first_run.best, source)
    whole = values(tmp_path / "whole", "mlm", source)
    train(whole)
    parts = values(tmp_path / "parts", "mlm", source)
    folder = train(parts)
    folder.evaluation_file.unlink()
    for path in (folder.checkpoint_folders()[-1], folder.best, folder.last):
        shutil.rmtree(path)  # as if it had been killed after step 2
    train(parts)
    assert commands.results(folder.path) == commands.results(RunFolder(tmp_path / "whole/run").path)
    folder.evaluation_file.unlink()
    model = LinformerForMaskedLM.from_pretrained(source)
    with torch.no_grad():
        model.lm_head.bias += 1
    model.save_pretrained(source)
    with pytest.raises(UserError, match=r"the model of model\.from of .* has changed"):
        train(parts)
    other = values(tmp_path / "parts", "mlm", first_run.best)
    with pytest.raises(UserError, match=r"model\.from is .* there and .* here"):
        train(other)


def test_a_run_is_evaluated_after_its_source_is_gone(capsys, tmp_path):
    bert(tmp_path / "bert")
    folder = train(values(tmp_path, "mlm", tmp_path / "bert"))
    shutil.rmtree(tmp_path / "bert")
    shutil.rmtree(tmp_path / "prepared")
    capsys.readouterr()
    code, out, _ = command(capsys, "evaluate", str(folder.path))
    assert code == 0
    assert json.loads(out.splitlines()[0])["metrics"] == folder.evaluation()["metrics"]
