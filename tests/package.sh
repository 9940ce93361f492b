#!/usr/bin/env bash
# Test what would be published: tests/package.sh FOLDER PYTHON
# FOLDER has the wheel, the sdist, and in venv/ an environment where only the wheel is installed.
# PYTHON has the tools and the dependencies of development.
set -euo pipefail
built=$(realpath "$1")
developer=$(realpath --no-symlinks "$2")
outside=$(mktemp -d)
trap 'rm -rf "$outside"' EXIT
cd "$outside"

echo 'The wheel: the command'
linformer=$built/venv/bin/linformer
"$linformer" --help > help.txt
"$linformer" configs
"$linformer" train quick-mlm train.steps=3 train.warmup=1 run=run

echo 'The sdist: every test can be collected'
mkdir sdist
tar -xzf "$built"/*.tar.gz -C sdist --strip-components 1
cd sdist
export OMP_NUM_THREADS=1
PYTHONPATH=src "$developer" -m pytest -p no:cacheprovider --collect-only -q tests > ../collected.txt ||
  { tail -n 30 ../collected.txt; exit 1; }
tail -n 1 ../collected.txt

echo 'The sdist: tests of its own source and pages'
PYTHONPATH=src "$developer" -c "import linformer_kit as kit; assert kit.__file__.startswith('$PWD/'), kit.__file__"
PYTHONPATH=src "$developer" -m pytest -p no:cacheprovider -q -n logical --dist worksteal \
  tests/test_docs.py tests/test_site.py tests/test_pictures.py tests/config tests/benchmarks -m 'not slow'

echo 'The wheel: tests of what is installed'
"$built/venv/bin/python" -c "import linformer_kit as kit; assert kit.__file__.startswith('$built/venv/'), kit.__file__"
"$built/venv/bin/python" -m pytest -p no:cacheprovider -q -m 'not slow' \
  tests/core/test_attention.py tests/models/test_loading.py tests/config tests/test_import.py
