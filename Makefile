# `make` lists what there is. Every target sets up what it needs first (scripts/setup, a no-op when all is there).
PYTHON := .venv/bin/python
SETUP := scripts/setup
# CI logs are read later and in a browser: no colours, the slowest tests named. One failure on a shared machine
# does not hide what all other tests say: it gets a second try, and the log ends with a RERUN line that names it.
PYTEST_FLAGS := $(if $(CI),--color=no --durations=10 --reruns=1 --rerun-show-tracebacks -raR,)
PYTEST := $(PYTHON) -m pytest $(PYTEST_FLAGS)

# Tests that start workers or a cluster have the machine for themselves, one after the other; all others share it.
# TESTS=path may name tests of one kind only: that no test is left for the other run is no failure.
ALONE := training or cluster or controlplane or programs
NONE := 5

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-fast lint format docs cluster images bench clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

setup: ## virtual environment, pinned dependencies, our Horovod build
	@$(SETUP)

demo: setup ## train digits with 3 local workers while one is killed, one drained, one added
	@$(PYTHON) -m edl_allreduce.demo

demo-cluster: setup ## the same on Kubernetes: pods are deleted and preempted on two real nodes (root)
	@$(PYTHON) -m scripts.demo_cluster

test: lint ## lint, then all tests
	@failed=0; \
	$(PYTEST) -n logical -m "not ($(ALONE)) and not soak" $(TESTS) || [ $$? -eq $(NONE) ] || failed=1; \
	$(PYTEST) -m "($(ALONE)) and not soak" $(TESTS) || [ $$? -eq $(NONE) ] || failed=1; \
	exit $$failed

test-fast: setup ## tests that start no worker and no cluster and import no TensorFlow: under a minute
	$(PYTEST) -n logical --fast $(TESTS)

lint: setup ## ruff, mypy strict, import layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --strict scripts/setup third_party/horovod/build.py
	.venv/bin/lint-imports

format: setup ## let ruff rewrite the code
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: setup ## the documentation as a site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict --quiet
	@echo "the site begins at build/site/index.html"

cluster: setup ## a local Kubernetes cluster on this machine
	@scripts/cluster up

images: setup ## the images of docker/; GPU=yes adds the one with CUDA
	docker/build cpu controller data development $(if $(GPU),gpu)

bench: setup ## measure, and write what was measured
	@$(PYTHON) -m benchmarks

clean: ## remove .venv and build products (the wheel cache stays)
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
