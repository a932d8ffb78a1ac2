# make demo         install what the commands need, then train all twelve algorithms on embedded data
# make test         install what developers need too, then run the whole test suite
# make test-all     install transformers, accelerate, lightning, trackers and torchft too, then test what needs them, and the README
# make docs         install Sphinx too, build the site into docs/_build/html (warnings are errors), then test it
# make dist         build wheel and sdist, check them, and try the wheel and every extra in an empty environment
# make lock         write requirements-dev.lock again: the development environment with hashes
# make check        the same install as for test, then format check, lint, types
# make install, install-dev, install-all   the installs alone
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The installs share one environment; a larger one holds the smaller.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
ALL_STAMP := $(VENV)/.installed-all
DOCS_STAMP := $(VENV)/.installed-docs
TRY := build/try

.PHONY: install install-dev install-all demo test test-all check format docs dist lock clean

# pip would compile all of torch, most of which the demo never imports: that took two thirds of its time. The tests start
# many processes, and where PYTHONDONTWRITEBYTECODE is set each of them would compile again: there it is done once, at last.
# What cannot be compiled (packages ship files for other versions of Python) is not imported either.
define install-extras
@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(f"lasg needs Python 3.11 or newer, this is {v[0]}.{v[1]}: make PYTHON=python3.12 ...") if v < (3, 11) else None'
$(PYTHON) -m venv $(VENV)
$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[$(EXTRAS)]'
endef

install: $(STAMP)

install-dev: $(DEV_STAMP)

install-all: $(ALL_STAMP)

$(STAMP): EXTRAS := data,plot,coding
$(STAMP): pyproject.toml constraints.txt
	$(install-extras)
	@touch $@

$(DEV_STAMP): EXTRAS := dev
$(DEV_STAMP): pyproject.toml constraints.txt
	$(install-extras)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $(STAMP) $@

$(ALL_STAMP): EXTRAS := dev,huggingface,lightning,wandb,mlflow,trackio,elastic
$(ALL_STAMP): pyproject.toml constraints.txt
	$(install-extras)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $(STAMP) $(DEV_STAMP) $@

$(DOCS_STAMP): EXTRAS := dev,docs
$(DOCS_STAMP): pyproject.toml constraints.txt
	$(install-extras)
	@touch $(STAMP) $(DEV_STAMP) $@

demo: install
	$(BIN)/lasg demo

# The tests start hundreds of processes. Where PYTHONDONTWRITEBYTECODE is set, each would compile lasg again.
test: install-dev
	$(BIN)/python -m compileall -qq -j 0 src
	$(BIN)/python -m pytest -n auto

test-all: install-all
	LASG_TEST_ALL=1 $(BIN)/python -m pytest tests/adapters tests/loops/test_frameworks.py tests/trackers tests/elastic \
	    tests/package/test_readme.py tests/transports/test_large_models.py

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

docs: $(DOCS_STAMP)
	$(BIN)/python -m sphinx -q -W --keep-going -b html docs docs/_build/html
	$(BIN)/python -m pytest tests/website

# The wheel is tried where nothing else is: with the pinned versions, then with every extra. One extra after the other,
# so that an import which only works by luck of another extra is found.
dist: install
	rm -rf dist $(TRY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[release]'
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(PYTHON) -m venv $(TRY)
	$(TRY)/bin/python tests/package/try_wheel.py dist constraints.txt

# Which files torch and what it brings for GPUs are depends on the machine: these are not in the lock file.
NOT_LOCKED := cuda-bindings cuda-pathfinder cuda-toolkit nvidia-cublas nvidia-cuda-cupti nvidia-cuda-nvrtc \
    nvidia-cuda-runtime nvidia-cudnn-cu13 nvidia-cufft nvidia-cufile nvidia-curand nvidia-cusolver nvidia-cusparse \
    nvidia-cusparselt-cu13 nvidia-nccl-cu13 nvidia-nvjitlink nvidia-nvshmem-cu13 nvidia-nvtx torch triton

lock: install-dev
	$(BIN)/uv pip compile pyproject.toml --quiet --all-extras --python-version 3.11 --universal --generate-hashes \
	    --no-header --no-annotate --constraint constraints.txt $(addprefix --no-emit-package ,$(NOT_LOCKED)) \
	    --output-file requirements-dev.lock

format: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist docs/_build
