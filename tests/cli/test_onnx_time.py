"""`linformer onnx-time`: who takes part, what is printed and written, mistakes. Never the speed."""

from __future__ import annotations

import shutil

import pytest

from linformer_kit.measure.records import read_records

from .test_main import run

TINY = [
    "--dim",
    "16",
    "--heads",
    "2",
    "--k",
    "4",
    "--depth",
    "1",
    "--rounds",
    "2",
    "--threads",
    "1",
]


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(
            ["--aot"],
            marks=[
                pytest.mark.slow,
                pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler"),
            ],
        ),
    ],
)
def test_it_prints_a_row_for_each_model_and_length_and_writes_records(capsys, tmp_path, options):
    out = tmp_path / "records.jsonl"
    code, text, err = run(
        capsys, "onnx-time", "--lengths", "8,32", *TINY, *options, "--out", str(out)
    )
    assert code == 0, err
    contestants = ["torch", "onnxruntime", "onnxruntime int8", *["AOTInductor"] * len(options)]
    records, problems = read_records(out)
    assert problems == []
    assert [(r["what"], r["length"], r["contestant"]) for r in records] == [
        (what, length, name)
        for what, length in (("encoder", 8), ("encoder", 32), ("step", 512))
        for name in contestants
    ]
    for record in records:
        assert len(record["seconds"]) == 2
        assert record["best"] == min(record["seconds"]) > 0
        rounded = record["contestant"] == "onnxruntime int8"
        assert record["difference"] <= (0.5 if rounded else 1e-4)
        assert record["machine"]["onnxruntime"]
        assert record["machine"]["torch"]
    rows = [
        line.split() for line in text.splitlines() if line.split()[:1] in (["encoder"], ["step"])
    ]
    assert [row[:2] for row in rows] == [["encoder", "8"], ["encoder", "32"], ["step", "512"]]
    assert str(out) in "".join(text.split())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--lengths", "2"], "k must be at most each length, for it shortens: got k=4, 2"),
        (["--lengths", "long"], "--lengths takes whole numbers"),
        (["--depth", "0"], "--depth"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(capsys, tmp_path, options, message):
    out = tmp_path / "records.jsonl"
    code, text, err = run(capsys, "onnx-time", *TINY, *options, "--out", str(out))
    assert (code, text) == (2, "")
    assert message in err
    assert err.count("\n") == 1
    assert not out.exists()
