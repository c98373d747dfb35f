# Everything a developer or CI runs. Needs Python 3.11+, make and the package registries, nothing else.
# Logic of any length lives in tools/.

PYTHON ?= python3
VENV := .venv/bin
PYTEST_FLAGS ?= -n 2 --dist loadgroup
# Many of the long ones wait for an outage to pass: one more of them at a time.
LONG_FLAGS ?= -n 3 --dist loadgroup
DEMO_FLAGS ?=
CLUSTER_FLAGS ?=
CLUSTER_TESTS = $(addprefix tests/cluster/,accepted.py accounts.py lifecycle.py changed.py drained.py)
PODS_FLAGS ?= -n 3 --dist loadgroup -rP
PODS_TESTS = $(addprefix tests/pods/,installed.py upgraded.py evicted.py entered.py migrated.py confined.py external.py \
	watched.py alerted.py probed.py compacted.py executor_lost.py lake_on_s3.py limited.py)
SECONDS ?= 60
SEED ?=
MAJOR ?= 16
LOCK_FLAGS ?=
BASE ?=
DOCS := .venv-docs
# Services start in four fifths of the time where bytecode is kept beside the sources.
unexport PYTHONDONTWRITEBYTECODE

LOCK = $(VENV)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	--no-emit-index-url --no-emit-find-links $(LOCK_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow test-long test-postgres torture attack check advisories protos protos-check stubs stubs-test wheels chart classes helm cluster-tools cluster-test pods-test images images-test docs lock clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## make .venv current with everything locked by hash; does nothing when it is
	@$(PYTHON) tools/setup_venv.py

demo: setup ## gate tablets, a real day's departures, one Postgres, Parquet; ends in a summary
	@$(VENV)/anabranch demo $(DEMO_FLAGS)

test: setup helm classes ## the quick tests; ends with a list of what was not run and why
	@$(VENV)/python -m pytest $(PYTEST_FLAGS) --durations=10 --durations-min=1 tests

test-slow: setup helm classes ## tests of more than a second: services, faults, outages, Spark, benches
	@$(VENV)/python -m pytest $(PYTEST_FLAGS) --only-slow --durations=10 tests

test-long: setup helm classes ## tests of minutes: whole runs of Spark, many rows, two minutes without Postgres, images
	@$(VENV)/python -m pytest $(LONG_FLAGS) $(if $(UNTIL),--until $(UNTIL)) --only-long --durations=10 tests

test-postgres: setup ## what depends on Postgres's version, on the embedded 16; other servers: ANABRANCH_POSTGRES_URL
	@ANABRANCH_POSTGRES_MAJOR=$(MAJOR) $(VENV)/python -m pytest $(PYTEST_FLAGS) tests/integration tests/e2e

torture: setup ## one fault run; SECONDS=60 SEED=n, the seed is printed; LAKE=1 adds compactor and janitor
	@$(VENV)/python -m anabranch.testkit.torture --seconds $(SECONDS) $(if $(SEED),--seed $(SEED)) $(if $(LAKE),,--no-lake)

attack: setup ## one attack on a stack of its own, then a hunt for leaks; SECONDS=60 SEED=n, the seed is printed
	@$(VENV)/python -m anabranch.testkit.attack --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))
	@$(VENV)/python -m anabranch.testkit.attack --leaks --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

check: setup protos-check helm ## linters, types, import rules, contract, chart, alerts, dashboards, known holes
	@$(VENV)/ruff check .
	@$(VENV)/ruff format --check .
	@$(VENV)/mypy
	@$(VENV)/lint-imports
	@$(VENV)/python tools/protos.py lint
	@$(VENV)/python tools/protos.py breaking
	@$(VENV)/python tools/chart.py check
	@$(VENV)/python tools/cluster_tools.py lint
	@$(VENV)/python tools/advisories.py

