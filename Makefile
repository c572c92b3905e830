# Two commands: `make demo` and `make test`. Each makes .venv, installs what it needs (once), and runs.
# Another build of torch (CUDA, ROCm): make demo TORCH="torch==2.13.0 --index-url ..."  or  TORCH=torch
PYTHON ?= python3
VENV   ?= .venv
TORCH  ?= torch==2.13.0
WORKERS ?= auto
BIN     = $(VENV)/bin
PIP     = $(BIN)/python -m pip install --quiet --disable-pip-version-check

.DEFAULT_GOAL := help
.PHONY: help demo test slow notebooks check format docs package bench clean

help:            ## list what there is
	@grep -E '^[a-z]+: .*## ' Makefile | sed -E 's/^([a-z]+):.*## /  make \1\t/' | expand -t 18

demo: $(VENV)/.ready-demo    ## train, probe and report on real data, in under two minutes
	$(BIN)/dissensus demo

test: $(VENV)/.ready-test    ## the whole fast suite
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m "not slow" $(ARGS)

slow: $(VENV)/.ready-test    ## the long studies
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) -m slow $(ARGS)

notebooks: $(VENV)/.ready-test ## execute the notebooks from their scripts; REFRESH=1 writes the .ipynb files
	$(BIN)/python .ci/notebooks.py $(if $(REFRESH),--refresh) $(ARGS)

check: $(VENV)/.ready-dev    ## format, lint, types, import contract, docs
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/mkdocs build --strict --quiet
	! grep -rq 'class="arithmatex"' site  # a formula that did not become MathML

format: $(VENV)/.ready-dev   ## put every file into house form
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

docs: $(VENV)/.ready-dev     ## serve the documentation on this machine
	$(BIN)/mkdocs serve

package: $(VENV)/.ready-dev  ## build sdist and wheel and check what is inside
	rm -rf dist && $(BIN)/python -m build --quiet
	$(BIN)/python tests/repository/check_wheel.py dist

bench: $(VENV)/.ready-test   ## speed, as ratios
	$(BIN)/dissensus bench theory

clean:           ## remove the virtual environment and everything built
	rm -rf $(VENV) build dist site .pytest_cache .hypothesis .ruff_cache src/*.egg-info

$(VENV)/.ready-base:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "dissensus needs Python 3.11 or newer; say which: make PYTHON=python3.11" >&2; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) $(TORCH)
	@touch $@

$(VENV)/.ready-demo $(VENV)/.ready-test $(VENV)/.ready-dev: $(VENV)/.ready-%: pyproject.toml $(VENV)/.ready-base
	$(PIP) -e ".[$*]"
	@touch $@
