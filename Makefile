# make demo         install what the commands need, then train all twelve algorithms on embedded data
# make test         install what developers need too, then run the whole test suite
# make test-all     install transformers, accelerate and lightning too, then test the adapters for them
# make check        the same install as for test, then format check, lint, types
# make install, install-dev, install-all   the installs alone
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# The installs share one environment; a larger one holds the smaller.
STAMP := $(VENV)/.installed
DEV_STAMP := $(VENV)/.installed-dev
ALL_STAMP := $(VENV)/.installed-all

.PHONY: install install-dev install-all demo test test-all check format clean

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

$(ALL_STAMP): EXTRAS := dev,huggingface,lightning
$(ALL_STAMP): pyproject.toml constraints.txt
	$(install-extras)
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib || true
	@touch $(STAMP) $(DEV_STAMP) $@

demo: install
	$(BIN)/lasg demo

test: install-dev
	$(BIN)/python -m pytest -n auto

test-all: install-all
	$(BIN)/python -m pytest tests/adapters tests/loops/test_frameworks.py

check: install-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

format: install-dev
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