advisories: setup ## known holes of the locked packages, where a source of advisories can be reached
	@$(VENV)/python tools/advisories.py

protos: setup ## regenerate libs/anabranch/v1 from protos/
	@$(VENV)/python tools/protos.py generate

protos-check: setup ## fail when libs/anabranch/v1 is not what protos/ generates
	@$(VENV)/python tools/protos.py check

stubs: setup ## packages of the contract's stubs for Go, TypeScript, Java and Python in build/stubs, where their tools are
	@$(VENV)/python tools/stubs.py

stubs-test: stubs ## a program in each language, on its stubs, against real services (minutes)
	@$(VENV)/python -m pytest --durations=10 tests/stubs/languages.py

wheels: setup ## the wheels for devices, servers and tests in build/wheels; fails where a file is in two or in none
	@$(VENV)/python tools/wheels.py

chart: setup ## write the parts of helm/anabranch that are made from something else
	@$(VENV)/python tools/chart.py generate

classes: setup # so that Spark, which many tests start, starts in half the time
	@$(VENV)/python -m anabranch_compactor.spark.class_archive

helm: setup # quick to build, so that the chart is tested wherever there is Go
	@$(VENV)/python tools/cluster_tools.py build helm

cluster-tools: setup ## Helm, promtool and Prometheus, from their Go modules, where they are not on the PATH (minutes)
	@$(VENV)/python tools/cluster_tools.py build helm promtool prometheus

cluster-test: setup helm ## the chart on a real API server with machines that only pretend (the first build takes long)
	@$(VENV)/python tools/cluster_tools.py build control-plane
	@$(VENV)/python -m pytest --durations=10 $(CLUSTER_FLAGS) $(CLUSTER_TESTS)

pods-test: setup helm ## the chart where pods run, in namespaces of their own; Linux, root (the first build takes long)
	@$(VENV)/python tools/pods.py missing
	@$(VENV)/python tools/cluster_tools.py build cluster
	@$(VENV)/python tools/pod_images.py
	@$(VENV)/python tools/pods.py run $(VENV)/python -m pytest --durations=40 --durations-min=1 $(PODS_FLAGS) $(PODS_TESTS)

images: ## both images with Docker (BASE=image: another base than the official Python's)
	@$(PYTHON) tools/images.py $(if $(BASE),--base $(BASE))

images-test: setup ## each image doing one real piece of its work without any rights, against a real Postgres (minutes)
	@$(VENV)/python -m pytest --only-long --durations=10 tests/images

docs: $(DOCS)/installed ## the documents as a site in build/site; fails for a dead link
	@$(DOCS)/bin/python tools/documents.py
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict
	@echo "build/site/index.html"

# An environment of its own, so that what makes a site is no part of what the product is developed and tested with.
$(DOCS)/installed: requirements-docs.lock
	@$(PYTHON) -m venv --clear $(DOCS)
	@$(DOCS)/bin/python -m pip install --disable-pip-version-check --quiet --require-hashes --only-binary :all: -r $<
	@touch $@

lock: setup ## write all lock files anew, keeping pins (LOCK_FLAGS=--upgrade: newest releases)
	@$(LOCK) requirements-build.in -o requirements-build.lock
	@$(LOCK) -c requirements-build.lock --extra dev pyproject.toml -o requirements.lock
	@$(LOCK) -c requirements-build.lock -c requirements.lock requirements-docs.in -o requirements-docs.lock
	@$(LOCK) -c requirements.lock --extra server pyproject.toml -o deploy/docker/service.lock
	@$(LOCK) -c requirements.lock --extra compactor pyproject.toml deploy/docker/compactor.in -o deploy/docker/compactor.lock

clean: ## remove everything that the targets above made
	rm -rf .venv .venv.lock $(DOCS) .cache .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis build dist
	rm -rf tests/stubs/typescript/node_modules tests/stubs/typescript/built tests/stubs/java/program/target
	find libs services tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
