# `make demo` and `make test` do all set-up themselves. Prerequisites: git, make, and root or the Debian packages they name.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
PYTHON ?= $(shell tools/python.sh)
VENV := .venv
BIN := $(VENV)/bin
STAMPS := .make
# One at a time, whatever `make -j` was given: packages of Debian, and of the environment that the kernel is built in.
ALONE = mkdir -p $(STAMPS); flock -o $(STAMPS)/lock
SOURCES := $(shell git ls-files 'producer/kernel/*.py' 'producer/kernel/*.pxd' setup.py pyproject.toml 2>/dev/null)
XDIST ?= auto
# Sessions of Spark at once, each with a broker: some 2 GB. They are bound by the processor, so more than cores only miss deadlines.
SPARKS ?= 2
# Workers of tests/process: its tests mostly wait, so there may be more than cores.
PROCESSES ?= 3
KAFKAS := 4.3.1 3.9.2
# A folder for reports in JUnit's format, one for each target, when it is set.
REPORTS ?=
PYTEST = $(BIN)/pytest -q $(if $(REPORTS),--junitxml=$(REPORTS)/$@.xml)

.PHONY: demo test check format types editor test-one soak bench lint lock docs wheel jars pipeline-jars clean test-core test-process test-systemd test-kafka $(KAFKAS:%=test-kafka-%) \
	test-pipeline test-browser pipeline-demo spark-classes

demo: $(STAMPS)/demo-env $(STAMPS)/kernel
	$(BIN)/python -m demo

# From the daemon to a sealed hour, on a real Kafka and a Spark of its own.
pipeline-demo: $(STAMPS)/pipeline-env $(STAMPS)/kernel pipeline-jars
	$(BIN)/python -m demo.pipeline

# Everything CI runs, and nothing is skipped because this machine lacks something. tools/run_tests.py says which parts run side by side;
# PARTS="core process" runs only these.
test: $(STAMPS)/test-env $(STAMPS)/pipeline-test-env $(STAMPS)/test-packages $(STAMPS)/kernel jars
	PENSTOCK_REQUIRE_ALL=1 $(BIN)/python tools/run_tests.py $(PARTS)

# The fast subset.
check: $(STAMPS)/test-env $(STAMPS)/kernel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/pytest tests/core tests/conformance tests/meta -q -n $(XDIST)

# Sort imports and lay out the code, in place.
format: $(STAMPS)/test-env
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

# Both type checkers. Types of the pipeline are checked against Spark's and Delta's own.
types: $(STAMPS)/test-env $(STAMPS)/pipeline-test-env $(STAMPS)/kernel
	$(BIN)/mypy
	$(BIN)/pyright -p pyproject.toml

# Settings of pyright for editors, so that they find references in tests.
editor:
	$(PYTHON) tools/editor.py

# One test or file: make test-one T=tests/core/test_backlog.py
test-one: $(STAMPS)/test-env $(STAMPS)/kernel
	$(BIN)/pytest -q $(or $(T),$(error name the test: make test-one T=tests/core/test_backlog.py))

# Everything that needs no test run.
lint: $(STAMPS)/test-env $(STAMPS)/pipeline-test-env $(STAMPS)/kernel
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/pyright -p pyproject.toml

test-core: $(STAMPS)/test-env $(STAMPS)/kernel
	$(PYTEST) tests/core tests/conformance tests/model tests/sim tests/meta -n $(XDIST)

# A file's tests stay together and share what the file starts; files that take long are begun first.
test-process: $(STAMPS)/test-env $(STAMPS)/test-packages $(STAMPS)/kernel
	$(PYTEST) tests/process -n $(PROCESSES) --dist loadfile --no-loadscope-reorder

test-systemd: $(STAMPS)/test-env $(STAMPS)/test-packages $(STAMPS)/kernel
	$(PYTEST) tests/systemd

# Each version in a process of its own; `make -j2 test-kafka` runs them side by side.
test-kafka: $(KAFKAS:%=test-kafka-%)

$(KAFKAS:%=test-kafka-%): test-kafka-%: $(STAMPS)/test-env $(STAMPS)/kernel jars
	$(PYTEST) tests/kafka --kafka-version $*

# Side by side, because much of it is waiting; files that take long are begun first, in the order of the folder's conftest.
test-pipeline: spark-classes
	$(PYTEST) tests/pipeline -n $(SPARKS) --dist loadfile --no-loadscope-reorder

# Classes for JVMs to begin with, unless they are there.
spark-classes: $(STAMPS)/test-env $(STAMPS)/pipeline-env $(STAMPS)/kernel jars
	$(BIN)/python -m tests.harness.spark_classes

test-browser: $(STAMPS)/test-env $(STAMPS)/pipeline-test-env $(STAMPS)/test-packages $(STAMPS)/kernel
	$(PYTEST) tests/browser

# The same tests with the full counts; hours.
soak: $(STAMPS)/test-env $(STAMPS)/pipeline-env $(STAMPS)/jvm-env $(STAMPS)/kernel jars
	pipeline/jars/fetch.sh kafka delta
	tools/soak.sh $(BIN)

