"""Tokenizers of every kind: trained, framed for their task, reversible where they can be."""

from __future__ import annotations

import ast
import json
import os
from pathlib import Path

import pytest
import transformers

from linformer_kit.config.schema import TokenizerSection
from linformer_kit.data import tokenizer
from linformer_kit.errors import UserError

from . import hostile
from .limits import at_most

TEXTS = ["The old dog runs over the hill.", "Größe: 5 µm\tund mehr", "the the the dog dog"] * 20
RECORDS = [{"text": text} for text in TEXTS]


def make(kind, task="mlm", **options):
    section = TokenizerSection(kind=kind, **{"vocab_size": 320, **options})
    return tokenizer.make(section, task, RECORDS)


@pytest.mark.parametrize("kind", ["bpe", "unigram", "byte", "character"])
def test_what_is_encoded_is_decoded(kind):
    made = make(kind)
    for text in TEXTS[:2]:
        text = text.replace("\t", " ")
        assert made.decode(made(text)["input_ids"], skip_special_tokens=True).strip() == text


@pytest.mark.parametrize("kind", ["bpe", "unigram", "wordpiece", "byte", "character", "word"])
def test_a_saved_tokenizer_is_the_same(kind, tmp_path):
    made = make(kind)
    made.save_pretrained(tmp_path)
    assert tokenizer.load(str(tmp_path), "mlm")(TEXTS[0]) == made(TEXTS[0])
    if kind not in ("unigram", "wordpiece"):  # whose trainers in `tokenizers` break ties by chance
        assert made(TEXTS[0]) == make(kind)(TEXTS[0])


@pytest.mark.parametrize(
    ("task", "start", "end"),
    [
        ("mlm", True, True),
        ("classify", True, True),
        ("clm", True, False),
        ("translate", False, True),
    ],
)
def test_texts_are_framed_for_their_task(task, start, end):
    made = make("bpe", task)
    ids = made("dog")["input_ids"]
    assert (ids[0] == made.bos_token_id, ids[-1] == made.eos_token_id) == (start, end)


def test_a_mask_hides_the_space_before_it():
    made = make("bpe")
    ids = made("The <mask> runs")["input_ids"]
    assert ids.count(made.mask_token_id) == 1
    assert made.convert_ids_to_tokens(ids)[ids.index(made.mask_token_id) - 1] != "Ġ"


@pytest.mark.parametrize(
    ("kind", "size", "message"),
    [
        ("bpe", 100, "vocab_size must be at least 261 for bpe"),
        ("unigram", 6, "cannot train the tokenizer .*kind unigram, vocab_size 6.*Raise"),
        ("character", 5, "vocab_size must be at least 6 for character"),
        ("word", 1, "vocab_size must be at least 6 for word"),
    ],
)
def test_a_vocabulary_that_is_too_small_is_told(kind, size, message):
    with pytest.raises(UserError, match=message):
        make(kind, vocab_size=size)


def test_errors_of_the_corpus_pass_through_the_training():
    def records():
        yield RECORDS[0]
        raise UserError("line 2 is bad")

    section = TokenizerSection(kind="bpe", vocab_size=320)
    with pytest.raises(UserError, match=r"^line 2 is bad$"):
        tokenizer.make(section, "mlm", records())


def test_a_tokenizer_json_alone_is_enough(tmp_path):
    made = make("bpe")
    made.save_pretrained(tmp_path)
    loaded = tokenizer.load(str(tmp_path / "tokenizer.json"), "mlm")
    assert loaded(TEXTS[0]) == made(TEXTS[0])
    assert loaded.all_special_ids == made.all_special_ids


def test_what_is_loaded_and_saved_says_nothing_of_how(tmp_path):
    make("bpe").save_pretrained(tmp_path / "a")
    tokenizer.load(str(tmp_path / "a"), "mlm").save_pretrained(tmp_path / "b")
    config = (tmp_path / "b" / "tokenizer_config.json").read_text()
    assert "trust_remote_code" not in config


def changed(**keys):
    """A change of keys of tokenizer.json."""
    return lambda content: {**content, **keys}


