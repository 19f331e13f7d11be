# The two commands a newcomer needs: `make demo` and `make test`. Each sets up all it needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
export UV_NO_PROGRESS ?= 1

.PHONY: demo test test-pieces test-journeys bench chaos check unit lock clean

$(VENV)/.installed: deploy/locks/dev.txt deploy/locks/uv.txt pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r deploy/locks/uv.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r deploy/locks/dev.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

demo: $(VENV)/.installed  ## run the main job end to end on the embedded real stack
	$(BIN)/rowcall demo

test: check  ## every check and every test, in two halves side by side
	$(MAKE) --no-print-directory --jobs=2 --keep-going test-pieces test-journeys

test-pieces: $(VENV)/.installed  ## what needs at most a Postgres
	$(BIN)/python -m pytest tests/unit tests/meta tests/integration

test-journeys: $(VENV)/.installed  ## what needs the whole stack; told when it has ended
	@mkdir -p build && echo "the journeys run beside it: build/journeys.log"
	@$(BIN)/python -m pytest tests/acceptance tests/crash >build/journeys.log 2>&1; code=$$?; cat build/journeys.log; exit $$code

unit: $(VENV)/.installed  ## the tests that need no service
	$(BIN)/python -m pytest tests/unit tests/meta

check: $(VENV)/.bench  ## format, lint, types (the benchmarks' peers too), import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy

$(VENV)/.bench: $(VENV)/.installed deploy/locks/bench.txt
	$(BIN)/uv pip install --quiet --python $(BIN)/python --require-hashes -r deploy/locks/bench.txt
	touch $@

bench: $(VENV)/.bench  ## writes build/bench.json
	$(BIN)/python -m benchmarks

chaos: $(VENV)/.installed  ## load and faults for CHAOS_SECONDS (600); writes build/chaos.json
	$(BIN)/python -m benchmarks.chaos

lock:  ## refresh the lock files (hashes, no index address)
	for set in runtime "dev --extra local --extra dev" "bench --extra local --extra dev --extra bench"; do \
	  name=$${set%% *}; extras=$${set#$$name}; \
	  $(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-annotate --python-version 3.11 $$extras pyproject.toml -o deploy/locks/$$name.txt; \
	done

clean:
	rm -rf $(VENV) build
