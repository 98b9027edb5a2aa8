# rlteach: one line for each thing to do. `make` alone lists them.
#
# Each target works alone from a fresh clone: python3 (3.11 or later) and make are all that has to
# be there. Without make, the README's three pip lines do the same.

PYTHON ?= python3
VENV ?= .venv
TORCH_INDEX ?=
TARGETS ?=

PY := $(VENV)/bin/python
PIP := $(PY) -m pip install --disable-pip-version-check -c constraints.txt \
       $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX))

# A stamp says that its set of packages is installed as a whole. While an install runs there is no
# stamp, so one that was broken off is begun again from an empty environment: pip would take a
# half-copied package for an installed one.
CORE := $(VENV)/.core-installed
FULL := $(VENV)/.full-installed
$(shell [ -x $(PY) ] || rm -f $(CORE) $(FULL))

.DEFAULT_GOAL := help
.PHONY: help demo test lessons notebooks gate lab lint models bench offline-bundle

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "%-16s%s\n", $$1, $$2 }' Makefile
	@echo
	@echo "variables: PYTHON=python3.12       the Python that makes $(VENV) (remove $(VENV) to change it)"
	@echo "           TORCH_INDEX=URL         one more package index, such as the PyTorch CPU index"
	@echo "           VENV=DIR                where the packages go"
	@echo "           TARGETS='MACHINE:PYTHON ...'  whom offline-bundle is for, such as windows-x86_64:3.12"

demo: $(CORE)  ## train the tiny model: about a minute, no GPU, no hub, no key
	$(VENV)/bin/rlteach train tiny

test: $(FULL)  ## unit tests, then every lesson run and its outputs compared
	$(PY) -m pytest
	$(PY) -m pytest --nbval notebooks

lessons: $(FULL)  ## only the lessons: each is run and its outputs compared
	$(PY) -m pytest --nbval notebooks

notebooks: $(FULL)  ## build the lessons again from notebooks/src
	$(PY) notebooks/build.py

gate: $(FULL)  ## the long checks: learning runs, a fresh clone, the built wheel
	$(PY) scripts/gate.py
	$(PY) scripts/check_wheel.py

lab: $(FULL)  ## JupyterLab on the lessons
	$(PY) -m jupyterlab notebooks --LabApp.default_url=/lab/tree/00_three_roles_one_loop.ipynb

lint: $(FULL)  ## ruff
	$(PY) -m ruff check .

models: $(FULL)  ## make data/ again from its seeds: prompts, models, measured pass rates
	$(PY) scripts/build_data.py
	$(PY) scripts/build_models.py
	$(PY) scripts/build_data.py --measure
	$(PY) scripts/build_judge.py
	$(PY) scripts/build_search.py
	$(PY) scripts/build_agent.py
	$(PY) scripts/build_templates.py

bench: $(FULL)  ## measure, and write benchmarks/results
	$(PY) benchmarks/run.py
	$(PY) benchmarks/grading.py
	$(PY) benchmarks/serving.py --kind 80
	$(PY) benchmarks/serving.py --kind free
	$(PY) benchmarks/serving.py --model tiny-judge --kind verdict
	$(PY) benchmarks/live_view.py

offline-bundle: $(FULL)  ## a folder for a USB stick: rlteach and all it needs, installed without a network
	$(PY) scripts/offline_bundle.py $(if $(TORCH_INDEX),--extra-index-url $(TORCH_INDEX)) \
	    $(foreach target,$(TARGETS),--target $(target))

# torch comes first, alone: the constraint then settles which build of it everything else gets.
$(CORE): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "rlteach needs Python 3.11 or later: make PYTHON=python3.12 ..." >&2; exit 1; }
	@if [ -f $@ ]; then rm -f $@ $(FULL); else $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "could not make $(VENV): on Debian and Ubuntu, install python3-venv first" >&2; exit 1; }; fi
	$(PIP) torch
	$(PIP) -e .
	@touch $@

$(FULL): $(CORE)
	@rm -f $(CORE) $@
	$(PIP) -e ".[notebook,test]"
	@touch $(CORE) $@
