PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed
TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n logical --dist worksteal
DOCS_INSTALLED := .venv/.docs-installed
BACKENDS := .venv-backends
BACKENDS_INSTALLED := $(BACKENDS)/.installed

.DEFAULT_GOAL := help
.PHONY: help run test test-slow test-backends check docs docs-serve clean

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# If interrupted, every command here resumes; what is finished is not done again.
run: $(INSTALLED) ## Train both Transformers, measure them, look inside: report.html, in ten minutes.
	$(BIN)/linformer compare first-look --vary model.projection=full,linear --out runs/first-look
	$(BIN)/linformer bench grid --quick --out results/first-look/grid.jsonl
	$(BIN)/linformer bench growth --out results/first-look/growth.jsonl
	$(BIN)/linformer spectrum runs/first-look/projection-full --text python-docs --out results/first-look/spectrum.jsonl
	$(BIN)/linformer report runs/first-look results/first-look --out report.html

test: $(INSTALLED) ## Run the fast tests, one worker a core.
	$(TEST) -m 'not slow'

test-slow: $(INSTALLED) ## Run the tests that take long.
	$(BIN)/python -m pytest -m slow

test-backends: $(BACKENDS_INSTALLED) ## Run the tests of the Keras layers on JAX and on TensorFlow, side by side.
	@KERAS_BACKEND=jax $(BACKENDS)/bin/python -m pytest -q -p no:cacheprovider tests/keras & jax=$$!; \
	KERAS_BACKEND=tensorflow TF_CPP_MIN_LOG_LEVEL=2 $(BACKENDS)/bin/python -m pytest -q -p no:cacheprovider tests/keras; \
	tensorflow=$$?; wait $$jax && exit $$tensorflow

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

clean: ## Remove the environment and everything that tools have left; results/ and runs/ stay.
	rm -rf .venv $(BACKENDS) build dist .pytest_cache site .mypy_cache .ruff_cache .import_linter_cache .hypothesis src/*.egg-info
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

$(BACKENDS_INSTALLED): pyproject.toml constraints.txt
	@echo 'Installing JAX and TensorFlow into $(BACKENDS): a few minutes, once.'
	$(PYTHON) -m venv $(BACKENDS)
	$(BACKENDS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[backends]'
	@touch $@
