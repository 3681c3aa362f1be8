# Two commands: `make accept` accepts a cluster, `make test` tests the suite itself.
#
#   PYTHON=...      interpreter to start from (default: that of .venv, else python3); its torch is
#                   used if it has one
#   TORCH=none      without torch, for a login node whose nodes have a --node-python
#   TORCH=own       a torch of .venv's own in the default build, for GPUs
#   TORCH_INDEX=URL index to take torch from
#   WHEELHOUSE=DIR  install from wheels in DIR, for a machine without a network
#   WHEELS=DIR      where `make wheelhouse` puts them (default wheelhouse)
#   ARGS="..."      more arguments for pytest, or for the tool that a target calls
#   IMAGE=NAME      of `make image` and `make test-image`
#   ENGINE=NAME     of the same: docker (the default), podman or buildah
#   ROOTS=DIR       where `make test-bare`, `make test-trixie` and `make test-image-here` keep their
#                   roots (default: the user's cache)
#   RUN=DIR         of `make install-ready`: the accepted run, or several of a handover in parts
#   DEST=DIR        of `make install-ready`: a folder of root's, on every node
#   RELEASE=NAME    of Debian in `make test-trixie` (default trixie)

PYTHON ?=
WHEELHOUSE ?=
WHEELS ?= wheelhouse
TORCH ?=
TORCH_INDEX ?=
ARGS ?=
IMAGE ?= gpu-cluster-acceptance
ENGINE ?= docker
ROOTS ?=
RELEASE ?= trixie
RUN ?=
DEST ?=
VENV := .venv
PY := $(VENV)/bin/python
START := $(or $(PYTHON),python3)
THERE = $(or $(shell command -v '$(START)' || true),$(error PYTHON=$(START) is not a program of \
  this host: name the interpreter to start from, Python 3.11 or newer))
# All logic of the set-up is in fixtures/setup; it is asked each time, and knows what is done.
SETUP = $(if $(THERE),'$(START)') -m fixtures.setup $(if $(PYTHON),--python-given) \
  --torch='$(TORCH)' --torch-index='$(TORCH_INDEX)' --wheelhouse='$(WHEELHOUSE)'

IMAGES = $(if $(THERE),'$(START)') -m tests.tools.image --engine='$(ENGINE)' --image='$(IMAGE)' \
  --torch-index='$(TORCH_INDEX)'

.DEFAULT_GOAL := help
.NOTPARALLEL:
# cron and `env -i` give no PATH.
PATH ?= /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
export PATH
# Without cached bytecode each start of pytest costs two more seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help accept test lint format bench bench-gpu soak soak-gpu drills tour image install-ready \
  test-image test-image-here test-trixie test-bare setup wheelhouse setup-dev sbom lock sandbox-packages site-packages \
  clean

help: ## this page
	@sed -n -e '/^#  /s/^#//p' -e '/^$$/q' Makefile
	@echo
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "   make %-17s %s\n", $$1, $$2 }' Makefile

accept: ## accept this cluster; without Slurm, a demonstration in a sandbox on this host
	@$(SETUP) accept
	@$(PY) -m fixtures $(ARGS)

# Five processes on two cores: threads of numpy and torch would only wait for each other there.
test: export OMP_NUM_THREADS := 1
test: export OPENBLAS_NUM_THREADS := 1
test: ## the suite's own tests
	@$(SETUP) test
	$(PY) -m pytest -ra -m "cpu and not slow" -n 5 --dist loadgroup --no-loadscope-reorder $(ARGS)

setup: ## .venv for runs
	@$(SETUP) run

setup-dev: ## .venv for runs, tests and lint
	@$(SETUP) development

lint: setup-dev ## formatting, types, import contracts, dead code
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/vulture
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: setup-dev ## format the code as lint wants it
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

tour: sandbox-packages setup ## the whole way in a few minutes, without a cluster
	@$(PY) -m reports.console.tour $(ARGS)

