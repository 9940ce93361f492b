"""`linformer evaluate`: scores for programs, also where they cannot be written to the run."""

from __future__ import annotations

import errno
import json
import os

from .test_main import run


def test_evaluate_speaks_json_to_programs(capsys, trained):
    code, out, _ = run(capsys, "evaluate", str(trained.parent / "run"))
    assert code == 0
    assert json.loads(out)["metrics"]["perplexity"] > 1


def test_scores_that_cannot_be_kept_are_told_all_the_same(capsys, trained, monkeypatch):
    def full(handle):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    code, out, err = run(capsys, "evaluate", str(trained.parent / "run"))
    assert code == 2
    assert json.loads(out)["metrics"]["perplexity"] > 1
    assert "evaluation.json: No space left on device. What was there is intact" in err
