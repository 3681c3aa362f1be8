# Two commands: `make accept` accepts a cluster, `make test` tests the suite itself.
#
#   PYTHON=...      interpreter to start from (default python3); its torch is used if it has one
#   WHEELHOUSE=DIR  install from wheels in DIR, for a machine without a network
#   WHEELS=DIR      where `make wheelhouse` puts them (default wheelhouse)
#   TORCH_INDEX=URL index to take torch from (for a CPU build where the default brings CUDA)
#   ARGS="..."      more arguments for pytest
#   IMAGE=NAME      of `make image` and `make test-image`
#   TRIXIE=DIR      where `make test-trixie` keeps its root (default in the user's cache)
#   RELEASE=NAME    of Debian there (default trixie)

PYTHON ?= python3
WHEELHOUSE ?=
WHEELS ?= wheelhouse
TORCH_INDEX ?=
ARGS ?=
IMAGE ?= gpu-cluster-acceptance
TRIXIE ?=
RELEASE ?= trixie
VENV := .venv
PY := $(VENV)/bin/python
PIP = $(PY) -m pip install --quiet --disable-pip-version-check \
      $(if $(WHEELHOUSE),--no-index --find-links $(WHEELHOUSE))
TORCH := torch==2.13.0
SLURM := slurmctld slurmd slurm-client munge iproute2 gcc libc6-dev
SLURM_ACCOUNTING := slurmdbd mariadb-server
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev
DEPENDENCIES = $(PY) -c 'import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      print("\n".join(p["dependencies"] if len(sys.argv) < 2 else p["optional-dependencies"][sys.argv[1]]))'

# Without cached bytecode each start of pytest costs two more seconds.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: accept test lint format bench bench-gpu soak soak-gpu drills tour image \
  test-image test-trixie setup wheelhouse setup-dev sandbox-packages site-packages clean

accept: $(READY) sandbox-packages ## accept this cluster; without Slurm, a sandbox on this host
	@$(PY) -m fixtures $(ARGS)

test: $(READY_DEV) ## the suite's own tests
	$(PY) -m pytest -ra -m "cpu and not slow" -n 3 --dist loadgroup --no-loadscope-reorder $(ARGS)

lint: $(READY_DEV) ## formatting, types, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml

format: $(READY_DEV)
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

bench: $(READY_DEV) sandbox-packages ## figures: overhead, collection, stages; 1,024 nodes (20 min)
	$(PY) -m tests.tools.bench
	$(PY) -m tests.tools.bench_scale

bench-gpu: $(READY) ## our figures beside nccl-tests' and nvbandwidth's, on GPUs
	$(PY) -m tests.tools.bench_gpu $(ARGS)

soak-gpu: $(READY) ## healthy GPUs pass every time, a slowed one is named every time
	$(PY) -m tests.tools.soak_gpu $(ARGS)
	$(PY) -m tests.tools.corruption_gpu
	$(PY) -m tests.tools.planted_faults_gpu

soak: $(READY_DEV) site-packages ## what takes long: 20 healthy runs, every point of interruption
	$(PY) -m tests.tools.soak_collectives
	$(PY) -m tests.tools.soak
	$(PY) -m tests.tools.bench_fleet --large
	$(PY) -m pytest -ra -m "cpu and slow" $(ARGS)

drills: $(READY_DEV) sandbox-packages ## every fault put in one by one, and who is named; the table as JSON
	$(PY) -m tests.tools.drills $(ARGS)

tour: $(READY) sandbox-packages ## the whole way in a few minutes, without a cluster
	@$(PY) -m reports.tour $(ARGS)

image: ## the container image, from deploy/Dockerfile
	docker build --file deploy/Dockerfile --build-arg TORCH_INDEX=$(TORCH_INDEX) --tag $(IMAGE) .

test-image: ## the suite's own tests inside the image, and a recorded run judged in it
	docker run --rm $(IMAGE) make test
	docker run --rm $(IMAGE) pytest -m multinode --cluster replay \
	  --from=tests/selftests/data/sandbox-2x2-cpu

