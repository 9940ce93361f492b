"""Absurd numbers on the command line of every command: one line, exit code 2, at once."""

from __future__ import annotations

import inspect
import typing

import pytest

from benchmarks import budget, keras_time, onnx_time, peers, roofline
from linformer_kit.cli.app import app
from linformer_kit.cli.bench import command, main
from linformer_kit.cli.options import names, whole_numbers
from linformer_kit.config import limits
from linformer_kit.errors import UserError
from linformer_kit.evidence.bench.catalog import BENCHMARKS

from .test_main import run as run_linformer

SCRIPTS = {
    f"benchmarks.{name}": module.BENCHMARK
    for name, module in {
        "budget": budget,
        "keras_time": keras_time,
        "onnx_time": onnx_time,
        "peers": peers,
        "roofline": roofline,
    }.items()
}
COMMANDS = {
    **{("bench", one.name): command(one) for one in BENCHMARKS},
    **{(name,): command(one) for name, one in SCRIPTS.items()},
    **{(one.callback.__name__,): one.callback for one in app.registered_commands},
}
NEEDED = {
    ("spectrum",): ["model", "--text", "x.txt"],
    ("heads",): ["run", "--text", "x.txt"],
    ("evaluate",): [".", "--needle"],
    ("compare",): ["quick-mlm", "--vary", "model.k=8,16"],
    ("predict",): ["run", "text"],
    ("convert",): ["model", "--out", "new"],
    ("index",): [".", "--model", "model", "--out", "new"],
    ("search",): ["index", "query"],
    ("serve",): ["model"],
}
BUDGETS = ("limit", "budget")
ZERO = ("seed", "window", "global_tokens", "port", "temperature", "minutes", "lr")  # it may be 0
MANY_NUMBERS = {"lengths", "k", "contexts", "sequence_length"}
MANY_NAMES = {"layers", "modes", "models", "shapes", "peers", "what"}

WHOLE = [
    "-1",
    "1000000000000",
    "100000000000000000000",
    "1.5",
    "nan",
    "inf",
    "x",
    "",
    "0x10",
    "1e3",
]
FLOATS = ["nan", "inf", "-inf", "x", "", "-1"]
HUGE = "1e300"  # of a budget in seconds: no limit
LISTS = [",", "", "32,", "32,32", "0", "-1", "1e3", "1000000000000", "9" * 5000, "nan", "[1]"]
NAMES = [",", "", "encoder,,encoder", "nonsense,nonsense"]


def run(capsys, *words: str) -> tuple[int, str, str]:
    """A command of `linformer`, or of a script in `benchmarks/`."""
    if words[0] not in SCRIPTS:
        return run_linformer(capsys, *words)
    with pytest.raises(SystemExit) as ended:
        main(SCRIPTS[words[0]], words[1:])
    said = capsys.readouterr()
    return int(ended.value.code or 0), said.out, said.err


def wrong_values(name: str, hint: object) -> list[str]:
    kinds = {kind for kind in (*typing.get_args(hint), hint) if isinstance(kind, type)}
    if name in MANY_NUMBERS and str in kinds:
        return LISTS
    if name in MANY_NAMES and str in kinds:
        return NAMES
    if int in kinds and bool not in kinds:
        return WHOLE if name in ZERO else ["0", *WHOLE]
    if float not in kinds:
        return []
    return FLOATS if name in BUDGETS else [*FLOATS, HUGE]


CASES = [
    (words, name.replace("_", "-"), value)
    for words, function in COMMANDS.items()
    for name, hint in inspect.get_annotations(function, eval_str=True).items()
    if typing.get_origin(hint) is typing.Annotated
    for value in wrong_values(name, typing.get_args(hint)[0])
    if (*words, name, value) != ("convert", "k", "0")  # the window alone
]


def test_every_option_with_a_number_is_tried():
    tried = {(words, name) for words, name, _ in CASES}
    assert len(tried) > 100
    assert {(("bench", "decode"), "window"), (("evaluate",), "depths")} <= tried


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_an_absurd_number_is_one_line_and_nothing_is_written(capsys, tmp_path, monkeypatch, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.txt").write_text("text")
    for owner, option, value in CASES:
        if owner != words:
            continue
        arguments = [*words, *NEEDED.get(words, []), f"--{option}={value}"]
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, ""), arguments
        assert err.startswith("linformer: "), arguments
        assert err.count("\n") == 1, arguments
        assert option.removesuffix("s") in err, arguments
        assert len(err) < 1300
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]


@pytest.mark.parametrize(
    "arguments",
    [
        "bench attention --lengths 16000000 --batch 1000000",
        "bench attention --lengths 16000000 --k 16000000",
        "bench growth --lengths 16000000 --dim 1000000 --heads 1",
        "bench growth --lengths 512 --dim 1000000 --heads 1 --depth 8000",
        "bench grid --lengths 16000000 --dim 1000000 --heads 1",
        "bench grid --tokens 2000000000 --dim 1000000 --heads 1",
        "bench decode --contexts 16000000 --batch 1000000",
        "bench decode --window 16000000 --dim 1000000 --heads 1",
    ],
)
def test_sizes_beyond_memory_are_refused_by_estimate(capsys, tmp_path, monkeypatch, arguments):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    code, out, err = run(capsys, *arguments.split())
    assert (code, out) == (2, "")
    assert "GB of memory, and this machine has" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("threads", [str(limits.THREADS + 1), "100000"])
def test_threads_beyond_the_limit_are_refused(capsys, threads):
    for words, function in COMMANDS.items():
        if "threads" in inspect.signature(function).parameters:
            code, _, err = run(capsys, *words, *NEEDED.get(words, []), "--threads", threads)
            assert code == 2
            assert "--threads" in err


def test_lists_are_read():
    assert whole_numbers("lengths", " 5,1_000,7 ") == (5, 1000, 7)
    assert names("modes", "a, b") == ("a", "b")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("5,5", "--lengths has 5 twice"),
        ("5,", "--lengths takes whole numbers with commas between them: got '5,'"),
        ("0", "--lengths takes numbers from 1 to 16,777,216: got 0"),
    ],
)
def test_a_wrong_list_says_the_rule_and_what_was_received(text, message):
    with pytest.raises(UserError) as caught:
        whole_numbers("lengths", text)
    assert message in str(caught.value)
