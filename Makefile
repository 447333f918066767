# Two commands matter: `make demo` and `make test`. Both create what they need in .venv, once.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# One thread per worker: threads that fight over busy cores cost far more than they bring.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 POLARS_MAX_THREADS=1 \
	XLA_FLAGS="--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"

.PHONY: help demo test test-slow lint format bench figures docs dist pictures reproduce public-data shape clean

help:
	@echo "make demo       simulate a campaign, audit its log, and print what the best plan would be worth"
	@echo "make test       linters, types, import contract and the test suite"
	@echo "make test-slow  the tests that take longer than the suite allows"
	@echo "make bench      measure speed, memory and quality (see benchmarks/README.md)"
	@echo "make reproduce  run the paper's experiments again; tables and figures go to results/"
	@echo "make public-data DATA=folder  audit, fit and report of public logs (docs/reproduce.md says which)"
	@echo "make shape      count modules, lines and importers, and write the table into docs/architecture.md"
	@echo "make docs       build the documentation into site/"
	@echo "make dist       a wheel and an sdist in dist/, checked and installed in an empty environment"
	@echo "make figures    measure the table of the README anew, in one run of about a quarter of an hour"
	@echo "make pictures   take the documentation's pictures of the report anew"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "redenvelope needs Python 3.11 or newer; try: make PYTHON=python3.12 $(MAKECMDGOALS)" >&2; exit 2; }
	@echo "creating the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)

# A stamp per set of dependencies, so that nothing is installed twice.
$(VENV)/.ready: pyproject.toml | $(BIN)/python
	@echo "installing redenvelope into $(VENV) (a minute or so, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

$(VENV)/.ready-%: pyproject.toml | $(BIN)/python
	@echo "installing redenvelope with its '$*' tools into $(VENV) (a minute or so, once)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(VENV)/.ready
	@$(BIN)/redenvelope demo --out demo

test: lint
	@sh tests/install_debian.sh chromium "the browser tests of the report" chromium
	@sh tests/install_debian.sh postgresql "the tests of the ledger on PostgreSQL" initdb '/usr/lib/postgresql/*/bin/initdb'
	@sh tests/install_debian.sh prometheus "the check of the alert rules" promtool
	@echo "running the test suite"
	@$(ONE_THREAD) $(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/.ready-dev
	@echo "running the slow tests"
	@$(ONE_THREAD) $(BIN)/python -m pytest -n 2 -m slow

lint: $(VENV)/.ready-dev
	@echo "checking style, types and the direction of imports"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-logo 2>/dev/null || $(BIN)/lint-imports

format: $(VENV)/.ready-dev
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(VENV)/.ready-bench
	@$(BIN)/python benchmarks/run.py

figures: $(VENV)/.ready-bench $(VENV)/.ready-dev
	@sh tests/install_debian.sh postgresql "the killing of PostgreSQL" initdb '/usr/lib/postgresql/*/bin/initdb'
	@$(ONE_THREAD) $(BIN)/python benchmarks/figures.py

reproduce: $(VENV)/.ready
	@$(BIN)/python -m experiments --out results $(OPTIONS)

public-data: $(VENV)/.ready
	@test -n "$(DATA)" || { echo "say where the logs are: make public-data DATA=folder" >&2; exit 2; }
	@$(BIN)/python -m experiments.public_data $(DATA) $(OPTIONS)

shape: $(BIN)/python
	@$(BIN)/python docs/shape.py --words

docs: $(VENV)/.ready-docs
	@$(BIN)/mkdocs build --strict

dist: $(VENV)/.ready-dist
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/twine check --strict dist/*
	@echo "installing the wheel in an empty environment"
	@$(PYTHON) -m venv --clear dist/.empty && dist/.empty/bin/pip install --quiet --disable-pip-version-check dist/*.whl
	@dist/.empty/bin/redenvelope --version && dist/.empty/bin/redenvelope simulate two-step --users 100 --out dist/.empty/log.csv
	@rm -rf dist/.empty

pictures: $(VENV)/.ready-dev
	@sh tests/install_debian.sh chromium "the browser tests of the report" chromium
	@$(BIN)/python docs/pictures.py

clean:
	rm -rf $(VENV) demo site dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