HOSTILE = {
    "garbage": lambda content: b"\0\1\2",
    "truncated": lambda content: json.dumps(content).encode()[:700],
    "a list": lambda content: [],
    "null": lambda content: None,
    "deep": lambda content: b"[" * 100_000,
    "no model": changed(model=None),
    "model of another kind": changed(model={"type": "Unigram", "vocab": []}),
    "ids beyond its size": changed(
        model={"type": "WordLevel", "unk_token": "<unk>", "vocab": {"<unk>": 0, "a": 4_000_000_000}}
    ),
    "bad expression": changed(
        pre_tokenizer={
            "type": "Split",
            "pattern": {"Regex": "((((("},
            "behavior": "Isolated",
            "invert": False,
        }
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_tokenizer_json_is_one_line(tmp_path, name):
    make("bpe").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer.json"
    content = HOSTILE[name](json.loads(file.read_text()))
    file.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    for path in (tmp_path, file):
        with pytest.raises(UserError, match=r"cannot (load|read) the tokenizer") as caught:
            tokenizer.load(str(path), "mlm")
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", ["", "{", "[]", "[" * 100_000, '{"pad_token": 5}'])
def test_a_hostile_tokenizer_config_is_one_line(tmp_path, content):
    make("bpe").save_pretrained(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(UserError, match=r"cannot load the tokenizer"):
        tokenizer.load(str(tmp_path), "mlm")


def test_a_tokenizer_that_is_no_file_is_told(tmp_path):
    with at_most(30), pytest.raises(UserError, match="none is not a file or folder"):
        tokenizer.load(str(tmp_path / "none"), "mlm")
    (tmp_path / "tokenizer.json").symlink_to("/dev/zero")
    fifo = hostile.write_fifo(tmp_path)
    for path in (tmp_path, tmp_path / "tokenizer.json", fifo):
        with at_most(10), pytest.raises(UserError, match="must be a regular file"):
            tokenizer.load(str(path), "mlm")


def test_a_huge_tokenizer_is_not_read(tmp_path):
    (tmp_path / "tokenizer.json").touch()
    os.truncate(tmp_path / "tokenizer.json", 100_000_000_000)
    with at_most(10), pytest.raises(UserError, match="larger than 512 MB"):
        tokenizer.load(str(tmp_path), "mlm")
    with at_most(10), pytest.raises(UserError, match="larger than 512 MB"):
        tokenizer.content_of(str(tmp_path))


def test_code_beside_a_tokenizer_is_not_executed(tmp_path):
    make("bpe").save_pretrained(tmp_path)
    file = tmp_path / "tokenizer_config.json"
    config = json.loads(file.read_text())
    config |= {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}}
    file.write_text(json.dumps(config))
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'executed')!r}, 'w')")
    assert len(tokenizer.load(str(tmp_path), "mlm")) == len(make("bpe"))
    assert not (tmp_path / "executed").exists()


def test_every_call_that_could_load_code_says_no():
    folder = Path(tokenizer.__file__).parent
    calls = [
        node
        for path in folder.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "from_pretrained"
    ]
    assert len(calls) == 2
    for call in calls:
        said = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
        assert said["trust_remote_code"] is False


def test_truncation_in_a_tokenizer_file_cuts_nothing(tmp_path):
    made = make("character")
    made.backend_tokenizer.enable_truncation(4)
    made.backend_tokenizer.enable_padding(length=4)
    made.save_pretrained(tmp_path)
    loaded = tokenizer.load(str(tmp_path), "mlm")
    assert [len(each.ids) for each in tokenizer.encode_whole(loaded, ["a" * 30, "a"])] == [30, 1]


@pytest.mark.parametrize(
    ("special", "task", "expected"),
    [
        ({"bos_token": "<s>", "eos_token": "</s>"}, "classify", "<s> d </s>"),
        ({"bos_token": "<s>", "eos_token": "</s>"}, "translate", "d </s>"),
        ({"cls_token": "<s>", "sep_token": "</s>"}, "classify", "<s> d </s>"),
        ({"eos_token": "</s>"}, "mlm", "d </s>"),
        ({}, "mlm", "d"),
    ],
)
def test_a_text_is_framed_by_the_special_tokens_of_its_tokenizer(special, task, expected):
    made = make("character")
    loaded = transformers.PreTrainedTokenizerFast(
        tokenizer_object=made.backend_tokenizer, **special
    )
    ids = tokenizer.frame_of(loaded, task)(loaded("d", add_special_tokens=False)["input_ids"])
    assert " ".join(loaded.convert_ids_to_tokens(ids)) == expected
    begin, end = tokenizer.frame_of(loaded, "clm", prompt=True)
    assert (len(begin), len(end)) == (("<s>" in expected or task == "translate") * 1, 0)


def test_a_lone_surrogate_is_told():
    with pytest.raises(UserError, match=r"must be valid Unicode: got a lone surrogate"):
        tokenizer.encode_whole(make("byte"), ["caf\udce9"])
