PYTHON ?= python3
BIN := .venv/bin
INSTALLED := .venv/.installed

.DEFAULT_GOAL := help
.PHONY: help run test test-slow check clean

help: ## Show what can be made.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

run: $(INSTALLED) ## See how Linformer and full attention grow with the length of the input.
	$(BIN)/linformer bench growth

test: $(INSTALLED) ## Run the fast tests.
	$(BIN)/python -m pytest -m 'not slow'

test-slow: $(INSTALLED) ## Run the tests that take long.
	$(BIN)/python -m pytest -m slow

check: $(INSTALLED) ## Lint, check format and types, run the fast tests.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy src
	$(BIN)/python -m pytest -m 'not slow'

clean: ## Remove the environment and everything that tools have left; results/ and runs/ stay.
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +

$(INSTALLED): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.11")'
	@echo 'Installing into .venv: a few minutes, once.'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@
