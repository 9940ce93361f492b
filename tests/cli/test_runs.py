"""`linformer runs`: the runs in a folder."""

from __future__ import annotations

import json

from .test_main import run


def test_runs_speaks_json_to_programs(capsys, trained):
    code, out, _ = run(capsys, "runs", str(trained.parent))
    assert code == 0
    assert json.loads(out)["finished"] is True
