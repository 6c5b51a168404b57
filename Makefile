# `make serve` runs Khala and `make test` tests it. Both first set up what is missing.

.DEFAULT_GOAL := help
PYTHON ?= python3
JOBS ?= 3
BIN := .venv/bin
READY := .venv/.ready

# Let Python write compiled code; otherwise each process compiles all its imports, which takes three seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help serve test check lint types page packages format gallery bench bench-compare bench-page scale eval chaos conformance clients mutate web web-dev docs setup collect clean

help:  ## List the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-13s %s\n", $$1, $$2}'

serve: $(READY) web  ## Set up what is missing, and serve on http://127.0.0.1:8000 (HOST, PORT, KHALA_HOME)
	@exec $(BIN)/khala serve

test: $(READY) web programs  ## Set up what is missing, and run all tests, JOBS at once
	@$(BIN)/python infra/web.py test
	@$(BIN)/python infra/typescript_clients.py test
	@$(BIN)/python -m pytest -n $(JOBS) --dist worksteal $(ARGS)

# The processes of `make test` would compile all modules of tests at once, each for itself.
collect: $(READY) web programs  ## Collect all tests, which compiles their modules
	@mkdir -p .cache
	@$(BIN)/python -m pytest --collect-only -qq >.cache/collected || { cat .cache/collected; exit 1; }

check: lint types page packages  ## Lint, types, import contracts

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/python infra/frames.py --check
	@$(BIN)/python infra/python_client.py --check
	@$(BIN)/python infra/configuration.py --check
	@$(BIN)/python infra/clients.py --check
	@$(BIN)/python infra/check_names.py

types: $(READY)
	@$(BIN)/mypy

page: $(READY)
	@$(BIN)/python infra/web.py check

packages: $(READY)
	@$(BIN)/python infra/typescript_clients.py check

format: $(READY)  ## Format the code
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

gallery: $(READY) browser  ## Serve all components in all states on port 8010, or accept how they look (ARGS=--accept)
	@$(BIN)/python -m tests.gallery $(ARGS)

bench: $(READY)  ## Measure the path of a token, beside a bare broadcast and a naive implementation (ARGS)
	@$(BIN)/python -m tests.bench $(ARGS)

bench-compare: $(READY)  ## Repeat the measurements in ARGS=SAVED.json, and report what is worse
	@$(BIN)/python -m tests.bench.compare $(ARGS)

bench-page: $(READY) web browser  ## Measure how text and letters appear, the page in a storm of updates, and its memory
	@$(BIN)/python -m tests.bench.page $(ARGS)

scale: $(READY)  ## Fill a large database and measure what grows with it (ARGS="--threads 5000 --targets")
	@$(BIN)/python -m tests.scale $(ARGS)

eval: $(READY)  ## Measure how well memories, agents and tools are found (ARGS="memories --half tune --misses")
	@$(BIN)/python -m tests.eval $(ARGS)

chaos: $(READY)  ## Inject random faults, and check that Khala keeps its promises (ARGS="--seed 7 --minutes 3")
	@$(BIN)/python -m tests.chaos $(ARGS)

conformance: $(READY)  ## Run the conformance tests of Durable Streams and MCP (ARGS="mcp tools-call" or ARGS="streams Fork")
	@$(BIN)/python -m tests.clients.conformance $(ARGS)

clients: $(READY) browser  ## Run published clients against a server, and write docs/clients.md (ARGS="litellm llm")
	@$(BIN)/python -m tests.clients.matrix $(ARGS)
	@$(BIN)/python infra/clients.py

mutate: $(READY)  ## Put listed faults into copies of the source, and check that tests fail (ARGS="--only NAME")
	@$(BIN)/python infra/typescript_clients.py install
	@$(BIN)/python -m tests.mutants $(ARGS)

web: $(READY)  ## Build the page if its sources have changed
	@$(BIN)/python infra/web.py build

web-dev: $(READY)  ## Serve the page with hot reload, beside a running server (KHALA_URL)
	@$(BIN)/python infra/web.py dev

docs: $(READY)  ## Build the documentation site into .cache/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs --quiet build --config-file infra/mkdocs.yml
	@echo "The documentation is at .cache/site/index.html"

setup: $(READY)  ## Only set up .venv

clean:  ## Remove .venv, caches and builds; data stays
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .cache app/web/node_modules app/web/dist app/clients/typescript/node_modules app/clients/typescript/*/dist

$(READY): pyproject.toml uv.lock
	@sh infra/setup.sh $(PYTHON)
	@touch $@

.PHONY: browser services programs
browser:
	@sh infra/browser.sh

services:
	@sh infra/services.sh

# One after the other, because only one process can install Debian's packages.
programs:
	@sh infra/browser.sh
	@sh infra/services.sh
