# `make demo` and `make test` set up all they need in .venv; the second time they only check that it is there.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# A network, host name and process table of their own: whatever the tests start, the kernel removes with them.
OWN_NAMESPACES := unshare --fork --pid --kill-child --mount-proc --net --uts --mount

# A real Kubernetes that ends with the command; the first time it compiles it, for 20 minutes and more.
IN_CLUSTER = $(BIN)/python -m tests.e2e.cluster run $(CLUSTER_IMAGES) --
IN_TWO_NODES = $(IN_CLUSTER:run=run --nodes=2)
CLUSTER_IMAGES = $(addprefix --image=localhost/hvdkit-,worker:$(VERSION) worker:$(VERSION)-monarch nfs:$(VERSION))
VERSION := $(shell sed -n 's/^__version__ = "\(.*\)"/\1/p' hvdkit/__init__.py)

# Several files at a time: many tests wait for processes to start, connect or end. The long ones first, in a given order
# (pytest-xdist would begin with files of many tests, which are the quick ones): else one core idles at the end.
BY_FILE := --dist loadfile --no-loadscope-reorder

.PHONY: e2e-cluster cluster-up cluster-down demo test e2e images lint root soak bench clean help
.PHONY: e2e-machines cluster-images cluster-tests

help:
	@echo "make demo    train MNIST on 2 Horovod ranks on this machine"
	@echo "make test    run the tests"
	@echo "make e2e     run the tests that need root: machines made of namespaces, images, a real Kubernetes"
	@echo "make images  build the launcher, worker and NFS images with buildah (root; no container registry needed)"
	@echo "make cluster-up, cluster-down   a real Kubernetes with its operators on this machine, for development"
	@echo "make lint    check the style"
	@echo "make soak    the long checks: CUDA build, oldest to newest torch, 200 kills, 1,000 broken checkpoints (hours)"
	@echo "make bench   measure local launches against the alternatives (about half an hour)"
	@echo "make clean   remove what these made in this folder"

demo: $(VENV)/.horovod
	$(BIN)/hvdkit launch --backend local --workers 2

# In the order of tests/local/conftest.py.
test: $(VENV)/.horovod
	$(PYTEST) -n 3 $(BY_FILE) tests/local tests/unit

# First of all, before anything is downloaded or built.
root:
	@[ "$$(id -u)" = 0 ] || { echo "make: images and namespaces need root; run this with sudo."; exit 3; }

# Whatever must be compiled comes first; the import of the images waits for the disk, and tests can run meanwhile.
e2e: root $(VENV)/.horovod images
	$(BIN)/python tests/e2e/prometheus_server.py
	$(BIN)/python -m tests.e2e.cluster build
	$(MAKE) --jobs=2 e2e-machines cluster-images
	$(MAKE) cluster-tests

# The part of e2e that needs a real cluster.
e2e-cluster: root $(VENV)/.horovod images
	$(MAKE) cluster-tests

# Of two files at a time, each has machines, a network and processes of its own.
e2e-machines:
	$(PYTEST) $(BY_FILE) --tx '2*popen//python=$(OWN_NAMESPACES) $(BIN)/python' tests/e2e/test_prometheus.py \
		$(filter-out tests/e2e/test_k8s_% tests/e2e/test_cluster_lifecycle.py,$(wildcard tests/e2e/test_*.py))

cluster-images:
	$(BIN)/python -m tests.e2e.cluster build $(CLUSTER_IMAGES)

# First three files at a time; then, one by one, the tests that stop what all use, or need the processors to themselves.
# Bench and training keep the processors busy: in this order the others, which mostly wait, run beside them.
cluster-tests:
	$(IN_CLUSTER) sh -ec '\
		$(PYTEST) -n 3 $(BY_FILE) -m "not alone" \
			$(foreach first,bench lifecycle nfs monarch training,tests/e2e/test_k8s_$(first).py) tests/e2e/test_k8s_*.py; \
		$(PYTEST) -m alone tests/e2e/test_k8s_*.py'

# The users' Dockerfile and command, on a Debian made of packages; buildah keeps the layers, so a second time is quick.
images: root $(VENV)/.horovod
	$(BIN)/python tests/e2e/image_store.py
	$(BIN)/python tests/e2e/image_store.py --monarch --target=worker --tag=$(VERSION)-monarch

cluster-up: $(VENV)/.ready
	$(BIN)/python -m tests.e2e.cluster up

cluster-down: $(VENV)/.ready
	$(BIN)/python -m tests.e2e.cluster down

lint: $(VENV)/.ready
	$(BIN)/ruff check .

soak: root $(VENV)/.horovod images
	$(BIN)/python tests/soak/horovod_versions.py
	$(BIN)/python tests/soak/horovod_versions.py --cuda
	$(BIN)/python tests/soak/cuda_image.py --output benchmarks/results/cuda-image.json
	$(BIN)/python tests/soak/train_kills.py --output benchmarks/results/train-kills.json
	$(BIN)/python tests/soak/job_specs.py
	$(BIN)/python tests/soak/bench_verdicts.py --anew --output benchmarks/results/bench-verdicts.json
	$(BIN)/python tests/soak/checkpoint_corruption.py --output benchmarks/results/checkpoint-corruption.json
	$(BIN)/python -m pytest tests/e2e/test_cluster_lifecycle.py
	$(IN_CLUSTER) $(BIN)/python tests/soak/cluster_dns_race.py --output benchmarks/results/cluster-dns-race.json
	$(IN_TWO_NODES) $(BIN)/python tests/soak/node_loss.py --output benchmarks/results/node-loss.json

bench: $(VENV)/.horovod
	$(BIN)/python benchmarks/local_launch.py --output benchmarks/results/local-launch.json

clean:
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Torch alone is a download of some gigabytes: the stamps keep it to the first time.
$(VENV)/.ready: setup.cfg constraints.txt Makefile
	@command -v $(PYTHON) >/dev/null || { echo "make: $(PYTHON) is missing; install Python 3.11 or newer."; exit 3; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "make: $$($(PYTHON) --version) is too old for the pinned torch; set PYTHON=python3.11 or newer."; exit 3; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "make: Python's venv module is missing; install it (Debian: apt install python3-venv)."; exit 3; }
	@set -- $$CXX; for name in $${1:-c++ g++ clang++}; do command -v "$$name" >/dev/null && exit 0; done; \
		echo "make: a C++ compiler is missing (no $${1:-c++, g++ or clang++}); install one (Debian: apt install g++)."; exit 3
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	@touch $@

# Outside the folder the wheel stays in a cache, so that a second clone does not compile it again.
$(VENV)/.horovod: $(VENV)/.ready $(wildcard hvdkit/horovod_wheel/*.py hvdkit/horovod_wheel/*.cmake)
	$(BIN)/hvdkit horovod install
	@touch $@
