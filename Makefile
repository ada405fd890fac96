# What you can do here. `make` prints this list. CI calls `make test` and nothing else.
.DEFAULT_GOAL := help
SHELL := bash
PYTHON ?= python3
STORE ?= local
INPUT ?=
TS_COLUMN ?= ts
PORT ?=
DATA ?= .run
W ?=
SIZE ?= full
SMALL ?=
SECONDS ?= 600
JOBS ?= 2
FAULTS ?= 0
ROWS ?= 1000000
MINUTES ?= 15
RATE ?= 1
ENGINE ?= spark
KEEP ?=
SEED ?=
VENV := .venv
# What Python compiles stays in .venv, whatever the shell says: without it each process of a test compiles all it imports.
unexport PYTHONDONTWRITEBYTECODE
export PYTHONPYCACHEPREFIX := $(abspath .venv/pycache)
PEERS := .venv-peers
BIN := $(VENV)/bin
UV := $(BIN)/uv
PACKAGES := $(wildcard libs/*) $(wildcard services/*) proto deploy/local sim
PROJECTS := $(PACKAGES:%=%/pyproject.toml)
NODE_FOLDERS := docs/recipes/node docs/recipes/typescript deploy/grafana/schema
SOURCES := libs services sim deploy proto tests bench examples docs conftest.py
FUZZ = $(BIN)/python tests/fuzz/run_fuzz.py --seconds $(SECONDS) --jobs $(JOBS)
# A file's tests stay together, in the order given, so that the long ones come first and servers are shared.
PYTEST := $(BIN)/pytest -q -m 'not soak' --dist loadfile --no-loadscope-reorder --numprocesses
UNIT_TESTS := tests/simulation tests/fuzz tests/compat tests/security tests/bench libs services proto deploy/local/tests
SERVER_TESTS := tests/e2e deploy/tests tests/integration
# Tests with servers wait for two thirds of their time: seven processes keep two cores at work.
WAITING_JOBS = $$(( $(JOBS) * 3 + 1 ))

# Values of tests and documents that look like secrets and are none.
NO_SECRETS := hush|hunter2|pw|icedb_alpha-token-0123456789|9c56cc51b374c3ba[0-9a-f]{48}|e3b0c44298fc1c14[0-9a-f]{48}

.PHONY: audit wheels help install demo up test lint types imports unit integration fuzz soak node engines chaos day cluster containers bench peers format proto dashboards kubernetes docs docs-site concepts pictures editor constraints clean

help: ## print this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | awk -F'\t' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## create .venv and install every package of the workspace, editable

$(UV):
	@echo "creating $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(VENV)/.installed: pyproject.toml constraints.txt $(PROJECTS) | $(UV)
	@echo "installing the workspace"
	@$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group dev $(PACKAGES:%=--editable ./%)
	@touch $@

demo: install ## run the main job on a local stack and check every row; STORE=s3, INPUT=events.ndjson[.gz|.zst] TS_COLUMN=ts, PORT=7000
	@$(BIN)/python -m icedb_local.demo --store $(STORE) $(PORT:%=--port %) $(if $(INPUT),--input '$(INPUT)' --ts-column '$(TS_COLUMN)')

up: install ## keep a local stack running and print how to use it; STORE=s3, PORT=7000 (from there on), DATA=.run (its folder)
	@$(BIN)/python -m icedb_local.up --store $(STORE) --run-dir '$(DATA)' $(PORT:%=--port %)

test: install node ## everything that CI checks; JOBS=2
	@$(MAKE) --no-print-directory -j 2 types $(VENV)/.compiled lint imports
	$(PYTEST) $(WAITING_JOBS) $(SERVER_TESTS) $(UNIT_TESTS)

# What tests import is compiled by one process, beside mypy, and not by each of those that run them.
$(VENV)/.compiled: $(VENV)/.installed
	@$(BIN)/pytest -q -m 'not soak' --collect-only $(SERVER_TESTS) $(UNIT_TESTS) > $@ 2>&1 || true

lint: install ## style of the code, and what bandit finds
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/bandit --quiet --recursive --configfile pyproject.toml libs services deploy

wheels: $(UV) ## build the wheels of what is checked out into dist/ (half a minute; needs no make install)
	@$(BIN)/python deploy/build_wheels.py

audit: lint ## lint, secrets in files (half a minute), and known vulnerabilities of the tested versions (asks PyPI)
	@git ls-files -z -- . ':!deploy/grafana/dashboards' ':!bench/results' ':!*.svg' ':!*_pb2*' ':!tests/compat/golden' \
		| xargs -0 $(BIN)/detect-secrets-hook --no-verify --disable-plugin KeywordDetector --exclude-secrets '^($(NO_SECRETS))$$'
	@$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group audit
	@$(BIN)/pip-audit --disable-pip --no-deps --requirement constraints.txt --progress-spinner off > .audit 2>&1; code=$$?; cat .audit; \
	if [ $$code -ne 0 ] && ! grep -q "^Found .* known vulnerabilit" .audit; then \
		echo "audit: the list of known vulnerabilities could NOT be asked (no network?): nothing is known about them"; fi; \
	rm -f .audit; exit $$code

types: install ## mypy, strict
	$(BIN)/mypy $(wildcard libs/*/src) $(wildcard services/*/src) deploy/local/src sim/src bench

imports: install ## which package may import which
	$(BIN)/lint-imports --config pyproject.toml

unit: install ## tests beside the packages, the simulation, and the wire: no server; JOBS=2
	$(PYTEST) $(JOBS) $(UNIT_TESTS)

integration: install node ## tests with real Redis, S3 over HTTP, Spark, Prometheus, and the whole stack; JOBS=2
	$(PYTEST) $(WAITING_JOBS) $(SERVER_TESTS)

fuzz: install ## fuzz tests with fresh seeds until the time is over, see docs/internals/fuzzing.md; SECONDS=600 JOBS=2
	$(FUZZ)

soak: install node engines ## long tests, then the simulation and fuzzing for as long as asked, be the ones before red; SECONDS=600 JOBS=2
	@trap 'exit 130' INT; code=0; set -x; \
	$(BIN)/pytest -q -m soak tests libs services deploy || code=$$?; \
	$(BIN)/python -m icedb_sim.simulation --seconds $(SECONDS) --jobs $(JOBS) || code=$$?; \
	$(FUZZ) || code=$$?; \
	exit $$code

node: install $(NODE_FOLDERS:%=%/node_modules/.installed) ## npm packages of the Node.js and TypeScript examples, and Grafana's types; Node.js itself from PyPI where there is none

%/node_modules/.installed: %/package.json
	@command -v npm >/dev/null || { echo "installing Node.js"; $(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group node; }
	@cd $* && PATH="$$PATH:$(abspath $(BIN))" npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

editor: ## build the console's SQL editor and charts again from npm, at the versions of services/console/editor/package.json
	cd services/console/editor && npm install --no-package-lock --ignore-scripts --no-audit --no-fund --loglevel=error && npm run --silent build

engines: install ## what only long tests ask: ClickHouse in a Python package, 180 MB, Daft, Go and a generator of clients, 105 MB
	@$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group engines
	@# Its wheel asks for an older Arrow than ours, and works with this one.
	@$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --no-deps daft

chaos: install ## let a whole stack fail in every way, and check every row; SECONDS=300, FAULTS=0 (any number), SEED= (a fresh one)
	@$(BIN)/python -m icedb_local.chaos --seconds $(if $(filter file,$(origin SECONDS)),300,$(SECONDS)) --faults $(FAULTS) $(if $(SEED),--seed $(SEED))

day: install ## let a stack live through a day of 15 minutes, account for every row, and draw it: build/day; MINUTES=15 (1440: real hours), RATE=1, ENGINE=spark (or light)
	@$(BIN)/python -m icedb_local.day --minutes $(MINUTES) --rate $(RATE) --engine $(ENGINE) $(if $(SEED),--seed $(SEED))

cluster: install ## what Spark does on three machines (namespaces of the kernel, as root), and what they lose in the middle of it; five minutes
	$(BIN)/pytest -q -m soak tests/integration/cluster

containers: install ## start the whole of deploy/compose.yaml in containers, kill and restart them under load, and check every row; ROWS=1000000, KEEP=1 (images stay)
	@$(UV) pip install --quiet --python $(BIN)/python --constraints constraints.txt --group containers
	@$(BIN)/python -m icedb_local.containers --rows $(ROWS) $(if $(KEEP),--keep) $(if $(SEED),--seed $(SEED))

peers: $(PEERS)/.installed ## create .venv-peers, the environment of those that benchmarks compare us with

$(PEERS)/.installed: pyproject.toml constraints-peers.txt | $(VENV)/.installed
	@test -x $(PEERS)/bin/python || $(UV) venv --quiet --python $(BIN)/python $(PEERS)
	@$(UV) pip install --quiet --python $(PEERS)/bin/python --constraints constraints-peers.txt --group peers
	@touch $@

bench: install peers ## us and the peers, in turns: docs/benchmarks.md; W="merge ingest" (all), SIZE=full (an hour), middle (25 minutes) or small, SMALL=1
	$(BIN)/python -m bench $(W) --size $(if $(SMALL),small,$(SIZE))

format: install ## let ruff format and mend what it can
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)

proto: install ## generate the gRPC stubs
	$(BIN)/python proto/generate.py

dashboards: install ## generate the Grafana dashboards
	$(BIN)/python deploy/grafana/dashboards.py

kubernetes: install ## write the rules of deploy/kubernetes from deploy/prometheus/rules
	$(BIN)/python deploy/kubernetes/prometheus_rules.py

docs: install ## generate docs/metrics.md, docs/settings.md, docs/dashboards.md, docs/schemas, the list of decisions, the rules table of docs/protocol.md and the figures of docs/internals/testing.md
	$(BIN)/python docs/reference.py

concepts: install ## count what one has to hold in mind: rules, kinds of objects, commands, options, circles, lines
	@$(BIN)/python docs/concepts.py

docs-site: install ## build the documentation as a site into site/; to read it with search: python3 -m http.server -d site
	@$(BIN)/python docs/build_site.py

pictures: install ## draw docs/pictures from the running thing: the first use, the dashboards (five minutes)
	@$(BIN)/python docs/pictures.py

constraints: install peers ## write the tested versions down, names and versions only
	@{ head -1 constraints.txt; $(UV) pip freeze --python $(BIN)/python --exclude-editable | grep -vE '^(pip|uv|setuptools)='; } > constraints.new
	@mv constraints.new constraints.txt
	@{ head -1 constraints.txt; $(UV) pip freeze --python $(PEERS)/bin/python; } > constraints.new
	@mv constraints.new constraints-peers.txt

clean: ## remove the environment and what the tools left
	rm -rf $(VENV) $(PEERS) $(NODE_FOLDERS:%=%/node_modules) .demo .run .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache build/docs site
