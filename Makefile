# Everything a person or a machine does with this repository. `make help` lists the targets; each sets up what it needs.
# Works with any GNU make from 3.81 on and a plain sh.

PYTHON ?= python3
LOCK ?= dev
PORT ?= 3000
PYTEST_ARGS ?=
SEEDS ?= 100000
KILLS ?= 200
S3_KILLS ?= 50

VENV := .venv/bin
CODE := storage_core jobs assets pipelines examples benchmarks scripts tests

# Test files are dealt to at most four processes; those of one file stay together, for they share Spark and servers.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile

# The Dagster instance of the demo and the UI. The tests make their own and never see this one.
WITH_DAGSTER := DAGSTER_HOME="$(CURDIR)/.dagster"

export DAGSTER_DISABLE_TELEMETRY = 1

# Before whatever may start Spark: find a Java (or bring one along) and tell Spark which it is.
WITH_JAVA = JAVA_HOME="$$($(PYTHON) -m scripts.find_java)" && export JAVA_HOME &&

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-browser simulate soak check lint format types bench ui lock clean

help: ## Show this list
	@echo "Tidemark. Targets (each sets up what it needs first):"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "Settings: PYTHON=python3.12 (which Python), PORT=3001 (of make ui), PYTEST_ARGS='-k compact' (of make test)."

setup: ## Make .venv from requirements/dev.lock and find or install Java; quick when nothing changed
	@$(PYTHON) -m scripts.environment $(LOCK)
	@$(PYTHON) -m scripts.find_java > /dev/null

demo: setup .dagster/dagster.yaml ## Run the whole pipeline on real data through Dagster and ask it five questions
	@$(WITH_JAVA) $(WITH_DAGSTER) $(VENV)/python -m examples.demo

test: setup ## Run all tests but those that need a browser
	@$(WITH_JAVA) $(VENV)/python -m pytest -m "not browser" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-browser: setup ## Install Chromium where it is missing and run the tests of the Dagster UI in it
	@TIDEMARK_CHROMIUM="$$($(VENV)/python -m scripts.find_browser)" && export TIDEMARK_CHROMIUM && \
	$(WITH_JAVA) $(VENV)/python -m pytest -m browser $(PYTEST_ARGS)

simulate: setup ## Run the seeded simulations for longer: SEEDS=100000 of them, or one with TIDEMARK_SEED=1234
	@TIDEMARK_SEEDS="$(SEEDS)" $(VENV)/python -m pytest --timeout=0 tests/simulation $(PYTEST_ARGS)

soak: SEEDS := 2000
soak: setup ## Kill writers KILLS=200 times on disk, S3_KILLS=50 times on S3, and run SEEDS=2000 of their simulations
	@TIDEMARK_KILLS="$(KILLS)" TIDEMARK_S3_KILLS="$(S3_KILLS)" TIDEMARK_SEEDS="$(SEEDS)" $(VENV)/python -m pytest --timeout=0 -rP \
	  tests/integration/test_killed_writers.py tests/simulation/test_writers_under_faults.py tests/simulation/test_raw_log_faults.py tests/chaos

check: lint types test test-browser demo ## Everything that CI runs

lint: setup ## Check style and formatting with ruff
	@$(VENV)/ruff check $(CODE)
	@$(VENV)/ruff format --check $(CODE)

format: setup ## Format the code and repair what ruff can repair by itself
	@$(VENV)/ruff check --fix $(CODE)
	@$(VENV)/ruff format $(CODE)

types: setup ## Check types with mypy (strict)
	@$(VENV)/mypy

bench: setup ## Run all benchmarks and write benchmarks/RESULTS.md
	@$(WITH_JAVA) $(VENV)/python -m benchmarks.run_all

ui: setup .dagster/dagster.yaml ## Open the Dagster UI on http://127.0.0.1:3000, with the runs of the demo in it
	@$(WITH_JAVA) $(WITH_DAGSTER) $(VENV)/tidemark ui --port $(PORT)

# A link, so that an edit of dagster.yaml is in force at once.
.dagster/dagster.yaml: dagster.yaml
	@mkdir -p .dagster && ln -sf ../dagster.yaml $@

lock: ## Resolve the dependencies anew into requirements/*.lock (UPGRADE=--upgrade takes newer versions)
	@UV="$$($(PYTHON) -m scripts.installer)" && compile() { "$$UV" pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-strip-extras $(UPGRADE) "$$@"; } && \
	compile pyproject.toml --extra demo -o requirements/demo.lock && \
	compile pyproject.toml --extra connect --extra demo --extra dev -o requirements/dev.lock && \
	for name in build ducklake installer java; do compile requirements/$$name.in -o requirements/$$name.lock || exit 1; done

clean: ## Remove caches and build leftovers; keeps .venv, tables, landed files and Dagster's history
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
