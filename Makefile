# `make demo` and `make test` set up all they need in .venv; the second time they only check that it is there.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PYTEST := $(BIN)/python -m pytest

# A network, host name and process table of their own: whatever the tests start, the kernel removes with them.
OWN_NAMESPACES := unshare --fork --pid --kill-child --mount-proc --net --uts --mount

.PHONY: demo test e2e lint soak bench clean help

help:
	@echo "make demo    train MNIST on 2 Horovod ranks on this machine"
	@echo "make test    run the tests"
	@echo "make e2e     run the tests that need root: several machines made of namespaces, with real SSH"
	@echo "make lint    check the style"
	@echo "make soak    the long checks: CUDA build, oldest to newest torch (about an hour)"
	@echo "make bench   measure local launches against the alternatives (about half an hour)"
	@echo "make clean   remove what these made in this folder"

demo: $(VENV)/.horovod
	$(BIN)/hvdkit launch --backend local --workers 2

test: $(VENV)/.horovod
	$(PYTEST) tests/unit tests/local

e2e: $(VENV)/.horovod
	@[ "$$(id -u)" = 0 ] || { echo "make: e2e makes network namespaces and needs root; run it with sudo."; exit 3; }
	$(OWN_NAMESPACES) $(PYTEST) tests/e2e

lint: $(VENV)/.ready
	$(BIN)/ruff check .

soak: $(VENV)/.horovod
	$(BIN)/python tests/soak/horovod_versions.py
	$(BIN)/hvdkit horovod build --cuda

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
	@command -v c++ >/dev/null || command -v g++ >/dev/null || [ -n "$$CXX" ] || \
		{ echo "make: a C++ compiler is missing; install one (Debian: apt install g++)."; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[train,dev]'
	@touch $@

# Outside the folder the wheel stays in a cache, so that a second clone does not compile it again.
$(VENV)/.horovod: $(VENV)/.ready $(wildcard hvdkit/horovod_wheel/*.py hvdkit/horovod_wheel/*.cmake)
	$(BIN)/hvdkit horovod install
	@touch $@