bench: $(STAMPS)/test-env $(STAMPS)/kernel jars
	$(BIN)/python bench/throughput.py
	$(BIN)/python bench/direct.py

jars: $(STAMPS)/test-packages
	tests/java/fetch.sh
	pipeline/jars/fetch.sh

# What the demo of the pipeline needs: one broker, and Spark's connector.
pipeline-jars: $(STAMPS)/pipeline-packages
	tests/java/fetch.sh 4.3.1
	pipeline/jars/fetch.sh

docs: $(STAMPS)/test-env
	$(BIN)/penstock config reference > docs/reference/settings.md
	$(BIN)/python -c "from penstock.config import reference; print(reference.direct_page(), end='')" > docs/reference/direct-settings.md
	$(BIN)/python -c "from penstock.runtime import metrics; print(metrics.page(), end='')" > docs/reference/metrics.md
	$(BIN)/python -c "from penstock.producer.telemetry import reference_page; print(reference_page.page(), end='')" > docs/reference/producer-metrics.md
	$(BIN)/python -c "from penstock.pipeline import reference_pages; print(reference_pages.metric_page(), end='')" > docs/reference/pipeline-metrics.md
	$(BIN)/python -c "from penstock.cli import reference; print(reference.page(), end='')" > docs/reference/command-line.md
	$(BIN)/python -c "from penstock.config import reference; print(reference.pipeline_page(), end='')" > docs/reference/pipeline-settings.md
	$(BIN)/python -c "from penstock.pipeline import reference_pages; print(reference_pages.command_page(), end='')" > docs/reference/pipeline-command-line.md
	$(BIN)/python -m tests.conformance.page
	$(BIN)/python -m tests.meta.transaction_page
	$(BIN)/python -m tests.conformance.faults

# The compiled module, in place; made again when it or its build changes.
$(STAMPS)/kernel: $(SOURCES) | $(STAMPS)/demo-env
	$(ALONE) $(BIN)/python setup.py -q build_ext --inplace
	@touch $@

wheel: $(STAMPS)/demo-env
	$(BIN)/python -m pip wheel -q --no-deps --no-build-isolation -w dist .

$(STAMPS)/demo-packages: tools/packages.sh
	@mkdir -p $(STAMPS)
	$(ALONE) tools/packages.sh demo
	@touch $@

$(STAMPS)/core-packages: tools/packages.sh
	@mkdir -p $(STAMPS)
	$(ALONE) tools/packages.sh core
	@touch $@

$(STAMPS)/pipeline-packages: tools/packages.sh
	@mkdir -p $(STAMPS)
	$(ALONE) tools/packages.sh pipeline
	@touch $@

$(STAMPS)/test-packages: tools/packages.sh
	@mkdir -p $(STAMPS)
	$(ALONE) tools/packages.sh test
	@touch $@

$(BIN)/python: | $(STAMPS)/demo-packages
	$(PYTHON) -m venv $(VENV)

$(STAMPS)/demo-env: requirements/demo.txt pyproject.toml $(STAMPS)/demo-packages | $(BIN)/python
	@mkdir -p $(STAMPS)
	@if [ ! -e $(STAMPS)/test-env ]; then flock -o $(STAMPS)/lock $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/demo.txt; fi
	$(ALONE) $(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

$(STAMPS)/test-env: requirements/test.txt pyproject.toml $(STAMPS)/core-packages | $(STAMPS)/demo-env
	$(ALONE) $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/test.txt
	@touch $@

# Spark and tables, on top. pyspark comes as an archive of sources; pip keeps the wheel it makes of it.
$(STAMPS)/pipeline-env: requirements/pipeline.txt pyproject.toml $(STAMPS)/pipeline-packages | $(STAMPS)/demo-env
	$(ALONE) $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/pipeline.txt
	@touch $@

# And the browser's driver, and types of what has none of its own.
$(STAMPS)/pipeline-test-env: requirements/pipeline-test.txt $(STAMPS)/pipeline-env $(STAMPS)/test-env
	$(ALONE) $(BIN)/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/pipeline-test.txt
	@touch $@

# Spark as Delta's JVM connector wants it, with the same package.
$(STAMPS)/jvm-env: requirements/jvm.txt pyproject.toml $(STAMPS)/pipeline-packages | $(STAMPS)/test-env $(STAMPS)/kernel
	@[ -e build/jvm-env/bin/python ] || $(BIN)/python -m venv build/jvm-env
	$(ALONE) build/jvm-env/bin/python -m pip install -q --disable-pip-version-check --require-hashes -r requirements/jvm.txt
	$(ALONE) build/jvm-env/bin/python -m pip install -q --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

# New versions within the ranges of pyproject.toml, with their hashes.
lock:
	$(ALONE) $(BIN)/python -m pip install -q uv
	tools/lock.sh $(BIN)

clean:
	rm -rf $(STAMPS) $(VENV) build dist *.egg-info producer/kernel/*.so
