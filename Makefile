# Two commands do everything on a fresh machine: `make demo` and `make test`. Both make their own environment in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: help install demo world test test-slow encoders check bench clean

help: ## show what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

install: .venv/.installed ## make the environment (.venv) with everything the project uses

.venv/.installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: install ## questions answered from a small encyclopedia, then adapting to it, in minutes on a CPU; SERVE=1 leaves the page running
	PATH="$(CURDIR)/$(BIN):$$PATH" bash runs/demo.sh

world: install ## from text to answers on a fictional world, everything trained from scratch, in minutes on a CPU
	PATH="$(CURDIR)/$(BIN):$$PATH" bash runs/world.sh

test: install ## the test suite (under 10 minutes on 2 cores)
	$(BIN)/python -m pytest -q

test-slow: install ## the long tests too: three seeds of the small world and the like
	$(BIN)/python -m pytest -q -m slow

encoders: install ## the encoders' suite for every family, and its table docs/encoders.md
	$(BIN)/python tools/encoders_table.py

check: install ## format, lint, types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy realmlm tests benchmarks tools runs

bench: install ## benchmarks, printed with hardware and date
	$(BIN)/python benchmarks/exact_search.py

clean: ## remove what was made here
	rm -rf .venv work build dist *.egg-info
