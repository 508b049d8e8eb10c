# Everything a newcomer types. Needs Python 3.11+ and make; the rest is installed below .venv by `make setup`.
PYTHON ?= python3
UV_VERSION := 0.13.7
UV := $(shell command -v uv 2>/dev/null || echo .tools/bin/uv)
RUN := .venv/bin
PYTEST := $(RUN)/python -m pytest
MASTER ?= standalone

.PHONY: help setup check format test test-cluster test-long test-faults test-model test-unit demo bench-capture bench-copy bench-apply clean
.DEFAULT_GOAL := help

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

setup: .venv/.ready  ## install everything below .venv: libraries, Spark with its jars, Java if there is none, Postgres

.tools/bin/uv:
	$(PYTHON) -m pip install --quiet --disable-pip-version-check --target .tools uv==$(UV_VERSION) 2>/dev/null \
	  || { $(PYTHON) -m venv .tools && .tools/bin/pip install --quiet --disable-pip-version-check uv==$(UV_VERSION); }

.venv/.ready: pyproject.toml uv.lock $(filter .tools/bin/uv,$(UV))
	$(UV) sync --quiet --frozen --python $(PYTHON)
	$(RUN)/penstock setup
	@touch $@

check: .venv/.ready  ## format, lint, types, layers: under a minute
	$(RUN)/ruff format --check .
	$(RUN)/ruff check .
	$(RUN)/lint-imports
	$(RUN)/mypy

format: .venv/.ready  ## put the code in order
	$(RUN)/ruff format .
	$(RUN)/ruff check --fix .

test: check  ## what CI runs: checks, unit, Postgres, Spark, faults, end to end
	$(PYTEST) -n 2 --dist worksteal -m "not long" --durations=25
	$(PYTEST) -m "cluster and not long" --master "local-cluster[2,1,1024]"

test-cluster: .venv/.ready  ## what runs on executors, on a cluster: MASTER=spark://… if there is one, or else two workers here
	$(PYTEST) -m cluster --master "$(MASTER)"

test-long: .venv/.ready  ## what takes minutes each: memory bounds, kills at every step, every shape of table
	$(PYTEST) -m long

test-faults: .venv/.ready  ## every step of a batch, interrupted in every way, into both lakes: half an hour, and a table of it
	$(PYTEST) -n 2 --dist worksteal tests/fault/test_fault_matrix.py -m long

test-model: .venv/.ready  ## a random source, with crashes, for SECONDS=1800; SEED=… LAKE=… repeats one until it fails again
	MODEL_SECONDS=$$(($(or $(SECONDS),1800) / $(if $(LAKE),1,2))) MODEL_SEED=$(SEED) \
	  $(PYTEST) -s tests/fault/test_model.py -m long $(if $(LAKE),-k $(LAKE))

test-unit: .venv/.ready  ## the tests of pure code: seconds, no Postgres, no JVM
	$(PYTEST) tests/unit -m "not spark"

demo: .venv/.ready  ## a live Postgres replicated into a local Delta lake, then compared
	$(RUN)/penstock demo

bench-capture: .venv/.ready  ## the receiver beside pg_recvlogical, speed and memory; ARGS=--quick tries it in a minute
	$(RUN)/python -m bench.capture $(ARGS)

bench-copy: .venv/.ready  ## the initial copy beside COPY to nowhere and Spark's JDBC source; ARGS=--quick tries it
	$(RUN)/python -m bench.copy $(ARGS)

bench-apply: .venv/.ready  ## changes from the slot to Delta and Iceberg: speed, freshness, cost of a batch; ARGS=--quick tries it
	$(RUN)/python -m bench.apply $(ARGS)

clean:  ## remove what was installed and built here
	rm -rf .venv .tools .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
