# make demo | build | test | test-all | test-mpich | lint | format | clean
# Each target alone is enough on a fresh clone: Python 3.11 and a C++ compiler, the rest from pip.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
MPICH_VENV := .venv-mpich
CPP_BUILD := build/cpp
CPP_SOURCES := $(shell find src tests/cpp -name '*.cc' -o -name '*.h')
CMAKE_FILES := CMakeLists.txt $(shell find src cmake tests/cpp -name 'CMakeLists.txt' -o -name '*.cmake')
PYTEST := $(BIN)/python -m pytest
QUICK := not models and not slow and not bench
# Tests that start no ranks share the two cores; those that do have both.
ONE_PROCESS := tests/python/unit tests/python/numeric tests/python/gpu
# torch by exact pin: any other request may bring a CUDA build of several gigabytes.
TOOLS := torch==2.13.0 apache-tvm-ffi==0.1.14.post1 scikit-build-core==1.1.2 cmake==4.4.5 ninja==1.13.2

.PHONY: demo build test test-cpp test-python test-all test-mpich lint format clean

demo: build
	$(BIN)/python tutorials/quickstart.py

build: $(INSTALLED)

$(INSTALLED): pyproject.toml $(CMAKE_FILES) $(CPP_SOURCES)
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet $(TOOLS)
	PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/pip install --quiet --no-build-isolation -e '.[torch,mpi,xgboost,gnn,plot,models,cuda,dev]'
	touch $@

test: test-cpp test-python

test-cpp: build
	PATH="$(CURDIR)/$(BIN):$$PATH" tests/cpp/run.sh $(CPP_BUILD)

test-python: build
	tests/python/shared/install_browser.sh
	$(PYTEST) -n 2 --dist loadfile -m '$(QUICK)' $(ONE_PROCESS)
	$(PYTEST) -m '$(QUICK)' tests/python/distributed

test-all: test-cpp
	tests/python/shared/install_browser.sh
	$(PYTEST)

# The wheels of Open MPI and MPICH overwrite each other's files, hence an environment of its own.
test-mpich: $(MPICH_VENV)/.installed
	$(MPICH_VENV)/bin/python -m pytest -m 'not models and not slow and not bench' tests/python/distributed

$(MPICH_VENV)/.installed: pyproject.toml $(CMAKE_FILES) $(CPP_SOURCES)
	test -x $(MPICH_VENV)/bin/python || $(PYTHON) -m venv $(MPICH_VENV)
	$(MPICH_VENV)/bin/pip install --quiet $(TOOLS)
	PATH="$(CURDIR)/$(MPICH_VENV)/bin:$$PATH" $(MPICH_VENV)/bin/pip install --quiet --no-build-isolation --config-settings=build-dir=build/mpich -e '.[torch,mpich,dev]'
	touch $@

lint: build
	$(BIN)/ruff check --no-cache .
	$(BIN)/ruff format --no-cache --check .
	$(BIN)/mypy
	$(BIN)/clang-format --dry-run -Werror $(CPP_SOURCES)

format: build
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/clang-format -i $(CPP_SOURCES)

clean:
	rm -rf build $(VENV) $(MPICH_VENV)
