# What you can do here. `make` prints this list.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
STORE ?= local
VENV := .venv
BIN := $(VENV)/bin
UV := $(BIN)/uv
PACKAGES := $(wildcard libs/*) $(wildcard services/*) proto deploy/local
PROJECTS := $(PACKAGES:%=%/pyproject.toml)
SOURCES := libs services deploy proto tests bench

.PHONY: help install
help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## create .venv and install every package of the workspace, editable

$(VENV)/.installed: pyproject.toml constraints.txt $(PROJECTS)
	test -x $(UV) || { $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install --quiet --disable-pip-version-check uv; }
	$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group dev $(PACKAGES:%=--editable ./%)
	touch $@
