# `make` lists what there is. Every target sets up what it needs first (scripts/setup, a no-op when all is there).
PYTHON := .venv/bin/python
SETUP := scripts/setup
# CI logs are read later and in a browser: no colours, the slowest tests named. One failure on a shared machine
# does not hide what all other tests say: it gets a second try, and the log ends with a RERUN line that names it.
PYTEST_FLAGS := $(if $(CI),--color=no --durations=10 --reruns=1 --rerun-show-tracebacks -raR,)
PYTEST := $(PYTHON) -m pytest $(PYTEST_FLAGS)

# Tests wait for processes and pods more than they compute: one more at a time than there are cores. Those that
# need a cluster are one group, which runs in order beside the others.
AT_A_TIME := $(shell expr $$(nproc) + 1)

# Hundreds of processes import the same modules: compiled once, whatever the shell says.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-cluster test test-fast test-nccl test-gpu test-kueue lint format docs cluster images \
	pin-images bench chaos sanitize fuzz clean \
	experiment-jobs experiment-nginx experiment-trace

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 18

setup: ## virtual environment, pinned dependencies, our Horovod build
	@$(SETUP)

demo: setup ## train digits with 3 local workers while one is killed, one drained, one added
	@$(PYTHON) -m edl_allreduce.demo

demo-cluster: setup ## the same on Kubernetes: pods are deleted and preempted on two real nodes (root)
	@$(PYTHON) -m scripts.demo_cluster

test: lint ## lint, then all tests
	$(PYTEST) -n $(AT_A_TIME) --dist loadgroup -m "not soak and not nccl and not gpu" $(TESTS)

test-fast: setup ## tests that start no worker and no cluster and import no TensorFlow: under a minute
	$(PYTEST) -n logical --fast $(TESTS)

test-nccl: setup ## the ring of GPUs without a GPU: Horovod with NCCL is built, re-forms over a stand-in (soak: SOAK=yes)
	$(PYTEST) -m "nccl $(if $(SOAK),,and not soak)" tests/gpu

# REHEARSAL=yes runs the same tests on the CPU, with the Horovod that is there: it shows that they work.
ifdef REHEARSAL
test-gpu: setup
	GPU_REHEARSAL=yes GPU_REPORT=build/gpu-rehearsal.json $(PYTEST) -m gpu tests/gpu
else
test-gpu: ## on a machine with NVIDIA GPUs: Horovod with NCCL, collectives, training, faults; build/gpu-report.json
	@if ls /dev/nvidia[0-9]* > /dev/null 2>&1; then \
		HOROVOD_GPU_OPERATIONS=NCCL $(SETUP) && GPU_REPORT=build/gpu-report.json $(PYTEST) -m gpu tests/gpu; code=$$?; \
		echo "the report to send back: build/gpu-report.json"; exit $$code; \
	else echo "no NVIDIA GPU here (no /dev/nvidia0): nothing was set up and nothing was tested"; fi
endif

test-kueue: setup ## a job in a queue of a real Kueue, which is built from its Go module once (root)
	$(PYTEST) -m soak tests/trainingjob/test_with_a_real_kueue.py

lint: setup ## ruff, mypy strict, import layers
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m mypy --strict scripts/setup third_party/horovod/build.py third_party/horovod/gpu_kernels.py
	.venv/bin/lint-imports

format: setup ## let ruff rewrite the code
	$(PYTHON) -m ruff check --fix .
	$(PYTHON) -m ruff format .

docs: setup ## the documentation as a site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(PYTHON) -m mkdocs build --strict
	@echo "the site begins at build/site/index.html"

cluster: setup ## a local Kubernetes cluster on this machine
	@scripts/cluster up

images: setup ## the images of docker/; GPU=yes adds the one with CUDA
	docker/build cpu controller data development $(if $(GPU),gpu)

pin-images: setup ## write the digests of today's base images into the Dockerfiles; needs their registry
	@$(PYTHON) docker/pin

bench: setup ## measure, and write what was measured
	@$(PYTHON) -m benchmarks

experiment-jobs: setup ## twenty jobs come to 133 hollow nodes: ours, rigid, the published rule (half an hour)
	@$(PYTHON) -m experiments jobs $(FLAGS)

experiment-nginx: setup ## six jobs beside a service that grows and shrinks, on the same nodes (forty minutes)
	@$(PYTHON) -m experiments nginx $(FLAGS)

experiment-trace: setup ## 160 jobs on 64 slots in simulated time; FLAGS="--workload FILE…" for other people's
	@$(PYTHON) -m experiments trace $(FLAGS)

sanitize: setup ## the ring's tests with its library under a sanitizer (SANITIZER=address, thread)
	@$(PYTHON) -m scripts.sanitize $(or $(SANITIZER),address) $(FLAGS)

fuzz: setup ## damage files of one kind for as long as you like, learning (FORMAT=recordio, SECONDS=60)
	@test -d build/fuzz/site || $(PYTHON) -m pip install --quiet --no-deps --only-binary :all: --require-hashes \
		--target build/fuzz/site -r tests/bad_input/fuzz.txt
	PYTHONPATH=build/fuzz/site $(PYTHON) -m tests.bad_input.fuzz $(or $(FORMAT),recordio) --seconds $(or $(SECONDS),60)

# MINUTES, SEED: how long and from where on; FLAGS has more, such as --faults=2000.
chaos: setup ## try to break the promises of real jobs, with random faults from outside (root)
	@$(PYTHON) -m chaos --minutes $(or $(MINUTES),10) --seed $(or $(SEED),1) $(FLAGS)

clean: ## remove .venv and build products (the wheel cache stays)
	rm -rf .venv build dist ./*.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
