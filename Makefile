# `make demo` and `make test` are all one needs; both build .venv first and stamp it, so a second call starts at once.
# PYTHON=... chooses the interpreter, VENV=... the folder, TORCH=... the requirement that PyTorch is installed from
# (it may carry an index: TORCH="torch==2.13.0 --index-url <the CPU index that pytorch.org names>").

SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

# The first interpreter that is new enough; `python3` where none is, so that the check below can say so.
PYTHON ?= $(or $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done),python3)
VENV ?= .venv
# By exact version and before everything else: a range may be answered with a build that brings gigabytes of CUDA.
TORCH ?= $(shell grep '^torch==' constraints.txt)
PIP = $(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# Seconds that each big folder or file may take under `make test`; what does not fit is skipped and counted. Their
# tests run in an order shuffled by NEURON_TEST_SEED, so that what was run is a fair sample.
NEURON_TEST_BUDGET ?= lowering/test_ops.py=60,lowering/test_padding_rules.py=20,lowering/test_planted_faults.py=25,neuron_compiler/test_buckets.py=25,neuron_compiler/test_saved.py=30,suites=90,end_to_end=105
NEURON_TEST_SEED ?= 0
# Processes that share the tests, in small portions, so that they keep to the order. Budgets are of each process.
JOBS ?= 2
PYTEST = $(VENV)/bin/python -m pytest --durations=25 --numprocesses=$(JOBS) --maxschedchunk=8

INSTALLED = $(VENV)/installed
INSTALLED_TEST = $(VENV)/installed-test

.PHONY: help demo test test-all lint types format install install-test clean

help:  ## these lines
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*##/\t/' | expand -t 14

demo: $(INSTALLED)  ## set up, then compile and run a model and show what happened
	$(VENV)/bin/neuron-compiler demo

test: $(INSTALLED_TEST)  ## unit tests, then a fair sample of the big suites: at most 20 minutes on two cores
	NEURON_TEST_BUDGET=$(NEURON_TEST_BUDGET) NEURON_TEST_SEED=$(NEURON_TEST_SEED) $(PYTEST)

test-all: $(INSTALLED_TEST)  ## everything, however long it takes
	$(PYTEST)

lint: $(INSTALLED_TEST)  ## ruff: rules and format
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .

types: $(INSTALLED_TEST)  ## mypy, strict, on the files that setup.cfg names
	$(VENV)/bin/mypy

format: $(INSTALLED_TEST)  ## let ruff rewrite
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

install: $(INSTALLED)  ## .venv with the package and the models it is shown on
install-test: $(INSTALLED_TEST)  ## the same, and what the tests need

# Without a C++ compiler there is no device neuron; all else works, so the last step may fail.
$(INSTALLED): setup.cfg pyproject.toml constraints.txt Makefile
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "neuron-compiler needs Python 3.11 or newer and $(PYTHON) is not: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' || { \
	  echo "$(PYTHON) cannot make virtual environments: install its venv package (Debian, Ubuntu: python3-venv)" >&2; \
	  exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH) setuptools
	$(PIP) --no-build-isolation --editable '.[models]'
	$(PIP) --no-deps timm
	-$(VENV)/bin/neuron-compiler setup
	@touch $@

$(INSTALLED_TEST): $(INSTALLED)
	$(PIP) --no-build-isolation --editable '.[models,test]'
	@touch $@

clean:  ## remove .venv, caches and build output
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
