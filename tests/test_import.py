"""`import linformer_kit` needs torch and numpy, and none of what its parts need."""

from __future__ import annotations

import subprocess
import sys

BLOCKED = ["transformers", "datasets", "keras", "onnx", "matplotlib", "typer", "rich"]


def test_the_package_imports_without_anything_optional():
    code = (
        f"import sys; sys.modules.update(dict.fromkeys({BLOCKED!r}))\n"  # importing these raises
        "import linformer_kit; print(linformer_kit.LinformerEncoder.__name__)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (answer.returncode, answer.stdout) == (0, "LinformerEncoder\n"), answer.stderr
