# Two commands are all one needs: `make serve` and `make test`. Both do their own set-up.

.DEFAULT_GOAL := help
PYTHON ?= python3
JOBS ?= 2
BIN := .venv/bin
READY := .venv/.ready

.PHONY: help serve test check format bench setup clean

help:  ## Show what can be made
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

serve: $(READY)  ## Set up what is missing, and serve on http://127.0.0.1:8000 (HOST, PORT, KHALA_HOME)
	@exec $(BIN)/khala serve

test: $(READY) browser  ## Set up what is missing, and run all tests, JOBS at once
	@$(BIN)/python -m pytest -n $(JOBS) $(ARGS)

check: $(READY)  ## Lint, types, import contracts
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: $(READY)  ## Bring the code into shape
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: $(READY)  ## Measure the way of a token, beside a bare broadcast
	@$(BIN)/python -m tests.bench $(ARGS)

setup: $(READY)  ## Only set up

clean:  ## Remove what was set up here; data stays
	rm -rf .venv .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .cache

$(READY): pyproject.toml uv.lock
	@sh infra/setup.sh $(PYTHON)
	@touch $@

.PHONY: browser
browser:
	@sh infra/browser.sh
