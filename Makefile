# The two commands of the README are `make results` and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROFILE ?= quick
# BIN=$CONDA_PREFIX/bin: the programs of an environment that is there already
READY := $(if $(filter command,$(firstword $(origin BIN))),,$(VENV)/installed)

export PYTHONDONTWRITEBYTECODE := 1
# recipes read these from the environment, so that nothing in them is a command of the shell
export PROFILE ONLY

.PHONY: results executed test test-all slurm-test test-gpu lint pytest pytest-all nbval notebooks update-golden site lab lock install clean

# ONLY=00_tour,10_pfml_retrieval: these notebooks. It fails where a committed table is not what they make now
results: executed
	@$(BIN)/python -m experiments summary "build/$$PROFILE"

executed: $(READY)
	$(BIN)/python workflow/build.py "$$PROFILE" "$$ONLY"

test: lint pytest nbval

test-all: lint pytest-all nbval

install: $(READY)

# pip refuses an editable path beside hashes, so the package itself comes second, without dependencies; compat puts this
# folder on the path, so that experiments, which no wheel holds, is importable from any other
$(VENV)/installed: requirements.lock pyproject.toml
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("dmlrepro needs Python 3.11 or newer, this is " + sys.version)'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --config-settings editable_mode=compat --no-deps --no-build-isolation --editable .
	@touch $@

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

pytest: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope -m "not slow" tests

pytest-all: $(READY)
	$(BIN)/python -m pytest -n auto --dist loadscope tests

# CUDA against CPU; where there is no GPU every test says that it is skipped
test-gpu: $(READY)
	$(BIN)/python -m pytest -rs tests/gpu

# an empty cache and a results folder of its own: the notebooks really train, and nothing committed is touched;
# FRESH=--keep-cache takes the runs that another target has just trained in a clean clone
FRESH ?=
nbval: $(READY)
	$(BIN)/python workflow/fresh.py $(FRESH) $(sort $(wildcard notebooks/*.ipynb))

# what is committed, outputs and golden values, is of profile quick, whatever the command line says
notebooks update-golden: override PROFILE := quick

# executed copies replace the committed notebooks, outputs included, with the tables and costs of the same execution, and
# what pages say of results/ is written anew; a notebook that tells of all results/ is executed when these lie there
notebooks: executed
	$(BIN)/python -m experiments publish --everything build/quick $$(echo "$$ONLY" | tr , ' ')
	$(BIN)/python workflow/build.py quick "$$ONLY"
	$(BIN)/python workflow/install_notebooks.py build/quick notebooks
	$(BIN)/python -m experiments report

# the workflow on a SLURM cluster of this one machine; SLURM itself: sudo .venv/bin/python tests/slurm/cluster.py
slurm-test: $(READY)
	$(BIN)/python -m pip install --no-deps --require-hashes -r workflow/profiles/slurm/requirements.txt
	$(BIN)/python -m pytest -rs tests/slurm

update-golden: executed
	$(BIN)/python -m experiments update-golden $$(echo "$$ONLY" | tr , ' ')
	$(BIN)/python -m experiments report

# the documentation, to read offline: build/site/index.html; a warning or a broken link is an error
site: $(READY)
	$(BIN)/sphinx-build -W --keep-going -q -j auto -d build/site-doctrees -b html -c docs . build/site

lab: $(READY)
	$(BIN)/jupyter lab --notebook-dir=. notebooks/00_tour.ipynb

lock:
	uv pip compile pyproject.toml --all-extras --universal --python-version 3.11 --generate-hashes \
	  --no-emit-index-url --no-annotate --no-header --output-file requirements.lock

clean:
	rm -rf build .cache .snakemake
