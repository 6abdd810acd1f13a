# Everything a person or a machine does with this repository. `make help` lists the targets; each sets up what it needs.
# Works with any GNU make from 3.81 on and a plain sh.

PYTHON ?= python3
LOCK ?= dev
PORT ?= 3000
PYTEST_ARGS ?=
DRAW ?= $(or $(TIDEMARK_DRAW),$(shell date +%s))
SCALE ?= $(or $(TIDEMARK_SCALE),1)

VENV := .venv/bin
CODE := tidemark storage_core jobs assets pipelines examples benchmarks scripts tests

# Test files are distributed to at most four processes; those of one file stay together, for they share Spark and servers.
# The longest files start first, by the times in tests/run_times.json, and short ones fill the end.
SIDE_BY_SIDE := -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder

# What `make test` runs, and needs beside `setup`. `make check` lets it run the extended tier, too.
TESTS := not extended and not nightly and not browser
NEEDS :=
BROWSER_TESTS := browser

# Tests try SCALE times as many examples, seeds and kills: the check tries half as many, soak and simulate go on longer.
PYTEST = TIDEMARK_SCALE="$(SCALE)" $(VENV)/python -m pytest

export DAGSTER_DISABLE_TELEMETRY = 1

# The documentation site has an environment of its own, from requirements/docs.lock.
MKDOCS = NO_MKDOCS_2_WARNING=1 "$$($(PYTHON) -m scripts.installer docs)" -m mkdocs

# Before whatever may start Spark: find a Java (or bring one along) and tell Spark which it is.
WITH_JAVA = JAVA_HOME="$$($(PYTHON) -m scripts.find_java)" && export JAVA_HOME &&

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-times nightly planted-faults java-archive test-postgres test-browser pictures simulate soak check lint format types docs docs-serve bench size ui proto lock clean

help: ## Show this list
	@echo "Tidemark. Targets (each sets up what it needs first):"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile
	@echo "Settings: PYTHON=python3.12 (which Python), PORT=3001 (of make ui), PYTEST_ARGS='-k compact' and"
	@echo "SCALE=10 (of the targets that test: ten times as many examples, seeds and kills), DRAW=1234 (of check: which cases)."

setup: ## Make .venv from requirements/dev.lock and find or install Java; quick when nothing changed
	@$(PYTHON) -m scripts.environment $(LOCK)
	@$(PYTHON) -m scripts.find_java > /dev/null

demo: setup ## Run the whole pipeline on real data through Dagster and ask it seven questions
	@$(WITH_JAVA) $(VENV)/python -m examples.demo

test: setup $(NEEDS) ## Run the tests that speak for the product: some minutes on two cores
	@$(WITH_JAVA) $(PYTEST) -m "$(TESTS)" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

test-all: TESTS := not browser
test-all: java-archive ## Run all tests but those that need a browser
	@$(WITH_JAVA) $(PYTEST) -m "$(TESTS)" $(SIDE_BY_SIDE) $(PYTEST_ARGS)

java-archive: setup ## Read the classes of Spark once for all Javas that tests start, and fetch Delta Lake and test files; quick when that is done
	@$(WITH_JAVA) $(VENV)/python -m jobs.spark.java
	@$(WITH_JAVA) $(VENV)/python -m tests.support.delta_jars
	@$(VENV)/python -m scripts.foreign_suites > /dev/null

test-postgres: setup java-archive ## Run the tests of Dagster with its history in a real PostgreSQL, not in SQLite
	@$(WITH_JAVA) export TIDEMARK_TEST_POSTGRES=1 && $(PYTEST) $(SIDE_BY_SIDE) $(PYTEST_ARGS) tests/integration/test_dagster_*.py \
	  tests/chaos/dagster_on_postgres.py

test-browser: setup ## Install Chromium where it is missing and run the tests of the Dagster UI in it
	@TIDEMARK_CHROMIUM="$$($(VENV)/python -m scripts.find_browser)" && export TIDEMARK_CHROMIUM && \
	$(WITH_JAVA) $(PYTEST) -m "$(BROWSER_TESTS)" $(PYTEST_ARGS)

pictures: ## Take the pictures of README and docs/ anew, by the browser tests
	@TIDEMARK_PICTURES="$(CURDIR)/docs/images" $(MAKE) test-browser

simulate: SCALE := 200
simulate: setup ## Run the seeded simulations for longer: SCALE=200 times as many seeds, or one with TIDEMARK_SEED=1234
	@$(PYTEST) --timeout=0 tests/simulation $(PYTEST_ARGS)