bench: sandbox-packages setup-dev ## figures: overhead, collection, stages; 1,024 nodes (30 min)
	$(PY) -m tests.tools.bench
	$(PY) -m tests.tools.bench_scale
	$(PY) -m tests.tools.bench_statistics
	$(PY) -m tests.tools.bench_groups
	$(PY) -m tests.tools.bench_search
	$(PY) -m tests.tools.bench_permutations --only noise healthy found --nodes 64 --seeds 10
	$(PY) -m tests.tools.bench_ready

bench-gpu: setup ## our figures beside nccl-tests' and nvbandwidth's, on GPUs
	$(PY) -m tests.tools.stopping_rule
	$(PY) -m tests.tools.bench_gpu $(ARGS)

soak-gpu: setup ## healthy GPUs pass every time, a slowed one is named every time
	$(PY) -m tests.tools.soak_gpu $(ARGS)
	$(PY) -m tests.tools.corruption_gpu
	$(PY) -m tests.tools.intermittent_gpu
	$(PY) -m tests.tools.planted_faults_gpu

soak: site-packages setup-dev test-bare test-image-here ## what takes long: bare roots, image, 20 runs, interruptions
	$(PY) -m tests.tools.soak_collectives
	$(PY) -m tests.tools.soak
	$(PY) -m tests.tools.soak_hostile
	$(PY) -m pytest -q -m slow tests/selftests/whole_runs/test_hostile_ranks.py
	$(PY) -m tests.tools.bench_fleet --large
	$(PY) -m tests.tools.mixed_fleet --nodes 512
	$(PY) -m pytest -ra -m "cpu and slow" $(ARGS)

install-ready: setup ## the check of a node before each job: RUN=DIR (the accepted run), DEST=DIR (root's)
	@$(PY) -m reports ready $(RUN) --dest='$(DEST)' $(ARGS)

drills: sandbox-packages setup-dev ## every fault put in one by one, and who is named; the table as JSON
	$(PY) -m tests.tools.drills $(ARGS)

test-bare: ## bare Debian 12 and 13: from four packages to a DEMONSTRATION by `make accept`
	@$(if $(THERE),'$(START)') -m tests.tools.debian_root --bare --release bookworm --roots='$(ROOTS)'
	@$(if $(THERE),'$(START)') -m tests.tools.debian_root --bare --release trixie --roots='$(ROOTS)'

test-trixie: ## Debian trixie in a chroot: setup, tests and a healthy run on its Slurm and Python
	@$(if $(THERE),'$(START)') -m tests.tools.debian_root --release $(RELEASE) --roots='$(ROOTS)' $(ARGS)

image: ## the container image, from deploy/Dockerfile
	@$(IMAGES) build

test-image: setup ## in the image: make test, a replay, make accept, a run made outside verified
	@$(IMAGES) test -- $(ARGS)

test-image-here: setup ## as root, without docker and registry: both, by buildah, on a bare Debian
	@$(IMAGES) here --roots='$(ROOTS)' -- $(ARGS)

wheelhouse: ## wheels of all that `make setup` installs, in WHEELS=DIR: see docs/air-gap.md
	@$(SETUP) wheelhouse --wheels='$(WHEELS)'

sbom: ## a bill of materials of what make installs (CycloneDX), on standard output or ARGS="--out FILE"
	@$(if $(THERE),'$(START)') -m tests.tools.sbom $(ARGS)

lock: setup-dev ## constraints.txt anew, with hashes (needs uv); ARGS=--upgrade for newer versions
	$(PY) -m tests.tools.lock $(ARGS)

sandbox-packages: ## as root on Debian and Ubuntu: the packages that the sandbox needs
	@$(SETUP) packages

site-packages: ## the same, and those of the foreign site of the suite's own tests
	@$(SETUP) site-packages

clean: ## remove .venv and all caches
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
