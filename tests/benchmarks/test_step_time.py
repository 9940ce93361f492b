"""Times of training steps: every variant is measured, and compared with the first."""

from __future__ import annotations

import json

import pytest
from benchmarks.step_time import main

TINY = ["data.options={examples: 60, min_length: 5, max_length: 30}", "data.max_length=32"]
TINY += ["model.k=8", "train.batch_size=4", "data.validation_share=0.2", "data.test_share=0.2"]


def test_variants_are_timed_in_turn_and_compared_with_the_first(tmp_path, capsys):
    variants = ["model.projection=full", "model.projection=mean model.window=4"]
    chosen = [word for variant in variants for word in ("--variant", variant)]
    main(["quick-listops", f"data.cache={tmp_path}", *TINY, *chosen, "--rounds", "2"])
    machine, *records = map(json.loads, capsys.readouterr().out.splitlines())
    assert machine["threads"] == 1
    assert [record["variant"] for record in records] == variants
    assert [len(record["seconds"]) for record in records] == [2, 2]
    assert records[0]["times_faster"] == 1
    assert records[1]["times_faster"] == pytest.approx(records[0]["best"] / records[1]["best"])


def test_a_wrong_variant_is_refused(capsys):
    with pytest.raises(SystemExit) as refused:
        main(["quick-listops", "--variant", "model.windows=4"])
    assert refused.value.code == 2
    assert "window" in capsys.readouterr().err