test-trixie: ## Debian trixie in a chroot: setup, tests and a healthy run on its Slurm and Python
	@if command -v debootstrap /usr/sbin/debootstrap >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	  echo "installing debootstrap"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq >/dev/null && \
	  apt-get install -y -qq debootstrap debian-archive-keyring >/dev/null; fi
	@$(PYTHON) -m tests.tools.trixie $(TRIXIE) --release $(RELEASE) $(ARGS)

setup: $(READY)

wheelhouse: $(PY) ## wheels of all that `make setup` installs, in WHEELS=DIR: see docs/air-gap.md
	@$(DEPENDENCIES) > $(VENV)/requirements.txt
	$(PY) -m pip wheel --quiet --disable-pip-version-check --constraint constraints.txt \
	  --wheel-dir $(WHEELS) --requirement $(VENV)/requirements.txt \
	  $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	  $$([ -e $(VENV)/.borrowed ] || echo $(TORCH))

setup-dev: $(READY_DEV)

# The interpreter's own torch is never doubled: its packages are put behind those of the venv.
$(PY):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "$(PYTHON) is older than 3.11: give a newer one with PYTHON="; exit 1; }
	@$(PYTHON) -m venv $(VENV) 2>/dev/null || $(PYTHON) -m venv --without-pip --clear $(VENV)
	@if $(PYTHON) -c 'import torch' 2>/dev/null; then \
	  echo "using the torch of $$($(PYTHON) -c 'import sys; print(sys.executable)')"; \
	  $(PYTHON) -c 'import site; print("\n".join(site.getsitepackages()))' \
	    > $$($(PY) -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/borrowed.pth; \
	  touch $(VENV)/.borrowed; fi

# What is borrowed keeps its versions; everything else is as in constraints.txt.
$(READY): $(PY) pyproject.toml constraints.txt
	@if $(PY) -c 'import torch' 2>/dev/null; then :; else \
	  echo "installing $(TORCH)"; $(PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) $(TORCH); fi
	@$(DEPENDENCIES) > $(VENV)/requirements.txt
	@$(PIP) $$([ -e $(VENV)/.borrowed ] || echo -c constraints.txt) -r $(VENV)/requirements.txt
	@$(DEPENDENCIES) finetune > $(VENV)/requirements-finetune.txt
	@$(PIP) -r $(VENV)/requirements-finetune.txt \
	  $$([ -e $(VENV)/.borrowed ] || echo -c constraints.txt) 2> $(VENV)/finetune.log || \
	  echo "without the extra finetune ($(VENV)/finetune.log): fine-tuning will not be applicable"
	@# Where pytest is borrowed with torch, pip installs no command for it.
	@[ -x $(VENV)/bin/pytest ] || { \
	  printf '#!/bin/sh\nexec "%s" -m pytest "$$@"\n' "$(CURDIR)/$(PY)" > $(VENV)/bin/pytest; \
	  chmod +x $(VENV)/bin/pytest; }
	@touch $@

$(READY_DEV): $(READY)
	@{ $(DEPENDENCIES) dev; $(DEPENDENCIES) finetune; } > $(VENV)/requirements-dev.txt
	@$(PIP) -c constraints.txt -r $(VENV)/requirements-dev.txt
	@touch $@

# Only where there is no Slurm, the sandbox is wanted, and we may install packages.
sandbox-packages:
	@if command -v sinfo >/dev/null && sinfo >/dev/null 2>&1; then :; \
	elif command -v slurmctld slurmd munged ip >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "$(WHEELHOUSE)" ]; then \
	  echo "installing $(SLURM)"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq >/dev/null && apt-get install -y -qq $(SLURM) >/dev/null; fi

# For the foreign site of the suite's own tests (tests/tools/foreign_site.py).
site-packages: sandbox-packages
	@if command -v slurmdbd >/dev/null && command -v mariadbd >/dev/null; then :; \
	elif [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && [ -z "$(WHEELHOUSE)" ]; then \
	  echo "installing $(SLURM_ACCOUNTING)"; export DEBIAN_FRONTEND=noninteractive; \
	  apt-get update -qq >/dev/null && apt-get install -y -qq $(SLURM_ACCOUNTING) >/dev/null; fi

clean:
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
