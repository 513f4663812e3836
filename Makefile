# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
PYTHON ?= python3
# flags for pip where torch is to come from elsewhere, its CPU build for instance
TORCH_FROM ?=
BIN := .venv/bin

.PHONY: help install install-hashed demo world test test-slow test-scale test-lowest campaign encoders check bench docs clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: .venv/.installed ## make the environment (.venv) with everything the project uses

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH_FROM) torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install-hashed: ## the same, and of every package but torch only files with the checksums in hashes.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt $(TORCH_FROM) torch
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r hashes.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch .venv/.installed

demo: install ## questions answered from a small encyclopedia, then adapting to it, in minutes on a CPU; SERVE=1 leaves the page running
	PATH="$(CURDIR)/$(BIN):$$PATH" bash runs/demo.sh

world: install ## from text to answers on a fictional world, everything trained from scratch, in minutes on a CPU
	PATH="$(CURDIR)/$(BIN):$$PATH" bash runs/world.sh

test: install ## the test suite (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -q -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

test-slow: install ## the long tests too: three seeds of the small world and the like
	$(BIN)/python -m pytest -q -m slow

test-scale: install ## tests with other programs and several processes (12 minutes); installs what they need beside the rest
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[scale]'
	$(BIN)/python -m pytest -q -m scale -n 2 --dist loadfile

# where the lowest torch can be installed: make test-lowest TORCH=2.6.0
TORCH ?= $(shell sed -n 's/^torch==//p' constraints.txt)

test-lowest: ## the test suite with the lowest versions that pyproject.toml states, in .venv-lowest; TORCH=VERSION for another torch
	$(PYTHON) -m venv --clear .venv-lowest
	$(PYTHON) tools/lowest.py --torch $(TORCH) > .venv-lowest/pins.txt
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check torch==$(TORCH)
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check -r .venv-lowest/pins.txt
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check --no-deps -e .
	.venv-lowest/bin/python -m pytest -q

campaign: install ## kills, damages, hostile inputs and bad clients for an hour or more, and a table of what came of it; SEED=N for others
	$(BIN)/python tools/campaign.py --kills 200 --damage 5000 --inputs 100000 --seconds 3600 --seed $(or $(SEED),0)

encoders: install ## the encoders' suite for every family, and its table docs/encoders.md
	$(BIN)/python tools/encoders_table.py

check: install ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy realmlm tests benchmarks tools runs

bench: install ## benchmarks of the CPU, printed with hardware and date; PEER=PYTHON has sentence-transformers, onnxruntime and onnx
	$(BIN)/python benchmarks/cpu.py $(if $(PEER),--peer-python $(PEER))
	$(BIN)/python benchmarks/exact_search.py

docs: install ## the documentation with the API reference as static HTML, in site/
	$(BIN)/mkdocs build --strict --quiet
	@echo "open site/index.html"

clean: ## remove what was made here
	rm -rf .venv .venv-lowest site work build dist *.egg-info
