# `make demo` and `make test` need Python 3.11 or newer with pip, and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
PARALLEL := --numprocesses auto --dist worksteal

.PHONY: help demo dist docs gallery federation-demo test test-all coverage lowest lock campaign lint format benchmark

help:
	@echo 'make demo       train personalized models on real data: install into $(VENV), then run `fedtailor demo`'
	@echo 'make federation-demo  a federation of processes (TLS, keys, one client killed) beside its simulation'
	@echo 'make test       make lint, and every test once: every property on every method, without what takes long'
	@echo 'make test-all   what `make test` leaves out: slow tests, further settings, equal bits as XLA compiles for users'
	@echo 'make docs       the documentation site in docs/_build/html; warnings are errors'
	@echo 'make dist       build wheel and sdist, install each in an empty environment, and look into it'
	@echo 'make gallery    run examples/ and record in docs/gallery what they print and draw'
	@echo 'make campaign   kills, flipped bits, full disks, bad input and attacks on federations for MINUTES (30), from SEED (the time)'
	@echo 'make lint       ruff, pyright, and the layers of the package'
	@echo 'make format     mend what ruff can mend'
	@echo 'make coverage   the tests with coverage, which must not fall below the floor in pyproject.toml'
	@echo 'make lowest     a part of the tests, with the oldest dependencies that pyproject.toml allows'
	@echo 'make lock       write constraints.txt, the versions of the development environment, anew'
	@echo 'make benchmark  seconds per round beside a plain PyTorch loop'
	@echo 'Another interpreter: make PYTHON=python3.12 demo'

demo: $(VENV)/.installed
	$(BIN)/fedtailor demo

federation-demo: $(VENV)/.installed-flower
	$(BIN)/python -m fedtailor.remote.demo

test: lint
	$(BIN)/pytest $(PARALLEL) -m 'not slow and not repeated'

test-all: $(VENV)/.installed-test
	$(BIN)/pytest $(PARALLEL) -m 'slow or repeated'
	AS_SHIPPED=1 $(BIN)/pytest $(PARALLEL) -m as_shipped

# Counting lines makes the tests take half as long again, and the table at their end another minute: not part of `test`.
coverage: $(VENV)/.installed-test
	$(BIN)/pytest $(PARALLEL) --cov

# The oldest versions of the dependencies that pyproject.toml allows, in an environment of their own. These folders of
# tests read and write with the dependencies the most. They take about seven minutes of processor time; CI runs them.
LOWEST := .cache/lowest

lowest: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[test]'
	$(LOWEST)/bin/pytest $(PARALLEL) -m 'not slow' tests/aggregation tests/cli tests/metrics tests/models tests/storage tests/tables

lock: $(VENV)/.installed-test
	$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-header --no-annotate --extra test --extra docs --output-file constraints.txt pyproject.toml

# Offline once the packages are installed. -W: a broken link is an error, as any other warning is.
docs: $(VENV)/.installed-docs
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto docs docs/_build/html
	@echo 'The site is docs/_build/html/index.html'

dist: $(VENV)/.installed-test
	.ci/dist

gallery: $(VENV)/.installed-test
	$(BIN)/python docs/generators/gallery.py

MINUTES ?= 30

campaign: $(VENV)/.installed-test
	PYTHONPATH=src:tests $(BIN)/python -m campaigns --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

lint: $(VENV)/.installed-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports --cache-dir .cache/import-linter

format: $(VENV)/.installed-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

benchmark: $(VENV)/.installed-benchmark
	$(BIN)/python benchmarks/rounds.py

# The package is installed in place (its sources are used where they stand), so only new metadata need a new installation.
METADATA := pyproject.toml constraints.txt src/fedtailor/_version.py

$(VENV)/.installed: $(METADATA) | $(VENV)/.created
	@echo 'Installing fedtailor into $(VENV)'
	@$(PIP) install --quiet --editable .
	@touch $@

$(VENV)/.installed-%: $(METADATA) | $(VENV)/.created
	@echo 'Installing fedtailor[$*] into $(VENV)'
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedtailor needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
