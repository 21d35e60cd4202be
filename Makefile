# Every target sets itself up in a virtual environment of the project, .venv.
#   make test PYTHON=python3.12           with another interpreter
#   make test TESTS=tests/protocol        a part of the tests
#   make test PYTEST_FLAGS="-x -k frames" more for pytest
#   make test WORKERS=2                   in fewer processes than four; 0 is none but pytest's own
#   make test-matrix SPARKS="4.0 4.3"     some versions of Spark; SPARKS=oldest is one
#   make test-matrix PULSARS=3.0.7        some versions of Pulsar
#   make soak SOAK_FLAGS="--seed 7"       the same faults again; --help lists what else there is
#   make conformance CONFORMANCE_FLAGS="'CommandSend.*'"    some fields; --help lists more
#   make bench BENCH_FLAGS=--quick        one shape; --help lists what else there is

PYTHON ?= python3
TESTS ?= tests
PYTEST_FLAGS ?=
SPARKS ?=
PULSARS ?=
SOAK_FLAGS ?=
CONFORMANCE_FLAGS ?=
BENCH_FLAGS ?=

VENV := .venv
MADE := $(VENV)/.made-$(subst /,_,$(PYTHON))
INSTALLED := $(VENV)/.installed-$(subst /,_,$(PYTHON))
READY := $(VENV)/.ready-$(subst /,_,$(PYTHON))
DOCS_READY := $(VENV)/.docs-$(subst /,_,$(PYTHON))
RUN := $(VENV)/bin/python
PIP = $(RUN) -m pip install --quiet --disable-pip-version-check
KERNEL := $(wildcard native/Cargo.* native/src/*.rs) tools/kernel_build.py

CHECKED := $(wildcard pulsar_spark pyspark_pulsar.py tests tools benchmarks)

# Spark otherwise asks the resolver for the host's name, which a laptop or container may not have.
export SPARK_LOCAL_IP := 127.0.0.1
# Many containers set this. Without compiled modules each Python process, of which tests and
# benchmarks start hundreds, spends a second more on imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow test-matrix conformance soak soak-sink soak-client lint format docs bench \
	broker proto wheels clean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(INSTALLED) ## write to and read from a topic through Spark, on a broker in memory
	$(RUN) -m pulsar_spark demo

# Tests that need Spark or the real broker are a group, which one of the processes runs.
PYTEST = $(RUN) -m pytest -rs --durations=10 -n $(WORKERS) --dist loadgroup

# Tests of Spark and of a real broker mostly wait, and there is one process for each of these groups:
# others take the rest. The slow ones start many processes, and wait for them.
test: WORKERS ?= 4
test-slow: WORKERS ?= 3
conformance: WORKERS ?= 2

test: $(READY) ## run the tests; a real broker is fetched by Maven and started if it can be had
	$(PYTEST) -m "not slow" $(PYTEST_FLAGS) $(TESTS)

test-slow: $(READY) ## run the tests that take long, which `make test` leaves out
	$(PYTEST) -m slow $(PYTEST_FLAGS) $(TESTS)

test-matrix: $(READY) ## run tests with other versions of Spark and of Pulsar; takes long
	$(RUN) -m tools.matrix $(SPARKS) $(if $(PULSARS),--pulsar $(PULSARS))

conformance: $(READY) ## clear each field of the protocol in turn: does the test named for it fail?
	$(RUN) -m tests.conformance --workers $(WORKERS) $(CONFORMANCE_FLAGS)

soak: $(READY) ## read 5 million rows from a real broker while everything is killed; takes long
	$(RUN) -m tests.soak $(SOAK_FLAGS)

soak-sink: $(READY) ## write 2 million rows exactly once while everything is killed; takes long
	PULSAR_SPARK_CRASH_ROUNDS=5 $(RUN) -m pytest tests/integration/test_spark_crash_points.py
	$(RUN) -m tests.soak.sink $(SOAK_FLAGS)

soak-client: $(READY) ## PulsarClient for two hours on a broker in memory that is disturbed all the time
	$(RUN) -m tests.soak.client $(SOAK_FLAGS)

lint: $(READY) ## check style, types and generated code
	$(RUN) -m ruff check $(CHECKED)
	$(RUN) -m ruff format --check $(CHECKED)
	$(RUN) -m mypy $(CHECKED)
	$(RUN) -m tools.generate_proto --check
	@if cargo clippy --version > /dev/null 2>&1 && cargo fmt --version > /dev/null 2>&1; then \
		cd native && cargo fmt --check && \
		cargo clippy --quiet --locked --all-targets --features python -- -D warnings; fi

format: $(READY) ## put the code into shape
	$(RUN) -m ruff check --fix $(CHECKED)
	$(RUN) -m ruff format $(CHECKED)

# Not --quiet: with it mkdocs sees no warnings, so --strict lets broken links pass.
docs: $(DOCS_READY) ## build the documentation into site/; a broken link or a wide line fails
	NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict

bench: $(READY) ## measure reading and writing against the official client
	$(RUN) -m benchmarks $(BENCH_FLAGS)

broker: $(READY) ## run the broker in memory on port 6650
	$(RUN) -m pulsar_spark broker --port 6650

proto: $(READY) ## compile proto/PulsarApi.proto
	$(RUN) -m tools.generate_proto

wheels: $(MADE) ## build the sources and the wheels, with the kernel if there is cargo, into dist/
	$(PIP) build
	$(RUN) -m build --outdir dist .
	PULSAR_SPARK_BUILD_KERNEL=off $(RUN) -m build --wheel --outdir dist .

clean: ## remove the virtual environment and all that was built
	rm -rf $(VENV) .venv-matrix build dist site native/target *.egg-info .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis spark-warehouse metastore_db derby.log
	rm -f pulsar_spark/_kernel.abi3.so pulsar_spark/kernel-missing.txt
	find . -name __pycache__ -type d -not -path './.git/*' -exec rm -rf {} +

# The environment is made anew for another interpreter, and brought up to date when the
# dependencies change. Each of the next adds what the one before has no need of.
$(MADE):
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or later is needed")'
	$(PYTHON) -m venv --clear $(VENV)
	touch $@

# In pure Python, so that a first try need not wait for the kernel.
$(INSTALLED): $(MADE) pyproject.toml
	PULSAR_SPARK_BUILD_KERNEL=off $(PIP) -e .
	touch $@

# The kernel is built if there is cargo; PULSAR_SPARK_BUILD_KERNEL=require insists on it.
$(READY): $(INSTALLED) $(KERNEL)
	$(PIP) -e '.[dev]'
	$(RUN) -m pulsar_spark --version
	touch $@

$(DOCS_READY): $(INSTALLED)
	$(PIP) -e '.[docs]'
	touch $@
