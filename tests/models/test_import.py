"""Without what the models need, importing them says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.mark.parametrize("module", ["models", "models.config"])
def test_a_missing_package_is_named_with_the_remedy(module):
    missing = "transformers"
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"  # importing it raises
        f"try:\n    import linformer_kit.{module}\n"
        "except ModuleNotFoundError as error:\n    print(error.name, error, sep='\\n')"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert answer.stdout.splitlines() == [
        missing,
        f"linformer_kit.models needs {missing}: pip install 'linformer-kit[models]'",
    ], answer.stderr
