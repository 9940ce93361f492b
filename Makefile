PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --dist worksteal
DOCS_INSTALLED := .venv/.docs-installed
NOTEBOOKS_INSTALLED := .venv/.notebooks-installed
BACKENDS := .venv-backends
BACKENDS_INSTALLED := $(BACKENDS)/.installed
LOWEST := .venv-lowest
LOWEST_INSTALLED := $(LOWEST)/.installed

.DEFAULT_GOAL := help
.PHONY: help environments run test test-unit test-processors test-slow test-backends test-package test-lowest check docs docs-serve pictures notebooks clean

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

environments: $(INSTALLED) $(BACKENDS_INSTALLED) ## Install all that CI needs; with --jobs 2 side by side.

# If interrupted, every command here resumes; what is finished is not done again.
run: $(INSTALLED) ## Train both Transformers, measure them, look inside: report.html, in ten minutes.
	$(BIN)/linformer compare first-look --vary model.projection=full,linear --out runs/first-look
	$(BIN)/linformer bench grid --quick --out results/first-look/grid.jsonl
	$(BIN)/linformer bench growth --out results/first-look/growth.jsonl
	$(BIN)/linformer spectrum runs/first-look/projection-full --text python-docs --out results/first-look/spectrum.jsonl
	$(BIN)/linformer report runs/first-look results/first-look --out report.html

test: $(INSTALLED) ## Run the fast tests, one worker a core.
	$(TEST) -m 'not slow'

test-unit: $(INSTALLED) ## Run the fast tests that start no program and no browser.
	$(TEST) -m 'unit and not slow'

# Processors that are not here, as far as the libraries can be told to take them for this one: MKL's and oneDNN's instructions
# and PyTorch's own kernels with AVX2, without AVX, and with the bits that MKL has on every processor; and two threads.
PROCESSORS := \
	"ATEN_CPU_CAPABILITY=avx2 MKL_ENABLE_INSTRUCTIONS=AVX2 ONEDNN_MAX_CPU_ISA=AVX2" \
	"ATEN_CPU_CAPABILITY=default MKL_ENABLE_INSTRUCTIONS=SSE4_2 ONEDNN_MAX_CPU_ISA=SSE41" \
	"MKL_CBWR=COMPATIBLE" \
	"OMP_NUM_THREADS=2"
NUMERIC := tests/core tests/models tests/parallel tests/predict/test_answers.py tests/serve/test_models.py tests/serve/test_prediction.py

test-processors: $(INSTALLED) ## Run the numeric tests as on other processors, and with two threads: an hour.
	set -e; for each in $(PROCESSORS); do \
		echo "$$each"; \
		env OMP_NUM_THREADS=1 $$each $(BIN)/python -m pytest -q -n logical --dist worksteal -m 'not slow' $(NUMERIC); \
	done

test-slow: $(INSTALLED) ## Run the tests that take long.
	$(BIN)/python -m pytest -m slow

test-backends: $(BACKENDS_INSTALLED) ## Run the tests of the Keras layers on JAX and on TensorFlow, side by side.
	@KERAS_BACKEND=jax $(BACKENDS)/bin/python -m pytest -q -p no:cacheprovider tests/keras & jax=$$!; \
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 $(BACKENDS)/bin/python -m pytest -q -p no:cacheprovider tests/keras; \
	tensorflow=$$?; wait $$jax && exit $$tensorflow

test-package: $(INSTALLED) ## Build the wheel and the sdist, and test both outside the checkout.
	rm -rf build/package
	$(BIN)/python -m build --outdir build/package
	$(PYTHON) -m venv build/package/venv
	build/package/venv/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt "$$(echo build/package/*.whl)[train]" pytest hypothesis
	tests/package.sh build/package $(BIN)/python

test-lowest: $(LOWEST_INSTALLED) ## Run the fast tests with the lowest versions that pyproject.toml names.
	OMP_NUM_THREADS=1 $(LOWEST)/bin/python -m pytest -q -p no:cacheprovider -n logical --dist worksteal -m 'not slow'

check: $(INSTALLED) ## Lint, check format, types and imports, run the fast tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/lint-imports
	$(TEST) -m 'not slow'

docs: $(DOCS_INSTALLED) ## Build the documentation into site/, with warnings as errors.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

docs-serve: $(DOCS_INSTALLED) ## Serve the documentation on http://127.0.0.1:8000 and rebuild it on changes.
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs serve

pictures: $(INSTALLED) ## Draw the pictures of README and docs from their records; needs Chromium.
	$(BIN)/python -m docs._site.pictures

notebooks: $(NOTEBOOKS_INSTALLED) ## Execute the notebooks in order, into build/notebooks/; their pictures into notebooks/pictures/.
	mkdir -p build/notebooks
	set -e; for one in notebooks/*.py; do \
		echo "$$one"; \
		$(BIN)/jupytext --quiet --to ipynb --execute --run-path notebooks --output "build/notebooks/$$(basename "$$one" .py).ipynb" "$$one"; \
	done

clean: ## Remove the environment and everything that tools have left; results/ and runs/ stay.
	rm -rf .venv $(BACKENDS) $(LOWEST) build dist .pytest_cache site .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.11")'
	@echo 'Installing into .venv: a few minutes, once.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

$(DOCS_INSTALLED): $(INSTALLED)
	@echo 'Installing the documentation tools into .venv: a minute, once.'
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $@

$(NOTEBOOKS_INSTALLED): $(INSTALLED)
	@echo 'Installing Jupyter into .venv: a minute, once.'
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[notebooks]'
	@touch $@

$(BACKENDS_INSTALLED): pyproject.toml constraints.txt
	@echo 'Installing JAX and TensorFlow into $(BACKENDS): a few minutes, once.'
	$(PYTHON) -m venv $(BACKENDS)
	$(BACKENDS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[backends]'
	@touch $@

$(LOWEST_INSTALLED): pyproject.toml
	@echo 'Installing the lowest versions into $(LOWEST): a few minutes, once.'
	$(PYTHON) -m venv --clear $(LOWEST)
	grep -oE '"[A-Za-z0-9_-]+>=[0-9.]+' pyproject.toml | sed 's/"//; s/>=/==/' > $(LOWEST)/floors.txt
	$(LOWEST)/bin/python -m pip install -qq --disable-pip-version-check -c $(LOWEST)/floors.txt -e '.[dev]'
	@touch $@
