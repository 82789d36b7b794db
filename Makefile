# All targets work from a fresh clone: they build .venv themselves, and nothing needs to be activated.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
# nothing is built and nothing is resolved here: each package is a wheel whose hash is in the lock
INSTALL := $(BIN)/python -m pip install --require-hashes --no-deps --only-binary :all:
WORKERS ?= auto
# the tests of a file share its fixtures, so one process runs them all; tests/conftest.py puts long files first
XDIST   := -n $(WORKERS) --dist loadfile --no-loadscope-reorder
SOURCES := $(wildcard src tests benchmarks examples tools)

.DEFAULT_GOAL := help
.PHONY: help setup lock quickstart test test-fast check benchmarks-quick benchmarks-ci docs core sbom vulnerabilities format clean

help: ## list the targets
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do printf '  %-16s %s\n' "$$name" "$$text"; done
	@echo "Variables: PYTHON (now $(PYTHON)), WORKERS (now $(WORKERS)), PIP_ARGS, OUT and ARGS for quickstart, ARGS for test and benchmarks-quick."

setup: $(STAMP) ## make .venv with the locked dependencies, whose hashes are verified (nothing to do when they are unchanged)

$(STAMP): pyproject.toml requirements.lock requirements-cuda.lock | $(BIN)/python
	@# PyPI's PyTorch for Linux needs 3 GB of CUDA libraries. Without an NVIDIA device, take the CPU build where
	@# pip's indexes offer one; it is pinned to the same version and to hashes of the same lock.
	@if [ "$$(uname -s)" = Linux ] && ! [ -e /dev/nvidiactl ]; then \
	  sed -n '/^torch==/,/[^\\]$$/p' requirements.lock | sed '1s/==[0-9.]*/&+cpu/' > $(VENV)/torch-cpu.txt; \
	  $(INSTALL) $(PIP_ARGS) -q -r $(VENV)/torch-cpu.txt || echo "note: no CPU build of PyTorch found; installing the ordinary build"; \
	fi
	$(INSTALL) $(PIP_ARGS) -r requirements.lock
	@# the ordinary build names its CUDA packages, the CPU build names none
	if $(BIN)/python -c 'import sys; from importlib.metadata import requires; sys.exit("nvidia" not in str(requires("torch")))'; \
	  then $(INSTALL) $(PIP_ARGS) -r requirements-cuda.lock; fi
	$(BIN)/python -m pip install --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
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

lock: setup ## write the lock files anew, keeping versions (ARGS='--upgrade-package NAME' or '--upgrade'; PIP_ARGS: index of CPU builds)
	$(BIN)/python tools/lock.py --pip='$(PIP_ARGS)' $(ARGS)

quickstart: setup ## run the whole way from problems to a measured reward model, at a small size (OUT=directory, ARGS='options')
	$(BIN)/surefoot quickstart $(if $(OUT),--out '$(OUT)') $(ARGS)

# they start hundreds of processes, each of which would compile the package and the tests again
test test-fast: export PYTHONDONTWRITEBYTECODE :=
test: setup ## run every test, the slow ones too, in two processes more than there are cores (ARGS='pytest options')
	$(BIN)/python -m pytest $(XDIST) $(ARGS)

test-fast: setup ## run the tests that take seconds
	$(BIN)/python -m pytest $(XDIST) -m 'not slow' $(ARGS)

check: setup ## lint, formatting, types, import ranks, language, size
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/language.py
	$(BIN)/python tools/size.py

benchmarks-quick: setup ## run the quick forms of all benchmarks, also after a failure (ARGS='NAME ...': these alone)
	$(BIN)/python -m benchmarks.quick $(ARGS)

benchmarks-ci: setup ## run the quick forms of three: killed and resumed runs, the guard, the sandbox
	$(BIN)/python -m benchmarks.quick kill_resume guard sandbox

docs: setup ## build the documentation as a site, build/site/index.html; warnings and broken links are errors
	$(BIN)/python tools/docs.py

core: setup ## install the package without extras elsewhere: measure it, and run what it does without PyTorch
	$(BIN)/python tools/install_size.py --pip='$(PIP_ARGS)'

sbom: setup ## write build/sbom.cdx.json, what .venv holds as CycloneDX, and check its licences
	@mkdir -p build
	@# the schema check takes ten times as long as the rest
	$(BIN)/cyclonedx-py environment $(VENV) --pyproject pyproject.toml --output-reproducible --no-validate --output-file build/sbom.cdx.json
	$(BIN)/python tools/licences.py build/sbom.cdx.json

vulnerabilities: setup ## ask which locked packages have known vulnerabilities
	$(BIN)/python tools/vulnerabilities.py

format: setup ## rewrite the code in the project's format and mend what the linter can mend
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

clean: ## remove .venv, caches and built files; runs/ stays
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find $(SOURCES) -name __pycache__ -type d -prune -exec rm -rf {} +
