# make demo, make test: on a fresh clone with Python 3.11 (or newer) and make, and nothing else.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.PHONY: demo test test-more lint docs wheel clean

demo: .venv/installed
	$(BIN)/hmmlm demo

# A process for each core, each of one thread; neighbours stay together, for they share what is made for them.
test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n logical --dist worksteal

# Slower checks: the built wheel in an empty environment, large texts, sweeps, kills, the browser, the documentation; and
# alone on the machine those that measure time or memory.
ALONE := $(patsubst %,tests/more/test_%.py,benchmarks costs estimates explorer_load load peaks)
test-more: .venv/dev .venv/docs
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/more $(addprefix --ignore=,$(ALONE)) -n logical --dist loadfile
	$(BIN)/python -m pytest $(ALONE)

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

# The documentation, in site/: open site/index.html by any web server, such as `$(BIN)/mkdocs serve`.
docs: .venv/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

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

.venv/docs: .venv/installed
	$(PIP) -e '.[docs]'
	touch $@

clean:
	rm -rf .venv dist build site runs/demo*
