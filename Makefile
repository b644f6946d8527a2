# Everything a user or a developer types. Each target sets up what it needs; nothing has to be installed first.
PYTHON ?= python3
VENV := .venv
GEN := .venv-gen
BIN := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1

# The tag in .env and in the manifests, too.
IMAGE ?= gradmesh:$(shell sed -n 's/^VERSION = "\(.*\)"/\1/p' protos/version.py)
BUILD_NETWORK ?= default
# A package index of your own reaches the build as an argument, never as a file of the repository.
# BASE_IMAGE=NAME:TAG@sha256:DIGEST pins the base; EXTRAS=data,remote adds optional parts.
BUILD_ARGS = $(foreach argument,BASE_IMAGE EXTRAS,$(if $($(argument)),--build-arg $(argument)=$($(argument)))) \
  --build-arg PIP_INDEX_URL --build-arg PIP_EXTRA_INDEX_URL \
  --build-arg VERSION=$(lastword $(subst :, ,$(IMAGE))) --build-arg REVISION=$(shell git rev-parse --short HEAD 2>/dev/null)

.DEFAULT_GOAL := help
.PHONY: help demo setup parity-setup kernels test test-all faults-slice soak fuzz fuzz-engine fuzz-ddp fuzz-dist check audit licences requirements format protos check-protos image e2e bench render clean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.core: pyproject.toml | $(BIN)/python
	@echo "installing gradmesh into $(VENV)"
	@$(BIN)/pip install -q -e .
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	@echo "installing gradmesh and its development tools into $(VENV)"
	@$(BIN)/pip install -q -e '.[dev]'
	@touch $@ $(VENV)/.core

$(GEN)/.done: Makefile
	@$(PYTHON) -m venv $(GEN)
	@$(GEN)/bin/pip install -q grpcio-tools==1.76.0
	@touch $@

$(VENV)/.parity: $(VENV)/.dev
	@echo "installing the packages of the parity, GPU and MPI tests: torch 2.13.0, cupy, MKL, mpi4py, mpich"
	@$(BIN)/pip install -q 'torch==2.13.0' 'cupy-cuda13x>=14,<15' 'mkl>=2024' 'mpi4py>=4' 'mpich>=4'
	@touch $@

parity-setup: $(VENV)/.parity  ## add torch 2.13.0, cupy, MKL and MPI; without them their tests are skipped

setup: $(VENV)/.dev  ## virtual environment with the development tools

demo: $(VENV)/.core  ## a local cluster that trains: 1 coordinator, 2 parameter servers, 2 trainers
	@$(BIN)/gradmesh demo

test: $(VENV)/.dev kernels  ## the tests, without the slow ones
	$(BIN)/python -m pytest -q -n 4 --dist=worksteal -m "not slow and not e2e"

test-all: $(VENV)/.dev kernels  ## all tests that need no container engine
	$(BIN)/python -m pytest -q -n 4 --dist=worksteal -m "not e2e"

# A different slice each day, so that all seeds of the slow fault tests run within a week.
SLICES := 7
SLICE ?= $(shell expr $$(date +%s) / 86400 % $(SLICES))

faults-slice: $(VENV)/.dev kernels  ## a seventh of the slow fault tests, a different one each day; SLICE=0..6
	TEST_SLICE=$(SLICE)/$(SLICES) $(BIN)/python -m pytest -q -n 2 --dist=worksteal -m "slow and not e2e" tests/faults

# Compile once: otherwise each process of the parallel tests would compile.
kernels: $(VENV)/.dev
	@$(BIN)/python -c "from gradmesh.engine.kernels.warm import warm_up; warm_up()"

soak: $(VENV)/.dev  ## the suites of rpc and distributed autograd, 20 times in the same processes; detects leaks
	TEST_ROUNDS=20 $(BIN)/python -m pytest -q -x -m "not e2e" tests/parity/rpc tests/integration/dist_autograd

fuzz: $(VENV)/.dev kernels  ## hostile bytes at every border; FUZZ_FRAMES=n, FUZZ_SECONDS=n, FUZZ_SEEDS=A..B, FUZZ_TARGETS=tcp,log
	$(BIN)/python -m tests.fuzz

fuzz-engine: $(VENV)/.parity kernels  ## random graphs, optimizers and schedules against torch; FUZZ_SEEDS=A..B, FUZZ_SECONDS=n, FUZZ_PROCESSES=n
	$(BIN)/python -m tests.parity.fuzz

fuzz-ddp: $(VENV)/.parity  ## random DDP configurations against torch over gloo; FUZZ_SEEDS=A..B, FUZZ_SECONDS=n
	$(BIN)/python -m tests.parity.fuzz.ddp_run

fuzz-dist: $(VENV)/.dev  ## random graphs over four workers against local autograd; FUZZ_SEEDS=A..B, FUZZ_SECONDS=n
	$(BIN)/python -m tests.parity.fuzz.dist_run

check: $(VENV)/.dev check-protos audit  ## linters, types, import contracts, protos, package structure, docs tables, licences, known vulnerabilities
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/python -m pytest -q tests/architecture tests/contract tests/unit/cli/test_reference.py tests/unit/test_public_api.py
	$(BIN)/python deploy/supply_chain/licences.py --check

audit: $(VENV)/.dev  ## known vulnerabilities of the images' packages; says so where no service answers
	$(BIN)/python deploy/supply_chain/audit.py

licences: $(VENV)/.dev  ## renew docs/licences.md
	$(BIN)/python deploy/supply_chain/licences.py

requirements: $(VENV)/.dev  ## renew the hashes of the images' packages
	$(BIN)/python deploy/supply_chain/pin_packages.py

format: $(VENV)/.dev  ## format the code and apply safe fixes
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

protos: $(GEN)/.done $(VENV)/.dev  ## regenerate the stubs from the .proto files
	$(GEN)/bin/python protos/generate.py
	$(BIN)/buf breaking --against protos/wire.binpb
	$(BIN)/buf build --exclude-source-info -o protos/wire.binpb

bench: $(VENV)/.dev  ## side-by-side figures; with torch where `make parity-setup` was run
	$(BIN)/gradmesh bench dense
	$(BIN)/gradmesh bench lookup
	$(BIN)/gradmesh bench hybrid

render: $(VENV)/.dev  ## every overlay and combination: schemas, semantics, and the launcher, against an emulated API server
	$(BIN)/yamllint -s docker-compose.yml deploy tests/deploy
	$(BIN)/python -m pytest -q -n 2 tests/deploy

image:  ## the container image of all roles; BUILD_NETWORK=host where builds reach no package index otherwise
	docker build -q --network $(BUILD_NETWORK) -f deploy/docker/Dockerfile -t $(IMAGE) $(BUILD_ARGS) .

e2e: $(VENV)/.dev  ## real containers: compose trains, loses processes and ends with the same bits; skipped without an engine
	@if docker info >/dev/null 2>&1; then \
	  $(MAKE) --no-print-directory image && GRADMESH_IMAGE=$(IMAGE) BUILD_NETWORK=$(BUILD_NETWORK) $(BIN)/python -m pytest -q -m e2e tests/e2e; \
	else \
	  echo "=== make e2e: SKIPPED, NOTHING WAS TESTED: no container engine answers ($${DOCKER_HOST:-the default socket}) ===" >&2; \
	fi

clean:  ## remove environments, caches and build products
	rm -rf $(VENV) $(GEN) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

check-protos: $(GEN)/.done $(VENV)/.dev
	$(GEN)/bin/python protos/generate.py --check
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/wire.binpb
