# `make demo` and `make test` need Python 3.11 or newer with pip, and make; everything else goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# CI installs with uv, which takes a tenth of the time; pip needs nothing but Python, and knows where its user installs from.
INSTALL ?= $(BIN)/python -m pip --disable-pip-version-check install --quiet
PARALLEL := --numprocesses auto --dist worksteal

.PHONY: help demo dist docs gallery federation-demo check test test-landing test-all nightly coverage lowest newest lock campaign format benchmark suite

help:
	@echo 'make demo       train personalized models on real data: install into $(VENV), then run `fedtailor demo`'
	@echo 'make federation-demo  a federation of processes (TLS, keys, one client killed) beside its simulation'
	@echo 'make check      ruff, pyright, and the layers of the package'
	@echo 'make test       the quick tests: every module, and every method by its closed forms and some general checks'
	@echo 'make test-all   what `make test` leaves out, with every extra; a skip that is not allowed is a failure'
	@echo 'make docs       the documentation site in docs/_build/html, and the tests of its pages; warnings are errors'
	@echo 'make dist       build wheel and sdist, install each in an empty environment, and look into it'
	@echo 'make gallery    run examples/ and record in docs/gallery what they print and draw'
	@echo 'make nightly    what is too long for CI: all tests with coverage, the oldest and newest dependencies, a campaign'
	@echo 'make campaign   kills, flipped bits, full disks, bad input and attacks on federations for MINUTES (30), from SEED (the time)'
	@echo 'make format     mend what ruff can mend'
	@echo 'make coverage   all tests with coverage, which must not fall below the floor in pyproject.toml'
	@echo 'make lowest     a part of the tests, with the oldest dependencies that pyproject.toml allows'
	@echo 'make newest     `make test` with the newest Python that is here'
	@echo 'make suite      where the processor time of `make test` goes'
	@echo 'make lock       write constraints.txt, the versions of the development environment, anew'
	@echo 'make benchmark  seconds per round beside a plain PyTorch loop'
	@echo 'Another interpreter: make PYTHON=python3.12 demo'

demo: $(VENV)/.installed
	$(BIN)/fedtailor demo

federation-demo: $(VENV)/.installed-federation
	$(BIN)/python -m fedtailor.remote.demo

# Marks are in pyproject.toml; tests/conftest.py gives `quick` to every test that has no reason to be left out.
test: $(VENV)/.installed-test
	$(BIN)/pytest $(PARALLEL) -m quick

# Every extra is installed, federations of processes are started, and nothing is skipped but what
# tests/allowed_skips.toml allows. SHAPES: the shapes of arrays are checked at every call.
TRULY := NO_SKIPS=1 SHAPES=1 FEDTAILOR_PROCESS_TESTS=1

# What CI runs beside `make test`: of the rest what takes no more than minutes.
test-landing: $(VENV)/.installed-test-all
	$(TRULY) $(BIN)/pytest $(PARALLEL) -m 'not quick and not nightly and (slow or not pages)'
	AS_SHIPPED=1 $(BIN)/pytest $(PARALLEL) -m 'as_shipped and not nightly'

test-all: $(VENV)/.installed-test-all
	$(TRULY) $(BIN)/pytest $(PARALLEL) -m 'not quick'
	AS_SHIPPED=1 $(BIN)/pytest $(PARALLEL) -m as_shipped

# Counting lines makes the tests take half as long again, and the table at their end another minute.
coverage: $(VENV)/.installed-test-all
	$(TRULY) $(BIN)/pytest $(PARALLEL) --cov

nightly: $(VENV)/.installed-test-all
	$(MAKE) coverage
	AS_SHIPPED=1 $(BIN)/pytest $(PARALLEL) -m as_shipped
	$(MAKE) lowest
	$(MAKE) newest
	$(MAKE) docs
	$(MAKE) campaign

suite: $(VENV)/.installed-test
	$(BIN)/python benchmarks/suite.py --out .cache/suite $(PARALLEL) -m quick

# The newest Python that is here, with the newest version of every dependency.
NEWEST := .cache/newest

newest: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python "$$(.ci/newest-python)" $(NEWEST)
	$(BIN)/uv pip install --quiet --python $(NEWEST) --editable '.[test]'
	$(NEWEST)/bin/pytest $(PARALLEL) -m quick

# The oldest versions of the dependencies that pyproject.toml allows, in an environment of their own. These folders of
# tests read and write with the dependencies the most. Without NO_SKIPS: extras of `test-all` are not installed there.
LOWEST := .cache/lowest

lowest: $(VENV)/.installed-test
	$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(LOWEST)
	$(BIN)/uv pip install --quiet --python $(LOWEST) --resolution lowest-direct --editable '.[test]'
	env -u NO_SKIPS $(LOWEST)/bin/pytest $(PARALLEL) -m quick tests/aggregation tests/cli tests/data/tables tests/engine/storage tests/models

lock: $(VENV)/.installed-test
	$(BIN)/uv pip compile --quiet --upgrade --python-version 3.11 --no-header --no-annotate --all-extras --output-file constraints.txt pyproject.toml

# Offline once the packages are installed. -W: a broken link is an error, as any other warning is.
docs: $(VENV)/.installed-test $(VENV)/.installed-docs
	$(BIN)/pytest $(PARALLEL) -m 'pages and not slow'
	$(BIN)/python -m sphinx --quiet --fail-on-warning --keep-going --jobs auto docs docs/_build/html
	@echo 'The site is docs/_build/html/index.html'

dist: $(VENV)/.installed-test
	.ci/dist

gallery: $(VENV)/.installed-test
	$(BIN)/python docs/generators/gallery.py

MINUTES ?= 30

campaign: $(VENV)/.installed-test
	PYTHONPATH=src:tests $(BIN)/python -m campaigns --minutes $(MINUTES) $(if $(SEED),--seed $(SEED))

check: $(VENV)/.installed-test
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
	@$(INSTALL) --editable .
	@touch $@

$(VENV)/.installed-%: $(METADATA) | $(VENV)/.created
	@echo 'Installing fedtailor[$*] into $(VENV)'
	@$(INSTALL) --constraint constraints.txt --editable '.[$*]'
	@touch $@

$(VENV)/.created:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("fedtailor needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12")'
	$(PYTHON) -m venv --clear $(VENV)
	@touch $@
