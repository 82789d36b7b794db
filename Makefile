# All targets work from a fresh clone: they build .venv themselves, and nothing needs to be activated.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
EXTRAS ?= dev,gguf,train,server,oidc,postgres,ray
WORKERS ?= auto
# the tests of a file share its fixtures, so one process runs them all; tests/conftest.py puts long files first
XDIST   := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SOURCES := $(wildcard src tests benchmarks examples)

.DEFAULT_GOAL := help
.PHONY: help setup quickstart test test-fast check format clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-12s %s\n' "$$name" "$$text"; done
	@echo "Variables: PYTHON (now $(PYTHON)), EXTRAS (now $(EXTRAS)), WORKERS (now $(WORKERS)), PIP_ARGS, OUT and ARGS for quickstart, ARGS for test."

setup: $(STAMP) ## make .venv with the pinned dependencies (nothing to do when they are unchanged)

$(STAMP): pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --upgrade pip
	$(BIN)/python -m pip install -c constraints.txt $(PIP_ARGS) -e '.[$(EXTRAS)]'
	@touch $@

# PYTHON counts only here: an environment that exists keeps the interpreter that it was made with.
$(BIN)/python:
	@command -v $(PYTHON) >/dev/null || \
	  { echo "error: '$(PYTHON)' is not on the PATH; install Python 3.11 or newer, or name one: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "error: surefoot needs Python 3.11 or newer, and '$(PYTHON)' is $$($(PYTHON) --version 2>&1); name another: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "error: '$(PYTHON)' cannot make virtual environments; on Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

quickstart: setup ## run the whole way from problems to a measured reward model (OUT=directory, ARGS='more options')
	$(BIN)/surefoot quickstart $(if $(OUT),--out '$(OUT)') $(ARGS)

test: setup ## run every test, the slow ones too, one process a core (ARGS='pytest options')
	$(BIN)/python -m pytest $(XDIST) $(ARGS)

test-fast: setup ## run the tests that take seconds
	$(BIN)/python -m pytest $(XDIST) -m 'not slow' $(ARGS)

check: setup ## lint, formatting, types, import ranks
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports

format: setup ## rewrite the code in the project's format and mend what the linter can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean: ## remove .venv, caches and built files; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
