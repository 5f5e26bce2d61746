# `make serve` and `make test` do everything from a fresh clone. Other verbs: make help
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MODEL ?= smollm2

.DEFAULT_GOAL := help
.PHONY: help setup serve test lint types format bench lock clean

help:  ## show this list
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

setup: $(INSTALLED)  ## make the virtual environment and install everything into it

$(INSTALLED): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@

serve: setup  ## pull the default model and serve it on http://127.0.0.1:8000 (MODEL=... for another)
	@$(BIN)/penstock serve $(MODEL)

test: setup  ## pull the default model and run all tests
	$(BIN)/penstock pull smollm2
	$(BIN)/python -m pytest

lint: setup types  ## ruff, import contracts, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: setup  ## strict mypy
	$(BIN)/mypy

format: setup  ## ruff's formatter and fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## compare with transformers on the default model
	$(BIN)/python bench/against_transformers.py

lock: setup  ## write constraints.txt from what is installed
	echo '# What a fresh `make setup` installs. Written by `make lock`.' > constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable --all | sed -E 's/\+cpu$$//; /^(setuptools|wheel)==/d' >> constraints.txt

clean:  ## remove everything that was built here
	rm -rf $(VENV) build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
