PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
QUICK_TESTS := tests/core tests/data tests/methods tests/models tests/privacy tests/runs tests/test_config.py tests/test_house.py

# Bytecode is kept, also where the environment forbids it: to compile torch anew takes every process 2 s.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help run test test-quick fuzz test-faults test-slow check docs setup bench clean

help:  ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

run: $(VENV)/run.done  ## train FedGH on the embedded digits
	$(BIN)/fedgh run demo

test: $(VENV)/dev.done  ## the test suite
	$(BIN)/python -m pytest -n auto --dist loadgroup

test-quick: $(VENV)/dev.done  ## under two minutes: what most changes break
	$(BIN)/python -m pytest -n auto $(QUICK_TESTS)

fuzz: $(VENV)/dev.done  ## minutes: at least 40,000 new hostile inputs; `make test` tries 2,000
	FEDGH_FUZZ=40000 $(BIN)/python -m pytest tests/fuzz -n auto

test-faults: $(VENV)/dev.done  ## many minutes: faults at every write, real processes that are lost
	$(BIN)/python -m pytest -m faults -n 2 --dist loadgroup

test-slow: $(VENV)/dev.done  ## minutes of training: every method with the settings of the demo
	$(BIN)/python -m pytest -m slow -n auto

check: $(VENV)/dev.done  ## style, types, and the packages we depend on
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tools.licences
	$(BIN)/python -m tools.vulnerabilities

docs: $(VENV)/dev.done  ## the documentation as a site that needs no network: site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict

setup: $(VENV)/dev.done  ## everything a contributor needs, in .venv

bench: $(VENV)/dev.done  ## speed and scale beside the limit of the machine; QUICK=1 for less
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

clean:
	rm -rf $(VENV) dist site

# requirements.lock constrains every version; pyproject.toml says what is needed.
$(BIN)/pip:
	$(PYTHON) -m venv $(VENV)

$(VENV)/run.done: pyproject.toml requirements.lock | $(BIN)/pip
	$(BIN)/pip install --quiet --no-compile -c requirements.lock -e '.[report]'
	touch $@

$(VENV)/dev.done: pyproject.toml requirements.lock | $(BIN)/pip
	$(BIN)/pip install --quiet --no-compile -c requirements.lock -e '.[dev]'
	touch $@