soak: SCALE := 32
soak: setup java-archive ## Kill processes for an hour, run simulations of writers, and try hostile inputs: SCALE=32 times as often
	@$(WITH_JAVA) $(PYTEST) --timeout=0 -rP $(PYTEST_ARGS) tests/chaos tests/chaos/dagster_on_postgres.py \
	  tests/property/test_hostile_*.py tests/property/test_sql_is_confined.py \
	  tests/property/test_copied_writers.py tests/property/test_locations.py tests/integration/test_killed_writers.py \
	  tests/integration/test_shared_cache.py \
	  tests/simulation/test_writers_under_faults.py tests/simulation/test_raw_log_faults.py

check: SCALE := 0.4
check: lint ## Everything that CI runs; matrices that are too large draw a part of themselves (DRAW=seed repeats it)
	@$(MAKE) -j 3 types docs demo test-browser BROWSER_TESTS="browser and not nightly"
	@TIDEMARK_DRAW="$(DRAW)" $(MAKE) test TESTS="not nightly and not browser" NEEDS=java-archive SCALE="$(SCALE)"

nightly: lint ## Run all tests, with every case of every matrix, the browser's and those on PostgreSQL
	@$(MAKE) -j 3 types docs demo test-browser
	@$(MAKE) test-all
	@$(MAKE) test-postgres
	@$(MAKE) planted-faults

planted-faults: setup ## Break one guarantee after the other, and see that its recorded test catches each (DRAW=seed, FAULT=text)
	@$(WITH_JAVA) $(VENV)/python -m tests.planted_faults $(DRAW) "$(FAULT)"

test-times: export TIDEMARK_TEST_TIMES := tests/run_times.json
test-times: ## Run all of the check and write down how long each file of tests takes, which balances later runs
	@$(MAKE) check

lint: setup ## Check style and formatting with ruff
	@$(VENV)/ruff check $(CODE)
	@$(VENV)/ruff format --check $(CODE)

format: setup ## Format the code and repair what ruff can repair by itself
	@$(VENV)/ruff check --fix $(CODE)
	@$(VENV)/ruff format $(CODE)

types: setup ## Check types with mypy (strict)
	@$(VENV)/mypy

docs: setup ## Build the documentation site into build/site; any warning is an error
	@$(VENV)/python -m scripts.reference_pages
	@$(MKDOCS) build --strict --quiet
	@$(VENV)/python -m scripts.docs_assets build/site

docs-serve: setup ## Show the documentation site on http://127.0.0.1:8000, and show changes of its pages
	@$(VENV)/python -m scripts.reference_pages
	@$(MKDOCS) serve

bench: setup ## Run all benchmarks and write benchmarks/RESULTS.md
	@$(WITH_JAVA) $(VENV)/python -m benchmarks.run_all

size: setup ## Count code lines, modules and layers, and the modules that an append, a scan or a compaction runs through
	@$(WITH_JAVA) $(VENV)/python -m scripts.size

ui: setup ## Open the Dagster UI on http://127.0.0.1:3000, with the runs of the demo in it
	@$(WITH_JAVA) $(VENV)/tidemark ui --port $(PORT) --spark

proto: setup ## Generate the Python code of every .proto file anew
	@$(VENV)/python -m grpc_tools.protoc -I. --python_out=. --pyi_out=. storage_core/data/formats/*.proto

lock: ## Resolve the dependencies anew into requirements/*.lock (UPGRADE=--upgrade takes newer versions)
	@UV="$$($(PYTHON) -m scripts.installer)" && compile() { "$$UV" pip compile --quiet --universal --python-version 3.11 \
	  --generate-hashes --no-emit-index-url --no-emit-find-links --no-header --no-strip-extras $(UPGRADE) "$$@"; } && \
	compile pyproject.toml -o requirements/core.lock && \
	compile pyproject.toml --extra pipeline --extra demo -o requirements/demo.lock && \
	compile pyproject.toml --extra pipeline --extra connect --extra postgres -o requirements/container.lock && \
	compile pyproject.toml --all-extras -o requirements/dev.lock && \
	for name in build delta_readers docs ducklake installer java judged lance linters; do compile requirements/$$name.in -o requirements/$$name.lock || exit 1; done

clean: ## Remove caches and build leftovers; keeps .venv, tables, landed files and Dagster's history
	@rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist *.egg-info
	@find $(CODE) -name __pycache__ -type d -prune -exec rm -rf {} +
