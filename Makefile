# make demo | test | test-long | test-nodes | test-simulators | test-torch | test-pythons | test-all | check | docs | package | gpu-bundle | bench | figures | storm | clean
#
# Everything runs in .venv, made on first use and made again when pyproject.toml or constraints.txt change.
# Another interpreter:        make test PYTHON=python3.12
# PyTorch's small CPU build:  make test TORCH_INDEX=https://download.pytorch.org/whl/cpu

SHELL := /bin/bash
PYTHON ?=
TORCH_INDEX ?=
ARGS ?=
PIP := $(if $(CI),--quiet,--progress-bar on)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
READY := $(VENV)/.ready
NODES := .venv-nodes
SIMULATORS := .venv-simulators
DOCS := .venv-docs

.PHONY: demo test test-long test-nodes test-simulators test-torch test-pythons test-all check docs package gpu-bundle bench figures storm clean
.DEFAULT_GOAL := help

.PHONY: help
help:
	@sed -n '1,6s/^# \{0,1\}//p' Makefile

# A population on CartPole for some seconds, then one on Up'n Down for about two minutes; on a busy machine up to ten.
# ARGS adds options of `pbt-rl train` to both: make demo ARGS="--seed 1"
demo: $(INSTALLED)
	@$(BIN)/python scripts/demo.py $(ARGS)

test: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "not slow and not long and not nodes and not simulators" $(ARGS)

test-long: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadfile -m "long and not slow and not nodes and not simulators" $(ARGS)

# Over a cluster of Ray on this machine. Ray (about 300 MB) is installed beside .venv, whose packages it sees.
test-nodes: $(NODES)/.ready
	$(NODES)/bin/python -m pytest -m nodes -rs tests/run/nodes $(ARGS)

# Simulators whose rows are tensors. JAX and gymnax (about 250 MB) are installed beside .venv, whose packages it sees.
test-simulators: $(SIMULATORS)/.ready
	$(SIMULATORS)/bin/python -m pytest -m "simulators and not slow" -rs tests/envs $(ARGS)

# With several releases of torch, each in an environment of its own; ARGS="--short" takes those that are on the disk.
test-torch: $(READY)
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python scripts/torch_matrix.py $(ARGS)

# The tests of processes under every Python of this machine, with the nice value of a batch queue. They need pytest and
# psutil alone, which those of .venv are for every Python.
test-pythons: $(READY)
	@export PYENV_VERSION="$$(pyenv versions --bare 2>/dev/null | grep '^3\.1[1-4]\.' | paste -sd:)" \
		PYTHONPATH="$$($(BIN)/python -c 'import sys; print(*(p for p in sys.path if p.endswith("-packages")), sep=":")')" \
		PYTEST_DISABLE_PLUGIN_AUTOLOAD=1; \
	for python in python3.11 python3.12 python3.13 python3.14; do \
		"$$python" --version 2>/dev/null || { echo "$$python: not on this machine"; continue; }; \
		nice -n 5 "$$python" -m pytest -q -p no:cacheprovider -W ignore::pytest.PytestConfigWarning tests/processes/test_child.py tests/processes/test_keeper.py tests/processes/test_signals.py tests/processes/test_stacks.py $(ARGS) || exit; \
	done

test-all: $(READY)
	$(BIN)/python -m pytest $(ARGS)

check: $(READY)
	$(BIN)/python scripts/check.py

# The documentation site in build/site. mkdocs (about 15 MB) is installed into a venv of its own.
docs: $(READY) $(DOCS)/.ready
	$(BIN)/python scripts/docs_site.py
	$(DOCS)/bin/mkdocs build --quiet
	@echo "build/site/index.html"

# Wheel and sdist in dist/, tried out in a new venv.
package: $(READY)
	TORCH_INDEX=$(TORCH_INDEX) $(BIN)/python scripts/package_check.py $(ARGS)

# For a machine with a GPU and no registry: dist/gpu-bundle.tar.xz, whose check.sh runs scripts/gpu_check.py and
# whose run.sh runs pbt-rl. It holds the tree as it stands.
gpu-bundle: $(READY)
	$(BIN)/python scripts/gpu_bundle.py $(ARGS)

bench: $(READY)
	$(BIN)/python scripts/bench.py --env atari/pong $(ARGS)

# The figures of speed beside Sample Factory (40 minutes of quiet cores, up to three times that on unsteady ones), and all tables that are made from rows.
figures: $(READY)
	$(BIN)/python scripts/bench.py --env atari/pong --peer --seconds 20 --json docs/lab/results/speed.json $(ARGS)
	$(BIN)/python scripts/lab/tables.py

storm: $(READY)
	$(BIN)/python scripts/storm.py $(ARGS)

# Leaves runs/ alone.
clean:
	rm -rf $(VENV) $(NODES) $(SIMULATORS) $(DOCS) .venv-torch build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find algos envs pbt_rl scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +

# What a user needs. pip shows its progress where a person looks on.
$(INSTALLED): pyproject.toml constraints.txt
	@for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
		if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			echo "making $(VENV) with $$("$$python" --version)"; \
			"$$python" -m venv $(VENV) && exit 0; \
			echo "$$python cannot make $(VENV); on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; \
		fi; \
	done; \
	echo "Python 3.11 or newer is needed; tried: $(or $(PYTHON),python3 python3.13 python3.12 python3.11)." \
		"Name one: make PYTHON=/path/to/python3.11" >&2; exit 1
	@echo "installing PyTorch and pbt_rl into $(VENV): about 1.5 GB without a GPU, 6 GB with CUDA; 2 to 15 minutes"
	$(BIN)/python -m pip install $(PIP) -c constraints.txt $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
	$(BIN)/python -m pip install $(PIP) -c constraints.txt -e '.[classic,report,video,board]'
	@touch $@

# What the tests and checks need besides.
$(READY): $(INSTALLED)
	@echo "installing what the tests need: about 0.7 GB more"
	$(BIN)/python -m pip install $(PIP) -c constraints.txt -e '.[dev]'
	@touch $@

$(NODES)/.ready: $(READY)
	$(BIN)/python -m venv --clear $(NODES)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(NODES)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main.pth"
	$(NODES)/bin/python -m pip install --quiet -c constraints.txt 'ray>=2.50'
	@touch $@

$(SIMULATORS)/.ready: $(READY)
	$(BIN)/python -m venv --clear $(SIMULATORS)
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> "$$($(SIMULATORS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/main.pth"
	$(SIMULATORS)/bin/python -m pip install --quiet 'gymnax>=1.0.1' six
	@touch $@

$(DOCS)/.ready: $(READY)
	$(BIN)/python -m venv --clear $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet 'mkdocs>=1.6,<2'
	@touch $@
