"""What the README shows, runs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from linformer_kit.cli import main

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_python_of_the_readme_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:  # they follow on one another, as a reader would type them
        exec(compile(block, "README.md", "exec"), names)
    assert names["y"].shape == (2, 1000, 512)


@pytest.mark.parametrize("folder", ["core", "models"])
def test_the_file_tree_of_the_readme_is_the_folder_s(folder):
    lines = re.search(rf"^  {folder}/.*\n((?:    .*\n)+)", README, flags=re.MULTILINE)
    assert lines is not None
    listed = re.findall(r"^    (\w+\.py) ", lines[1], flags=re.MULTILINE)
    there = {path.name for path in (ROOT / "src/linformer_kit" / folder).glob("*.py")}
    assert sorted(listed) == sorted(there - {"__init__.py"})


def test_every_make_target_of_the_readme_exists():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"`?make ([a-z-]+)`?", README):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE)


def test_make_run_calls_commands_and_options_that_exist(capsys):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lines = re.findall(r"^\t\$\(BIN\)/linformer (.*)$", makefile, flags=re.MULTILINE)
    assert [line.split()[0] for line in lines] == [
        "compare",
        "bench",
        "bench",
        "spectrum",
        "report",
    ]
    for line in lines:
        words = line.split()
        command = words[:2] if words[0] == "bench" else words[:1]
        with pytest.raises(SystemExit):
            main([*command, "--help"])
        offered = capsys.readouterr().out
        assert all(word in offered for word in words if word.startswith("--"))
        assert all((ROOT / word).is_file() for word in words if word.startswith("configs/"))
