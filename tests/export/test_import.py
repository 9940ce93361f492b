"""Without ONNX the package can be imported, and what needs ONNX says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

USES = {
    "onnx": "from linformer_kit.export.exporter import export_onnx; export_onnx(None, 'a.onnx')",
    "onnxruntime": "from linformer_kit.export.runtime import OnnxModel; OnnxModel('a.onnx')",
}


@pytest.mark.parametrize("missing", USES)
def test_a_missing_package_is_named_with_the_remedy(missing):
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"  # importing it raises
        "import linformer_kit.export\n"
        f"try:\n    {USES[missing]}\n"
        "except linformer_kit.export.ExportError as error:\n    print(error)"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    expected = f"ONNX needs {missing}: pip install 'linformer-kit[onnx]'\n"
    assert answer.stdout == expected, answer.stderr
