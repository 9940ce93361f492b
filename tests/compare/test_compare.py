"""Variants, their table and what is said about them."""

from __future__ import annotations

import pytest

from linformer_kit.compare.report import verdict
from linformer_kit.compare.run import compare
from linformer_kit.compare.variants import variants
from linformer_kit.errors import UserError

from ..train import tiny


def test_variants_are_combined_and_none_is_trained_twice():
    names = [v.name for v in variants(["model.projection=full,linear", "model.k=4,8"])]
    assert names == ["projection full", "projection linear, k 4", "projection linear, k 8"]


@pytest.mark.parametrize("vary", [[], ["model.k"], ["model.k=4,,8"], ["=3"]])
def test_a_wrong_vary_is_told(vary):
    with pytest.raises(UserError, match="--vary"):
        variants(vary)


def record(name, perplexity, seconds, full=False):
    return {
        "variant": name, "full": full, "metrics": {"perplexity": perplexity},
        "step_seconds": seconds, "set": {},
    }  # fmt: skip


def test_the_verdict_says_where_it_holds_and_where_not():
    rows = [record("full", 10.0, 0.2, True), record("k 64", 10.1, 0.1), record("k 4", 12.0, 0.4)]
    good, bad = verdict(rows, ["perplexity"])
    assert good == "- k 64: as good as vanilla (within 2 %); 2.00 x as fast a step."
    assert bad.startswith("- k 4: not as good as vanilla: perplexity 20.0% higher; 0.50 x")


def test_each_variant_is_held_against_the_vanilla_of_its_kind():
    rows = [
        {**record(f"{kind} {n}", score, 1.0, full=kind == "full"), "n": n}
        | {"set": {"model.projection": kind, "data.max_length": n}}
        for kind, n, score in (
            ("full", "512", 10.0),
            ("full", "2048", 5.0),
            ("linear", "512", 10.0),
            ("linear", "2048", 10.0),
            ("linear", "1024", 10.0),
        )
    ]
    short, long, alone = verdict(rows, ["perplexity"])
    assert "linear 512: as good as vanilla" in short
    assert "perplexity 100.0% higher" in long
    assert "no vanilla Transformer that differs in this alone" in alone


def test_a_comparison_trains_and_draws(tmp_path):
    path = tiny.write(tmp_path, steps=4, eval_every=2)
    text = compare(path, [], ["model.projection=full,linear", "model.k=4,8"], out=tmp_path / "c")
    assert text is not None
    assert "| projection full |" in text
    assert "x as fast a step" in text
    there = {p.name for p in (tmp_path / "c").iterdir() if p.is_file()}
    assert there == {"README.md", "records.jsonl", "curves.png", "over-k.png"}
