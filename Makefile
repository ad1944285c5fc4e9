# make demo, make test: on a fresh clone with Python 3.11 (or newer) and make, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-more lint wheel clean

demo: .venv/installed
	$(BIN)/hmmlm demo

# A process for each core, each of one thread.
test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical

# Slower checks: the built wheel in an empty environment, large texts, sweeps, kills, benchmarks.
test-more: .venv/dev
	$(BIN)/python -m pytest tests/more

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

wheel: .venv/dev
	$(BIN)/python -m build

# torch first and on its own: asked for together with others, another build of it may be chosen.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(PIP) torch
	$(PIP) -e .
	touch $@

.venv/dev: .venv/installed
	$(PIP) -e '.[dev]'
	touch $@

clean:
	rm -rf .venv dist build runs/demo*
